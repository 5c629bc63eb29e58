//! `Writer`: a thread that writes what a sink gives it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel,
};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{Error, FlushLater, Waiting};

/// The longest time that an item waits in memory.
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// Items on their way to the thread. It takes them at once, unless a write does not return.
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
/// The queue to the thread is bounded, and nothing in it is lost: if it is full, because a write
/// has not returned for thousands of items, the sender waits, and stderr says for what. A write
/// that fails does return, so only a disk that hangs can stop the loop.
pub struct Writer<T: WriterTarget> {
    messages: Option<SyncSender<Message<T::Item>>>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
}

enum Message<I> {
    Item(I),
    /// Write everything, and answer whether all of it was written.
    Flush(Sender<Result<(), Error>>),
}

impl<T: WriterTarget> Writer<T> {
    /// Starts the thread. Messages call what it writes `path`.
    ///
    /// # Errors
    /// If there is no thread.
    pub fn start(path: &Path, target: T) -> Result<Self, Error> {
        Self::with_queue(path, target, QUEUE)
    }

    fn with_queue(path: &Path, target: T, queue: usize) -> Result<Self, Error> {
        let (messages, receiver) = sync_channel(queue);
        let run = move || write_items(target, &receiver);
        let thread = thread::Builder::new().name("writer".to_owned()).spawn(run);
        let thread = thread.map_err(|source| Error::Write { path: path.to_owned(), source })?;
        Ok(Self { messages: Some(messages), thread: Some(thread), path: path.to_owned() })
    }

    /// Gives it an item.
    pub fn write(&self, item: T::Item) {
        self.send(Message::Item(item));
    }

    fn send(&self, message: Message<T::Item>) {
        // The thread receives until this is dropped. If it has panicked, `flush` reports that.
        let Some(messages) = &self.messages else { return };
        if let Err(TrySendError::Full(message)) = messages.try_send(message) {
            let _waiting = Waiting::on(format!("waiting for the disk of {}", self.path.display()));
            let _ = messages.send(message);
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
        self.send(Message::Flush(answer));
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
        self.messages = None;
        if let Some(thread) = self.thread.take() {
            // Errors have been returned by `flush`.
            let _ = thread.join();
        }
    }
}

fn write_items<T: WriterTarget>(mut target: T, messages: &Receiver<Message<T::Item>>) {
    // When the oldest item that is not written yet has to be.
    let mut due: Option<Instant> = None;
    loop {
        let message = match due {
            None => messages.recv().map_err(RecvTimeoutError::from),
            Some(due) => messages.recv_timeout(due.saturating_duration_since(Instant::now())),
        };
        match message {
            Ok(Message::Item(item)) => {
                target.add(item);
                due.get_or_insert_with(|| Instant::now() + WRITE_EVERY);
            }
            Ok(Message::Flush(answer)) => {
                // The receiver waits for it.
                let _ = answer.send(target.flush());
            }
            Err(RecvTimeoutError::Timeout) => {
                due = target.try_to_write().then(|| Instant::now() + WRITE_EVERY);
            }
            Err(RecvTimeoutError::Disconnected) => {
                // After the last `flush` there is nothing new to report.
                let _ = target.flush();
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

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
            // One is being written and two wait.
            assert_eq!(num_sent.load(Ordering::SeqCst), 3);
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
