//! `LeafSpec`: what a leaf of a training state is, whatever the mesh.

use std::fmt;

use crate::{Axis, AxisSet, DType, Mesh, Sharding, TensorType, UnevenShard};

/// A leaf of a training state: its dtype and dims as a whole, and how replicas hold it.
///
/// Equal parameters of blocks that run as a loop are *stacked*: one leaf `[num_blocks, ..]` holds a
/// row for each block. Its path has a `*` where the paths of the rows have the block's index. Each
/// row counts as a parameter of its own for everything that depends on a parameter's rank, name or
/// norm; see [`rows`](crate::rows).
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
    /// Number of leading dims that count rows, row-major: one for each `*` in the path, except that
    /// the first `*` counts those of a pipeline, of which there are [`Self::PIPELINE_DIMS`]. 0 for
    /// an ordinary leaf. Only a pipeline cuts one of them.
    pub num_stacked: usize,
    /// `true` if a dim that is cut over [`Axis::Tensor`] may be one that the replicas do not
    /// divide. They hold pieces of the same size, of which the last end with zeros that stand for
    /// nothing: in no file, no count, and not in [`Self::dims`].
    pub is_padded: bool,
    /// Its value on a mesh of other sizes.
    pub on_other_mesh: OnOtherMesh,
}

/// What becomes of a leaf that is restored on a mesh of other sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnOtherMesh {
    /// Nothing: its dims do not depend on the mesh.
    #[default]
    Exact,
    /// The first dim of a row counts replicas, and only the sum over them matters: each gets an
    /// equal share of it.
    SumThenSplit,
    /// The first dim of a row counts replicas, each with a value of its own: each gets the mean of
    /// those that were saved.
    Mean,
    /// It starts as zeros again.
    Restart,
}

impl LeafSpec {
    /// A leaf of these global dims, cut as `sharding` says.
    pub fn new(dtype: DType, dims: &[usize], sharding: Sharding) -> Self {
        let on_other_mesh = OnOtherMesh::Exact;
        Self {
            dtype,
            dims: dims.to_vec(),
            sharding,
            num_stacked: 0,
            is_padded: false,
            on_other_mesh,
        }
    }

    /// A leaf that every replica holds whole.
    pub fn replicated(dtype: DType, dims: &[usize]) -> Self {
        Self::new(dtype, dims, Sharding::replicated(dims.len()))
    }

    /// Rows like this leaf, stacked along new leading dims of these sizes.
    ///
    /// ```
    /// use hlo::{DType, LeafSpec};
    ///
    /// let weight = LeafSpec::replicated(DType::F32, &[64, 10]);
    /// let stack = weight.clone().stacked(&[12]);
    /// assert_eq!((&stack.dims[..], stack.row()), (&[12, 64, 10][..], weight));
    /// ```
    #[must_use]
    pub fn stacked(self, sizes: &[usize]) -> Self {
        let uncut = vec![AxisSet::EMPTY; sizes.len()];
        Self {
            dims: [sizes, &self.dims].concat(),
            sharding: Sharding::new(&[&uncut, self.sharding.dims()].concat()),
            num_stacked: self.num_stacked + sizes.len(),
            ..self
        }
    }

    /// The number of stacked dims of a pipeline: chunks of a stage, stages, blocks of a chunk. A
    /// chunk follows the same chunk of the stage before, so the rows in order are the blocks in
    /// order.
    pub const PIPELINE_DIMS: usize = 3;

    /// Rows like this leaf, one for each block of a pipeline; each stage along the axis `pipeline`
    /// has those of its own blocks. The sizes are those of [`Self::PIPELINE_DIMS`].
    #[must_use]
    pub fn stacked_over_stages(self, sizes: [usize; Self::PIPELINE_DIMS]) -> Self {
        let stacked = self.stacked(&sizes);
        let mut cut = stacked.sharding.dims().to_vec();
        cut[1] = Axis::Pipeline.into();
        Self { sharding: Sharding::new(&cut), ..stacked }
    }

    /// The same leaf with rows cut as `sharding` says.
    #[must_use]
    pub fn with_row_sharding(self, sharding: &Sharding) -> Self {
        self.with_row(Self { sharding: sharding.clone(), ..self.row() })
    }

    /// A leaf whose rows are stacked as those of this one are.
    #[must_use]
    pub fn with_row(&self, row: Self) -> Self {
        let stacked = &self.sharding.dims()[..self.num_stacked];
        Self {
            dims: [self.stack_sizes(), &row.dims].concat(),
            sharding: Sharding::new(&[stacked, row.sharding.dims()].concat()),
            num_stacked: self.num_stacked,
            ..row
        }
    }

    /// A leaf with a value like this one for each replica along `axis`, which cuts the first dim of
    /// its rows.
    ///
    /// ```
    /// use hlo::{Axis, DType, LeafSpec, Mesh, OnOtherMesh};
    ///
    /// let weight = LeafSpec::replicated(DType::F32, &[64, 10]);
    /// let each = weight.of_each_replica(&Mesh::data(4), Axis::Data, OnOtherMesh::Mean);
    /// assert_eq!(each.to_string(), "f32[4, 64, 10]{dim 0 over {data}}");
    /// ```
    #[must_use]
    pub fn of_each_replica(&self, mesh: &Mesh, axis: Axis, on_other_mesh: OnOtherMesh) -> Self {
        let row = self.row();
        let sharding = Sharding::new(&[&[axis.into()], row.sharding.dims()].concat());
        let dims = [&[mesh.size(axis)], &row.dims[..]].concat();
        self.with_row(Self { dims, sharding, on_other_mesh, ..row })
    }

    /// One row of a stacked leaf. The leaf itself if it is not stacked.
    #[must_use]
    pub fn row(&self) -> Self {
        let sharding = Sharding::new(&self.sharding.dims()[self.num_stacked..]);
        let row = Self::new(self.dtype, &self.dims[self.num_stacked..], sharding);
        Self { is_padded: self.is_padded, on_other_mesh: self.on_other_mesh, ..row }
    }

    /// The leading dims that count rows.
    pub fn stack_sizes(&self) -> &[usize] {
        &self.dims[..self.num_stacked]
    }

    /// Number of rows; 1 for an ordinary leaf.
    pub fn num_rows(&self) -> usize {
        self.stack_sizes().iter().product()
    }

    /// The type of the piece that one replica holds.
    ///
    /// ```
    /// use hlo::{Axis, DType, LeafSpec, Mesh, Sharding};
    ///
    /// let rows = Sharding::leading(2, Axis::Tensor.into());
    /// let table = LeafSpec::new(DType::F32, &[50257, 8], rows);
    /// let mesh = Mesh::SINGLE.with(Axis::Tensor, 4);
    /// assert!(table.local_type(&mesh).is_err());
    /// let table = LeafSpec { is_padded: true, ..table };
    /// assert_eq!(table.local_type(&mesh)?.dims, [12565, 8]); // the last has 3 rows of zeros
    /// # Ok::<(), hlo::UnevenShard>(())
    /// ```
    ///
    /// # Errors
    /// A dim that its axes do not divide.
    pub fn local_type(&self, mesh: &Mesh) -> Result<TensorType, UnevenShard> {
        let cut = self.dims.iter().zip(self.sharding.dims());
        let stored = cut.map(|(size, axes)| match self.is_padded && axes.contains(Axis::Tensor) {
            true => size.next_multiple_of(mesh.group_size(*axes)),
            false => *size,
        });
        let dims = self.sharding.local_shape(&stored.collect::<Vec<_>>(), mesh)?;
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
