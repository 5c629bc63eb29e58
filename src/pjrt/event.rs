//! Completion of asynchronous work.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::abi::*;
use super::plugin::call;
use super::{Error, Placement, Plugin, Result};

/// Owns a `PJRT_Event`, which becomes ready once its work has finished or failed.
#[derive(Debug)]
pub(super) struct Event {
    plugin: Plugin,
    raw: *mut PJRT_Event,
}

// SAFETY: PJRT's functions on events may be called from any thread.
unsafe impl Send for Event {}
// SAFETY: as above; no function here changes the handle.
unsafe impl Sync for Event {}

impl Event {
    /// Takes ownership of an event; null means work that is already done.
    pub fn new(plugin: Plugin, raw: *mut PJRT_Event) -> Self {
        Self { plugin, raw }
    }

    /// Blocks until the event is ready. Calling it again gives the same result.
    pub fn wait(&self) -> Result<()> {
        if self.raw.is_null() {
            return Ok(());
        }
        let mut args = PJRT_Event_Await_Args { event: self.raw, ..PJRT_Event_Await_Args::new() };
        // SAFETY: the event is live until `self` is dropped.
        unsafe { call!(self.plugin, PJRT_Event_Await, args) }
    }

    /// `true` if the work has finished or failed.
    pub fn is_ready(&self) -> Result<bool> {
        if self.raw.is_null() {
            return Ok(true);
        }
        let mut args =
            PJRT_Event_IsReady_Args { event: self.raw, ..PJRT_Event_IsReady_Args::new() };
        // SAFETY: the event is live until `self` is dropped.
        unsafe { call!(self.plugin, PJRT_Event_IsReady, args) }?;
        Ok(args.is_ready)
    }

    /// Drops `value` once the event is ready, on a thread of the plugin.
    pub fn keep_until_ready<T: Send + 'static>(&self, value: T) -> Result<()> {
        // An error is reported to whoever waits for the data.
        self.on_ready(move |_| drop(value))
    }

    /// Calls `callback` with the result of the work once the event is ready, on a thread of the
    /// plugin or on this one.
    pub fn on_ready<F: FnOnce(Result<()>) + Send + 'static>(&self, callback: F) -> Result<()> {
        if self.raw.is_null() {
            callback(Ok(()));
            return Ok(());
        }
        let user_arg = Box::into_raw(Box::new((self.plugin, callback)));
        let mut args = PJRT_Event_OnReady_Args {
            event: self.raw,
            callback: Some(call_back::<F>),
            user_arg: user_arg.cast(),
            ..PJRT_Event_OnReady_Args::new()
        };
        // SAFETY: the callback is called exactly once with `user_arg`, whether or not this event
        // object still exists then; only the callback frees it. If the registration fails, nobody
        // calls the callback, and its values are leaked rather than freed under a running transfer.
        unsafe { call!(self.plugin, PJRT_Event_OnReady, args) }
    }
}

extern "C" fn call_back<F: FnOnce(Result<()>)>(error: *mut PJRT_Error, user_arg: *mut c_void) {
    // SAFETY: `user_arg` is the box that `on_ready` made for this call.
    let (plugin, callback) = *unsafe { Box::from_raw(user_arg.cast::<(Plugin, F)>()) };
    let result = plugin.check("PJRT_Event_OnReady", error);
    // A panic must not unwind into the plugin.
    let _ = catch_unwind(AssertUnwindSafe(|| callback(result)));
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.raw.is_null() {
            return;
        }
        let mut args =
            PJRT_Event_Destroy_Args { event: self.raw, ..PJRT_Event_Destroy_Args::new() };
        // SAFETY: the event is owned by `self` and not used afterwards. Work in flight goes on.
        let _ = unsafe { call!(self.plugin, PJRT_Event_Destroy, args) };
    }
}

/// The completion of one launch on all addressable devices. Clones refer to the same launch.
#[derive(Clone, Debug)]
pub struct Completion(Arc<Launched>);

#[derive(Debug)]
struct Launched {
    /// One event per addressable replica, in the order of `placement`.
    events: Box<[Event]>,
    placement: Placement,
    finished: AtomicBool,
}

impl Completion {
    pub(super) fn new(events: Box<[Event]>, placement: Placement) -> Self {
        Self(Arc::new(Launched { events, placement, finished: AtomicBool::new(false) }))
    }

    /// Blocks until every addressable device has finished. If a replica fails while others wait for
    /// it in a collective of XLA, its CPU backend ends the process after its own timeout.
    ///
    /// # Errors
    /// [`Error::Replica`] for the first replica that failed.
    pub fn wait(&self) -> Result<()> {
        let mut first_error = None;
        for (replica, event) in self.0.placement.replicas().zip(&self.0.events) {
            if let Err(source) = event.wait() {
                first_error.get_or_insert(Error::Replica { replica, source: Box::new(source) });
            }
        }
        self.0.finished.store(true, Ordering::Release);
        first_error.map_or(Ok(()), Err)
    }

    /// `true` if every addressable device has finished or failed.
    ///
    /// # Errors
    /// Errors of the plugin.
    pub fn is_ready(&self) -> Result<bool> {
        for event in &self.0.events {
            if !event.is_ready()? {
                return Ok(false);
            }
        }
        self.0.finished.store(true, Ordering::Release);
        Ok(true)
    }

    /// Notes, from now on, when every addressable device has finished or failed.
    ///
    /// # Errors
    /// If the plugin does not tell.
    pub fn note_end(&self) -> Result<EndTime> {
        let num_left = AtomicUsize::new(self.0.events.len());
        let end = EndTime(Arc::new(NotedEnd { num_left, at: OnceLock::new() }));
        for event in &self.0.events {
            let noted = Arc::clone(&end.0);
            event.on_ready(move |_| {
                if noted.num_left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    noted.at.get_or_init(Instant::now);
                }
            })?;
        }
        Ok(end)
    }

    /// `true` if the launch is known to have ended without asking the plugin.
    pub(super) fn is_finished(&self) -> bool {
        self.0.finished.load(Ordering::Acquire)
    }
}

/// When a launch ended on all addressable devices. Clones are of the same launch.
#[derive(Clone, Debug)]
pub struct EndTime(Arc<NotedEnd>);

#[derive(Debug)]
struct NotedEnd {
    num_left: AtomicUsize,
    at: OnceLock<Instant>,
}

impl EndTime {
    /// The time; `None` before, and for a moment after [`Completion::wait`] has returned.
    pub fn get(&self) -> Option<Instant> {
        self.0.at.get().copied()
    }
}
