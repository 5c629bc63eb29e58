//! Trainings in this process, on the CPU plugin, which is installed if need be:
//!
//! - `lockstep`: N replicas compute what one computes on the whole batch, bit for bit alike in each
//!   run
//! - `meshes`: the same training on any mesh, replicated and sharded; `zero`: what the stages send
//!   and hold
//! - `interpreted`: every pair of mesh, stage, model and optimizer in the interpreter;
//!   `LOCKSTEP_FULL=1` for the whole product
//! - `same_batch`: microbatches of a fixed size, on numbers of replicas that do not divide them
//! - `gpt`, `resnet`, `stacked`: the ways to run blocks, batch norm over replicas, scanned blocks
//! - `host_collectives`, `host_kernels`: what this process computes for the CPU backend
//! - `checkpoints`: a run that is continued is the run that was not interrupted
//! - `comm`: what a way to sum gradients keeps from step to step; `compression`: those that send a
//!   part of them
//! - `local_steps`: replicas that train on their own between outer steps
//! - `wire`: algorithms of sums, and sums in fewer bits
//! - `tensor`: layers that are cut over an axis; `pipeline`: blocks that are cut into stages
//! - `observed`: what some steps measure besides; `noise_scale`: the batch that the noise of
//!   gradients suggests
//! - `nonfinite`, `faults`, `model_metrics`: steps that are skipped, what ends a run, metrics of a
//!   model
//! - `xnnpack`: fusions that block workers of the plugin

#[path = "../support/mod.rs"]
mod support;

mod checkpoints;
mod comm;
mod compression;
mod faults;
mod gpt;
mod host_collectives;
mod host_kernels;
mod interpreted;
mod local_steps;
mod lockstep;
mod meshes;
mod model_metrics;
mod noise_scale;
mod nonfinite;
mod observed;
mod pipeline;
mod resnet;
mod same_batch;
mod stacked;
mod tensor;
mod wire;
mod xnnpack;
mod zero;
