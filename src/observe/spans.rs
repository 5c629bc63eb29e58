//! Where the time of a start goes.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::Serialize;

/// A stretch of time. Several may overlap, on threads side by side or one in the other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StartupSpan {
    /// What was done.
    pub name: Cow<'static, str>,
    /// When it began, in milliseconds from the start.
    pub from_ms: f64,
    /// How long it took.
    pub ms: f64,
}

/// Collects spans, from any thread.
///
/// ```
/// use std::time::Instant;
/// let spans = lockstep::observe::StartupSpans::new(Instant::now());
/// assert_eq!(spans.time("add", || 1 + 2), 3);
/// assert_eq!(spans.list()[0].name, "add");
/// ```
#[derive(Debug)]
pub struct StartupSpans {
    start: Instant,
    spans: Mutex<Vec<StartupSpan>>,
}

impl StartupSpans {
    /// `start` is when the process started, as well as it is known.
    pub fn new(start: Instant) -> Self {
        Self { start, spans: Mutex::default() }
    }

    /// What does, and how long it takes.
    pub fn time<T>(&self, name: impl Into<Cow<'static, str>>, what: impl FnOnce() -> T) -> T {
        let from = Instant::now();
        let result = what();
        self.record(name, from, Instant::now());
        result
    }

    /// A span that has been measured.
    pub fn record(&self, name: impl Into<Cow<'static, str>>, from: Instant, to: Instant) {
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        let from_ms = ms(from.saturating_duration_since(self.start));
        let span =
            StartupSpan { name: name.into(), from_ms, ms: ms(to.saturating_duration_since(from)) };
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).push(span);
    }

    /// When the clock began.
    pub fn start(&self) -> Instant {
        self.start
    }

    /// The spans, by their beginning.
    pub fn list(&self) -> Vec<StartupSpan> {
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone();
        spans.sort_by(|a, b| a.from_ms.total_cmp(&b.from_ms));
        spans
    }
}
