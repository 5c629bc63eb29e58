//! Help from the workers of XLA's pool.
//!
//! They are there for the ops of the program, and idle while a kernel runs. Threads of our own
//! would compete with them: an idle worker looks for work for a while before it sleeps.

use std::ffi::c_void;
use std::fmt;
use std::hint;
use std::marker::PhantomData;
use std::panic::{self, AssertUnwindSafe};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::abi::{self, Api};
use super::frame;

/// The workers of the pool that runs a [`super::KernelCall`].
#[derive(Clone, Copy)]
pub struct Workers<'c> {
    api: *const Api,
    ctx: *mut c_void,
    _call: PhantomData<&'c ()>,
}

// SAFETY: the functions of the API may be called on any thread during the call.
unsafe impl Sync for Workers<'_> {}

/// A function that helpers call as long as it is open.
struct Help {
    work: *const (dyn Fn() + Sync),
    /// The helpers that are calling it, and [`CLOSED`] once no more may begin.
    state: AtomicUsize,
    has_panicked: AtomicBool,
}

// SAFETY: `work` may be called on any thread, and is called only while it lives: see
// `Workers::join`.
unsafe impl Send for Help {}
// SAFETY: as above.
unsafe impl Sync for Help {}

const CLOSED: usize = 1 << 32;

/// The caller looks this often for helpers that are about to end, before it lets other threads run.
const NUM_SPINS: usize = 2000;

impl Workers<'_> {
    /// # Safety
    /// `api` and `ctx` must be those of a frame that outlives the result.
    pub(super) unsafe fn new(api: *const Api, ctx: *mut c_void) -> Self {
        Self { api, ctx, _call: PhantomData }
    }

    /// Calls `work` on this thread, and on up to `num_helpers` workers that have nothing else to do
    /// meanwhile. Returns when all calls that have begun have returned. A worker that is busy for
    /// longer does not call it, and is not waited for.
    pub fn join(&self, num_helpers: usize, work: &(dyn Fn() + Sync)) {
        // SAFETY: only the lifetime changes. Helpers call it between `begin` and `end`, and this
        // function does not return before it has closed it and all that have begun have ended.
        let work_for_helpers: *const (dyn Fn() + Sync) = unsafe {
            std::mem::transmute::<*const (dyn Fn() + Sync), *const (dyn Fn() + Sync + 'static)>(
                work,
            )
        };
        let help = Arc::new(Help {
            work: work_for_helpers,
            state: AtomicUsize::new(0),
            has_panicked: AtomicBool::new(false),
        });
        for _ in 0..num_helpers {
            if !self.schedule(help.clone()) {
                break;
            }
        }
        let done = panic::catch_unwind(AssertUnwindSafe(work));
        help.close();
        if let Err(panic) = done {
            panic::resume_unwind(panic);
        }
        assert!(!help.has_panicked.load(Ordering::Relaxed), "a helper has panicked");
    }

    /// `false` if the pool takes no tasks.
    fn schedule(&self, help: Arc<Help>) -> bool {
        let data = Arc::into_raw(help).cast_mut();
        let mut args = abi::PoolTaskArgs {
            struct_size: abi::size::SCHEDULE,
            extension_start: ptr::null_mut(),
            ctx: self.ctx,
            task: Some(run),
            data: data.cast(),
        };
        // SAFETY: by the contract of `new`. The task takes ownership of `data`, unless the function
        // fails.
        unsafe {
            let scheduled = (*self.api).ThreadPool_Schedule.is_some_and(|schedule| {
                frame::check(&*self.api, schedule(&raw mut args), "ThreadPool_Schedule").is_ok()
            });
            if !scheduled {
                drop(Arc::from_raw(data));
            }
            scheduled
        }
    }
}

impl Help {
    /// `false` if it is closed.
    fn begin(&self) -> bool {
        let begun = |state: usize| (state < CLOSED).then_some(state + 1);
        self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, begun).is_ok()
    }

    fn end(&self) {
        self.state.fetch_sub(1, Ordering::Release);
    }

    /// Lets nobody else begin, and waits until all have ended, which wait for nothing.
    fn close(&self) {
        self.state.fetch_or(CLOSED, Ordering::Relaxed);
        let mut num_spins = 0;
        while self.state.load(Ordering::Acquire) != CLOSED {
            num_spins += 1;
            match num_spins < NUM_SPINS {
                true => hint::spin_loop(),
                false => thread::yield_now(),
            }
        }
    }
}

/// The entry point of a worker.
unsafe extern "C" fn run(data: *mut c_void) {
    // SAFETY: `schedule` passes an `Arc` of this type to exactly one call.
    let help = unsafe { Arc::from_raw(data.cast::<Help>()) };
    if !help.begin() {
        return;
    }
    // SAFETY: `join` has not returned: it waits for `end`.
    let work = unsafe { &*help.work };
    if panic::catch_unwind(AssertUnwindSafe(work)).is_err() {
        help.has_panicked.store(true, Ordering::Relaxed);
    }
    help.end();
}

impl fmt::Debug for Workers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").finish_non_exhaustive()
    }
}
