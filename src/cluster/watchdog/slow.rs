//! Finds processes whose own time is beyond the others'.
//!
//! All processes do the same work in a step, so a process is compared with the median of the others
//! in the same step: `d = ln(own / median of the others' own)`. The statistic has to see a factor
//! of 1.5 within 20 steps and never raise an alarm about noise, so it is robust at three levels:
//! 1. Four steps are summarized as the median of their `d`, which ignores one outlier among them,
//!    such as a pause of a garbage collector. The last four such batches are summarized in the same
//!    way: the *level* of a process.
//! 2. The level must exceed `ln(min_factor)` and six standard errors. The error is estimated from
//!    the spread of the process's own batches and earlier levels, so noise that lasts for several
//!    steps counts too, and of the batches of several processes. The spread is the 90th percentile
//!    of the distances from the median: the median distance is nearly zero where processes that
//!    share a core disturb each other now and then. Where noise is too large for that, a process is
//!    named once most of the last 24 batches show it.
//! 3. With four processes or more, the level must be an outlier among those of the others, by their
//!    median and median absolute deviation: in a job of uneven hosts, a host at the end of the
//!    range is not an alarm.
//!
//! Medians do not see a process that pauses in every third step, or in every tenth. So the *sum* of
//! its own times over sixteen steps is compared with that of the others as well. A single pause
//! shows in it, so a process is named by it only when nearly all of the last twelve such groups
//! show it: pauses by chance do not.
//!
//! Where the plugin computes the collectives, nobody knows what the devices of one process take:
//! the own time is the time by which it launches late. That is nearly zero in most steps, so its
//! multiples say nothing; what counts is how much longer it makes the step. All processes get the
//! same time of devices: that of the step, from the last launch on. And launches are enqueued
//! ahead, so that a process that stalls shows in one step of several: batches are summarized by
//! their sums, not by medians. Noise is what occurs in nearly all batches of processes that are
//! not slow.
//!
//! What devices take shows in *probes*, a program without communication that each process times now
//! and then: see [`ProbeTest`].
//!
//! The median of *one* other process does not tell which of the two has changed. So in a job of
//! two, a process that was once as fast as the other must also be slower than it was then.

use std::collections::{BTreeMap, VecDeque};
use std::iter::Sum;
use std::ops::Add;

use super::probe::ProbeTest;
use crate::cluster::report::{SlowCause, StepTimes};

/// Steps at the beginning that are ignored: caches are cold.
const WARM_UP: usize = 2;
/// Steps of a batch.
const BATCH: usize = 4;
/// Batches of which the level is computed.
const WINDOW: usize = 4;
/// Batches that show a slow process in any noise.
const LONG_WINDOW: usize = 24;
/// So many of them may be an exception.
const EXCEPTIONS: usize = 4;
/// Batches of a group, in which sums are compared.
const GROUP: usize = 4;
/// Groups that show a process that pauses again and again.
const GROUPS: usize = 12;
/// So many of them may be an exception.
const GROUP_EXCEPTIONS: usize = 1;
/// The last groups, of which most must show that a process is slow for it to stay named.
const LAST_GROUPS: usize = 3;
/// Batches that are kept, for the estimate of noise.
const HISTORY: usize = 64;
/// Processes whose batches are pooled for an estimate of noise.
const POOL: usize = 16;
/// Batches from which noise is estimated well enough without those that are judged.
const ENOUGH: usize = 16;
/// A level must exceed this many standard errors.
const ERRORS: f64 = 6.0;
/// The level's standard error, in standard deviations of a batch: the median of four normal values.
const LEVEL_ERROR: f64 = 0.546;
/// Where only lateness is known, a level must exceed what occurs in nearly all batches this often.
const LATE: f64 = 2.0;
/// A level must exceed the median of the others' by this many standard deviations.
const OUTLIER: f64 = 3.0;
/// Standard deviations per median absolute deviation, for normal values.
const NORMAL: f64 = 1.4826;
/// The 90th percentile of the distance of normal values from their median, in standard deviations.
const NORMAL_90: f64 = 1.645;
/// A process below this factor is not slow any more, and a pair below it is balanced.
pub(super) const BALANCED: f64 = 1.15;
/// Seconds added to both times that are compared, so that the jitter of very short steps does not
/// count.
const NEGLIGIBLE: f64 = 0.2e-3;
/// Steps that wait for reports of other processes.
const MAX_PENDING: usize = 512;

/// A slow process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowness {
    /// Its own time, in multiples of the median of the others.
    pub factor: f64,
    /// The first of the slow steps.
    pub since_step: u64,
    /// The part of its time by which it exceeds the others.
    pub cause: SlowCause,
}

/// The steps of all processes, and who is slow.
#[derive(Debug)]
pub struct SlowTest {
    /// `ln` of the smallest factor that counts as slow.
    min_level: f64,
    pending: BTreeMap<u64, Pending>,
    /// Complete steps since the beginning.
    num_steps: usize,
    /// Complete steps of the current batch: the step, and the own times of all processes.
    batch: Vec<Complete>,
    /// Batches of the current group, and its first step.
    num_batches: usize,
    group_since: u64,
    processes: Vec<Past>,
    /// The plugin computes the collectives.
    hides_devices: bool,
    probes: ProbeTest,
}

/// A step that some processes have not reported.
#[derive(Debug)]
struct Pending {
    reported: Vec<Option<StepTimes>>,
    num_missing: usize,
}

/// A step that all processes have reported.
#[derive(Debug)]
struct Complete {
    step: u64,
    owns: Vec<Own>,
    /// The plugin computes the collectives.
    hides_devices: bool,
}

/// What a process itself takes, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    input: f32,
    host: f32,
    device: f32,
}

/// What is known of a process.
#[derive(Clone, Debug, Default)]
struct Past {
    batches: VecDeque<Batch>,
    levels: VecDeque<f64>,
    /// Own times while it was as fast as the others, in seconds per step.
    balanced: VecDeque<f64>,
    /// The sum of its own times in the current group.
    sum: Own,
    /// Groups, with the sums of own times.
    groups: VecDeque<Batch>,
    slow: Option<Slowness>,
    /// `true` if it was named for its sums.
    is_slow_in_sum: bool,
}

#[derive(Clone, Copy, Debug)]
struct Batch {
    first_step: u64,
    /// The median of `d`.
    value: f64,
    /// The median of the own times, in seconds.
    own: f64,
    /// Their sum.
    sum: Own,
}

impl SlowTest {
    /// A test for this many processes. A process is slow from `min_factor` on.
    pub fn new(num_processes: usize, min_factor: f64) -> Self {
        Self {
            min_level: min_factor.max(BALANCED).ln(),
            pending: BTreeMap::new(),
            num_steps: 0,
            batch: vec![],
            num_batches: 0,
            group_since: 0,
            processes: vec![Past::default(); num_processes],
            hides_devices: false,
            probes: ProbeTest::new(num_processes, min_factor),
        }
    }

    /// Takes the finished steps of a process. Returns how many steps have become complete by it.
    pub fn receive(&mut self, process_index: usize, steps: &[StepTimes]) -> usize {
        let num_processes = self.processes.len();
        let mut num_complete = 0;
        for times in steps {
            let step = self.pending.entry(times.step).or_insert_with(|| Pending {
                reported: vec![None; num_processes],
                num_missing: num_processes,
            });
            let Some(of) = step.reported.get_mut(process_index) else { return num_complete };
            step.num_missing -= usize::from(of.is_none());
            *of = Some(*times);
            if step.num_missing == 0 {
                let reported = step.reported.iter_mut().filter_map(Option::take).collect();
                // Processes report in order: what is missing of earlier steps will not come.
                self.pending = self.pending.split_off(&times.step.saturating_add(1));
                self.complete(times.step, reported);
                num_complete += 1;
            }
            if self.pending.len() > MAX_PENDING {
                self.pending.pop_first();
            }
        }
        num_complete
    }

    /// The slow processes, in order.
    pub fn slow(&self) -> impl Iterator<Item = (usize, Slowness)> {
        let of = |(index, past): (usize, &Past)| {
            Some((index, past.slow.or_else(|| self.probes.slow(index))?))
        };
        self.processes.iter().enumerate().filter_map(of)
    }

    fn complete(&mut self, step: u64, reported: Vec<StepTimes>) {
        self.num_steps += 1;
        if self.processes.len() < 2 {
            return;
        }
        if let Some(probes) = reported.iter().map(|times| times.probe).collect() {
            self.probes.receive(step, probes);
        }
        if self.num_steps <= WARM_UP {
            return;
        }
        self.batch.push(Complete::of(step, &reported));
        if self.batch.len() == BATCH {
            let batch = std::mem::take(&mut self.batch);
            self.close(&batch);
            self.judge();
        }
    }

    /// Summarizes four steps.
    fn close(&mut self, steps: &[Complete]) {
        self.hides_devices = steps.iter().any(|step| step.hides_devices);
        let num_processes = self.processes.len();
        let sum = |index: usize| steps.iter().map(|step| step.owns[index]).sum();
        let sums: Vec<Own> = (0..num_processes).map(sum).collect();
        let rows: Vec<Vec<f32>> = match self.hides_devices {
            true => vec![sums.iter().map(|sum| sum.total() / steps.len() as f32).collect()],
            false => {
                let totals = |step: &Complete| step.owns.iter().map(|own| own.total()).collect();
                steps.iter().map(totals).collect()
            }
        };
        let sorted: Vec<Vec<f32>> = rows.iter().map(|row| sorted(row.clone())).collect();
        let first_step = steps.first().map_or(0, |complete| complete.step);
        for (index, past) in self.processes.iter_mut().enumerate() {
            let ratios = rows.iter().zip(&sorted).map(|(row, sorted)| {
                let own = f64::from(row[index]);
                ((own + NEGLIGIBLE) / (median_of_others(sorted, row[index]) + NEGLIGIBLE)).ln()
            });
            let value = median(ratios.collect());
            let own = median(rows.iter().map(|row| f64::from(row[index])).collect());
            let sum = sums[index];
            keep(&mut past.batches, Batch { first_step, value, own, sum }, HISTORY);
            past.sum = past.sum + sum;
        }
        if self.num_batches == 0 {
            self.group_since = first_step;
        }
        self.num_batches += 1;
        if self.num_batches == GROUP {
            self.num_batches = 0;
            self.close_group();
        }
    }

    /// Compares the sums of a group.
    fn close_group(&mut self) {
        let sorted = sorted(self.processes.iter().map(|past| past.sum.total()).collect());
        let negligible = NEGLIGIBLE * (BATCH * GROUP) as f64;
        for past in &mut self.processes {
            let sum = std::mem::take(&mut past.sum);
            let total = f64::from(sum.total());
            let others = median_of_others(&sorted, sum.total());
            let value = ((total + negligible) / (others + negligible)).ln();
            let own = total / (BATCH * GROUP) as f64;
            keep(&mut past.groups, Batch { first_step: self.group_since, value, own, sum }, GROUPS);
        }
    }

    fn judge(&mut self) {
        let num_batches = self.processes.first().map_or(0, |past| past.batches.len());
        if num_batches < WINDOW {
            return;
        }
        let levels: Vec<f64> = self.processes.iter().map(Past::level).collect();
        let sums: Vec<f64> = self.processes.iter().map(|past| past.sum_level(GROUPS)).collect();
        let num_processes = self.processes.len();
        for index in 0..num_processes {
            let level = levels[index];
            let past = &self.processes[index];
            let slow = match past.slow {
                None if level > self.min_level && self.is_slow(index, &levels) => {
                    let cause = self.cause(index, |past| past.last().map(|batch| batch.sum).sum());
                    Some(past.slowness(level, cause))
                }
                None if self.is_slow_in_sum(index, &sums) => {
                    let since = past.groups.iter().rev().take_while(|group| group.is_slow()).last();
                    let since_step = since.map_or(0, |group| group.first_step);
                    let groups = |past: &Past| past.groups.iter().map(|group| group.sum).sum();
                    let cause = self.cause(index, groups);
                    Some(Slowness { factor: sums[index].exp(), since_step, cause })
                }
                Some(slow) if level > BALANCED.ln() => {
                    Some(Slowness { factor: level.exp(), ..slow })
                }
                Some(slow) if past.is_slow_in_sum => {
                    let factor = past.sum_level(LAST_GROUPS).exp();
                    (factor > BALANCED).then_some(Slowness { factor, ..slow })
                }
                _ => None,
            };
            let past = &mut self.processes[index];
            let is_in_median = level > self.min_level;
            past.is_slow_in_sum = match (past.slow, slow) {
                (None, Some(_)) => !is_in_median,
                (Some(_), Some(_)) => past.is_slow_in_sum,
                (_, None) => false,
            };
            past.slow = slow;
            keep(&mut past.levels, level, HISTORY);
            if num_processes == 2
                && level.abs() < BALANCED.ln()
                && let Some(batch) = past.batches.back()
            {
                keep(&mut past.balanced, batch.own, ENOUGH);
            }
        }
    }

    /// How late processes are that are not slow, in nearly all batches. The last ones of those that
    /// may be slow do not count.
    fn lateness(&self, levels: &[f64]) -> f64 {
        let some = self.processes.iter().zip(levels).step_by(self.processes.len().div_ceil(POOL));
        let batches = some.filter(|(past, _)| past.slow.is_none()).flat_map(|(past, level)| {
            let judged = if *level > self.min_level { WINDOW } else { 0 };
            past.batches.iter().rev().skip(judged).map(|batch| batch.value.max(0.0))
        });
        let mut values: Vec<f64> = batches.collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() * 97 / 100).copied().unwrap_or_default()
    }

    /// The part of the sums in which a process exceeds the others by most.
    fn cause(&self, index: usize, sum: impl Fn(&Past) -> Own) -> SlowCause {
        let sums: Vec<Own> = self.processes.iter().map(sum).collect();
        let excess = |part: &dyn Fn(&Own) -> f32| {
            let own = part(&sums[index]);
            f64::from(own) - median_of_others(&sorted(sums.iter().map(part).collect()), own)
        };
        let parts = [
            (SlowCause::Input, excess(&|own| own.input)),
            (SlowCause::Host, excess(&|own| own.host)),
            (SlowCause::Device, excess(&|own| own.device)),
        ];
        let most = parts.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        most.map_or(SlowCause::Host, |(cause, _)| cause)
    }

    /// Tests the sums of a process: nearly all groups must show that it is slow.
    fn is_slow_in_sum(&self, index: usize, sums: &[f64]) -> bool {
        let past = &self.processes[index];
        let num_slow = past.groups.iter().filter(|group| group.is_slow()).count();
        past.groups.len() == GROUPS
            && num_slow >= GROUPS - GROUP_EXCEPTIONS
            && sums[index] > self.min_level
            && (sums.len() < 4 || is_outlier(sums, index))
            && (sums.len() > 2
                || past.is_slower_than_before(past.groups.iter().map(|group| group.own).collect()))
    }

    /// Tests a process whose level is above the smallest.
    fn is_slow(&self, index: usize, levels: &[f64]) -> bool {
        let past = &self.processes[index];
        let pooled = || {
            let some = self.processes.iter().step_by(self.processes.len().div_ceil(POOL));
            LEVEL_ERROR * spread(some.flat_map(Past::batch_distances).collect())
        };
        past.is_persistent()
            && (levels.len() < 4 || is_outlier(levels, index))
            && (levels.len() > 2 || past.is_slower_than_it_was())
            && (past.is_slow_for_long(self.min_level)
                || match self.hides_devices {
                    true => levels[index] > LATE * self.lateness(levels),
                    false => levels[index] > ERRORS * past.error().max(pooled()),
                })
    }
}

impl Complete {
    fn of(step: u64, reported: &[StepTimes]) -> Self {
        let hides_devices = reported.iter().any(|times| times.hides_devices);
        let late = |times: &StepTimes| (times.input + times.host).as_secs_f64();
        let shared_device = hides_devices.then(|| {
            let wholes = reported.iter().map(|times| (times.own + times.waited).as_secs_f64());
            (median(wholes.collect()) - reported.iter().map(late).fold(0.0, f64::max)).max(0.0)
        });
        let own = |times: &StepTimes| Own {
            input: times.input.as_secs_f32(),
            host: times.host.as_secs_f32(),
            device: shared_device.unwrap_or_else(|| times.own.as_secs_f64() - late(times)) as f32,
        };
        Self { step, owns: reported.iter().map(own).collect(), hides_devices }
    }
}

impl Own {
    fn total(self) -> f32 {
        self.input + self.host + self.device
    }
}

impl Add for Own {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            input: self.input + other.input,
            host: self.host + other.host,
            device: self.device + other.device,
        }
    }
}

impl Sum for Own {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Self::add)
    }
}

impl Batch {
    fn is_slow(&self) -> bool {
        self.value > BALANCED.ln()
    }
}

impl Past {
    fn last(&self) -> impl DoubleEndedIterator<Item = &Batch> {
        self.batches.range(self.batches.len().saturating_sub(WINDOW)..)
    }

    fn level(&self) -> f64 {
        median(self.last().map(|batch| batch.value).collect())
    }

    /// How far its batches are from their median. Those that are judged are left out once there are
    /// enough.
    fn batch_distances(&self) -> Vec<f64> {
        let judged = if self.batches.len() < ENOUGH { 0 } else { WINDOW };
        distances(self.batches.iter().rev().skip(judged).map(|batch| batch.value).collect())
    }

    /// The standard error of its level.
    fn error(&self) -> f64 {
        let error = LEVEL_ERROR * spread(self.batch_distances());
        let judged = if self.batches.len() < ENOUGH { self.levels.len() } else { WINDOW - 1 };
        let levels = self.levels.iter().rev().skip(judged).copied().collect();
        error.max(spread(distances(levels)))
    }

    fn is_persistent(&self) -> bool {
        self.last().all(|batch| batch.value > BALANCED.ln())
    }

    /// `true` if the last 24 batches exceed `min_level`, and most of them show that it is slow.
    fn is_slow_for_long(&self, min_level: f64) -> bool {
        let recent = || self.batches.iter().rev().take(LONG_WINDOW).map(|batch| batch.value);
        let num_slow = recent().filter(|value| *value > BALANCED.ln()).count();
        num_slow >= LONG_WINDOW - EXCEPTIONS && median(recent().collect()) > min_level
    }

    /// The level of its sums in the last groups.
    fn sum_level(&self, num_groups: usize) -> f64 {
        median(self.groups.iter().rev().take(num_groups).map(|group| group.value).collect())
    }

    fn is_slower_than_it_was(&self) -> bool {
        self.is_slower_than_before(self.last().map(|batch| batch.own).collect())
    }

    fn is_slower_than_before(&self, owns: Vec<f64>) -> bool {
        let now = median(owns);
        let was = median(self.balanced.iter().copied().collect());
        self.balanced.len() < WINDOW || now > BALANCED * was
    }

    fn slowness(&self, level: f64, cause: SlowCause) -> Slowness {
        let slow = self.batches.iter().rev().take_while(|batch| batch.value > BALANCED.ln());
        let since_step = slow.last().map_or(0, |batch| batch.first_step);
        Slowness { factor: level.exp(), since_step, cause }
    }
}

/// Distances from the median.
fn distances(values: Vec<f64>) -> Vec<f64> {
    let center = median(values.clone());
    values.into_iter().map(|value| (value - center).abs()).collect()
}

/// The standard deviation that belongs to distances. Few may be small by chance.
fn spread(mut distances: Vec<f64>) -> f64 {
    distances.sort_by(f64::total_cmp);
    let few = 1.0 + 4.0 / distances.len().max(1) as f64;
    few * distances.get(distances.len() * 9 / 10).copied().unwrap_or_default() / NORMAL_90
}

/// Appends a value, and drops the oldest beyond `max`.
pub(super) fn keep<T>(values: &mut VecDeque<T>, value: T, max: usize) {
    values.push_back(value);
    if values.len() > max {
        values.pop_front();
    }
}

pub(super) fn is_outlier(levels: &[f64], index: usize) -> bool {
    let others = || levels.iter().enumerate().filter(|(i, _)| *i != index).map(|(_, level)| *level);
    let center = median(others().collect());
    let spread = NORMAL * median(others().map(|level| (level - center).abs()).collect());
    levels[index] - center > OUTLIER * spread
}

pub(super) fn sorted(mut values: Vec<f32>) -> Vec<f32> {
    values.sort_by(f32::total_cmp);
    values
}

/// The median of sorted values without one of them.
pub(super) fn median_of_others(sorted: &[f32], own: f32) -> f64 {
    let own = sorted.partition_point(|value| *value < own);
    let other = |at: usize| f64::from(sorted[if at < own { at } else { at + 1 }]);
    let num_others = sorted.len() - 1;
    (other((num_others - 1) / 2) + other(num_others / 2)) / 2.0
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count => (values[(count - 1) / 2] + values[count / 2]) / 2.0,
    }
}
