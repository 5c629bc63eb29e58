//! Finds processes with slow devices, from the times of probes.
//!
//! A probe is the same program without communication in all processes, so its times can be compared
//! even where those of steps cannot. A process is slow if the last two probes show it: each must
//! exceed the median of the others by the smallest factor, and by twice what probes have varied
//! before, so that busy processors are no alarm.

use std::collections::VecDeque;

use super::slow::{BALANCED, Slowness, is_outlier, keep, median_of_others, sorted};
use crate::cluster::report::SlowCause;

/// Probes that must show a slow process.
const NUM: usize = 2;
/// Probes that are kept, for the estimate of noise.
const HISTORY: usize = 32;
/// What noise is exceeded by.
const NOISES: f64 = 2.0;
/// Seconds added to both times that are compared.
const NEGLIGIBLE: f64 = 0.2e-3;

/// The last probes of all processes, and who is slow.
#[derive(Debug)]
pub struct ProbeTest {
    min_level: f64,
    /// Steps, and `ln` of the times in multiples of the median of the others.
    past: VecDeque<(u64, Vec<f64>)>,
    slow: Vec<Option<Slowness>>,
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

    /// Takes the times of all processes, in seconds.
    pub fn receive(&mut self, step: u64, times: Vec<f64>) {
        let all = sorted(times.iter().map(|time| *time as f32).collect());
        let level = |time: &f64| {
            let others = median_of_others(&all, *time as f32);
            ((time + NEGLIGIBLE) / (others + NEGLIGIBLE)).ln()
        };
        keep(&mut self.past, (step, times.iter().map(level).collect()), HISTORY);
        let noise = NOISES * self.noise();
        let last = self.past.iter().rev().take(NUM);
        for (index, slow) in self.slow.iter_mut().enumerate() {
            let least = last.clone().map(|(_, levels)| levels[index]).fold(f64::INFINITY, f64::min);
            let is_odd = |(_, levels): &(u64, Vec<f64>)| levels.len() < 4 || is_outlier(levels, index);
            let newest = self.past.back().map_or(0.0, |(_, levels)| levels[index]);
            let since_step = last.clone().next_back().map_or(0, |(step, _)| *step);
            *slow = match *slow {
                Some(slow) if newest > BALANCED.ln() => {
                    Some(Slowness { factor: newest.exp(), ..slow })
                }
                None if self.past.len() >= NUM
                    && least > self.min_level.max(noise)
                    && last.clone().all(is_odd) =>
                {
                    Some(Slowness { factor: least.exp(), since_step, cause: SlowCause::Device })
                }
                _ => None,
            };
        }
    }

    /// The 90th percentile of the levels' distances from 0 in the probes before the last two; 0 if
    /// there are too few. Those of processes that are slow do not count.
    fn noise(&self) -> f64 {
        let before = self.past.iter().rev().skip(NUM);
        let not_slow = |levels: &Vec<f64>| {
            let levels = levels.iter().zip(&self.slow).filter(|(_, slow)| slow.is_none());
            levels.map(|(level, _)| level.abs()).collect::<Vec<_>>()
        };
        let mut distances: Vec<f64> = before.flat_map(|(_, levels)| not_slow(levels)).collect();
        distances.sort_by(f64::total_cmp);
        distances.get(distances.len() * 9 / 10).copied().unwrap_or_default()
    }
}
