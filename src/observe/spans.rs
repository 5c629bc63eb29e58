//! Where the time before the first step goes.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::Serialize;

/// A named span of time during start-up. Spans may overlap, on several threads or nested.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StartupSpan {
    /// The activity.
    pub name: Cow<'static, str>,
    /// Its beginning, in milliseconds since the start of the process.
    pub from_ms: f64,
    /// Its duration in milliseconds.
    pub ms: f64,
}

/// Collects spans from any thread.
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
    /// `start` is the start of the process, or the earliest time known.
    pub fn new(start: Instant) -> Self {
        Self { start, spans: Mutex::default() }
    }

    /// Runs `what`, and records how long it takes.
    pub fn time<T>(&self, name: impl Into<Cow<'static, str>>, what: impl FnOnce() -> T) -> T {
        let (name, from) = (name.into(), Instant::now());
        let result = tracing::debug_span!("start", what = %name).in_scope(what);
        self.add(name, from, Instant::now());
        result
    }

    /// Adds a span that has been measured.
    pub fn record(&self, name: impl Into<Cow<'static, str>>, from: Instant, to: Instant) {
        let name = name.into();
        tracing::debug!(what = %name, time = ?to.saturating_duration_since(from), "start");
        self.add(name, from, to);
    }

    fn add(&self, name: Cow<'static, str>, from: Instant, to: Instant) {
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        let from_ms = ms(from.saturating_duration_since(self.start));
        let span = StartupSpan { name, from_ms, ms: ms(to.saturating_duration_since(from)) };
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).push(span);
    }

    /// The start of the process.
    pub fn start(&self) -> Instant {
        self.start
    }

    /// The spans, in order of their beginnings.
    pub fn list(&self) -> Vec<StartupSpan> {
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone();
        spans.sort_by(|a, b| a.from_ms.total_cmp(&b.from_ms));
        spans
    }
}
