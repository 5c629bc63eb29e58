//! Synchronous distributed training on XLA.

pub mod cli;
pub mod config;
pub mod data;
pub mod observe;
pub mod optim;
pub mod parallel;
pub mod pjrt;
pub mod recipe;
pub mod step;
pub mod targets;
pub mod train;
