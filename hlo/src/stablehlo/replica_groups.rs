//! The replicas of a program, and the groups of its collectives.

use crate::{Groups, Mesh};

/// The replicas that a program is for, and how they form groups.
#[derive(Clone, Copy)]
pub(super) enum ProgramReplicas {
    /// The replicas and groups of the mesh.
    OfMesh,
    /// Each replica is its own group.
    Isolated { num_replicas: usize },
}

impl ProgramReplicas {
    pub fn num_replicas(self, mesh: &Mesh) -> usize {
        match self {
            Self::OfMesh => mesh.num_replicas(),
            Self::Isolated { num_replicas } => num_replicas,
        }
    }

    /// The replicas of each group.
    pub fn list(self, mesh: &Mesh, groups: Groups) -> Vec<Vec<usize>> {
        match self {
            Self::OfMesh => listed(mesh, groups),
            Self::Isolated { num_replicas } => (0..num_replicas).map(|r| vec![r]).collect(),
        }
    }
}

/// The replicas of each group of the mesh.
pub(super) fn listed(mesh: &Mesh, groups: Groups) -> Vec<Vec<usize>> {
    groups.list(mesh).unwrap_or_else(|_| unreachable!("`infer` has checked that groups divide"))
}

/// The attribute of a collective.
pub(super) fn replica_groups(groups: &[Vec<usize>]) -> String {
    let (rows, columns) = (groups.len(), groups.first().map_or(0, Vec::len));
    format!("replica_groups = dense<{groups:?}> : tensor<{rows}x{columns}xi64>")
}
