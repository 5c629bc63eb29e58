//! Norms of the gradients of parts of a batch, from which the noise of a gradient is estimated.

use hlo::{Axis, AxisSet, Reduction, Tensor};

use super::{DeclaredStep, StateSection, StepSpec};
use crate::optim::squared_norms;
use crate::parallel::GatherAt;

/// The parts of a batch that have gradients of their own in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchParts {
    /// What replicas along these axes have, so many of them.
    Shards(AxisSet, usize),
    /// The microbatches, so many of them.
    Microbatches(usize),
}

impl BatchParts {
    /// How many there are.
    pub fn count(self) -> usize {
        match self {
            Self::Shards(_, count) | Self::Microbatches(count) => count,
        }
    }
}

impl StepSpec<'_> {
    /// The parts of a batch whose gradients can be compared; `None` if there is one only, or if
    /// some microbatches are surplus. Where the gradients of each microbatch are reduced over
    /// `fsdp` at once, replicas along it are one part; the stages of a pipeline work on several
    /// microbatches at a time.
    pub fn batch_parts(&self) -> Option<BatchParts> {
        let mesh = &self.plan.mesh;
        let axes = match self.plan.gather_at {
            GatherAt::Microbatch | GatherAt::Use if mesh.size(Axis::Fsdp) > 1 => Axis::Data.into(),
            _ => self.plan.batch_axes(),
        };
        match mesh.group_size(axes) {
            _ if self.has_surplus() => None,
            1 if self.num_microbatches > 1 && mesh.size(Axis::Pipeline) == 1 => {
                Some(BatchParts::Microbatches(self.num_microbatches))
            }
            1 => None,
            count => Some(BatchParts::Shards(axes, count)),
        }
    }
}

/// `|S|^2 / w` of a part of the batch, of dtype f32 or wider: `S` is the sum of the gradients over
/// its examples, `w` that of their weights, and replicas along `axes` have other parts. 0 if the
/// part has no weight.
///
/// The gradients are those with respect to the parameters in the step, before any reduction that
/// is not part of it.
pub(super) fn square_by_weight<'g>(
    step: &DeclaredStep<'_>,
    gradients: &[Tensor<'g>],
    weight: Tensor<'g>,
    axes: AxisSet,
) -> Tensor<'g> {
    let batch_axes = step.spec.plan.batch_axes();
    let sum_over = |x: Tensor<'g>, axes: AxisSet| match axes.is_empty() {
        true => x,
        false => x.all_reduce(Reduction::Sum, axes),
    };
    // Squares of leaves that are cut alike are added up before they are summed over the pieces.
    let mut by_axes: Vec<(AxisSet, Tensor<'g>)> = vec![];
    for (path, gradient) in step.params.paths().zip(gradients) {
        if step.freezes(path) {
            continue;
        }
        let cut = step.types()[StateSection::Params.path(path).as_str()].varying;
        let pending = gradient.varying().minus(cut).minus(axes);
        let gradient = sum_over(*gradient, pending);
        let gradient = step.spec.optimizer.mask_gradient(path, step.param_leaf(path), gradient);
        let pieces = gradient.varying().minus(axes);
        let square = squared_norms(gradient, 0).vary(axes);
        match by_axes.iter_mut().find(|(others, _)| *others == pieces) {
            Some((_, sum)) => *sum = *sum + square,
            None => by_axes.push((pieces, square)),
        }
    }
    let others = weight.varying().intersection(batch_axes).minus(axes);
    let weight = sum_over(weight, others);
    // A weight of the whole batch counts for all parts alike.
    let alike = step.mesh().group_size(axes.minus(weight.varying())) as f64;
    let weight = weight.vary(axes) / alike;
    let squares = by_axes.into_iter().map(|(pieces, square)| sum_over(square, pieces));
    let Some(square) = squares.reduce(|sum, square| sum + square) else {
        return weight.full_like(0.0);
    };
    let weight = weight.convert(square.dtype());
    let has_weight = weight.greater(0.0);
    let divisor = has_weight.select(weight, weight.full_like(1.0));
    has_weight.select(square / divisor, square.full_like(0.0))
}
