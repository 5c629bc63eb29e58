//! Collectives of the CPU backend, computed in this process and others instead of by XLA.
//!
//! A replica that arrives at a collective leaves its [`HostCall`] here and blocks no thread. If its
//! group is in this process, the last replica to arrive computes the results of all of them on its
//! thread, long ones together with a pool, and continues; the others are continued by threads that
//! do nothing else. So none of XLA's workers ever waits for a replica, and XLA cannot run out of
//! them, whatever else waits in its pool.
//!
//! A call is matched by launch, collective and how often the replica was there before in this
//! launch. No order of different collectives is assumed: a replica may arrive at independent ones
//! in any order.
//!
//! If the group spans processes, each one sends what the others need of its replicas' operands once
//! all of them have arrived, and computes the results of its own replicas when theirs are there:
//! see [`span`]. Messages are matched like calls, by the number of the launch, and wait for
//! replicas that are late. Threads of [`links`] send and receive them.
//!
//! Sums are added replica by replica, in the order of the group: ((x0 + x1) + x2) + x3. For bf16
//! and f16 they are accumulated in f32 and rounded once. Denormal numbers are zero, as in all
//! programs of this backend. Neither the number of threads or processes nor timing changes a bit.
//!
//! If a replica fails, or does not arrive before a deadline, all calls of the launch are completed
//! with an error, in all processes. XLA's own collectives end the process in this case.

mod arrivals;
mod call;
mod compute;
mod exchange;
mod frame;
mod links;
mod movement;
mod reduce;
mod resume;
mod span;
mod state;
#[cfg(test)]
mod tests;
mod waits;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::pjrt::{HostCall, HostCollectives, LaunchInfo};
use arrivals::ArrivalMeter;
use exchange::Exchange;

pub use links::{LinkError, LinkOptions, Links};
pub use waits::{LastProcess, LaunchWaits};

/// How long replicas wait for the others by default: as long as XLA's own collectives do here.
const DEADLINE: Duration = Duration::from_secs(1800);

/// Matches the calls of the replicas in this process, and in others to which it is linked, and
/// computes their results.
pub struct Rendezvous {
    exchange: Arc<Exchange<HostCall>>,
    arrivals: Arc<ArrivalMeter>,
}

impl Rendezvous {
    /// The rendezvous of a job of one process, with the default deadline.
    ///
    /// # Errors
    /// If its threads cannot be started.
    pub fn new() -> io::Result<Self> {
        Self::with_deadline(DEADLINE)
    }

    /// A rendezvous in which a replica waits at most about `deadline` for the others of its group.
    ///
    /// # Errors
    /// If its threads cannot be started.
    pub fn with_deadline(deadline: Duration) -> io::Result<Self> {
        Ok(Self { exchange: Exchange::new(deadline, None)?, arrivals: Arc::default() })
    }

    /// The rendezvous of one of several processes, whose replicas wait at most about `deadline` for
    /// each other.
    ///
    /// # Errors
    /// If its threads cannot be started.
    pub fn across(links: Links, deadline: Duration) -> io::Result<Self> {
        let arrivals = Arc::default();
        Ok(Self { exchange: links.start(deadline, &arrivals)?, arrivals })
    }

    /// Number of launches in flight.
    pub fn num_launches(&self) -> usize {
        self.exchange.num_launches()
    }

    /// Fails all launches in flight, and those that begin later.
    pub fn fail_all(&self, reason: &str) {
        self.exchange.fail_all(reason);
    }

    /// The processes that this one has waited for at a collective for longer than this.
    pub fn awaited(&self, longer_than: Duration) -> Vec<usize> {
        self.exchange.awaited(longer_than)
    }

    /// How long this process waited for others in the launches that have ended since the last call;
    /// at most the last 1,024. Empty in a job of one process.
    pub fn take_waits(&self) -> Vec<LaunchWaits> {
        self.exchange.take_waits()
    }

    /// Bytes per second at which messages of other processes arrive, long ones and while any does;
    /// `None` before there were enough.
    pub fn link_bytes_per_sec(&self) -> Option<f64> {
        self.arrivals.bytes_per_sec()
    }

    /// Sends what is left to be sent, and tells the other processes that this one has ended.
    /// Without it they take its end for a failure. `false` if that takes longer than `timeout`.
    pub fn close(&self, timeout: Duration) -> bool {
        self.exchange.say_goodbye(timeout)
    }
}

impl HostCollectives for Rendezvous {
    fn begin(&self, launch: LaunchInfo) {
        self.exchange.begin(launch);
    }

    fn start(&self, call: HostCall) {
        self.exchange.start(call);
    }

    fn fail(&self, launch_id: i64, reason: &str) {
        self.exchange.fail(launch_id, reason);
    }

    fn end(&self, launch_id: i64) {
        self.exchange.end(launch_id);
    }
}

/// Ends the threads when they have nothing left to do. Does not wait for them, since this may be
/// one of them.
impl Drop for Rendezvous {
    fn drop(&mut self) {
        self.exchange.close();
    }
}
