//! Threads on which the programs of replicas continue after a collective.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::{io, thread};

use crate::pjrt::flush_denormals;

/// A few threads that do jobs: completing calls, and computing results when the message of another
/// process arrives. XLA runs the ops after a collective on the thread that completes it, until the
/// next one, so replicas whose calls one thread completed would run one after another; and a thread
/// that reads messages must not run them at all.
pub(super) struct Resumer<J>(Arc<Queue<J>>);

/// What a [`Resumer`]'s threads do.
pub(super) trait ResumerJob: Send + 'static {
    fn run(self);
}

struct Queue<J> {
    state: Mutex<QueueState<J>>,
    changed: Condvar,
}

struct QueueState<J> {
    jobs: VecDeque<J>,
    is_closed: bool,
}

impl<J: ResumerJob> Resumer<J> {
    pub fn new(num_threads: usize) -> io::Result<Self> {
        let state = QueueState { jobs: VecDeque::new(), is_closed: false };
        let queue = Arc::new(Queue { state: Mutex::new(state), changed: Condvar::new() });
        let resumer = Self(queue);
        for index in 0..num_threads {
            let queue = resumer.0.clone();
            let thread = thread::Builder::new().name(format!("replica-{index}"));
            thread.spawn(move || queue.run())?;
        }
        Ok(resumer)
    }

    /// Does a job on one of the threads, after those that wait.
    pub fn push(&self, job: J) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).jobs.push_back(job);
        self.0.changed.notify_one();
    }

    /// Does a job that others wait for on one of the threads, before those that wait.
    pub fn push_first(&self, job: J) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).jobs.push_front(job);
        self.0.changed.notify_one();
    }
}

impl<J: ResumerJob> Queue<J> {
    fn run(&self) {
        // Sums are the same bits on these threads and on XLA's.
        let _flushed = flush_denormals();
        loop {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let job = loop {
                match state.jobs.pop_front() {
                    Some(job) => break job,
                    None if state.is_closed => return,
                    None => {
                        let changed = self.changed.wait(state);
                        state = changed.unwrap_or_else(PoisonError::into_inner);
                    }
                }
            };
            drop(state);
            // A call that a panic drops is completed with an error.
            let _ = catch_unwind(AssertUnwindSafe(|| job.run()));
        }
    }
}

/// Ends the threads once the queue is empty.
impl<J> Drop for Resumer<J> {
    fn drop(&mut self) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).is_closed = true;
        self.0.changed.notify_all();
    }
}
