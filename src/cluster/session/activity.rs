//! What this process does, collected between heartbeats.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use crate::cluster::report::{Phase, PhaseChange, Report, StepTimes, thin};

/// A heartbeat carries at most this many phase changes, the newest, and as many steps.
const MAX_ROWS: usize = 512;

/// The current phase, and what happened since the last heartbeat.
#[derive(Debug)]
pub struct Activity {
    replicas: Range<usize>,
    phase: Phase,
    step: u64,
    since: Instant,
    waits_for: Vec<usize>,
    changes: VecDeque<(Phase, u64, Instant)>,
    steps: Vec<StepTimes>,
    saved_step: Option<u64>,
    machine: String,
}

impl Activity {
    /// Starts in [`Phase::Start`].
    pub fn new() -> Self {
        Self {
            replicas: 0..0,
            phase: Phase::Start,
            step: 0,
            since: Instant::now(),
            waits_for: Vec::new(),
            changes: VecDeque::new(),
            steps: Vec::new(),
            saved_step: None,
            machine: String::new(),
        }
    }

    pub fn phase(&self) -> (Phase, u64) {
        (self.phase, self.step)
    }

    pub fn set_phase(&mut self, phase: Phase, step: u64) {
        if (phase, step) == self.phase() {
            return;
        }
        self.since = Instant::now();
        (self.phase, self.step) = (phase, step);
        self.waits_for.clear();
        push(&mut self.changes, (phase, step, self.since));
    }

    pub fn set_replicas(&mut self, replicas: Range<usize>) {
        self.replicas = replicas;
    }

    pub fn set_machine(&mut self, text: String) {
        self.machine = text;
    }

    pub fn set_waits_for(&mut self, processes: &[usize]) {
        self.waits_for.clear();
        self.waits_for.extend_from_slice(processes);
    }

    pub fn step_done(&mut self, times: StepTimes) {
        self.steps.push(times);
        // Not at every step, and not by much.
        if self.steps.len() > 4 * MAX_ROWS {
            thin(&mut self.steps, 2 * MAX_ROWS);
        }
    }

    pub fn saved(&mut self, step: u64) {
        self.saved_step = self.saved_step.max(Some(step));
    }

    pub fn saved_step(&self) -> Option<u64> {
        self.saved_step
    }

    /// What to report, and what it was made of.
    pub fn take(&mut self, process_index: usize) -> (Report, Taken) {
        thin(&mut self.steps, MAX_ROWS);
        let taken = Taken {
            changes: std::mem::take(&mut self.changes),
            steps: std::mem::take(&mut self.steps),
        };
        let change = |&(phase, step, at): &(Phase, u64, Instant)| PhaseChange {
            phase,
            step,
            ago: at.elapsed(),
        };
        let report = Report {
            process_index,
            replicas: self.replicas.clone(),
            phase: self.phase,
            step: self.step,
            in_phase: self.since.elapsed(),
            waits_for: self.waits_for.clone(),
            steps: taken.steps.clone(),
            changes: taken.changes.iter().map(change).collect(),
            machine: self.machine.clone(),
        };
        (report, taken)
    }

    /// Puts back what was taken for a heartbeat that did not arrive.
    pub fn put_back(&mut self, taken: Taken) {
        let Taken { mut changes, mut steps } = taken;
        self.changes.drain(..).for_each(|change| push(&mut changes, change));
        steps.append(&mut self.steps);
        (self.changes, self.steps) = (changes, steps);
    }
}

/// What a heartbeat carries.
pub struct Taken {
    changes: VecDeque<(Phase, u64, Instant)>,
    steps: Vec<StepTimes>,
}

fn push<T>(rows: &mut VecDeque<T>, row: T) {
    if rows.len() == MAX_ROWS {
        rows.pop_front();
    }
    rows.push_back(row);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_bounded_and_come_back_in_order() {
        let mut progress = Activity::new();
        for step in 0..1000 {
            progress.set_phase(Phase::Data, step);
            progress.set_phase(Phase::Data, step);
            progress.step_done(StepTimes { step, ..StepTimes::default() });
        }
        progress.set_waits_for(&[3]);
        let (report, taken) = progress.take(2);
        assert_eq!((report.phase, report.step, report.process_index), (Phase::Data, 999, 2));
        assert_eq!((report.changes.len(), report.changes[0].step), (MAX_ROWS, 1000 - 512));
        assert_eq!(report.waits_for, [3]);
        progress.set_phase(Phase::Upload, 1000);
        progress.put_back(taken);
        let (report, _) = progress.take(2);
        assert_eq!((report.changes.len(), report.changes[0].step), (MAX_ROWS, 1001 - 512));
        assert_eq!(report.changes[MAX_ROWS - 1].phase, Phase::Upload);
        assert!(report.steps.len() > MAX_ROWS / 3 && report.steps.len() <= MAX_ROWS);
        assert!(report.waits_for.is_empty(), "another phase waits for nobody");
        assert!(progress.take(2).0.changes.is_empty());
    }
}
