//! The mesh: how replicas are arranged along named axes, and how a tensor is sharded over them.

use std::fmt;

/// What replicas along the axis `tensor` have of the rows of activations, `[examples * positions,
/// width]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ActivationRows {
    /// All of them. Layers are cut by columns.
    #[default]
    Whole,
    /// Sequence parallelism: a piece of them between layers, which are cut by columns.
    CutBetweenLayers,
    /// Context parallelism: a piece of them, in layers too, which are whole. Only the vocabulary is
    /// cut.
    CutThroughout,
}

impl ActivationRows {
    /// `true` if replicas have pieces between layers.
    pub fn are_cut(self) -> bool {
        self != Self::Whole
    }
}

/// A direction in which replicas are arranged. The order of the variants is the order of the mesh:
/// the last varies fastest with the replica's number, so that `tensor` neighbours are closest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Axis {
    /// Stages of layers.
    Pipeline,
    /// Slices of the batch, with parameters held whole.
    Data,
    /// Slices of the batch, with parameters sharded.
    Fsdp,
    /// Slices of one layer's matrices.
    Tensor,
}

impl Axis {
    /// Every axis, outermost first.
    pub const ALL: [Axis; 4] = [Axis::Pipeline, Axis::Data, Axis::Fsdp, Axis::Tensor];

    /// The name used in configurations and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Axis::Pipeline => "pipeline",
            Axis::Data => "data",
            Axis::Fsdp => "fsdp",
            Axis::Tensor => "tensor",
        }
    }
}

/// A set of mesh axes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AxisSet(u8);

impl AxisSet {
    /// No axis.
    pub const EMPTY: AxisSet = AxisSet(0);
    /// Every axis.
    pub const ALL: AxisSet = AxisSet((1 << Axis::ALL.len()) - 1);

    /// The set of the given axes.
    pub fn of(axes: &[Axis]) -> Self {
        axes.iter().fold(Self::EMPTY, |set, axis| set | (*axis).into())
    }

    /// `true` if `axis` is in the set.
    pub const fn contains(self, axis: Axis) -> bool {
        self.0 & (1 << axis as u8) != 0
    }

    /// `true` if every axis of `self` is in `other`.
    pub const fn is_subset(self, other: AxisSet) -> bool {
        self.0 & !other.0 == 0
    }

    /// `true` if the set has no axis.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The axes of `self` that are not in `other`.
    #[must_use]
    pub const fn minus(self, other: AxisSet) -> AxisSet {
        AxisSet(self.0 & !other.0)
    }

    /// The axes that are in both.
    #[must_use]
    pub const fn intersection(self, other: AxisSet) -> AxisSet {
        AxisSet(self.0 & other.0)
    }

    /// The axes, outermost first.
    pub fn iter(self) -> impl Iterator<Item = Axis> {
        Axis::ALL.into_iter().filter(move |axis| self.contains(*axis))
    }
}

impl From<Axis> for AxisSet {
    fn from(axis: Axis) -> Self {
        AxisSet(1 << axis as u8)
    }
}

impl std::ops::BitOr for AxisSet {
    type Output = AxisSet;
    fn bitor(self, other: AxisSet) -> AxisSet {
        AxisSet(self.0 | other.0)
    }
}

/// `{data, tensor}`.
impl fmt::Display for AxisSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(Axis::name).collect();
        write!(f, "{{{}}}", names.join(", "))
    }
}

/// The sizes of the mesh's axes. An axis of size 1 is treated like any other, so that a program
/// that traces on one replica traces on many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mesh {
    sizes: MeshSizes,
}

/// A size for each of [`Axis::ALL`].
pub type MeshSizes = [usize; Axis::ALL.len()];

impl From<MeshSizes> for Mesh {
    /// # Panics
    /// If a size is 0.
    fn from(sizes: MeshSizes) -> Self {
        let sizes: Vec<_> = Axis::ALL.into_iter().zip(sizes).collect();
        Self::new(&sizes)
    }
}

impl Mesh {
    /// The axes over which a global batch is split. Replicas that differ only along others have the
    /// same examples.
    pub const BATCH_AXES: AxisSet = AxisSet(1 << Axis::Data as u8 | 1 << Axis::Fsdp as u8);
    /// A mesh of one replica.
    pub const SINGLE: Mesh = Mesh { sizes: [1; Axis::ALL.len()] };

    /// A mesh with the given sizes; axes that are not named have size 1.
    ///
    /// # Panics
    /// If a size is 0.
    pub fn new(sizes: &[(Axis, usize)]) -> Self {
        sizes.iter().fold(Self::SINGLE, |mesh, (axis, size)| mesh.with(*axis, *size))
    }

    /// `num_replicas` along `data`.
    pub fn data(num_replicas: usize) -> Self {
        Self::new(&[(Axis::Data, num_replicas)])
    }

    /// The mesh with another size of one axis.
    ///
    /// # Panics
    /// If the size is 0.
    #[must_use]
    pub fn with(mut self, axis: Axis, size: usize) -> Self {
        assert!(size > 0, "mesh axis {} has size 0", axis.name());
        self.sizes[axis as usize] = size;
        self
    }

    /// The sizes of all axes, in the order of [`Axis::ALL`].
    pub fn sizes(&self) -> MeshSizes {
        self.sizes
    }

    /// Size of one axis.
    pub fn size(&self, axis: Axis) -> usize {
        self.sizes[axis as usize]
    }

    /// Number of replicas that differ only along `axes`: the size of each replica group.
    pub fn group_size(&self, axes: AxisSet) -> usize {
        axes.iter().map(|axis| self.size(axis)).product()
    }

    /// Number of pieces that a global batch is split into.
    pub fn num_batch_shards(&self) -> usize {
        self.group_size(Self::BATCH_AXES)
    }

    /// Number of replicas.
    pub fn num_replicas(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Difference of the replica numbers of two neighbours along `axis`.
    pub fn stride(&self, axis: Axis) -> usize {
        self.sizes[axis as usize + 1..].iter().product()
    }

    /// A replica's index along `axes`, row-major over them.
    pub fn index(&self, replica: usize, axes: AxisSet) -> usize {
        axes.iter().fold(0, |index, axis| {
            index * self.size(axis) + replica / self.stride(axis) % self.size(axis)
        })
    }

    /// The axes along which these replicas differ.
    pub fn axes_between(&self, replicas: &[usize]) -> AxisSet {
        let differ = |axis: &Axis| {
            let index = |replica: usize| self.index(replica, (*axis).into());
            replicas.windows(2).any(|pair| index(pair[0]) != index(pair[1]))
        };
        AxisSet::of(&Axis::ALL.into_iter().filter(differ).collect::<Vec<_>>())
    }

    /// The replica groups of a collective over `axes`: each group holds the replicas that differ
    /// only along these axes, in order of their [`Self::index`].
    pub fn groups(&self, axes: AxisSet) -> Vec<Vec<usize>> {
        let rest = AxisSet::ALL.minus(axes);
        let mut groups = vec![vec![]; self.group_size(rest)];
        for replica in 0..self.num_replicas() {
            groups[self.index(replica, rest)].push(replica);
        }
        groups
    }
}

/// How a tensor's dims are cut over the mesh: for each dim the axes it is cut over, outermost
/// first. A dim with no axes is held whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sharding {
    dims: Vec<AxisSet>,
}

impl Sharding {
    /// Held whole by every replica.
    pub fn replicated(rank: usize) -> Self {
        Self { dims: vec![AxisSet::EMPTY; rank] }
    }

    /// Cut as `dims` says, one entry a dim.
    pub fn new(dims: &[AxisSet]) -> Self {
        Self { dims: dims.to_vec() }
    }

    /// Only dim 0 is cut.
    pub fn leading(rank: usize, axes: AxisSet) -> Self {
        let mut sharding = Self::replicated(rank);
        if let Some(first) = sharding.dims.first_mut() {
            *first = axes;
        }
        sharding
    }

    /// Axes over which each dim is cut.
    pub fn dims(&self) -> &[AxisSet] {
        &self.dims
    }

    /// The axes over which shards differ between replicas.
    pub fn varying(&self) -> AxisSet {
        self.dims.iter().fold(AxisSet::EMPTY, |all, axes| all | *axes)
    }

    /// The shape of one shard, or the first dim that its axes do not divide.
    pub fn local_shape(&self, global: &[usize], mesh: &Mesh) -> Result<Vec<usize>, UnevenShard> {
        global
            .iter()
            .zip(&self.dims)
            .enumerate()
            .map(|(dim, (size, axes))| {
                let num_shards = mesh.group_size(*axes);
                if size % num_shards == 0 {
                    Ok(size / num_shards)
                } else {
                    Err(UnevenShard { dim, size: *size, axes: *axes, num_shards })
                }
            })
            .collect()
    }
}

/// A dim that cannot be cut evenly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("dim {dim} of size {size} does not divide into {num_shards} shards over {axes}")]
pub struct UnevenShard {
    /// Which dim.
    pub dim: usize,
    /// Its global size.
    pub size: usize,
    /// The axes it was to be cut over.
    pub axes: AxisSet,
    /// The number of shards asked for.
    pub num_shards: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_differ_only_along_their_axes() {
        let mesh = Mesh::new(&[(Axis::Data, 2), (Axis::Tensor, 2)]);
        assert_eq!(mesh.num_replicas(), 4);
        assert_eq!(mesh.groups(Axis::Tensor.into()), [[0, 1], [2, 3]]);
        assert_eq!(mesh.groups(Axis::Data.into()), [[0, 2], [1, 3]]);
        assert_eq!(mesh.groups(AxisSet::of(&[Axis::Data, Axis::Tensor])), [[0, 1, 2, 3]]);
        assert_eq!(mesh.groups(AxisSet::EMPTY), [[0], [1], [2], [3]]);
        assert_eq!(mesh.index(3, Axis::Data.into()), 1);
    }

    #[test]
    fn local_shape_divides_or_says_which_dim() {
        let mesh = Mesh::new(&[(Axis::Data, 2), (Axis::Fsdp, 2)]);
        let sharding = Sharding::leading(2, AxisSet::of(&[Axis::Data, Axis::Fsdp]));
        assert_eq!(sharding.local_shape(&[8, 3], &mesh), Ok(vec![2, 3]));
        assert_eq!(sharding.local_shape(&[6, 3], &mesh).unwrap_err().dim, 0);
        assert_eq!(sharding.varying(), AxisSet::of(&[Axis::Fsdp, Axis::Data]));
    }
}
