//! Threads on which the programs of replicas continue after a collective.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::{io, thread};

use crate::pjrt::HostCall;

/// A few threads that complete calls. XLA runs the ops after a collective on the thread that completes it, until the next
/// one, so replicas whose calls one thread completed would run one after another.
pub(super) struct Resumer(Arc<Queue>);

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    calls: VecDeque<HostCall>,
    is_closed: bool,
}

impl Resumer {
    pub fn new(num_threads: usize) -> io::Result<Self> {
        let resumer = Self(Arc::default());
        for index in 0..num_threads {
            let queue = resumer.0.clone();
            let thread = thread::Builder::new().name(format!("replica-{index}"));
            thread.spawn(move || queue.run())?;
        }
        Ok(resumer)
    }

    /// Completes a call successfully on one of the threads.
    pub fn resume(&self, call: HostCall) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).calls.push_back(call);
        self.0.changed.notify_one();
    }
}

impl Queue {
    fn run(&self) {
        loop {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let call = loop {
                match state.calls.pop_front() {
                    Some(call) => break call,
                    None if state.is_closed => return,
                    None => {
                        let changed = self.changed.wait(state);
                        state = changed.unwrap_or_else(PoisonError::into_inner);
                    }
                }
            };
            drop(state);
            call.complete(Ok(()));
        }
    }
}

/// Ends the threads once the queue is empty.
impl Drop for Resumer {
    fn drop(&mut self) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).is_closed = true;
        self.0.changed.notify_all();
    }
}
