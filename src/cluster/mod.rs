//! What all processes of a run must agree on before they can run one program: [`device_order`] says which
//! device runs which replica.

mod device_order;

pub use device_order::{PlacedDevice, device_order, fsdp_line};
