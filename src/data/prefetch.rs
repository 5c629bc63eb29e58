//! A thread that assembles and transfers batches ahead of the loop.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{error, io, thread};

use super::{Error, HostBatch};

/// A thread that assembles the next batches and passes each to a closure, which starts the transfer
/// to the devices. At most `depth` finished batches wait for the loop.
///
/// Dropping it stops the thread after the current batch, and joins it.
pub struct Prefetch<T, E> {
    receiver: Option<Receiver<Result<T, PrefetchError<E>>>>,
    thread: Option<JoinHandle<()>>,
}

/// A batch from the thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefetched<T> {
    /// The closure's result.
    pub batch: T,
    /// How long the loop waited for it.
    pub waited: Duration,
}

/// What [`Prefetch::next_unless`] has found.
#[derive(Debug)]
pub enum NextBatch<T, E> {
    /// The next batch, in order, or why there is none.
    There(Result<Prefetched<T>, PrefetchError<E>>),
    /// It was given up before it came.
    GivenUp,
    /// There are no more.
    None,
}

/// How often it is asked whether a batch is given up.
const POLL: Duration = Duration::from_millis(1);

/// Why there is no next batch. It is the last result.
#[derive(Debug, thiserror::Error)]
pub enum PrefetchError<E> {
    /// The batch could not be assembled.
    #[error(transparent)]
    Data(#[from] Error),
    /// The closure failed.
    #[error("cannot transfer a batch: {0}")]
    Transfer(E),
    /// The thread panicked.
    #[error("the data thread panicked: {0}; this is a bug of Lockstep or of the data source")]
    Panicked(String),
    /// The thread could not be started.
    #[error("cannot start the data thread: {0}; is the number of threads limited?")]
    Spawn(io::Error),
}

impl<T, E> Prefetch<T, E>
where
    T: Send + 'static,
    E: error::Error + Send + 'static,
{
    /// Starts the thread on `batches`, for example [`super::TrainBatches::range`]. A depth of 1
    /// keeps the transfer one step ahead; 0 counts as 1.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(
        batches: impl Iterator<Item = Result<HostBatch, Error>> + Send + 'static,
        depth: usize,
        transfer: impl FnMut(HostBatch) -> Result<T, E> + Send + 'static,
    ) -> Result<Self, PrefetchError<E>> {
        // The thread itself holds one finished batch while it waits for space in the channel.
        let (sender, receiver) = sync_channel(depth.max(1) - 1);
        let run = move || {
            // A panic becomes an error, so that the loop neither hangs nor panics.
            let result = catch_unwind(AssertUnwindSafe(|| produce(batches, transfer, &sender)));
            if let Err(payload) = result {
                let message = payload
                    .downcast_ref::<&str>()
                    .map(|text| text.to_string())
                    .or_else(|| payload.downcast_ref::<String>().cloned())
                    .unwrap_or_else(|| "no message".to_owned());
                // This fails only if the receiver has been dropped.
                let _ = sender.send(Err(PrefetchError::Panicked(message)));
            }
        };
        let thread = thread::Builder::new().name("prefetch".to_owned()).spawn(run);
        let thread = thread.map_err(PrefetchError::Spawn)?;
        Ok(Self { receiver: Some(receiver), thread: Some(thread) })
    }
}

impl<T, E> Prefetch<T, E> {
    /// The next batch, in order; `None` after the last one or after an error.
    #[expect(clippy::should_implement_trait, reason = "it also returns the time waited")]
    pub fn next(&mut self) -> Option<Result<Prefetched<T>, PrefetchError<E>>> {
        let start = Instant::now();
        let received = self.receiver.as_ref()?.recv().ok()?;
        Some(self.received(received, start))
    }

    /// As [`Self::next`], unless `gives_up` says meanwhile that it is not waited for any more: it
    /// is then the next one of a later call.
    pub fn next_unless(&mut self, gives_up: impl Fn() -> bool) -> NextBatch<T, E> {
        let start = Instant::now();
        let Some(receiver) = &self.receiver else { return NextBatch::None };
        let received = loop {
            match receiver.recv_timeout(POLL) {
                Ok(received) => break received,
                Err(RecvTimeoutError::Timeout) if gives_up() => return NextBatch::GivenUp,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return NextBatch::None,
            }
        };
        NextBatch::There(self.received(received, start))
    }

    fn received(
        &mut self,
        received: Result<T, PrefetchError<E>>,
        start: Instant,
    ) -> Result<Prefetched<T>, PrefetchError<E>> {
        let waited = start.elapsed();
        // After an error nothing comes.
        let received = received.inspect_err(|_| self.receiver = None);
        received.map(|batch| Prefetched { batch, waited })
    }
}

impl<T, E> Drop for Prefetch<T, E> {
    fn drop(&mut self) {
        // The receiver goes first: that wakes a thread that waits for space in the channel.
        self.receiver = None;
        if let Some(thread) = self.thread.take() {
            // Panics in the thread were caught, except one in the destructor of a batch, which is
            // ignored.
            let _ = thread.join();
        }
    }
}

/// Runs until the batches end, one fails, or the receiver is dropped.
fn produce<T, E>(
    batches: impl Iterator<Item = Result<HostBatch, Error>>,
    mut transfer: impl FnMut(HostBatch) -> Result<T, E>,
    sender: &SyncSender<Result<T, PrefetchError<E>>>,
) {
    for batch in batches {
        let result = batch
            .map_err(PrefetchError::Data)
            .and_then(|batch| transfer(batch).map_err(PrefetchError::Transfer));
        let failed = result.is_err();
        if sender.send(result).is_err() || failed {
            return;
        }
    }
}
