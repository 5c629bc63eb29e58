//! What the program waits for, shown on stderr if that takes long.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::bar::{Bar, with_bottom};
use super::messages::{ProgressForm, progress_form, say};
use super::progress::in_words;

/// How often the time is looked at.
const TICK: Duration = Duration::from_millis(250);
/// A terminal shows waits from this time on.
const ON_TERMINAL: Duration = Duration::from_secs(1);
/// Elsewhere there is a line after this time, and after each time that is twice as long.
const FIRST_LINE: Duration = Duration::from_secs(5);

/// The last to begin is shown. Runs of several threads may have some at the same time.
static WAITS: Mutex<Vec<Wait>> = Mutex::new(vec![]);
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// Something that takes time, from now until this is dropped. If it takes long, stderr says what it
/// is and how long it has taken: on a terminal at the bottom, elsewhere in a line now and then.
#[must_use]
pub struct Waiting {
    id: u64,
}

struct Wait {
    id: u64,
    what: Cow<'static, str>,
    /// The parts of the work that are done, of all of them.
    done: Option<(u64, u64)>,
    since: Instant,
    num_lines: u32,
    is_on_terminal: bool,
}

impl Waiting {
    /// `what` is an activity: `reading the data`.
    pub fn on(what: impl Into<Cow<'static, str>>) -> Self {
        static MONITOR: Once = Once::new();
        // Without a thread nothing is shown, which is no reason to fail.
        MONITOR.call_once(|| drop(thread::Builder::new().name("waiting".into()).spawn(monitor)));
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let (what, since) = (what.into(), Instant::now());
        lock().push(Wait { id, what, done: None, since, num_lines: 0, is_on_terminal: false });
        Self { id }
    }

    /// Says how far it is.
    pub fn set_done(&self, num_parts: u64, of: u64) {
        if let Some(wait) = lock().iter_mut().find(|wait| wait.id == self.id) {
            wait.done = Some((num_parts, of));
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let ended: Option<Wait> = {
            let mut waits = lock();
            let place = waits.iter().position(|wait| wait.id == self.id);
            place.map(|place| waits.remove(place))
        };
        if ended.is_some_and(|wait| wait.is_on_terminal) {
            with_bottom(|bottom| {
                drop(bottom.take_if(|bar| !bar.has_run()));
                if let Some(bar) = bottom {
                    bar.set_wait(None);
                }
            });
        }
    }
}

impl Wait {
    fn describe(&self) -> String {
        let Self { what, done, .. } = self;
        done.map_or(what.to_string(), |(done, of)| format!("{what}, {done} of {of}"))
    }

    /// The line that is due after this time, if there is one.
    fn due_line(&mut self, elapsed: Duration) -> Option<String> {
        if elapsed < FIRST_LINE * 2u32.saturating_pow(self.num_lines) {
            return None;
        }
        self.num_lines += 1;
        Some(format!("{} ({} so far)", self.describe(), in_words(elapsed.as_secs_f64())))
    }
}

fn lock() -> MutexGuard<'static, Vec<Wait>> {
    WAITS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn monitor() {
    loop {
        thread::sleep(TICK);
        // Locked until it is shown, so that no line of a wait comes after its end.
        let mut waits = lock();
        let wait = waits.last_mut().map(|wait| (wait.since.elapsed(), wait));
        match (progress_form(), wait) {
            (ProgressForm::Lines, Some((elapsed, wait))) => {
                if let Some(line) = wait.due_line(elapsed) {
                    say(&line);
                }
            }
            (ProgressForm::Block | ProgressForm::Passed, Some((elapsed, wait)))
                if elapsed >= ON_TERMINAL =>
            {
                wait.is_on_terminal = true;
                let wait = [wait.describe(), in_words(elapsed.as_secs_f64())];
                with_bottom(|bottom| bottom.get_or_insert_with(Bar::of_waits).set_wait(Some(wait)));
            }
            // Ages grow while a step is taken, and the terminal may have another size.
            (ProgressForm::Block | ProgressForm::Passed, _) => {
                with_bottom(|bottom| bottom.iter_mut().for_each(Bar::draw));
            }
            (ProgressForm::Lines | ProgressForm::Nothing, _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_more_and_more_rarely() {
        let mut wait = Wait {
            id: 0,
            what: "reading".into(),
            done: None,
            since: Instant::now(),
            num_lines: 0,
            is_on_terminal: false,
        };
        let mut lines = vec![];
        for tick in 0..400 {
            if tick == 50 {
                wait.done = Some((3, 9));
            }
            lines.extend(wait.due_line(TICK * tick));
        }
        let expected = [
            "reading (5s so far)",
            "reading (10s so far)",
            "reading, 3 of 9 (20s so far)",
            "reading, 3 of 9 (40s so far)",
            "reading, 3 of 9 (1m20s so far)",
        ];
        assert_eq!(lines, expected);
    }
}
