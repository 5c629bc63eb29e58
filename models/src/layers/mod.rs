//! Layers, one per file.
//!
//! A layer marks values that are cheaper to store than to compute again
//! ([`hlo::Tensor::fusion_barrier`]), and brings its own gradient where the derived one is slow
//! ([`hlo::Tracer::custom_vjp`]: softmax, batch norm, ReLU).

mod attention;
mod batch_norm;
mod conv2d;
mod dropout;
mod embedding;
mod feed_forward;
mod layer_norm;
mod linear;
mod mlp_block;
mod pooling;
mod relu;
mod rms_norm;
mod rotary;

pub use attention::{Attention, attention};
pub use batch_norm::{BatchNorm, batch_norm};
pub use conv2d::{Conv2d, conv2d};
pub use dropout::dropout;
pub use embedding::{Embedding, embedding};
pub use feed_forward::{feed_forward, gelu, gelu_exact, silu, swiglu};
pub(crate) use layer_norm::LAYER_NORM_EPSILON;
pub use layer_norm::{layer_norm, layer_norm_with};
pub use linear::{column_linear, linear, linear_between, row_linear};
pub use mlp_block::{MlpBlock, mlp_block};
pub use pooling::{avg_pool, global_avg_pool, max_pool};
pub use relu::relu;
pub use rms_norm::rms_norm;
pub use rotary::{Rotary, rotary};
