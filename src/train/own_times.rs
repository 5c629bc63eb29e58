//! The times that this process itself took for its steps, since processes last told each other.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::observe::{LikeSteps, ProcessTimes};

/// Processes tell each other this many means: enough to see when one became slow, however many
/// steps lie between two proofs.
const MAX_TOLD: usize = 4;
/// The most means that are kept. Neighbours are joined beyond that.
const MAX_KEPT: usize = 256;
/// The most groups of like steps that belong to a mean, and those of all processes together: each
/// tells all others. Two tell usual steps from long ones.
const MAX_GROUPS: usize = 8;
const MIN_GROUPS: usize = 2;
const MAX_GROUPS_OF_ALL: usize = 512;
/// Steps are alike if their times differ by no more than this share of them.
const ALIKE: f64 = 0.1;

/// A mean over steps in a row, and how they differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct OwnTime {
    first_step: u64,
    num_steps: u64,
    mean_ms: f64,
    spread: Vec<LikeSteps>,
}

/// The means of this process. All processes launch the same steps, so theirs are over the same.
pub(super) struct OwnTimes {
    times: Vec<OwnTime>,
    has_begun: bool,
    max_groups: usize,
}

impl OwnTimes {
    /// Of one of so many processes, which has taken no step yet.
    pub fn new(num_processes: usize) -> Self {
        let each = MAX_GROUPS_OF_ALL / num_processes.max(1);
        let max_groups = each.clamp(MIN_GROUPS, MAX_GROUPS);
        Self { times: vec![], has_begun: false, max_groups }
    }

    /// Takes in a launch of `num_steps` steps from `first_step` on, each with this time of its own,
    /// and this part of it in which it waited for a batch. The first launch warms up: it says
    /// nothing about how others differ.
    pub fn add(&mut self, first_step: u64, num_steps: usize, own: Duration, input: Duration) {
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let num_steps = num_steps as u64;
        let steps = LikeSteps { num_steps, own_ms: ms(own), input_ms: ms(input) };
        let spread = if self.has_begun { vec![steps] } else { vec![] };
        self.has_begun = true;
        let mean_ms = own.as_secs_f64() * 1e3;
        self.times.push(OwnTime { first_step, num_steps, mean_ms, spread });
        if self.times.len() >= MAX_KEPT {
            self.times = joined(&self.times, MAX_KEPT / 2, self.max_groups);
        }
    }

    /// What is told to the other processes. It is forgotten here.
    pub fn take(&mut self) -> Vec<OwnTime> {
        joined(&std::mem::take(&mut self.times), MAX_TOLD, self.max_groups)
    }
}

/// At most `max` means over the same steps, each with at most `max_groups` groups.
fn joined(times: &[OwnTime], max: usize, max_groups: usize) -> Vec<OwnTime> {
    let join = |part: &[OwnTime]| {
        let num_steps: u64 = part.iter().map(|time| time.num_steps).sum();
        let sum: f64 = part.iter().map(|time| time.mean_ms * time.num_steps as f64).sum();
        let first_step = part.first()?.first_step;
        let spread = part.iter().flat_map(|time| time.spread.iter().copied());
        let spread = like_steps(spread.collect(), max_groups);
        Some(OwnTime { first_step, num_steps, mean_ms: sum / num_steps.max(1) as f64, spread })
    };
    times.chunks(times.len().div_ceil(max).max(1)).filter_map(join).collect()
}

/// At most `max_groups` groups of steps that took about as long. Neighbours that are not alike are
/// joined where that adds the least to the squared distances from the means of the groups:
/// Ward, "Hierarchical Grouping to Optimize an Objective Function" (1963).
fn like_steps(mut groups: Vec<LikeSteps>, max_groups: usize) -> Vec<LikeSteps> {
    groups.sort_by(|a, b| a.own_ms.total_cmp(&b.own_ms));
    let are_alike = |a: &LikeSteps, b: &LikeSteps| {
        let most = ALIKE * a.own_ms.max(b.own_ms);
        (a.own_ms - b.own_ms).abs() <= most && (a.input_ms - b.input_ms).abs() <= most
    };
    let mut kept: Vec<LikeSteps> = vec![];
    for group in groups {
        match kept.last_mut().filter(|last| are_alike(last, &group)) {
            Some(last) => *last = together(last, &group),
            None => kept.push(group),
        }
    }
    while kept.len() > max_groups {
        let added = |pair: &[LikeSteps]| -> f64 {
            let [a, b] = pair else { return f64::INFINITY };
            let (own, input) = (a.own_ms - b.own_ms, a.input_ms - b.input_ms);
            let (of_a, of_b) = (a.num_steps as f64, b.num_steps as f64);
            of_a * of_b / (of_a + of_b) * (own * own + input * input)
        };
        let costs = kept.windows(2).map(added).zip(0..);
        let Some((_, place)) = costs.min_by(|a, b| a.0.total_cmp(&b.0)) else { break };
        let second = kept.remove(place + 1);
        if let Some(first) = kept.get_mut(place) {
            *first = together(first, &second);
        }
    }
    kept
}

/// The steps of both groups.
fn together(a: &LikeSteps, b: &LikeSteps) -> LikeSteps {
    let num_steps = a.num_steps + b.num_steps;
    let mean = |a_ms: f64, b_ms: f64| {
        let sum = a_ms * a.num_steps as f64 + b_ms * b.num_steps as f64;
        (sum / num_steps.max(1) as f64 * 1e3).round() / 1e3
    };
    let (own_ms, input_ms) = (mean(a.own_ms, b.own_ms), mean(a.input_ms, b.input_ms));
    LikeSteps { num_steps, own_ms, input_ms }
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
            spread: of_processes
                .iter()
                .map(|times| times.get(place).map_or(vec![], |time| time.spread.clone()))
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
            let mut times = OwnTimes::new(2);
            for launch in 0..num_launches {
                times.add(3 * launch, 3, Duration::from_millis(launch), Duration::ZERO);
            }
            let told = times.take();
            assert!(told.len() <= MAX_TOLD && times.take().is_empty(), "{told:?}");
            let by_steps = by_steps(&[told.clone(), told]);
            let mut next = 0;
            for ProcessTimes { step, num_steps, own_ms, .. } in &by_steps {
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

    #[test]
    fn like_steps_are_one_group_and_rare_ones_stay_apart() {
        let mut times = OwnTimes::new(2);
        let ms = Duration::from_millis;
        // The first launch is none of them.
        times.add(0, 1, ms(900), ms(0));
        for step in 1..200 {
            let noise = Duration::from_micros(10 * (step * 7 % 11));
            match step % 20 {
                0 => times.add(step, 1, ms(70) + noise, ms(60)),
                _ => times.add(step, 1, ms(10) + noise, ms(0)),
            }
        }
        let told = times.take();
        assert!(told.iter().all(|time| time.spread.len() == 2), "{told:?}");
        let of = |place: usize| told.iter().map(move |time| time.spread[place]);
        let sum = |place: usize| of(place).map(|steps| steps.num_steps).sum::<u64>();
        assert_eq!((sum(0), sum(1)), (190, 9));
        assert!(of(0).all(|steps| steps.own_ms < 10.2 && steps.input_ms == 0.0), "{told:?}");
        assert!(of(1).all(|steps| steps.own_ms > 70.0 && steps.input_ms == 60.0), "{told:?}");

        // Steps that are all different are at most so many groups, with the same sum.
        for step in 0..100 {
            times.add(step, 1, ms(1 + step * step), ms(step));
        }
        let told = times.take();
        let spreads: Vec<_> = told.iter().map(|time| &time.spread[..]).collect();
        assert!(spreads.iter().all(|spread| spread.len() <= MAX_GROUPS), "{told:?}");
        let sum = |spread: &&[LikeSteps]| -> f64 {
            spread.iter().map(|steps| steps.num_steps as f64 * steps.own_ms).sum()
        };
        for (spread, time) in spreads.iter().zip(&told) {
            let whole = time.num_steps as f64 * time.mean_ms;
            assert!((sum(spread) / whole - 1.0).abs() < 1e-3, "{time:?}");
        }

        // Of very many processes each tells less: usual steps, and the long ones.
        let mut times = OwnTimes::new(2000);
        for step in 0..101 {
            times.add(step, 1, ms(if step % 50 == 49 { 500 } else { 10 + step % 5 }), ms(0));
        }
        let told = times.take();
        assert!(told.iter().all(|time| time.spread.len() <= MIN_GROUPS), "{told:?}");
        let longest = told.iter().flat_map(|time| &time.spread).map(|steps| steps.own_ms);
        assert_eq!(longest.fold(0.0, f64::max), 500.0);
    }
}
