//! The time in which this process could run.
//!
//! A process that was stopped (`kill -STOP`, `scontrol suspend`, `docker pause`, a paused virtual
//! machine) has heard nothing in that time, and nobody is to blame for that. So whoever waits for a
//! sign of life of another process measures it with this clock, which stands still meanwhile.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The clock is read at least this often.
pub const TICK: Duration = Duration::from_millis(100);
/// Between two readings it advances by this at most: longer ones mean that this process was
/// stopped, or that its machine is too busy.
const MAX_ADVANCE: Duration = Duration::from_millis(300);

/// The time in which this process could run since the clock was first read.
pub fn now() -> Duration {
    read().0
}

/// As [`now`], and for how long this process was stopped in total.
pub fn read() -> (Duration, Duration) {
    static CLOCK: OnceLock<Mutex<Clock>> = OnceLock::new();
    let clock = CLOCK.get_or_init(|| Mutex::new(Clock::new(Instant::now())));
    clock.lock().unwrap_or_else(PoisonError::into_inner).read(Instant::now())
}

/// Reads the clock, again and again, so that it goes.
pub async fn keep() {
    loop {
        now();
        tokio::time::sleep(TICK).await;
    }
}

struct Clock {
    last: Instant,
    awake: Duration,
    stopped: Duration,
}

impl Clock {
    fn new(now: Instant) -> Self {
        Self { last: now, awake: Duration::ZERO, stopped: Duration::ZERO }
    }

    fn read(&mut self, now: Instant) -> (Duration, Duration) {
        let passed = now.saturating_duration_since(self.last);
        self.last = self.last.max(now);
        let advance = passed.min(MAX_ADVANCE);
        self.awake += advance;
        if passed > advance {
            self.stopped += passed;
        }
        (self.awake, self.stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_stands_still_while_nobody_can_read_it() {
        let start = Instant::now();
        let mut clock = Clock::new(start);
        for tick in 1..=50 {
            clock.read(start + tick * TICK);
        }
        let frozen = start + Duration::from_secs(65);
        let read = clock.read(frozen);
        assert_eq!(read, (Duration::from_millis(5300), Duration::from_secs(60)));
        // A reading that was taken earlier and comes later changes nothing.
        assert_eq!(clock.read(start), read);
    }
}
