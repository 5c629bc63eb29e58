//! Steps that take some processes longer, resampled from those that a run has recorded: what it
//! costs to wait for them, and what Lockstep can do about it.
//!
//! A run has recorded what each of its `P` processes itself took in each step, and which part of
//! that it waited for its batch. Of `N` processes, process `i` draws from the steps of the recorded
//! process `i mod P`, independently in each step: the bootstrap of Efron, "Bootstrap Methods:
//! Another Look at the Jackknife" (1979). So hosts that are always slow stay apart from stalls that
//! can happen to all.
//!
//! * *Waiting*: a step takes `rest + max(own_i)`. The rest is what the recorded mean step takes
//!   beyond the mean of the maximum of the `P` recorded processes: what is sent, and what processes
//!   wait within a step; and where the plugin computes the collectives, all that devices do.
//! * *Skipping* (`data.late = "skip"`): a process that is without its batch half a median step
//!   after the end of the last step takes part without examples; the one that was not late for the
//!   longest time waits. A batch that is late stays so until it is there, for as many steps as that
//!   takes, and no other is assembled meanwhile.
//! * *Replacing* (`cluster.on_slow = "replace"`): spares take the places of processes that are slow
//!   on average, and are like the process in the middle of the others.

use std::collections::VecDeque;

use serde::Serialize;

/// A process is slow, and replaced, from this multiple of the others' steps on: the least factor
/// of the watchdog.
const SLOW: f64 = 1.3;
/// Steps by which the program knows how long one takes, and before which all batches are waited
/// for.
const MEASURED: usize = 32;
const FEWEST_MEASURED: usize = 8;
/// Draws of a simulation, and its least and most steps.
const DRAWS: usize = 4_000_000;
const FEWEST_STEPS: usize = 200;
const MOST_STEPS: usize = 10_000;

/// Steps of a process that took it about as long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecordedSteps {
    /// How many they are.
    pub num_steps: u64,
    /// The time that the process itself took for one of them, in milliseconds.
    pub own_ms: f64,
    /// The part in which it waited for its batch, in milliseconds.
    pub input_ms: f64,
}

/// What is done about slow processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Remedy {
    /// Nothing: all wait.
    Wait,
    /// `data.late = "skip"`.
    Skip,
    /// `cluster.on_slow = "replace"`, with as many spares as are needed.
    Replace,
}

/// Resampled steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResampledSteps {
    /// Their mean time, in milliseconds.
    pub mean_ms: f64,
    /// The time that 99 of 100 steps do not exceed, in milliseconds.
    pub p99_ms: f64,
    /// The share of the batch that was late and skipped.
    pub skipped: f64,
    /// Processes that a spare has replaced.
    pub num_replaced: usize,
}

/// The steps of a run of several processes.
///
/// ```
/// use lockstep::targets::cost::{RecordedSteps, Remedy, Stragglers};
///
/// let steps = |num_steps, own_ms, input_ms| RecordedSteps { num_steps, own_ms, input_ms };
/// // Every tenth batch of the second process is late by four steps.
/// let slow = vec![steps(90, 10.0, 0.0), steps(10, 50.0, 40.0)];
/// let run = Stragglers::new(&[vec![steps(100, 10.0, 0.0)], slow], 14.5).ok_or("no steps")?;
/// let of = |remedy| run.resample(remedy, 2, run.rest_ms());
/// assert!((of(Remedy::Wait).mean_ms - 14.5).abs() < 1e-9);
/// assert!(of(Remedy::Skip).mean_ms < 13.0 && of(Remedy::Skip).skipped > 0.05);
/// # Ok::<(), &str>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Stragglers {
    processes: Vec<RecordedProcess>,
    /// The least median of what a process took: what no step does without.
    base_ms: f64,
    /// What a step takes besides what the longest process took beyond that.
    rest_ms: f64,
    /// The recorded mean step.
    step_ms: f64,
}

/// The steps of one process.
#[derive(Clone, Debug, PartialEq)]
struct RecordedProcess {
    /// The share of the steps up to each of these, the shortest first.
    steps: Vec<(f64, RecordedSteps)>,
    mean_ms: f64,
}

impl Stragglers {
    /// Of the steps of each process, and the mean step in milliseconds. `None` with fewer than two
    /// processes, if one has no steps, or if a time is none.
    pub fn new(processes: &[Vec<RecordedSteps>], step_ms: f64) -> Option<Self> {
        let recorded = processes.iter().map(|steps| RecordedProcess::of(steps));
        let processes = recorded.collect::<Option<Vec<_>>>()?;
        let medians = processes.iter().map(|process| process.at(0.5).own_ms);
        let base_ms = medians.fold(f64::INFINITY, f64::min);
        if processes.len() < 2 || !step_ms.is_finite() || step_ms <= 0.0 {
            return None;
        }
        let mut run = Self { processes, base_ms, rest_ms: 0.0, step_ms };
        let longest = run.resample(Remedy::Wait, run.num_processes(), 0.0);
        run.rest_ms = step_ms - longest.mean_ms;
        Some(run)
    }

    /// Processes of the run.
    pub fn num_processes(&self) -> usize {
        self.processes.len()
    }

    /// The mean step of the run, in milliseconds.
    pub fn step_ms(&self) -> f64 {
        self.step_ms
    }

    /// What a step of the run takes if no process takes longer than usual, in milliseconds.
    pub fn rest_ms(&self) -> f64 {
        self.rest_ms
    }

    /// The processes of the run that are slow on average, in their order.
    pub fn slow(&self) -> Vec<usize> {
        let step_ms = |process: &RecordedProcess| self.rest_ms + process.mean_ms - self.base_ms;
        let is_slow = |(place, process): (usize, &RecordedProcess)| {
            let others = self.processes.iter().enumerate().filter(|(other, _)| *other != place);
            let others = others.map(|(_, other)| step_ms(other)).collect();
            (step_ms(process) >= SLOW * median(others)).then_some(place)
        };
        self.processes.iter().enumerate().filter_map(is_slow).collect()
    }

    /// Resamples steps of `num_processes`, which take `rest_ms` if none takes longer than usual.
    /// The same arguments give the same result.
    pub fn resample(&self, remedy: Remedy, num_processes: usize, rest_ms: f64) -> ResampledSteps {
        let mut all = (0..self.processes.len()).cycle().take(num_processes).collect::<Vec<_>>();
        let mut num_replaced = 0;
        if remedy == Remedy::Replace {
            let slow = self.slow();
            let usual = self.usual(&slow);
            for place in all.iter_mut().filter(|place| slow.contains(place)) {
                *place = usual;
                num_replaced += 1;
            }
        }
        let all: Vec<_> = all.iter().filter_map(|place| self.processes.get(*place)).collect();
        let num_steps = (DRAWS / all.len().max(1)).clamp(FEWEST_STEPS, MOST_STEPS);
        let mut steps = Steps::of(&all, self.base_ms, rest_ms);
        let mut times: Vec<f64> = match remedy {
            Remedy::Skip => (1..=num_steps as u64).map(|step| steps.skipping(step)).collect(),
            Remedy::Wait | Remedy::Replace => (0..num_steps).map(|_| steps.waiting()).collect(),
        };
        let skipped = steps.num_skipped as f64 / (num_steps * all.len().max(1)) as f64;
        times.sort_by(f64::total_cmp);
        let at = (99 * num_steps).div_ceil(100).saturating_sub(1);
        ResampledSteps {
            mean_ms: times.iter().sum::<f64>() / num_steps as f64,
            p99_ms: times.get(at).copied().unwrap_or_default(),
            skipped,
            num_replaced,
        }
    }

    /// The process in the middle of those that are not slow.
    fn usual(&self, slow: &[usize]) -> usize {
        let mut others: Vec<_> =
            (0..self.processes.len()).filter(|at| !slow.contains(at)).collect();
        let mean_ms = |place: &usize| self.processes.get(*place).map_or(0.0, |of| of.mean_ms);
        others.sort_by(|a, b| mean_ms(a).total_cmp(&mean_ms(b)));
        others.get(others.len() / 2).copied().unwrap_or_default()
    }
}

impl RecordedProcess {
    fn of(steps: &[RecordedSteps]) -> Option<Self> {
        let is_time = |ms: f64| ms.is_finite() && ms >= 0.0;
        let mut steps = steps.to_vec();
        steps.retain(|steps| steps.num_steps > 0);
        if !steps.iter().all(|steps| is_time(steps.own_ms) && is_time(steps.input_ms)) {
            return None;
        }
        steps.sort_by(|a, b| a.own_ms.total_cmp(&b.own_ms));
        let num_steps: f64 = steps.iter().map(|steps| steps.num_steps as f64).sum();
        let sum: f64 = steps.iter().map(|steps| steps.num_steps as f64 * steps.own_ms).sum();
        let mut so_far = 0.0;
        let up_to = |steps: RecordedSteps| {
            so_far += steps.num_steps as f64;
            (so_far / num_steps, steps)
        };
        let steps: Vec<_> = steps.into_iter().map(up_to).collect();
        (num_steps > 0.0).then(|| Self { steps, mean_ms: sum / num_steps })
    }

    /// The step that is longer than this share of all.
    fn at(&self, share: f64) -> RecordedSteps {
        let place = self.steps.partition_point(|(up_to, _)| *up_to <= share);
        let found = self.steps.get(place).or(self.steps.last());
        found.map_or(RecordedSteps { num_steps: 0, own_ms: 0.0, input_ms: 0.0 }, |found| found.1)
    }
}

/// Steps one after the other.
struct Steps<'a> {
    processes: &'a [&'a RecordedProcess],
    base_ms: f64,
    rest_ms: f64,
    random: SplitMix64,
    /// The time at the end of the last step, and at which the batch of each process is there.
    now: f64,
    ready: Vec<f64>,
    /// The last step in which each process was late.
    last_late: Vec<u64>,
    /// The last steps.
    took: VecDeque<f64>,
    num_skipped: usize,
}

impl<'a> Steps<'a> {
    fn of(processes: &'a [&'a RecordedProcess], base_ms: f64, rest_ms: f64) -> Self {
        Self {
            processes,
            base_ms,
            rest_ms,
            random: SplitMix64(0),
            now: 0.0,
            ready: vec![0.0; processes.len()],
            last_late: vec![0; processes.len()],
            took: VecDeque::new(),
            num_skipped: 0,
        }
    }

    /// A step in which all wait.
    fn waiting(&mut self) -> f64 {
        let random = &mut self.random;
        let own = self.processes.iter().map(|process| process.at(random.uniform()).own_ms);
        self.rest_ms + own.fold(f64::NEG_INFINITY, f64::max) - self.base_ms
    }

    /// A step in which late batches are skipped.
    fn skipping(&mut self, step: u64) -> f64 {
        let grace = match self.took.len() {
            FEWEST_MEASURED.. => median(self.took.iter().copied().collect()) / 2.0,
            _ => f64::INFINITY,
        };
        let (_, waits) = self.last_late.iter().zip(0..).min().unwrap_or((&0, 0));
        let mut longest = f64::NEG_INFINITY;
        let batches = self.ready.iter_mut().zip(&mut self.last_late);
        for ((place, process), (ready, last_late)) in self.processes.iter().enumerate().zip(batches)
        {
            let drawn = process.at(self.random.uniform());
            if *ready <= self.now {
                *ready = self.now + drawn.input_ms;
            }
            let mut input = *ready - self.now;
            if input > grace {
                *last_late = step;
                if place != waits {
                    input = grace;
                    self.num_skipped += 1;
                }
            }
            longest = longest.max(drawn.own_ms - drawn.input_ms + input);
        }
        let took = self.rest_ms + longest - self.base_ms;
        self.now += took;
        self.took.push_back(took);
        if self.took.len() > MEASURED {
            self.took.pop_front();
        }
        took
    }
}

/// The one in the middle; NaN of none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The generator of Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014).
struct SplitMix64(u64);

impl SplitMix64 {
    /// A number from 0 to below 1.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(num_steps: u64, own_ms: f64, input_ms: f64) -> RecordedSteps {
        RecordedSteps { num_steps, own_ms, input_ms }
    }

    #[test]
    fn waiting_for_more_processes_is_the_maximum_of_independent_steps() {
        // One step in twenty of each takes 30 ms more: of N processes, 1 - 0.95^N of the steps.
        let each = || vec![steps(95, 10.0, 0.0), steps(5, 40.0, 0.0)];
        let expected = |n: i32| 12.0 + 30.0 * (1.0 - 0.95f64.powi(n));
        let run = Stragglers::new(&[each(), each()], expected(2)).unwrap();
        assert!((run.rest_ms() - 12.0).abs() < 0.2, "{run:?}");
        for n in [2, 8, 64] {
            let found = run.resample(Remedy::Wait, n as usize, run.rest_ms());
            let expected = expected(n);
            assert!((found.mean_ms / expected - 1.0).abs() < 0.02, "{n}: {found:?} {expected}");
        }
        assert!(run.slow().is_empty());
        // Nothing is late for its batch: skipping is waiting.
        let skipping = run.resample(Remedy::Skip, 8, 12.0);
        assert!(skipping.skipped == 0.0 && (skipping.mean_ms / expected(8) - 1.0).abs() < 0.02);
        assert_eq!(skipping, run.resample(Remedy::Skip, 8, 12.0));
    }

    #[test]
    fn a_process_that_is_always_slow_is_replaced_and_others_are_not() {
        let usual = |ms: f64| vec![steps(50, ms, 0.0), steps(50, ms + 0.2, 0.0)];
        let run = [usual(10.0), usual(15.0), usual(10.1), usual(9.9)];
        let run = Stragglers::new(&run, 16.0).unwrap();
        assert_eq!(run.slow(), [1]);
        let waiting = run.resample(Remedy::Wait, 8, run.rest_ms());
        let replaced = run.resample(Remedy::Replace, 8, run.rest_ms());
        assert_eq!(replaced.num_replaced, 2);
        assert!(waiting.mean_ms - replaced.mean_ms > 4.5, "{waiting:?} {replaced:?}");
        // On an accelerator a process is known by its lateness: a tenth of a step is not slow.
        let late = [vec![steps(100, 0.1, 0.0)], vec![steps(100, 10.0, 10.0)]];
        assert!(Stragglers::new(&late, 110.0).unwrap().slow().is_empty());
        assert_eq!(Stragglers::new(&late, 30.0).unwrap().slow(), [1]);
    }

    /// A batch that is late by `d` costs `d` if all wait. Otherwise a step in which it is skipped
    /// costs half a step more, and there are as many until the batch is there.
    #[test]
    fn a_skipped_batch_costs_half_a_step_for_each_step_until_it_is_there() {
        let late = vec![steps(99, 10.0, 0.0), steps(1, 110.0, 100.0)];
        let run = Stragglers::new(&[vec![steps(100, 10.0, 0.0)], late], 11.0).unwrap();
        let skipping = run.resample(Remedy::Skip, 2, run.rest_ms());
        // After six steps of 15 ms, 10 of 100 ms are left: too much for the seventh.
        let events = skipping.skipped * 2.0 / 7.0;
        assert!((events / 0.01 - 1.0).abs() < 0.25, "{skipping:?}");
        let more = skipping.mean_ms - run.rest_ms();
        assert!((more / (events * 7.0 * 5.0) - 1.0).abs() < 0.1, "{skipping:?} {more}");
    }

    #[test]
    fn what_is_no_recording_is_none() {
        let usual = || vec![steps(10, 10.0, 0.0)];
        for (processes, step_ms) in [
            (vec![usual()], 10.0),
            (vec![usual(), vec![]], 10.0),
            (vec![usual(), vec![steps(0, 1.0, 0.0)]], 10.0),
            (vec![usual(), vec![steps(1, f64::NAN, 0.0)]], 10.0),
            (vec![usual(), vec![steps(1, 1.0, -1.0)]], 10.0),
            (vec![usual(), usual()], f64::NAN),
        ] {
            assert_eq!(Stragglers::new(&processes, step_ms), None);
        }
    }
}
