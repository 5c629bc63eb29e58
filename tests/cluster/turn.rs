//! Which tests run at the same time: each starts several processes, which have deadlines.

use std::process::Command;
use std::sync::{Condvar, Mutex, Once, PoisonError};

use super::BINARY;

/// So many runs at a time: while one waits, the other has the processors.
const MAX_RUNS: usize = 2;

/// The turn of a test, until it is dropped.
pub struct Turn(usize);

#[derive(Default)]
struct Turns {
    taken: usize,
    /// Tests that wait for a turn of their own.
    num_waiting: usize,
}

static TURNS: Mutex<Turns> = Mutex::new(Turns { taken: 0, num_waiting: 0 });
static CHANGED: Condvar = Condvar::new();

/// No other run beside this one: for deadlines of seconds, and for times that are compared.
pub fn alone() -> Turn {
    take(MAX_RUNS)
}

/// Another run may be beside this one.
pub fn shared() -> Turn {
    take(1)
}

fn take(count: usize) -> Turn {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        let status = Command::new(BINARY).args(["plugin", "install", "cpu"]).status();
        assert!(status.expect("the binary starts").success());
    });
    let mut turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_alone = count == MAX_RUNS;
    turns.num_waiting += usize::from(is_alone);
    // Those that must be alone come first: each that waits occupies a thread.
    let waits =
        |turns: &mut Turns| turns.taken + count > MAX_RUNS || !is_alone && turns.num_waiting > 0;
    let waited = CHANGED.wait_while(turns, waits);
    turns = waited.unwrap_or_else(PoisonError::into_inner);
    turns.num_waiting -= usize::from(is_alone);
    turns.taken += count;
    // Another that shares may take what is left.
    CHANGED.notify_all();
    Turn(count)
}

impl Drop for Turn {
    fn drop(&mut self) {
        TURNS.lock().unwrap_or_else(PoisonError::into_inner).taken -= self.0;
        CHANGED.notify_all();
    }
}
