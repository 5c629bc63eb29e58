//! Layers, one a file.

mod batch_norm;
mod conv2d;
mod dropout;
mod layer_norm;
mod linear;
mod mlp_block;
mod pooling;

pub use batch_norm::{BatchNorm, batch_norm};
pub use conv2d::{Conv2d, conv2d};
pub use dropout::dropout;
pub use layer_norm::layer_norm;
pub use linear::linear;
pub use mlp_block::{MlpBlock, mlp_block};
pub use pooling::{avg_pool, global_avg_pool, max_pool};
