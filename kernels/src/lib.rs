//! CPU kernels on slices, on one pool of threads.
//!
//! Results depend on the processor's instruction set and caches, but not on the number of threads:
//! work is cut into tasks by shapes alone, each element is computed by one task, and sums over
//! tasks are added in the order of their numbers.
//!
//! Tensors are row-major slices. Functions panic if a slice is shorter than the shape says: callers
//! check shapes.

mod attention;
mod convolution;
mod element;
mod gemm;
mod max_pool;
mod pool;
mod sum;
mod threefry;
mod vectors;

pub use attention::{Attention, Dropout, Forward, Gradients, QueriesKeysValues, Real};
pub use convolution::Convolution;
pub use element::Element;
pub use gemm::{Product, Scalar};
pub use max_pool::MaxPool;
pub use pool::{Helpers, Pool};
pub use sum::sum_rows;
pub use threefry::RandomBits;
