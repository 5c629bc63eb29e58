//! The numbers that the program of a step computes about it. Each is declared here and nowhere
//! else: what it is in the graph, and what sinks do with it.

use hlo::Tensor;

use crate::observe::Metric;

/// The values of a step from which its metrics are made: scalars, the same on every replica.
pub(super) struct StepValues<'g> {
    /// The mean loss over the global batch.
    pub loss: Tensor<'g>,
    /// The norm of the whole gradient.
    pub grad_norm: Tensor<'g>,
    /// The weight of the global batch.
    pub weight: Tensor<'g>,
    /// Updates skipped so far, this one included.
    pub num_skipped: Tensor<'g>,
    /// 1 plus the index of the first leaf of the state with a next value that is not finite, or 0.
    pub nonfinite_leaf: Tensor<'g>,
}

/// A metric, and its value in the graph.
pub struct ComputedMetric {
    /// Its name, and what sinks do with it.
    pub metric: Metric,
    pub(super) value: for<'g> fn(&StepValues<'g>) -> Tensor<'g>,
}

/// The norm of the whole gradient, before clipping.
pub const GRAD_NORM: &str = "grad_norm";
/// Which leaf is not finite.
pub const NONFINITE_LEAF: &str = "nonfinite_leaf";

/// The elements of the step's `metrics` output, in order: a vector of the parameters' dtype, the
/// same on every replica.
pub const COMPUTED_METRICS: &[ComputedMetric] = &[
    ComputedMetric {
        metric: Metric::number(Metric::LOSS).on_terminal(4),
        value: |measured| measured.loss,
    },
    ComputedMetric { metric: Metric::number(GRAD_NORM), value: |measured| measured.grad_norm },
    ComputedMetric {
        metric: Metric::number("weight").unwritten(),
        value: |measured| measured.weight,
    },
    ComputedMetric {
        metric: Metric::count(Metric::NUM_SKIPPED),
        value: |measured| measured.num_skipped,
    },
    ComputedMetric {
        metric: Metric::count(NONFINITE_LEAF).unwritten(),
        value: |measured| measured.nonfinite_leaf,
    },
];

/// Their names, in order.
pub const METRICS: [&str; COMPUTED_METRICS.len()] = {
    let mut names = [""; COMPUTED_METRICS.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = COMPUTED_METRICS[index].metric.name;
        index += 1;
    }
    names
};
