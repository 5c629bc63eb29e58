//! Layers, one a file.

mod dropout;
mod layer_norm;
mod linear;
mod mlp_block;

pub use dropout::dropout;
pub use layer_norm::layer_norm;
pub use linear::linear;
pub use mlp_block::{MlpBlock, mlp_block};
