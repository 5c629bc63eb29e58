//! What all processes of a run must agree on before they can run one program: [`device_order`] says which
//! device runs which replica. And the collectives of the CPU backend that this process computes: see [`Rendezvous`].

mod device_order;
mod host_collectives;

pub use device_order::{PlacedDevice, device_order, fsdp_line};
pub use host_collectives::Rendezvous;
