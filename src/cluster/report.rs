//! What a worker reports about itself with each heartbeat.
//!
//! All times are durations, measured by the worker on its own monotonic clock. The receiver
//! subtracts them from the time at which the report arrived, so the clocks of hosts need not agree.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// What a process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Loads the plugin, opens devices, reads or initializes the state.
    Start,
    /// Compiles programs. A process that waits for another one to compile them is in `Coordinator`.
    Compile,
    /// Waits for its own batch.
    Data,
    /// Copies a batch to its devices.
    Upload,
    /// Executes a program.
    Compute,
    /// Waits in a collective for other processes.
    Collective,
    /// Saves the state.
    Checkpoint,
    /// Evaluates.
    Evaluate,
    /// Waits for an answer of the coordinator.
    Coordinator,
    /// Has finished its last step: writes results and exits.
    End,
}

impl Phase {
    /// All phases, in the order of their codes.
    pub const ALL: [Self; 10] = [
        Self::Start,
        Self::Compile,
        Self::Data,
        Self::Upload,
        Self::Compute,
        Self::Collective,
        Self::Checkpoint,
        Self::Evaluate,
        Self::Coordinator,
        Self::End,
    ];

    /// The name in messages and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Compile => "compile",
            Self::Data => "data",
            Self::Upload => "upload",
            Self::Compute => "compute",
            Self::Collective => "collective",
            Self::Checkpoint => "checkpoint",
            Self::Evaluate => "evaluate",
            Self::Coordinator => "coordinator",
            Self::End => "end",
        }
    }

    /// The number in messages between processes: 0 to 9.
    pub fn code(self) -> u32 {
        self as u32
    }

    /// The phase with this code; `None` if there is none.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }

    /// `true` if the process waits for others in this phase, so that its delay is not its own.
    pub fn waits_for_others(self) -> bool {
        matches!(self, Self::Collective | Self::Coordinator)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where the time of a finished step went: `own + waited` is the whole step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Index of the step, from 0.
    pub step: u64,
    /// Compute and data of this process.
    pub own: Duration,
    /// Waiting for other processes.
    pub waited: Duration,
    /// The part of `own` before the launch in which the process waited for its batch.
    pub input: Duration,
    /// The rest of `own` before the launch: the host was late for another reason.
    pub host: Duration,
    /// The plugin computes the collectives. Then `own` is no more than `input` and `host`: what the
    /// devices of the process take is in `waited`, with what they wait for others.
    pub hides_devices: bool,
    /// What the devices took for the probe, a program without communication, if one came before the
    /// step.
    pub probe: Option<ProbeTime>,
}

/// The time of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeTime {
    /// The mean of its launches.
    pub mean: Duration,
    /// The standard error of the mean.
    pub error: Duration,
}

/// What makes a process slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowCause {
    /// It launches steps late, because its batches come late.
    Input,
    /// It launches steps late for another reason.
    Host,
    /// Its devices take longer.
    Device,
}

impl SlowCause {
    /// All causes, in the order of their codes.
    pub const ALL: [Self; 3] = [Self::Input, Self::Host, Self::Device];

    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Host => "host",
            Self::Device => "device",
        }
    }

    /// The number in messages between processes: 0 to 2.
    pub fn code(self) -> u32 {
        self as u32
    }

    /// The cause with this code; of one of another version the host, which says least.
    pub fn from_code(code: u32) -> Self {
        let found = Self::ALL.into_iter().find(|cause| cause.code() == code);
        found.unwrap_or(Self::Host)
    }

    /// What follows "slow: ...".
    pub fn text(self) -> &'static str {
        match self {
            Self::Input => "its batches come late",
            Self::Host => "its host launches steps late",
            Self::Device => "its devices take longer",
        }
    }
}

/// The beginning of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseChange {
    /// The phase that began.
    pub phase: Phase,
    /// The step in which it began.
    pub step: u64,
    /// How long before the report was sent it began.
    pub ago: Duration,
}

/// What a worker sends with a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Index of the process in the job.
    pub process_index: usize,
    /// Its replicas, in global numbers; empty while it does not know them.
    pub replicas: Range<usize>,
    /// What it does now.
    pub phase: Phase,
    /// Index of the step that it is in, or that comes next.
    pub step: u64,
    /// How long it has been in this phase.
    pub in_phase: Duration,
    /// In a collective: the processes whose data is missing, if this process knows them. Otherwise
    /// empty.
    pub waits_for: Vec<usize>,
    /// Steps finished since the last report, in order; [`thin`] bounds their number.
    pub steps: Vec<StepTimes>,
    /// Phase changes since the last report, in order. The sender bounds their number and drops the
    /// oldest.
    pub changes: Vec<PhaseChange>,
    /// What its machine tells of why it may be slow; empty if nothing.
    pub machine: String,
}

/// Reduces a list of steps, in order, to at most `max`. Steps of all processes must stay
/// comparable, whenever each sends its report: so it keeps the multiples of a power of two, not the
/// newest, and those with a probe.
pub fn thin(steps: &mut Vec<StepTimes>, max: usize) {
    let mut stride = 1;
    while steps.len() > max {
        if stride > steps.last().map_or(0, |last| last.step) {
            return steps.truncate(max);
        }
        stride *= 2;
        steps.retain(|times| times.step % stride == 0 || times.probe.is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinned_lists_of_two_processes_have_steps_in_common() {
        let list = |steps: std::ops::Range<u64>, max| {
            let times = |step| StepTimes { step, ..StepTimes::default() };
            let mut list: Vec<_> = steps.map(times).collect();
            thin(&mut list, max);
            assert!(list.len() <= max);
            list.into_iter().map(|times| times.step).collect::<Vec<_>>()
        };
        let (early, late) = (list(0..2000, 64), list(900..2900, 60));
        assert_eq!(early.len(), 63);
        assert!(late.iter().filter(|step| early.contains(step)).count() > 15);
        assert_eq!(list(5..9, 64), [5, 6, 7, 8]);
        assert_eq!(list(0..9, 0), [0; 0]);
    }

    #[test]
    fn codes_are_positions_and_no_others_are_accepted() {
        for (position, phase) in Phase::ALL.into_iter().enumerate() {
            assert_eq!(phase.code() as usize, position);
            assert_eq!(Phase::from_code(phase.code()), Some(phase));
        }
        assert_eq!(Phase::from_code(10), None);
    }
}
