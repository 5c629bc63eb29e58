//! Signals that stop a run, or save it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::observe::say;
use crate::train::Stop;

/// The signals and their names.
const SIGNALS: [(i32, &str); 3] = [(SIGHUP, "SIGHUP"), (SIGINT, "SIGINT"), (SIGTERM, "SIGTERM")];

/// Exit code of a process that a signal ended, without the number of the signal.
const BASE: i32 = 128;

/// The signal that was received, if any, and the thread that reports it.
pub struct Received {
    signal: Arc<AtomicUsize>,
    answer: JoinHandle<()>,
}

impl Received {
    /// The exit code of a run that was stopped; waits until the signal has been answered. It may
    /// have reached another process of the run only: then it counts as SIGTERM.
    pub fn exit_code(self) -> u8 {
        let signal = match self.signal.load(Ordering::Relaxed) {
            0 => SIGTERM as usize,
            signal => {
                // The thread only prints a line.
                let _ = self.answer.join();
                signal
            }
        };
        // The numbers are below 32.
        u8::try_from(BASE as usize + signal).unwrap_or(u8::MAX)
    }
}

/// From now on, exceeding the file size limit is an error of the write and does not end the
/// process.
///
/// # Errors
/// A handler that cannot be set up.
pub fn keep_on_long_files() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::default()).map(drop)
}

/// The end of a command that goes on until a signal ends it. Signals that the process was started
/// to ignore stay ignored.
pub struct Ending(Arc<AtomicUsize>);

impl Ending {
    /// Waits for signals from now on. The first can be asked for here, the second ends the process.
    ///
    /// # Errors
    /// A handler that cannot be set up.
    pub fn watch() -> io::Result<Self> {
        let (signal, has_come) = (Arc::default(), Arc::default());
        for number in watched() {
            flag::register_conditional_shutdown(number, BASE + number, Arc::clone(&has_come))?;
            flag::register(number, Arc::clone(&has_come))?;
            flag::register_usize(number, Arc::clone(&signal), number as usize)?;
        }
        Ok(Self(signal))
    }

    /// Waits for this time, or until a signal has come.
    pub fn has_come_within(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.0.load(Ordering::Relaxed) > 0 || left.is_zero() {
                return self.0.load(Ordering::Relaxed) > 0;
            }
            thread::sleep(left.min(Duration::from_millis(50)));
        }
    }

    /// The exit code for the signal that has come.
    pub fn exit_code(&self) -> u8 {
        u8::try_from(BASE as usize + self.0.load(Ordering::Relaxed)).unwrap_or(u8::MAX)
    }
}

/// The signals that end a command.
fn watched() -> impl Iterator<Item = i32> {
    let ignored = ignored();
    SIGNALS
        .into_iter()
        .map(|(signal, _)| signal)
        .filter(move |signal| ignored & (1 << (signal - 1)) == 0)
}

/// From now on, the first signal stops the run, with a message, and the second ends the process:
/// the run may hang. Signals that the process was started to ignore, as `nohup` does, stay ignored.
/// SIGUSR1 asks for a checkpoint.
///
/// # Errors
/// A handler that cannot be set up, or no thread.
pub fn watch(stop: &Stop) -> io::Result<Received> {
    flag::register(SIGUSR1, stop.save_flag())?;
    let received = Arc::new(AtomicUsize::new(0));
    let ignored = ignored();
    let watched = SIGNALS.into_iter().filter(|(signal, _)| ignored & (1 << (signal - 1)) == 0);
    let watched: Vec<_> = watched.collect();
    for &(signal, _) in &watched {
        flag::register_conditional_shutdown(signal, BASE + signal, stop.flag())?;
        flag::register_usize(signal, received.clone(), signal as usize)?;
        flag::register(signal, stop.flag())?;
    }
    let mut signals = Signals::new(watched.iter().map(|(signal, _)| signal))?;
    let (stop, first) = (stop.clone(), received.clone());
    let answer = move || {
        // A signal that came while the handlers were being set up has left its number. A second
        // signal ends the process and does not come here.
        let signal = match first.load(Ordering::Relaxed) {
            0 => signals.forever().next(),
            signal => i32::try_from(signal).ok(),
        };
        let Some(signal) = signal else { return };
        // A signal that came between two of the handlers has not requested the stop itself.
        stop.request();
        let name = watched.iter().find(|(watched, _)| *watched == signal).map_or("", |w| w.1);
        let when = if stop.has_begun() { "after this step" } else { "before the first step" };
        say(&format!("{name}: stopping {when}; once more to stop at once"));
    };
    let answer = thread::Builder::new().name("signals".to_owned()).spawn(answer)?;
    Ok(Received { signal: received, answer })
}

/// The ignored signals, one bit each; 0 if they are not known.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
