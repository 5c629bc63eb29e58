//! `LeafSpec`: what a leaf of a training state is, whatever the mesh.

use std::fmt;

use crate::{AxisSet, DType, Mesh, Sharding, TensorType, UnevenShard};

/// A leaf of a training state: its dtype and dims as a whole, and how replicas hold it.
///
/// ```
/// use hlo::{Axis, AxisSet, DType, LeafSpec, Mesh, Sharding};
///
/// let sharding = Sharding::new(&[Axis::Fsdp.into(), AxisSet::EMPTY]);
/// let leaf = LeafSpec::new(DType::F32, &[64, 10], sharding);
/// let mesh = Mesh::new(&[(Axis::Data, 2), (Axis::Fsdp, 4)]);
/// assert_eq!(leaf.local_type(&mesh)?.to_string(), "f32[16, 10]{fsdp}");
/// # Ok::<(), hlo::UnevenShard>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafSpec {
    /// Element type.
    pub dtype: DType,
    /// Size of each dim of the whole leaf.
    pub dims: Vec<usize>,
    /// How each dim is cut over the mesh.
    pub sharding: Sharding,
}

impl LeafSpec {
    /// A leaf of these global dims, cut as `sharding` says.
    pub fn new(dtype: DType, dims: &[usize], sharding: Sharding) -> Self {
        Self { dtype, dims: dims.to_vec(), sharding }
    }

    /// A leaf that every replica holds whole.
    pub fn replicated(dtype: DType, dims: &[usize]) -> Self {
        Self::new(dtype, dims, Sharding::replicated(dims.len()))
    }

    /// The type of the piece that one replica holds.
    ///
    /// # Errors
    /// A dim that its axes do not divide.
    pub fn local_type(&self, mesh: &Mesh) -> Result<TensorType, UnevenShard> {
        let dims = self.sharding.local_shape(&self.dims, mesh)?;
        Ok(TensorType::new(self.dtype, &dims).varying(self.sharding.varying()))
    }

    /// The type of the whole leaf, the same on every replica.
    pub fn global_type(&self) -> TensorType {
        TensorType::new(self.dtype, &self.dims)
    }

    /// The axes along which replicas hold the same piece.
    pub fn held_alike(&self) -> AxisSet {
        AxisSet::ALL.minus(self.sharding.varying())
    }

    /// Number of elements of the whole leaf.
    pub fn num_elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Bytes of the whole leaf.
    pub fn num_bytes(&self) -> usize {
        self.num_elements() * self.dtype.size_bytes()
    }
}

/// `f32[64, 10]`, followed by `{dim 0 over {fsdp}}` where a dim is cut.
impl fmt::Display for LeafSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.dims)?;
        let cut = self.sharding.dims().iter().enumerate().filter(|(_, axes)| !axes.is_empty());
        cut.into_iter().try_for_each(|(dim, axes)| write!(f, "{{dim {dim} over {axes}}}"))
    }
}
