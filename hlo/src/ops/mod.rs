//! What can be done with tensors, by family.

mod control;
mod dot;
mod elementwise;
mod reduce;
mod shape;

pub use elementwise::Operand;
