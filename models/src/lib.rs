//! Layers and architectures, written for one device.
