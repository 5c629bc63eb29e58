//! Tracing to StableHLO, with types that record where replicas may differ.
//!
//! A program is [traced](trace) into a [`Graph`] for the replicas of a [`Mesh`]; collectives are
//! ordinary ops of the graph. [`mod@grad`] and the passes transform graphs, [`verify`] checks their
//! invariants, [`lower`] writes StableHLO text, and [`interpret`] evaluates a graph slowly and
//! exactly with N simulated replicas. Everything here happens at trace time: no IO, no devices, no
//! training.

mod branches;
mod collective;
mod communication;
mod count;
mod counted;
mod dtype;
mod error;
mod fused;
pub mod grad;
mod graph;
mod groups;
mod infer;
mod interp;
mod leaf_spec;
mod literal;
mod mesh;
mod op;
mod ops;
mod origin;
pub mod passes;
pub mod random;
mod recompute;
mod rectangle;
mod region;
mod rewriter;
pub mod rewrites;
mod stablehlo;
mod stacked;
mod tensor;
mod traffic;
mod transfers;
mod tree;
mod types;
mod verify;
mod window;

pub use collective::Algorithm;
pub use communication::{Communication, communication};
pub use count::{Cost, MatmulCost, count};
pub use counted::counted;
pub use dtype::DType;
pub use error::Error;
pub use fused::Fused;
pub use grad::{grad, vjp};
pub use graph::{Graph, Input, Node, Output, ValueId};
pub use groups::{Groups, UnevenGroups};
pub use interp::{InterpError, interpret};
pub use leaf_spec::{LeafSpec, OnOtherMesh};
pub use literal::{Element, Literal};
pub use mesh::{ActivationRows, Axis, AxisSet, Mesh, MeshSizes, Sharding, UnevenShard};
pub use op::{Binary, Comparison, DotDims, Op, Reduction, Regions, Unary};
pub use ops::{
    Branch, Convolution, ConvolutionDims, CustomCall, CustomVjp, Layouts, Operand, Threefry, Window,
};
pub use origin::Origin;
pub use rectangle::{ContiguousRun, Corner, contiguous_runs, unravel};
pub use region::{Region, Scan, VjpHalves};
pub use rewriter::{Rewriter, rebuild};
pub use stablehlo::{
    HOST_COLLECTIVE_TARGET, HOST_KEEP_TARGET, HOST_KERNEL_TARGET, HOST_KERNELS_VERSION,
    HOST_REPLICA_ID_TARGET, HostCalls, Program, ProgramInput, ProgramOutput, lower, lower_isolated,
    lower_with_host_calls,
};
pub use stacked::{MisfitRow, StackedRow, join_rows, row_paths, row_specs, rows, split_rows};
pub use tensor::{Tensor, Tracer, trace};
pub use transfers::{Transfer, transfers};
pub use tree::Tree;
pub use types::TensorType;
pub use verify::{VerifyError, unconditional_collectives, verify};
pub use window::WindowDim;
