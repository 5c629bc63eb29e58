//! Layers and architectures, written for one device.

pub mod mlp;
