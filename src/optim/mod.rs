//! How parameters move: optimizers and the schedules of their learning rate.

pub mod schedule;
