//! Finds processes with slow devices, from the times of probes.
//!
//! A probe is the same program without communication in all processes, so its times can be compared
//! even where those of steps cannot. A process is slow if the last two probes show it: each must
//! exceed the median of the others by the smallest factor, by four standard errors, which follow from
//! how its launches differ, and by twice what probes have differed before. So busy processors are no
//! alarm.

use std::collections::VecDeque;

use super::slow::{BALANCED, Slowness, is_outlier, keep, median_of_others, sorted};
use crate::cluster::report::{ProbeTime, SlowCause};

/// Probes that must show a slow process.
const NUM: usize = 2;
/// Probes that are kept, for the estimate of noise.
const HISTORY: usize = 32;
/// What noise is exceeded by.
const NOISES: f64 = 2.0;
/// A level must exceed this many standard errors.
const ERRORS: f64 = 4.0;
/// Seconds added to both times that are compared.
const NEGLIGIBLE: f64 = 0.2e-3;

/// The last probes of all processes, and who is slow.
#[derive(Debug)]
pub struct ProbeTest {
    min_level: f64,
    /// Steps, and the levels of all processes.
    past: VecDeque<(u64, Vec<Level>)>,
    slow: Vec<Option<Slowness>>,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    /// `ln` of the time in multiples of the median of the others.
    level: f64,
    /// Its standard error.
    error: f64,
}

impl ProbeTest {
    /// A test for this many processes. A process is slow from `min_factor` on.
    pub fn new(num_processes: usize, min_factor: f64) -> Self {
        let min_level = min_factor.max(BALANCED).ln();
        Self { min_level, past: VecDeque::new(), slow: vec![None; num_processes] }
    }

    /// The verdict about a process.
    pub fn slow(&self, process_index: usize) -> Option<Slowness> {
        self.slow[process_index]
    }

    /// Takes the times of all processes.
    pub fn receive(&mut self, step: u64, times: Vec<ProbeTime>) {
        let means = || times.iter().map(|time| time.mean.as_secs_f32());
        let relative = |time: &ProbeTime| {
            time.error.as_secs_f32() / (time.mean.as_secs_f32() + NEGLIGIBLE as f32)
        };
        let (sorted_means, errors) = (sorted(means().collect()), times.iter().map(relative));
        let sorted_errors = sorted(errors.clone().collect());
        let level = |(mean, error): (f32, f32)| {
            let others = median_of_others(&sorted_means, mean);
            let level = ((f64::from(mean) + NEGLIGIBLE) / (others + NEGLIGIBLE)).ln();
            Level { level, error: f64::from(error).hypot(median_of_others(&sorted_errors, error)) }
        };
        let levels: Vec<_> = means().zip(errors).map(level).collect();
        keep(&mut self.past, (step, levels), HISTORY);
        let noise = NOISES * self.noise();
        let last: Vec<_> = self.past.iter().rev().take(NUM).collect();
        let since_step = last.last().map_or(0, |(step, _)| *step);
        for (index, slow) in self.slow.iter_mut().enumerate() {
            let shows_it = |(_, levels): &&(u64, Vec<Level>)| {
                let Level { level, error } = levels[index];
                let all: Vec<_> = levels.iter().map(|of| of.level).collect();
                level > self.min_level.max(noise).max(ERRORS * error)
                    && (all.len() < 4 || is_outlier(&all, index))
            };
            let factors = last.iter().map(|(_, levels)| levels[index].level.exp());
            let newest = factors.clone().next().unwrap_or(1.0);
            *slow = match *slow {
                Some(slow) if newest > BALANCED => Some(Slowness { factor: newest, ..slow }),
                None if last.len() == NUM && last.iter().all(shows_it) => {
                    let factor = factors.fold(f64::INFINITY, f64::min);
                    Some(Slowness { factor, since_step, cause: SlowCause::Device })
                }
                _ => None,
            };
        }
    }

    /// The 90th percentile of the levels' distances from 0 in the probes before the last two; 0 if
    /// there are too few. Those of processes that are slow do not count.
    fn noise(&self) -> f64 {
        let before = self.past.iter().rev().skip(NUM);
        let not_slow = |levels: &Vec<Level>| {
            let levels = levels.iter().zip(&self.slow).filter(|(_, slow)| slow.is_none());
            levels.map(|(of, _)| of.level.abs()).collect::<Vec<_>>()
        };
        let mut distances: Vec<f64> = before.flat_map(|(_, levels)| not_slow(levels)).collect();
        distances.sort_by(f64::total_cmp);
        distances.get(distances.len() * 9 / 10).copied().unwrap_or_default()
    }
}
