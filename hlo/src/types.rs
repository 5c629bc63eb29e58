//! `TensorType`: dtype, dims, and the mesh axes over which the value may differ between replicas.

use std::fmt;

use crate::{AxisSet, DType};

/// The type of one value of a graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Size of each dim, on one replica.
    pub dims: Vec<usize>,
    /// The mesh axes over which the value may differ between replicas.
    pub varying: AxisSet,
}

impl TensorType {
    /// A type that does not vary between replicas.
    pub fn new(dtype: DType, dims: &[usize]) -> Self {
        Self { dtype, dims: dims.to_vec(), varying: AxisSet::EMPTY }
    }

    /// The same type, varying over `axes`.
    #[must_use]
    pub fn varying(mut self, axes: AxisSet) -> Self {
        self.varying = axes;
        self
    }

    /// This type with another dtype.
    #[must_use]
    pub fn with_dtype(&self, dtype: DType) -> Self {
        Self { dtype, ..self.clone() }
    }

    /// This type with other dims.
    #[must_use]
    pub fn with_dims(&self, dims: &[usize]) -> Self {
        Self { dtype: self.dtype, dims: dims.to_vec(), varying: self.varying }
    }

    /// Number of dims.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Product of the dims.
    pub fn num_elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Size in bytes, on one replica.
    pub fn num_bytes(&self) -> usize {
        self.num_elements() * self.dtype.size_bytes()
    }
}

/// `f32[8, 64]`, followed by `{data}` if the value varies over `data`.
impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.dims)?;
        if self.varying.is_empty() { Ok(()) } else { write!(f, "{}", self.varying) }
    }
}
