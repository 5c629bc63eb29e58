//! The error of tracing.

use std::fmt;
use std::panic::Location;

use crate::TensorType;

/// The first error while a graph was traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Which op.
    pub op: &'static str,
    /// The types of its operands.
    pub operands: Vec<TensorType>,
    /// The problem and its remedy.
    pub message: String,
    /// The caller's source line.
    pub location: &'static Location<'static>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.op)?;
        for (i, ty) in self.operands.iter().enumerate() {
            write!(f, "{}{ty}", if i > 0 { ", " } else { "" })?;
        }
        write!(f, ") at {}: {}", self.location, self.message)
    }
}

impl std::error::Error for Error {}
