//! Finds processes with slow devices, from the times of probes.
//!
//! A probe is the same program without communication in all processes, so its times can be
//! compared even where those of steps cannot. A process is slow if the last probes show it, two of
//! them where they vary little: all must exceed the median of the others, and their mean by the
//! smallest factor, by six standard errors, which follow from how the launches of each differ, and
//! by twice what probes have differed before. So busy processors are no alarm.

use std::collections::VecDeque;

use super::slow::{BALANCED, Slowness, is_outlier, keep, median_of_others, sorted};
use crate::cluster::report::{ProbeTime, SlowCause};

/// The fewest and the most probes in a row that are judged together.
const LEAST: usize = 2;
const MOST: usize = 8;
/// Probes that are kept, for the estimate of noise.
const HISTORY: usize = 32;
/// What noise is exceeded by.
const NOISES: f64 = 2.0;
/// The mean level must exceed this many standard errors.
const ERRORS: f64 = 6.0;
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
        let found: Vec<_> = (0..times.len()).map(|index| self.judged(index)).collect();
        self.slow = found;
    }

    /// The new verdict about a process.
    fn judged(&self, index: usize) -> Option<Slowness> {
        let newest = self.past.back().map_or(0.0, |(_, levels)| levels[index].level);
        if let Some(slow) = self.slow[index] {
            let factor = newest.exp();
            return (factor > BALANCED).then_some(Slowness { factor, ..slow });
        }
        let is_beyond = |(_, levels): &&(u64, Vec<Level>)| {
            let all: Vec<_> = levels.iter().map(|of| of.level).collect();
            all[index] > BALANCED.ln() && (all.len() < 4 || is_outlier(&all, index))
        };
        let (mut sum, mut squares) = (0.0, 0.0);
        for (num, (step, levels)) in (1..=MOST).zip(self.past.iter().rev().take_while(is_beyond)) {
            sum += levels[index].level;
            squares += levels[index].error.powi(2);
            let (mean, error) = (sum / num as f64, f64::sqrt(squares) / num as f64);
            let noise = NOISES * self.noise(num);
            if num >= LEAST && mean > self.min_level.max(noise).max(ERRORS * error) {
                let (factor, since_step) = (mean.exp(), *step);
                return Some(Slowness { factor, since_step, cause: SlowCause::Device });
            }
        }
        None
    }

    /// The 90th percentile of the levels' distances from 0 in the probes before the last `num`; 0
    /// if there are none. Those of processes that are slow do not count.
    fn noise(&self, num: usize) -> f64 {
        let before = self.past.iter().rev().skip(num);
        let not_slow = |levels: &Vec<Level>| {
            let levels = levels.iter().zip(&self.slow).filter(|(_, slow)| slow.is_none());
            levels.map(|(of, _)| of.level.abs()).collect::<Vec<_>>()
        };
        let mut distances: Vec<f64> = before.flat_map(|(_, levels)| not_slow(levels)).collect();
        distances.sort_by(f64::total_cmp);
        distances.get(distances.len() * 9 / 10).copied().unwrap_or_default()
    }
}
