//! Context parallelism: this replica's rows attend to those of all replicas that have positions of
//! the same example.

use hlo::{ActivationRows, Axis, Groups, Tensor};

use crate::Scope;

/// The rows of a layer that this replica has, where replicas along `tensor` have different ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnRows<'g> {
    /// Index of the first example that they belong to, among those of all replicas along `tensor`:
    /// a u32 scalar.
    pub(super) first_example: Tensor<'g>,
    /// The positions, where a replica has not all of an example.
    pub(super) positions: Option<OwnPositions<'g>>,
}

/// Some of the positions of one example.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnPositions<'g> {
    /// Number of positions.
    pub(super) num: usize,
    /// The first: a u32 scalar.
    pub(super) first: Tensor<'g>,
    /// Number of replicas that share the example.
    num_sharing: usize,
}

impl<'g> OwnRows<'g> {
    /// `None` if every replica has all rows.
    #[track_caller]
    pub(super) fn new(scope: &Scope<'g>, num_rows: usize, num_positions: usize) -> Option<Self> {
        let is_cut = scope.options().rows == ActivationRows::CutThroughout
            && scope.num_tensor_replicas() > 1;
        if !is_cut {
            return None;
        }
        let index = scope.tensor_index();
        if num_rows >= num_positions {
            let num_examples = num_rows / num_positions;
            return Some(Self { first_example: index * num_examples as f64, positions: None });
        }
        let num_sharing = num_positions / num_rows;
        let first_example = index / num_sharing as f64;
        let first = (index - first_example * num_sharing as f64) * num_rows as f64;
        let positions = Some(OwnPositions { num: num_rows, first, num_sharing });
        Some(Self { first_example, positions })
    }

    /// The rows of a mask `[examples, positions]` for the examples of `num_rows` rows.
    #[track_caller]
    pub(super) fn of_mask(self, mask_bs: Tensor<'g>, num_rows: usize) -> Tensor<'g> {
        let t = mask_bs.dim(1);
        let zero = mask_bs.tracer().scalar(self.first_example.dtype(), 0.0);
        mask_bs.dynamic_slice(&[self.first_example, zero], &[(num_rows / t).max(1), t])
    }
}

impl<'g> OwnPositions<'g> {
    /// Keys or values of all positions of the example, from those of this replica. They are not
    /// kept for the backward pass, which gathers them again.
    #[track_caller]
    pub(super) fn gathered(self, x_nw: Tensor<'g>) -> Tensor<'g> {
        let groups = || Groups::contiguous(Axis::Tensor, self.num_sharing);
        let gathered = x_nw.tracer().custom_vjp_recomputed(
            &[x_nw],
            |x| vec![x[0].all_gather(0, groups())],
            |_, _, ct| vec![ct[0].reduce_scatter(0, groups())],
        );
        gathered[0]
    }
}
