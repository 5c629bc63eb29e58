//! Graph to StableHLO text.

use crate::TensorType;

/// What a plugin compiles: the text of a module and the types at its border.
#[derive(Clone, Debug)]
pub struct Program {
    /// StableHLO text of a module with one `@main`, with source locations.
    pub text: String,
    /// The number of replicas that the replica groups were written for.
    pub num_replicas: usize,
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
    /// Is the argument's memory given to a result, so that the argument is gone after execution?
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
    /// The text without source locations: what a compile cache is keyed by, so that moving a line of
    /// source compiles nothing anew. Locations stand at the ends of lines as ` loc(...)`, and their
    /// definitions on lines that begin with `#loc`.
    pub fn text_without_locations(&self) -> String {
        let mut out = String::with_capacity(self.text.len());
        for line in self.text.lines().filter(|line| !line.starts_with("#loc")) {
            out.push_str(line.split_once(" loc(").map_or(line, |(code, _)| code));
            out.push('\n');
        }
        out
    }
}
