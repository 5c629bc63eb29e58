//! Which replicas take part in a collective together.

use crate::{Axis, AxisSet, Mesh};

/// The replica groups of a collective. A whole group holds the replicas that differ only along some
/// mesh axes, row-major over these axes, outermost first; it can be cut into subgroups of one size.
///
/// ```
/// use hlo::{Axis, Groups, Mesh};
///
/// let mesh = Mesh::data(4);
/// assert_eq!(Groups::from(Axis::Data).list(&mesh)?, [[0, 1, 2, 3]]);
/// assert_eq!(Groups::contiguous(Axis::Data, 2).list(&mesh)?, [[0, 1], [2, 3]]);
/// assert_eq!(Groups::strided(Axis::Data, 2).list(&mesh)?, [[0, 2], [1, 3]]);
/// # Ok::<(), hlo::UnevenGroups>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Groups {
    axes: AxisSet,
    part: Part,
}

/// How whole groups are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part {
    Whole,
    Contiguous { size: usize },
    Strided { stride: usize },
}

impl Groups {
    /// Whole groups along `axes`, cut into subgroups of `size` neighbours: with neighbours on one
    /// host, the replicas of a host.
    pub fn contiguous(axes: impl Into<AxisSet>, size: usize) -> Self {
        Self { axes: axes.into(), part: Part::Contiguous { size } }
    }

    /// Whole groups along `axes`, cut into `stride` subgroups of replicas that are `stride` apart:
    /// one replica from each group of `Groups::contiguous(axes, stride)`, all at the same position
    /// in it.
    pub fn strided(axes: impl Into<AxisSet>, stride: usize) -> Self {
        Self { axes: axes.into(), part: Part::Strided { stride } }
    }

    /// The axes along which replicas of a group differ.
    pub fn axes(self) -> AxisSet {
        self.axes
    }

    /// `true` if each group holds all replicas that differ only along the axes.
    pub fn is_whole(self) -> bool {
        self.part == Part::Whole
    }

    /// Number of replicas in each group.
    ///
    /// # Errors
    /// If the whole groups do not divide into such subgroups.
    pub fn size(self, mesh: &Mesh) -> Result<usize, UnevenGroups> {
        let num_replicas = mesh.group_size(self.axes);
        let by = |size: usize| match size > 0 && num_replicas.is_multiple_of(size) {
            true => Ok(num_replicas / size),
            false => Err(UnevenGroups { num_replicas, axes: self.axes, size }),
        };
        match self.part {
            Part::Whole => Ok(num_replicas),
            Part::Contiguous { size } => by(size).map(|_| size),
            Part::Strided { stride } => by(stride),
        }
    }

    /// The replicas of each group, in the order in which gathers join and scatters cut.
    ///
    /// # Errors
    /// If the whole groups do not divide into such subgroups.
    pub fn list(self, mesh: &Mesh) -> Result<Vec<Vec<usize>>, UnevenGroups> {
        self.size(mesh)?;
        let whole = mesh.groups(self.axes);
        let strided = |group: &[usize], first: usize, stride: usize| -> Vec<usize> {
            group.iter().copied().skip(first).step_by(stride).collect()
        };
        let cut = |group: &Vec<usize>| -> Vec<Vec<usize>> {
            match self.part {
                Part::Whole => vec![group.clone()],
                Part::Contiguous { size } => group.chunks(size).map(<[usize]>::to_vec).collect(),
                Part::Strided { stride } => {
                    (0..stride).map(|first| strided(group, first, stride)).collect()
                }
            }
        };
        Ok(whole.iter().flat_map(cut).collect())
    }
}

/// Whole groups along the axes.
impl From<AxisSet> for Groups {
    fn from(axes: AxisSet) -> Self {
        Self { axes, part: Part::Whole }
    }
}

/// Whole groups along one axis.
impl From<Axis> for Groups {
    fn from(axis: Axis) -> Self {
        AxisSet::from(axis).into()
    }
}

/// Replica groups that cannot be cut evenly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{num_replicas} replicas along {axes} do not divide into groups of {size}")]
pub struct UnevenGroups {
    /// Replicas of a whole group.
    pub num_replicas: usize,
    /// The axes along which they differ.
    pub axes: AxisSet,
    /// The requested size of contiguous subgroups, or the stride, which must divide likewise.
    pub size: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subgroups_are_cut_from_whole_groups_in_row_major_order() {
        let mesh = Mesh::new(&[(Axis::Data, 2), (Axis::Fsdp, 2), (Axis::Tensor, 2)]);
        let both = AxisSet::of(&[Axis::Data, Axis::Tensor]);
        let cases = [
            (both.into(), vec![vec![0, 1, 4, 5], vec![2, 3, 6, 7]]),
            (Groups::contiguous(both, 4), vec![vec![0, 1, 4, 5], vec![2, 3, 6, 7]]),
            (Groups::contiguous(both, 2), vec![vec![0, 1], vec![4, 5], vec![2, 3], vec![6, 7]]),
            (Groups::contiguous(both, 1), [0, 1, 4, 5, 2, 3, 6, 7].map(|r| vec![r]).to_vec()),
            (Groups::strided(both, 2), vec![vec![0, 4], vec![1, 5], vec![2, 6], vec![3, 7]]),
            (Groups::strided(both, 1), vec![vec![0, 1, 4, 5], vec![2, 3, 6, 7]]),
        ];
        for (groups, expected) in cases {
            assert_eq!(groups.size(&mesh), Ok(expected[0].len()), "{groups:?}");
            assert_eq!(groups.list(&mesh), Ok(expected), "{groups:?}");
        }
    }

    #[test]
    fn sizes_and_strides_that_do_not_divide_are_errors() {
        let mesh = Mesh::data(6);
        for size in [0, 4, 5, 12] {
            let uneven = UnevenGroups { num_replicas: 6, axes: Axis::Data.into(), size };
            for groups in [Groups::contiguous, Groups::strided].map(|cut| cut(Axis::Data, size)) {
                assert_eq!(groups.size(&mesh), Err(uneven.clone()));
                assert_eq!(groups.list(&mesh), Err(uneven.clone()));
            }
        }
        assert_eq!(Groups::strided(Axis::Data, 2).size(&mesh), Ok(3));
    }
}
