//! The times that this process itself took for its steps, since processes last told each other.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::observe::ProcessTimes;

/// Processes tell each other this many means: enough to see when one became slow, however many
/// steps lie between two proofs.
const MAX_TOLD: usize = 4;
/// The most means that are kept. Neighbours are joined beyond that.
const MAX_KEPT: usize = 256;

/// A mean over steps in a row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct OwnTime {
    first_step: u64,
    num_steps: u64,
    mean_ms: f64,
}

/// The means of this process. All processes launch the same steps, so theirs are over the same.
#[derive(Default)]
pub(super) struct OwnTimes(Vec<OwnTime>);

impl OwnTimes {
    /// Takes in a launch of `num_steps` steps from `first_step` on, each with this time.
    pub fn add(&mut self, first_step: u64, num_steps: usize, mean: Duration) {
        let mean_ms = mean.as_secs_f64() * 1e3;
        self.0.push(OwnTime { first_step, num_steps: num_steps as u64, mean_ms });
        if self.0.len() >= MAX_KEPT {
            self.0 = joined(&self.0, MAX_KEPT / 2);
        }
    }

    /// What is told to the other processes. It is forgotten here.
    pub fn take(&mut self) -> Vec<OwnTime> {
        joined(&std::mem::take(&mut self.0), MAX_TOLD)
    }
}

/// At most `max` means over the same steps.
fn joined(times: &[OwnTime], max: usize) -> Vec<OwnTime> {
    let join = |part: &[OwnTime]| {
        let num_steps: u64 = part.iter().map(|time| time.num_steps).sum();
        let sum: f64 = part.iter().map(|time| time.mean_ms * time.num_steps as f64).sum();
        let first_step = part.first()?.first_step;
        Some(OwnTime { first_step, num_steps, mean_ms: sum / num_steps.max(1) as f64 })
    };
    times.chunks(times.len().div_ceil(max).max(1)).filter_map(join).collect()
}

/// The means of all processes, in their order, by steps.
pub(super) fn by_steps(of_processes: &[Vec<OwnTime>]) -> Vec<ProcessTimes> {
    let steps = of_processes.first().into_iter().flatten().enumerate();
    let of_steps = |(place, time): (usize, &OwnTime)| {
        let own = |times: &Vec<OwnTime>| times.get(place).map_or(f64::NAN, |time| time.mean_ms);
        ProcessTimes {
            step: time.first_step + time.num_steps.saturating_sub(1),
            num_steps: time.num_steps,
            // Microseconds: the digits after them are noise.
            own_ms: of_processes
                .iter()
                .map(|own_times| (own(own_times) * 1e3).round() / 1e3)
                .collect(),
        }
    };
    steps.map(of_steps).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_over_all_steps_however_many_there_are() {
        for num_launches in [1, 4, 10, 1000] {
            let mut times = OwnTimes::default();
            for launch in 0..num_launches {
                times.add(3 * launch, 3, Duration::from_millis(launch));
            }
            let told = times.take();
            assert!(told.len() <= MAX_TOLD && times.take().is_empty(), "{told:?}");
            let by_steps = by_steps(&[told.clone(), told]);
            let mut next = 0;
            for ProcessTimes { step, num_steps, own_ms } in &by_steps {
                // Those of launches in a row, each of three steps.
                let (first, last) = (next / 3, step / 3);
                assert_eq!((*step, own_ms[0]), (next + num_steps - 1, own_ms[1]));
                let mean = (first + last) as f64 / 2.0;
                assert!((own_ms[0] - mean).abs() < 1e-3, "{num_launches}: {own_ms:?}, {mean}");
                next += num_steps;
            }
            assert_eq!(next, 3 * num_launches);
        }
    }
}
