//! What can be done with tensors, by family.

mod control;
mod dot;
mod elementwise;
pub(crate) mod gather;
mod reduce;
mod scan;
mod shape;

pub use elementwise::Operand;
