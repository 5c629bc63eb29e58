//! Compares Lockstep's numbers with those of other programs.
//!
//! | file | what is compared | with |
//! |---|---|---|
//! | `mlp_step` | two steps of an MLP with SGD and AdamW, for each split of the batch | JAX, optax |
//! | `model_steps` | a step of GPT and of ResNet-20: loss, gradients, parameters, running means | PyTorch |
//! | `checkpoints` | logits of GPT-2 and of ResNet-50 from other programs' checkpoints, and what is exported from these | Hugging Face, torchvision |
//! | `optimizers` | ten updates of each optimizer | optax |
//! | `schedules` | learning rates at every step | optax, Hugging Face, PyTorch |
//!
//! The `.py` files next to them compute the numbers and record the versions; their output is there,
//! too. `drawn` computes the parameters and batches that both sides start from. `exported_gpt2.py`
//! is run by hand: it loads a GPT that Lockstep has trained in transformers.

#[path = "../support/mod.rs"]
mod support;

mod checkpoints;
mod drawn;
mod encoders;
mod mlp_step;
mod model_steps;
mod optimizers;
mod schedules;
