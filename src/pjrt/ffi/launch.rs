//! Launches in flight of programs with collectives that the host computes.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use super::{HostCollectives, LaunchInfo};
use crate::pjrt::event::Event;
use crate::pjrt::{Placement, Result};

/// The launches in flight by launch id.
static LAUNCHES: LazyLock<Mutex<HashMap<i64, Arc<HostLaunch>>>> = LazyLock::new(Mutex::default);

/// One launch.
pub(in crate::pjrt) struct HostLaunch {
    info: LaunchInfo,
    placement: Placement,
    /// The replica on each device, by XLA's device ordinal.
    replica_of: Vec<(i32, usize)>,
    collectives: Arc<dyn HostCollectives>,
    has_failed: AtomicBool,
    num_running: AtomicUsize,
}

impl HostLaunch {
    /// Lists a launch that is about to start.
    pub fn begin(
        info: LaunchInfo,
        placement: &Placement,
        replica_of: Vec<(i32, usize)>,
        collectives: Arc<dyn HostCollectives>,
    ) -> Arc<Self> {
        let launch = Arc::new(Self {
            info,
            placement: placement.clone(),
            num_running: AtomicUsize::new(replica_of.len()),
            replica_of,
            collectives,
            has_failed: AtomicBool::new(false),
        });
        launch.collectives.begin(info);
        let mut launches = LAUNCHES.lock().unwrap_or_else(PoisonError::into_inner);
        launches.insert(info.id, launch.clone());
        launch
    }

    /// The launch with an id, if it is in flight.
    pub fn of_id(id: i64) -> Option<Arc<Self>> {
        LAUNCHES.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    pub fn info(&self) -> LaunchInfo {
        self.info
    }

    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    pub fn collectives(&self) -> &dyn HostCollectives {
        &*self.collectives
    }

    /// The replica that runs on a device.
    pub fn replica_on(&self, device_ordinal: i32) -> Option<usize> {
        let found = self.replica_of.iter().find(|(ordinal, _)| *ordinal == device_ordinal);
        found.map(|(_, replica)| *replica)
    }

    /// The device that a replica runs on.
    pub fn device_of(&self, replica: usize) -> Option<i32> {
        let found = self.replica_of.iter().find(|(_, other)| *other == replica);
        found.map(|(ordinal, _)| *ordinal)
    }

    /// Completes all calls that wait, and those that arrive later, with an error.
    pub fn fail(&self, reason: &str) {
        if !self.has_failed.swap(true, Ordering::AcqRel) {
            self.collectives.fail(self.info.id, reason);
        }
    }

    /// Fails the launch if its program fails on a replica, and forgets it once it has ended on all
    /// of them. `events` are the ends on each. The other replicas would wait for a replica that has
    /// failed.
    pub fn watch(self: &Arc<Self>, events: &[Event]) -> Result<()> {
        let replicas = self.placement.replicas().zip(events);
        let registered = replicas.map(|(replica, event)| {
            let launch = self.clone();
            event.on_ready(move |result| {
                if let Err(error) = result {
                    launch.fail(&format!("replica {replica} failed: {error}"));
                }
                if launch.num_running.fetch_sub(1, Ordering::AcqRel) == 1 {
                    launch.end();
                }
            })
        });
        let registered: Vec<_> = registered.collect();
        // Without a callback nobody would notice that a replica fails. The launch stays listed for
        // calls yet to come.
        let registered = registered.into_iter().collect::<Result<()>>();
        registered.inspect_err(|error| self.fail(&format!("cannot watch the launch: {error}")))
    }

    /// Forgets a launch that has ended or did not start.
    pub fn end(&self) {
        LAUNCHES.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.info.id);
        self.collectives.end(self.info.id);
    }
}

impl fmt::Debug for HostLaunch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostLaunch({:?}, {:?})", self.info, self.placement)
    }
}
