//! Tracing to StableHLO with types that know where replicas may differ.

mod dtype;
mod literal;
mod mesh;
pub mod random;
mod stablehlo;
mod tree;
mod types;

pub use dtype::DType;
pub use literal::{Element, Literal};
pub use mesh::{Axis, AxisSet, Mesh, Sharding, UnevenShard};
pub use stablehlo::{Program, ProgramInput, ProgramOutput};
pub use tree::Tree;
pub use types::TensorType;
