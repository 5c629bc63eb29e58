//! Overlap of the gradients' reduction with the backward pass: one queue, each bucket as soon as it is ready.

use hlo::{Graph, Reduced, reduced};

use super::{Fabric, Work, all_reduce};
use crate::targets::{Chip, flags};

/// When the gradients of a step are ready to be reduced.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    gradients: Vec<Reduced>,
}

/// Predicted time of a step, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTime {
    /// Compute.
    pub compute_secs: f64,
    /// All collectives, including overlapped ones.
    pub communication_secs: f64,
    /// The part of the collectives that does not overlap with compute.
    pub exposed_secs: f64,
}

impl StepTime {
    /// Total time of a step.
    pub fn total_secs(&self) -> f64 {
        self.compute_secs + self.exposed_secs
    }
}

impl Timeline {
    /// The timeline of a step's graph before its all_reduces are bucketed.
    pub fn of(graph: &Graph) -> Self {
        Self { gradients: reduced(graph) }
    }

    /// A timeline for models of which only the size is known: gradients become final evenly over the backward
    /// pass, which is the last two thirds of the compute.
    pub fn even(gradient_bytes: f64) -> Self {
        const PARTS: usize = 64;
        let part = |at: usize| Reduced {
            bytes: (gradient_bytes / PARTS as f64) as u64,
            progress: 1.0 / 3.0 + 2.0 / 3.0 * (at + 1) as f64 / PARTS as f64,
        };
        Self { gradients: (0..PARTS).map(part).collect() }
    }

    /// Bytes of all gradients.
    pub fn bytes(&self) -> u64 {
        self.gradients.iter().map(|gradient| gradient.bytes).sum()
    }

    /// Bytes that are ready after a fraction of the compute.
    pub fn bytes_by(&self, progress: f64) -> u64 {
        let early = self.gradients.iter().filter(|gradient| gradient.progress <= progress);
        early.map(|gradient| gradient.bytes).sum()
    }

    /// Predicted time of the step on a chip and a fabric.
    pub fn step(&self, work: &Work, chip: &Chip, fabric: &Fabric) -> StepTime {
        self.overlapped(work.seconds(chip), fabric, flags::bucket_bytes(chip) as f64)
    }

    /// Predicted time for a known compute time: buckets of at least `bucket_bytes` wait for their last gradient
    /// and for the previous bucket.
    pub fn overlapped(&self, compute_secs: f64, fabric: &Fabric, bucket_bytes: f64) -> StepTime {
        let mut time = StepTime { compute_secs, ..StepTime::default() };
        let (mut free_at, mut bucket) = (0f64, 0.0);
        let last = self.gradients.len().saturating_sub(1);
        for (at, gradient) in self.gradients.iter().enumerate() {
            bucket += gradient.bytes as f64;
            if bucket < bucket_bytes && at < last {
                continue;
            }
            let secs = all_reduce(fabric, bucket).0;
            free_at = free_at.max(gradient.progress * compute_secs) + secs;
            time.communication_secs += secs;
            bucket = 0.0;
        }
        time.exposed_secs = (free_at - compute_secs).max(0.0);
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::cost::{Group, Wire};

    #[test]
    fn what_is_there_early_is_hidden_and_what_is_there_last_is_not() {
        let wire = Wire { latency_secs: 0.0, bytes_per_sec: 1e9 };
        let fabric = Fabric::single(Group::Switch { size: 2, wire });
        // Each of the two devices sends n bytes: 0.1 s each.
        let bytes = 100_000_000;
        let gradients = [0.5, 1.0].map(|progress| Reduced { bytes, progress }).to_vec();
        let time = Timeline { gradients }.overlapped(1.0, &fabric, 1.0);
        assert!((time.communication_secs - 0.2).abs() < 1e-9, "{time:?}");
        assert!((time.exposed_secs - 0.1).abs() < 1e-9, "{time:?}");
        // In one bucket, nothing overlaps.
        let gradients = [0.5, 1.0].map(|progress| Reduced { bytes, progress }).to_vec();
        let late = Timeline { gradients }.overlapped(1.0, &fabric, 1e12);
        assert!((late.exposed_secs - 0.2).abs() < 1e-9, "{late:?}");
    }
}
