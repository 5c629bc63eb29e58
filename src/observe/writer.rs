//! `Writer`: a thread that writes what a sink gives it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{Error, FlushLater, Waiting};

/// The longest time that an item waits in memory.
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// Items on their way to the thread.
const QUEUE: usize = 8192;

/// What becomes of the items that a [`Writer`] is given, on its thread.
pub trait WriterTarget: Send + 'static {
    /// What a sink gives.
    type Item: Send + 'static;

    /// Takes an item, to be written with the next ones. While it cannot be written, it is kept; how
    /// much is kept, and what is lost beyond that, is the target's own choice.
    fn add(&mut self, item: Self::Item);

    /// Tries to write what it has. `true` if something is left, to be tried again.
    fn try_to_write(&mut self) -> bool;

    /// Writes what it has, for the last time or before a checkpoint.
    ///
    /// # Errors
    /// If something was not written. The run fails with it at its end.
    fn flush(&mut self) -> Result<(), Error>;
}

/// A thread that writes what it is given, so that a slow disk does not delay a step: items are
/// written within a second, and at the end. Dropping it writes what is left.
///
/// The thread sleeps in the meantime: to wake it for each item would cost more than most of them.
/// The queue to it is bounded, and nothing in it is lost: if it is full, because a write has not
/// returned for thousands of items, the sender waits, and stderr says for what. A write that fails
/// does return, so only a disk that hangs can stop the loop.
pub struct Writer<T: WriterTarget> {
    queue: Arc<WriterQueue<T::Item>>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
}

struct WriterQueue<I> {
    waiting: Mutex<WaitingItems<I>>,
    /// There is something to do for the thread.
    is_due: Condvar,
    /// The thread has taken what there was.
    has_room: Condvar,
    max: usize,
}

/// What the thread has not taken.
struct WaitingItems<I> {
    items: Vec<I>,
    /// Who waits until everything is written.
    flushes: Vec<Sender<Result<(), Error>>>,
    /// Nothing more comes.
    is_closed: bool,
    /// The thread has ended.
    has_ended: bool,
}

impl<T: WriterTarget> Writer<T> {
    /// Starts the thread. Messages call what it writes `path`.
    ///
    /// # Errors
    /// If there is no thread.
    pub fn start(path: &Path, target: T) -> Result<Self, Error> {
        Self::with_queue(path, target, QUEUE)
    }

    fn with_queue(path: &Path, target: T, max: usize) -> Result<Self, Error> {
        let (items, flushes) = (vec![], vec![]);
        let waiting = WaitingItems { items, flushes, is_closed: false, has_ended: false };
        let (is_due, has_room) = (Condvar::new(), Condvar::new());
        let queue = Arc::new(WriterQueue { waiting: Mutex::new(waiting), is_due, has_room, max });
        let of_thread = EndOfThread(queue.clone());
        let run = move || {
            let EndOfThread(queue) = &of_thread;
            write_items(target, queue);
        };
        let thread = thread::Builder::new().name("writer".to_owned()).spawn(run);
        let thread = thread.map_err(|source| Error::Write { path: path.to_owned(), source })?;
        Ok(Self { queue, thread: Some(thread), path: path.to_owned() })
    }

    /// Gives it an item.
    pub fn write(&self, item: T::Item) {
        let mut waiting = self.queue.lock();
        if waiting.items.len() >= self.queue.max {
            let _waiting = Waiting::on(format!("waiting for the disk of {}", self.path.display()));
            while waiting.items.len() >= self.queue.max && !waiting.has_ended {
                waiting = wait(&self.queue.has_room, waiting);
            }
        }
        // If the thread has panicked, `flush` reports that.
        if waiting.has_ended {
            return;
        }
        waiting.items.push(item);
        let num = waiting.items.len();
        drop(waiting);
        if num == 1 || num == self.queue.many() {
            self.queue.is_due.notify_one();
        }
    }

    /// Waits until everything so far has been written.
    ///
    /// # Errors
    /// If something was not written.
    pub fn flush(&self) -> Result<(), Error> {
        self.flush_later()()
    }

    /// Asks the thread to write everything so far. The returned function waits until that is done.
    pub fn flush_later(&self) -> FlushLater {
        let (answer, receiver) = channel();
        let mut waiting = self.queue.lock();
        if !waiting.has_ended {
            waiting.flushes.push(answer);
        }
        drop(waiting);
        self.queue.is_due.notify_one();
        let path = self.path.clone();
        Box::new(move || {
            receiver.recv().unwrap_or_else(|_| {
                let source = io::Error::other("the thread that writes it panicked");
                Err(Error::Write { path, source })
            })
        })
    }
}

impl<T: WriterTarget> Drop for Writer<T> {
    fn drop(&mut self) {
        self.queue.lock().is_closed = true;
        self.queue.is_due.notify_one();
        if let Some(thread) = self.thread.take() {
            // Errors have been returned by `flush`.
            let _ = thread.join();
        }
    }
}

impl<I> WriterQueue<I> {
    fn lock(&self) -> MutexGuard<'_, WaitingItems<I>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many items are written before their time.
    fn many(&self) -> usize {
        self.max.div_ceil(2)
    }
}

fn wait<'a, I>(
    until: &Condvar,
    waiting: MutexGuard<'a, WaitingItems<I>>,
) -> MutexGuard<'a, WaitingItems<I>> {
    until.wait(waiting).unwrap_or_else(PoisonError::into_inner)
}

/// Tells those who wait for the thread that it has ended, also by a panic.
struct EndOfThread<I>(Arc<WriterQueue<I>>);

impl<I> Drop for EndOfThread<I> {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.has_ended = true;
        waiting.flushes.clear();
        drop(waiting);
        self.0.has_room.notify_all();
    }
}

fn write_items<T: WriterTarget>(mut target: T, queue: &WriterQueue<T::Item>) {
    // When the oldest item that is not written yet has to be.
    let mut due: Option<Instant> = None;
    loop {
        let mut waiting = queue.lock();
        loop {
            if !waiting.items.is_empty() {
                due.get_or_insert_with(|| Instant::now() + WRITE_EVERY);
            }
            let is_asked = waiting.is_closed || !waiting.flushes.is_empty();
            if is_asked || waiting.items.len() >= queue.many() {
                break;
            }
            waiting = match due.map(|due| due.saturating_duration_since(Instant::now())) {
                None => wait(&queue.is_due, waiting),
                Some(Duration::ZERO) => break,
                Some(left) => {
                    let waited = queue.is_due.wait_timeout(waiting, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        let items = std::mem::take(&mut waiting.items);
        let flushes = std::mem::take(&mut waiting.flushes);
        let is_closed = waiting.is_closed;
        drop(waiting);
        queue.has_room.notify_all();
        items.into_iter().for_each(|item| target.add(item));
        if is_closed {
            // After the last `flush` there is nothing new to report.
            let _ = target.flush();
            return;
        }
        if flushes.is_empty() {
            due = target.try_to_write().then(|| Instant::now() + WRITE_EVERY);
        }
        for answer in flushes {
            // The receiver waits for it.
            let _ = answer.send(target.flush());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::Receiver;

    use super::*;

    /// A disk that hangs until it is let go.
    struct Hanging {
        is_let_go: Receiver<()>,
        written: Arc<Mutex<Vec<usize>>>,
    }

    impl WriterTarget for Hanging {
        type Item = usize;

        fn add(&mut self, item: usize) {
            let _ = self.is_let_go.recv();
            self.written.lock().unwrap().push(item);
        }

        fn try_to_write(&mut self) -> bool {
            false
        }

        fn flush(&mut self) -> Result<(), Error> {
            Ok(())
        }
    }

    #[test]
    fn a_full_queue_makes_its_sender_wait_and_loses_nothing() {
        let (let_go, is_let_go) = channel();
        let written = Arc::new(Mutex::new(vec![]));
        let target = Hanging { is_let_go, written: Arc::clone(&written) };
        let writer = Writer::with_queue(Path::new("a"), target, 2).unwrap();
        let num_sent = AtomicUsize::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for item in 0..10 {
                    writer.write(item);
                    num_sent.fetch_add(1, Ordering::SeqCst);
                }
            });
            let start = Instant::now();
            while num_sent.load(Ordering::SeqCst) < 3 && start.elapsed().as_secs() < 10 {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(50));
            // One is being written, with a second one perhaps, and two wait.
            let num_sent = num_sent.load(Ordering::SeqCst);
            assert!((3..=4).contains(&num_sent), "{num_sent}");
            drop(let_go);
        });
        writer.flush().unwrap();
        assert_eq!(*written.lock().unwrap(), (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn a_thread_that_panics_is_an_error_of_the_run() {
        struct Panics;

        impl WriterTarget for Panics {
            type Item = ();

            fn add(&mut self, (): ()) {
                panic!("as if by a bug");
            }

            fn try_to_write(&mut self) -> bool {
                false
            }

            fn flush(&mut self) -> Result<(), Error> {
                Ok(())
            }
        }

        let writer = Writer::start(Path::new("a"), Panics).unwrap();
        writer.write(());
        let error = writer.flush().unwrap_err().to_string();
        assert_eq!(error, "cannot write a: the thread that writes it panicked");
    }
}
