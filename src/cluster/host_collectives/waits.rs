//! How long this process waits for others in each launch, and for which.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Launches whose waits are kept until they are taken.
const MAX_LAUNCHES: usize = 1024;
/// Waits of a launch that are listed.
const MAX_SPANS: usize = 1024;

/// How long this process waited for others in one launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchWaits {
    /// The number of the launch, equal in all processes.
    pub launch_number: u64,
    /// The time in which the replicas of this process had arrived at some collective and data of
    /// another process was missing. Time in which this is so for several collectives counts once.
    pub waited: Duration,
    /// When that was, in order; of very many the first.
    pub spans: Vec<Range<Instant>>,
    /// The processes whose operands arrived last at a collective, after this process had waited for
    /// them.
    pub last: Vec<LastProcess>,
}

/// A process for which others have waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastProcess {
    /// Which one.
    pub process_index: usize,
    /// At how many collectives it was the last one.
    pub num_times: u64,
    /// The sum of the waits there.
    pub waited: Duration,
}

/// When at least one of several things is under way.
#[derive(Debug, Default)]
pub(super) struct Overlapping {
    num: usize,
    since: Option<Instant>,
}

impl Overlapping {
    /// One more begins.
    pub fn begin(&mut self, now: Instant) {
        self.num += 1;
        self.since.get_or_insert(now);
    }

    /// One ends. If it was the last one, returns since when there were some.
    pub fn end(&mut self, now: Instant) -> Option<Range<Instant>> {
        self.num = self.num.saturating_sub(1);
        self.since.take_if(|_| self.num == 0).map(|since| since..now)
    }

    /// All that are left end.
    fn end_all(&mut self, now: Instant) -> Option<Range<Instant>> {
        self.num = 0;
        self.end(now)
    }
}

/// Measures the waits of one launch.
#[derive(Debug, Default)]
pub(super) struct WaitMeter {
    waiting: Overlapping,
    waited: Duration,
    spans: Vec<Range<Instant>>,
    last: BTreeMap<usize, (u64, Duration)>,
    is_used: bool,
}

impl WaitMeter {
    /// One more collective waits.
    pub fn begin(&mut self, now: Instant) {
        self.is_used = true;
        self.waiting.begin(now);
    }

    /// A collective no longer waits.
    pub fn end(&mut self, now: Instant) {
        let span = self.waiting.end(now);
        self.add(span);
    }

    fn add(&mut self, span: Option<Range<Instant>>) {
        let Some(span) = span else { return };
        self.waited += span.end.duration_since(span.start);
        if self.spans.len() < MAX_SPANS {
            self.spans.push(span);
        }
    }

    /// The operands of a process were the last ones of a collective.
    pub fn was_last(&mut self, process: usize, waited: Duration) {
        let (num_times, total) = self.last.entry(process).or_default();
        *num_times += 1;
        *total += waited;
    }

    /// A collective did not have to wait.
    pub fn use_without_wait(&mut self) {
        self.is_used = true;
    }

    /// The waits of a launch that has ended, if it had a collective across processes.
    pub fn finish(mut self, launch_number: u64, now: Instant) -> Option<LaunchWaits> {
        let span = self.waiting.end_all(now);
        self.add(span);
        let last = self.last.into_iter().map(|(process_index, (num_times, waited))| LastProcess {
            process_index,
            num_times,
            waited,
        });
        let (waited, spans) = (self.waited, self.spans);
        let waits = LaunchWaits { launch_number, waited, spans, last: last.collect() };
        self.is_used.then_some(waits)
    }
}

/// Keeps the newest waits.
#[derive(Debug, Default)]
pub(super) struct WaitLog(VecDeque<LaunchWaits>);

impl WaitLog {
    pub fn push(&mut self, waits: LaunchWaits) {
        if self.0.len() >= MAX_LAUNCHES {
            self.0.pop_front();
        }
        self.0.push_back(waits);
    }

    pub fn take(&mut self) -> Vec<LaunchWaits> {
        std::mem::take(&mut self.0).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_waits_count_once() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut meter = WaitMeter::default();
        for (millis, begins) in
            [(0, true), (2, true), (3, false), (7, false), (10, true), (11, false), (20, true)]
        {
            match begins {
                true => meter.begin(at(millis)),
                false => meter.end(at(millis)),
            }
        }
        meter.was_last(3, Duration::from_millis(1));
        meter.was_last(3, Duration::from_millis(5));
        let waits = meter.finish(9, at(21)).unwrap();
        assert_eq!((waits.launch_number, waits.waited), (9, Duration::from_millis(7 + 1 + 1)));
        assert_eq!(waits.spans, [(0, 7), (10, 11), (20, 21)].map(|(from, to)| at(from)..at(to)));
        let waited = Duration::from_millis(6);
        assert_eq!(waits.last, [LastProcess { process_index: 3, num_times: 2, waited }]);
        assert_eq!(WaitMeter::default().finish(1, start), None);
        let mut log = WaitLog::default();
        (0..MAX_LAUNCHES as u64 + 2)
            .for_each(|launch_number| log.push(LaunchWaits { launch_number, ..waits.clone() }));
        let taken = log.take();
        assert_eq!((taken.len(), taken[0].launch_number), (MAX_LAUNCHES, 2));
        assert_eq!(log.take(), []);
    }
}
