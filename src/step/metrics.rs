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
    /// What replicas that train on their own report together.
    pub of_replicas: OfReplicas,
    pub(super) value: for<'g> fn(&StepValues<'g>) -> Tensor<'g>,
}

/// What becomes of a metric's values on replicas that train on their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfReplicas {
    /// Their mean, weighted by the examples.
    Mean,
    /// Their sum.
    Sum,
    /// The greatest.
    Max,
}

/// The norm of the whole gradient, before clipping.
pub const GRAD_NORM: &str = "grad_norm";
/// The weight of the global batch.
const WEIGHT: &str = "weight";
/// Which leaf is not finite.
pub const NONFINITE_LEAF: &str = "nonfinite_leaf";

/// The elements of the step's `metrics` output, in order: a vector of the parameters' dtype, the
/// same on every replica.
pub const COMPUTED_METRICS: &[ComputedMetric] = &[
    ComputedMetric {
        metric: Metric::number(Metric::LOSS).on_terminal(4),
        of_replicas: OfReplicas::Mean,
        value: |measured| measured.loss,
    },
    ComputedMetric {
        metric: Metric::number(GRAD_NORM),
        of_replicas: OfReplicas::Mean,
        value: |measured| measured.grad_norm,
    },
    ComputedMetric {
        metric: Metric::number(WEIGHT).unwritten(),
        of_replicas: OfReplicas::Sum,
        value: |measured| measured.weight,
    },
    ComputedMetric {
        metric: Metric::count(Metric::NUM_SKIPPED),
        of_replicas: OfReplicas::Sum,
        value: |measured| measured.num_skipped,
    },
    ComputedMetric {
        metric: Metric::count(NONFINITE_LEAF).unwritten(),
        of_replicas: OfReplicas::Max,
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

/// The metrics of a step of replicas that train on their own, from those of each: values of
/// [`METRICS`], in order.
///
/// ```
/// use lockstep::step::metrics_of_replicas;
///
/// let [one, other] = [[1.0, 0.5, 3.0, 1.0, 0.0], [5.0, 0.5, 1.0, 0.0, 7.0]];
/// assert_eq!(metrics_of_replicas(&[&one, &other]), [2.0, 0.5, 4.0, 1.0, 7.0]);
/// ```
pub fn metrics_of_replicas(values: &[&[f64]]) -> Vec<f64> {
    let place = METRICS.iter().position(|name| *name == WEIGHT);
    let weight = |of: &[f64]| place.map_or(1.0, |place| of[place]);
    let total_weight: f64 = values.iter().map(|of| weight(of)).sum();
    let of_replicas = |(place, computed): (usize, &ComputedMetric)| match computed.of_replicas {
        OfReplicas::Mean => {
            values.iter().map(|of| of[place] * weight(of)).sum::<f64>() / total_weight
        }
        OfReplicas::Sum => values.iter().map(|of| of[place]).sum(),
        OfReplicas::Max => values.iter().map(|of| of[place]).fold(f64::NEG_INFINITY, f64::max),
    };
    COMPUTED_METRICS.iter().enumerate().map(of_replicas).collect()
}
