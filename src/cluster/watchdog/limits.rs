//! How long a process may be silent, or in one phase.

use std::time::Duration;

use crate::cluster::report::Phase;

/// The shortest limit that follows from measured steps.
const SHORTEST: Duration = Duration::from_secs(30);
/// The limit in median steps.
const STEPS: u32 = 20;
/// Who sends no report for so many heartbeats is dead.
const HEARTBEATS: u32 = 4;
/// A process is dead after this time without a report, unless the user says otherwise.
pub const DEAD_AFTER: Duration = Duration::from_secs(8);

/// The time between two reports of a process that is dead after `dead_after` without one.
pub fn heartbeat(dead_after: Duration) -> Duration {
    dead_after / HEARTBEATS
}

/// The limit for something else in a job in which a process is dead after `dead_after`: longer in
/// proportion if that is more than [`DEAD_AFTER`], because whatever delays reports delays other
/// things too, and never shorter.
pub fn lengthened(limit: Duration, dead_after: Duration) -> Duration {
    limit.mul_f64((dead_after.as_secs_f64() / DEAD_AFTER.as_secs_f64()).max(1.0))
}

/// Limits of the watchdog.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// A process is dead after this time without a report.
    pub dead_after: Duration,
    /// A phase of a step may last this long. `None`: 20 times the median step, at least 30 seconds.
    pub stuck_after: Option<Duration>,
    /// Limit of the phases of a step until one step is finished by all: connections are made,
    /// memory is allocated.
    pub first_step: Duration,
    /// Limit of `Start`.
    pub start: Duration,
    /// Limit of `Compile`.
    pub compile: Duration,
    /// Limit of `Checkpoint`.
    pub checkpoint: Duration,
    /// Limit of `Evaluate`.
    pub evaluate: Duration,
    /// Limit of `End`.
    pub end: Duration,
    /// A process is slow if its own time is this many times that of the others.
    pub slow_factor: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self::new(DEAD_AFTER, None)
    }
}

impl Limits {
    /// Those of a job in which a process is dead after `dead_after` without a report.
    pub fn new(dead_after: Duration, stuck_after: Option<Duration>) -> Self {
        let minutes = |minutes: u64| lengthened(Duration::from_secs(60 * minutes), dead_after);
        Self {
            dead_after,
            stuck_after,
            first_step: minutes(10),
            start: minutes(10),
            compile: minutes(60),
            checkpoint: minutes(15),
            evaluate: minutes(60),
            end: minutes(15),
            slow_factor: 1.3,
        }
    }

    /// The names and times of those that do not depend on measured steps.
    pub fn rows(&self) -> [(&'static str, Duration); 7] {
        [
            ("no_report", self.dead_after),
            ("start", self.start),
            ("first_step", self.first_step),
            ("compile", self.compile),
            ("evaluate", self.evaluate),
            ("checkpoint", self.checkpoint),
            ("end", self.end),
        ]
    }

    /// How long `phase` may last, given the median time of a step, if any is finished. No limit is
    /// shorter than that of a step.
    pub fn of(&self, phase: Phase, median_step: Option<Duration>) -> Duration {
        let automatic = |step: Duration| step.saturating_mul(STEPS).max(SHORTEST);
        let step = match (self.stuck_after, median_step) {
            (stuck_after, None) => self.first_step.max(stuck_after.unwrap_or_default()),
            (Some(stuck_after), _) => stuck_after,
            (None, Some(step)) => automatic(step),
        };
        let own = match phase {
            Phase::Start => self.start,
            Phase::Compile => self.compile,
            Phase::Checkpoint => self.checkpoint,
            Phase::Evaluate => self.evaluate,
            Phase::End => self.end,
            Phase::Data | Phase::Upload | Phase::Compute => step,
            Phase::Collective | Phase::Coordinator => step,
        };
        own.max(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_grow_with_the_time_of_silence_and_do_not_shrink() {
        let secs = Duration::from_secs;
        let (short, long) = (Limits::new(secs(2), None), Limits::new(secs(24), None));
        assert_eq!(heartbeat(short.dead_after), Duration::from_millis(500));
        assert_eq!((short.compile, short.checkpoint), (secs(3600), secs(900)));
        assert_eq!((long.compile, long.checkpoint), (secs(10_800), secs(2700)));
    }

    #[test]
    fn limits_of_a_step_follow_measured_steps_unless_they_are_set() {
        let secs = Duration::from_secs;
        let automatic = Limits::default();
        let set = Limits { stuck_after: Some(secs(5)), ..automatic };
        let rows = [
            (automatic, Phase::Compute, None, secs(600)),
            (automatic, Phase::Compute, Some(secs(1)), secs(30)),
            (automatic, Phase::Collective, Some(secs(4)), secs(80)),
            (automatic, Phase::Checkpoint, Some(secs(4)), secs(900)),
            (automatic, Phase::Checkpoint, Some(secs(400)), secs(8000)),
            (set, Phase::Data, Some(secs(4)), secs(5)),
            (set, Phase::Data, None, secs(600)),
            (set, Phase::Compile, Some(secs(4)), secs(3600)),
        ];
        for (limits, phase, step, expected) in rows {
            assert_eq!(limits.of(phase, step), expected, "{phase} {step:?}");
        }
    }
}
