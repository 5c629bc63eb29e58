//! Programs as text, with their inputs and outputs.

use super::{HOST_COLLECTIVE_TARGET, HOST_KERNEL_TARGET, HOST_REPLICA_ID_TARGET};
use crate::TensorType;

/// A module for a plugin to compile: its text, and its inputs and outputs.
#[derive(Clone, Debug)]
pub struct Program {
    /// StableHLO text of a module with one `@main`, with source locations.
    pub text: String,
    /// The number of replicas that the replica groups were written for.
    pub num_replicas: usize,
    /// The number of processes that run it, each as many replicas; 1 if it was not written for
    /// several. Each compiles it for its own replicas only.
    pub num_processes: usize,
    /// Arguments of `@main`, in order.
    pub inputs: Vec<ProgramInput>,
    /// Results of `@main`, in order.
    pub outputs: Vec<ProgramOutput>,
}

/// An argument of a [`Program`].
#[derive(Clone, Debug)]
pub struct ProgramInput {
    /// The leaf's path.
    pub name: String,
    /// Type on one replica.
    pub ty: TensorType,
    /// `true` if a result reuses the argument's memory, so that the argument is consumed by
    /// execution.
    pub donated: bool,
}

/// A result of a [`Program`].
#[derive(Clone, Debug)]
pub struct ProgramOutput {
    /// The leaf's path.
    pub name: String,
    /// Type on one replica.
    pub ty: TensorType,
}

impl Program {
    /// The text without source locations: the key of a compile cache, so that moving a source line
    /// does not cause recompilation. Locations are ` loc(...)` at the ends of lines, and their
    /// definitions are lines that begin with `#loc`.
    pub fn text_without_locations(&self) -> String {
        let mut out = String::with_capacity(self.text.len());
        for line in self.text.lines().filter(|line| !line.starts_with("#loc")) {
            out.push_str(line.rsplit_once(" loc(").map_or(line, |(code, _)| code));
            out.push('\n');
        }
        out
    }

    /// The number of replicas that one process runs.
    pub fn replicas_per_process(&self) -> usize {
        self.num_replicas / self.num_processes
    }

    /// `true` if the process computes the program's collectives: see [`super::HostCalls`].
    pub fn has_host_collectives(&self) -> bool {
        self.text.contains(HOST_COLLECTIVE_TARGET) || self.text.contains(HOST_REPLICA_ID_TARGET)
    }

    /// `true` if the process computes some of the program's ops: see [`super::HostCalls`].
    pub fn has_host_kernels(&self) -> bool {
        self.text.contains(HOST_KERNEL_TARGET)
    }
}
