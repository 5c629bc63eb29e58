//! The ops as methods of [`crate::Tensor`] and [`crate::Tracer`], by family.

pub(crate) mod body;
pub(crate) mod case;
mod control;
pub(crate) mod convolution;
mod custom_call;
pub(crate) mod custom_vjp;
mod dot;
mod elementwise;
pub(crate) mod gather;
pub(crate) mod pooling;
mod reduce;
mod scan;
mod shape;
pub(crate) mod threefry;
pub(crate) mod top_k;

pub use case::Branch;
pub use convolution::{Convolution, ConvolutionDims};
pub use custom_call::{CustomCall, Layouts};
pub use custom_vjp::CustomVjp;
pub use elementwise::Operand;
pub use pooling::Window;
pub use threefry::Threefry;
