//! Who is dead, stuck or slow, from the reports of the workers.
//!
//! Nothing here reads a clock or does IO: reports and times are passed in, so tests simulate hours
//! in milliseconds.

mod limits;
mod probe;
mod screen;
mod slow;
mod stuck;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::report::{Phase, Report};
pub use limits::{DEAD_AFTER, Limits, heartbeat, lengthened};
use slow::SlowTest;
use stuck::{Reported, Standstill, standstill};
pub use verdict::{Culprit, Verdict, WorkerName};

/// Steps of which the median is computed.
const RECENT_STEPS: usize = 64;

/// The watchdog of one generation of a job.
#[derive(Debug)]
pub struct Watchdog {
    limits: Limits,
    names: Vec<WorkerName>,
    last: Vec<Last>,
    slow: SlowTest,
    /// Times of recent steps, of any process: all take the same time, since they wait for each
    /// other.
    steps: VecDeque<Duration>,
    median_step: Option<Duration>,
}

/// What is known of a process.
#[derive(Debug)]
struct Last {
    reported: Reported,
    heard: Instant,
    has_left: bool,
    /// What its machine tells of why it may be slow; empty if nothing.
    machine: String,
}

impl Watchdog {
    /// A watchdog of these processes, in the order of their indices, which all exist at `now`.
    pub fn new(names: Vec<WorkerName>, limits: Limits, now: Instant) -> Self {
        let last = |process_index| Last {
            reported: Reported {
                process_index,
                phase: Phase::Start,
                step: 0,
                in_phase: Duration::ZERO,
                waits_for: vec![],
            },
            heard: now,
            has_left: false,
            machine: String::new(),
        };
        Self {
            limits,
            last: (0..names.len()).map(last).collect(),
            slow: SlowTest::new(names.len(), limits.slow_factor),
            names,
            steps: VecDeque::new(),
            median_step: None,
        }
    }

    /// Takes a report. One with an unknown index is ignored.
    pub fn receive(&mut self, report: &Report, arrived: Instant) {
        let Some(last) = self.last.get_mut(report.process_index) else { return };
        last.heard = last.heard.max(arrived);
        last.machine.clone_from(&report.machine);
        if !report.replicas.is_empty() {
            self.names[report.process_index].replicas = report.replicas.clone();
        }
        last.reported = Reported {
            process_index: report.process_index,
            phase: report.phase,
            step: report.step,
            in_phase: report.in_phase,
            waits_for: report.waits_for.clone(),
        };
        let num_complete = self.slow.receive(report.process_index, &report.steps);
        if num_complete > 0 {
            let recent = report.steps.iter().rev().take(num_complete.min(RECENT_STEPS)).rev();
            self.steps.extend(recent.map(|times| times.own + times.waited));
            let surplus = self.steps.len().saturating_sub(RECENT_STEPS);
            self.steps.drain(..surplus);
            let mut sorted: Vec<Duration> = self.steps.iter().copied().collect();
            sorted.sort();
            self.median_step = sorted.get(sorted.len() / 2).copied();
        }
    }

    /// A process has ended as it should: nobody waits for it any more.
    pub fn left(&mut self, process_index: usize) {
        if let Some(last) = self.last.get_mut(process_index) {
            last.has_left = true;
        }
    }

    /// What the machine of a process tells of why it may be slow; empty if nothing.
    pub fn machine(&self, process_index: usize) -> &str {
        self.last.get(process_index).map_or("", |last| &last.machine)
    }

    /// The median time of recent steps; `None` until all processes have reported one.
    pub fn median_step(&self) -> Option<Duration> {
        self.median_step
    }

    /// What is wrong at `now`: the dead; if nobody is dead, the stuck; and the slow. They stay as
    /// long as it is so.
    pub fn verdicts(&self, now: Instant) -> Vec<Verdict> {
        let silent = |last: &Last| now.saturating_duration_since(last.heard);
        let (dead, alive): (Vec<&Last>, Vec<&Last>) = self
            .last
            .iter()
            .filter(|last| !last.has_left)
            .partition(|last| silent(last) > self.limits.dead_after);
        let mut found: Vec<Verdict> = dead
            .iter()
            .map(|last| Verdict::Dead { who: self.who(&last.reported), silent: silent(last) })
            .collect();
        if dead.is_empty() {
            found.extend(self.standstill(&alive));
        }
        found.extend(self.slow.slow().map(|(index, slowness)| Verdict::Slow {
            who: self.who(&self.last[index].reported),
            factor: slowness.factor,
            since_step: slowness.since_step,
            cause: slowness.cause,
        }));
        found
    }

    fn standstill(&self, alive: &[&Last]) -> Vec<Verdict> {
        let reported: Vec<Reported> = alive.iter().map(|last| last.reported.clone()).collect();
        let limit = |phase| self.limits.of(phase, self.median_step);
        match standstill(&reported, limit) {
            None => vec![],
            Some(Standstill::Unexplained) => {
                let lasted = reported.iter().map(|process| process.in_phase).min();
                vec![Verdict::Standstill {
                    num_processes: reported.len(),
                    phase: reported[0].phase,
                    step: reported[0].step,
                    lasted: lasted.unwrap_or_default(),
                }]
            }
            Some(Standstill::Stuck(culprits)) => {
                let num_waiting = reported.len() - culprits.len();
                let stuck = reported.iter().filter(|p| culprits.contains(&p.process_index));
                stuck
                    .map(|process| Verdict::Stuck {
                        who: self.who(process),
                        lasted: process.in_phase,
                        limit: limit(process.phase),
                        num_waiting,
                    })
                    .collect()
            }
        }
    }

    fn who(&self, reported: &Reported) -> Culprit {
        let Reported { process_index, phase, step, .. } = *reported;
        Culprit { process_index, name: self.names[process_index].clone(), phase, step }
    }
}
