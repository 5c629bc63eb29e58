//! Reports as messages.

use std::ops::Range;
use std::time::Duration;

use super::messages::{ChangeRow, Extend, Heartbeat, StepRow, micros};
use super::report::{Phase, PhaseChange, ProbeTime, Report, StepTimes};

/// More of what a machine tells is not kept.
const MAX_MACHINE_CHARS: usize = 400;

impl Heartbeat {
    pub fn new(report: &Report, extend: Option<Extend>, saved_step: Option<u64>) -> Self {
        let index = |&process: &usize| u32::try_from(process).ok();
        Self {
            phase: report.phase.code(),
            step: report.step,
            in_phase_us: micros(report.in_phase),
            waits_for: report.waits_for.iter().filter_map(index).collect(),
            steps: report.steps.iter().map(StepRow::from).collect(),
            changes: report.changes.iter().map(ChangeRow::from).collect(),
            extend,
            saved_step,
            first_replica: index(&report.replicas.start).unwrap_or(0),
            num_replicas: index(&report.replicas.len()).unwrap_or(0),
            machine: report.machine.clone(),
        }
    }

    /// The replicas of the process; empty while it does not know them.
    pub fn replicas(&self) -> Range<usize> {
        let first = self.first_replica as usize;
        first..first + self.num_replicas as usize
    }

    /// The report of process `process_index`. A phase of another version of the program counts as
    /// [`Phase::Start`].
    pub fn report(&self, process_index: usize) -> Report {
        let phase = |code| Phase::from_code(code).unwrap_or(Phase::Start);
        let micros = Duration::from_micros;
        let step = |row: &StepRow| StepTimes {
            step: row.step,
            own: micros(row.own_us),
            waited: micros(row.waited_us),
            input: micros(row.input_us),
            host: micros(row.host_us),
            hides_devices: row.hides_devices,
            probe: (row.probe_us > 0).then(|| ProbeTime {
                mean: micros(row.probe_us),
                error: micros(row.probe_error_us),
            }),
        };
        let change = |row: &ChangeRow| PhaseChange {
            phase: phase(row.phase),
            step: row.step,
            ago: micros(row.ago_us),
        };
        Report {
            process_index,
            replicas: self.replicas(),
            phase: phase(self.phase),
            step: self.step,
            in_phase: micros(self.in_phase_us),
            waits_for: self.waits_for.iter().map(|&process| process as usize).collect(),
            steps: self.steps.iter().map(step).collect(),
            changes: self.changes.iter().map(change).collect(),
            machine: plain(&self.machine),
        }
    }
}

/// In one line that is not too long, whoever has written it.
fn plain(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(MAX_MACHINE_CHARS).collect()
}

impl From<&StepTimes> for StepRow {
    fn from(times: &StepTimes) -> Self {
        Self {
            step: times.step,
            own_us: micros(times.own),
            waited_us: micros(times.waited),
            input_us: micros(times.input),
            host_us: micros(times.host),
            hides_devices: times.hides_devices,
            probe_us: times.probe.map_or(0, |probe| micros(probe.mean)),
            probe_error_us: times.probe.map_or(0, |probe| micros(probe.error)),
        }
    }
}

impl From<&PhaseChange> for ChangeRow {
    fn from(change: &PhaseChange) -> Self {
        Self { phase: change.phase.code(), step: change.step, ago_us: micros(change.ago) }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn a_report_survives_the_way() {
        let report = Report {
            process_index: 3,
            replicas: 6..8,
            phase: Phase::Collective,
            step: 7,
            in_phase: Duration::from_micros(1500),
            waits_for: vec![1, 2],
            steps: vec![StepTimes {
                step: 6,
                own: Duration::from_millis(5),
                waited: Duration::from_micros(1),
                input: Duration::from_millis(2),
                host: Duration::from_millis(3),
                hides_devices: true,
                probe: Some(ProbeTime {
                    mean: Duration::from_millis(4),
                    error: Duration::from_micros(7),
                }),
            }],
            changes: vec![PhaseChange { phase: Phase::Data, step: 7, ago: Duration::from_secs(1) }],
            machine: "GPU 3: 84 C".to_owned(),
        };
        let bytes = Heartbeat::new(&report, None, Some(0)).encode_to_vec();
        let heartbeat = Heartbeat::decode(&*bytes).unwrap();
        assert_eq!(heartbeat.report(3), report);
        assert_eq!(heartbeat.saved_step, Some(0));
    }

    #[test]
    fn what_a_machine_tells_is_a_line() {
        let heartbeat = Heartbeat {
            machine: format!("\u{1b}[2J\n{}", "x".repeat(1000)),
            ..Heartbeat::default()
        };
        let machine = heartbeat.report(0).machine;
        assert!(machine.starts_with("[2Jxxx") && machine.len() == MAX_MACHINE_CHARS, "{machine}");
    }
}
