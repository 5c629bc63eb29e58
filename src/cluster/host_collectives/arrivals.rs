//! How fast the messages of other processes arrive.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::waits::Overlapping;

/// Shorter messages may have arrived before anybody reads them.
pub(super) const MIN_BYTES: usize = 256 << 10;
/// Fewer bytes say little about a network.
const ENOUGH_BYTES: u64 = 16 << 20;

/// Measures the rate at which this process receives.
#[derive(Debug, Default)]
pub(super) struct ArrivalMeter(Mutex<Arrivals>);

#[derive(Debug, Default)]
struct Arrivals {
    arriving: Overlapping,
    num_bytes: u64,
    /// The time in which something arrived. That in which several messages did counts once.
    time: Duration,
}

impl ArrivalMeter {
    fn lock(&self) -> MutexGuard<'_, Arrivals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message begins to arrive.
    pub fn begin(&self, now: Instant) {
        self.lock().arriving.begin(now);
    }

    /// One is there.
    pub fn end(&self, now: Instant, num_bytes: usize) {
        let mut arrivals = self.lock();
        arrivals.num_bytes += num_bytes as u64;
        if let Some(span) = arrivals.arriving.end(now) {
            arrivals.time += span.end.duration_since(span.start);
        }
    }

    /// Bytes per second; `None` before there were enough.
    pub fn bytes_per_sec(&self) -> Option<f64> {
        let arrivals = self.lock();
        let secs = arrivals.time.as_secs_f64();
        (arrivals.num_bytes >= ENOUGH_BYTES && secs > 0.0).then(|| arrivals.num_bytes as f64 / secs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_arrive_together_share_the_time() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let meter = ArrivalMeter::default();
        meter.begin(at(0));
        meter.begin(at(10));
        meter.end(at(20), 8_000_000);
        assert_eq!(meter.bytes_per_sec(), None);
        meter.end(at(30), 8_000_000);
        assert_eq!(meter.bytes_per_sec(), None);
        // Nothing arrives in between.
        meter.begin(at(1000));
        meter.end(at(1010), 8_000_000);
        assert_eq!(meter.bytes_per_sec(), Some(24e6 / 0.04));
    }
}
