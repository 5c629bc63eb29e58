//! A key that is there as long as its owner is.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::client::{Etcd, EtcdError};

/// Told what the user should know.
pub type Say = fn(&str);

/// How long the end may take.
const LAST_PATIENCE: Duration = Duration::from_secs(2);

/// A key under a lease of its own, which a thread keeps alive. When this is dropped the lease ends.
pub struct KeptKey {
    etcd: Etcd,
    lease: i64,
    /// Closed at the end.
    stop: Option<Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl KeptKey {
    /// Sets a key to what `value` makes of the lease.
    ///
    /// # Errors
    /// If etcd does not answer, or refuses.
    pub fn set(
        etcd: Etcd,
        key: Vec<u8>,
        value: impl Fn(i64) -> Vec<u8>,
        ttl: Duration,
        say: Say,
    ) -> Result<Self, EtcdError> {
        let lease = etcd.grant(ttl, 0)?;
        let value = value(lease);
        etcd.put(&key, &value, lease)?;
        Self::keep(etcd, key, value, lease, ttl, say)
    }

    /// Keeps a key that is set under this lease.
    ///
    /// # Errors
    /// If there is no thread.
    pub fn keep(
        etcd: Etcd,
        key: Vec<u8>,
        value: Vec<u8>,
        lease: i64,
        ttl: Duration,
        say: Say,
    ) -> Result<Self, EtcdError> {
        let (stop, stopped) = mpsc::channel();
        // Short calls, so that the end need not wait for long.
        let calls = etcd.with_deadline(LAST_PATIENCE);
        let keep = move || {
            let (mut answered, mut was_silent) = (Instant::now(), false);
            while stopped.recv_timeout(ttl / 4) == Err(RecvTimeoutError::Timeout) {
                match renew(&calls, &key, &value, lease, ttl) {
                    Ok(()) => {
                        answered = Instant::now();
                        if std::mem::take(&mut was_silent) {
                            say(&format!("etcd at {} answers again", calls.endpoints()));
                        }
                    }
                    Err(error) if answered.elapsed() >= ttl && !was_silent => {
                        was_silent = true;
                        say(&format!(
                            "warning: {error}. Steps go on without it, but values that processes \
                             exchange need it: start etcd again, with its data"
                        ));
                    }
                    Err(_) => {}
                }
            }
        };
        let thread = thread::Builder::new().name("etcd-lease".to_owned()).spawn(keep);
        let thread = thread.map_err(|error| EtcdError::Setup {
            endpoint: etcd.endpoints(),
            error: error.to_string(),
        })?;
        Ok(Self { etcd, lease, stop: Some(stop), thread: Some(thread) })
    }
}

/// Keeps the lease alive. If it has ended, because this process or etcd stood still, it is made
/// again, and the key with it.
fn renew(
    etcd: &Etcd,
    key: &[u8],
    value: &[u8],
    lease: i64,
    ttl: Duration,
) -> Result<(), EtcdError> {
    if !etcd.keep_alive(lease)? {
        etcd.grant(ttl, lease)?;
        etcd.create(key, value, lease)?;
    }
    Ok(())
}

impl Drop for KeptKey {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // Without an answer it ends by itself.
        let _ = self.etcd.with_deadline(LAST_PATIENCE).revoke(self.lease);
    }
}
