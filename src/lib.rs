//! Synchronous distributed training on XLA.

pub mod config;
pub mod data;
pub mod optim;
pub mod pjrt;
