//! Numbers made by other programs, and ours beside them.
//!
//! | file | what agrees | made by |
//! |---|---|---|
//! | `mlp_step` | two steps of an MLP with each optimizer, however they are cut | JAX, optax |
//! | `model_steps` | a step of GPT and of ResNet-20: loss, gradients, parameters, running means | PyTorch |
//! | `checkpoints` | logits of GPT-2 and of ResNet-50 from other programs' checkpoints | Hugging Face, torchvision |
//!
//! The `.py` file of the same name says how and with which versions; what it wrote lies beside it. `drawn`
//! computes parameters and batches that both sides start from.

#[path = "../support/mod.rs"]
mod support;

mod checkpoints;
mod drawn;
mod mlp_step;
mod model_steps;
