//! Collectives and kernels that this process computes, called from XLA programs through its typed
//! FFI.
//!
//! On the CPU backend a program with [`hlo::HostCalls`] has custom calls where others have
//! collectives. XLA calls [`handle`] for each of them on each replica, which makes a [`HostCall`]
//! of it: what is to be computed, the operands, and memory for the results. The call goes to the
//! [`HostCollectives`] of the client, and the handler returns without waiting. XLA continues with
//! ops that need the results once the call is completed.
//!
//! Kernels are simpler: a call is computed before its handler returns, by the [`HostKernels`] of
//! the process.
//!
//! A program for several processes also asks for the number of its replica, with a call of
//! [`replica_id`].
//!
//! A handler is registered once per plugin and gets nothing but the launch id, so the launches in
//! flight are listed in one table per process. An entry is removed once the launch has ended on all
//! replicas.

mod abi;
mod call;
mod denormals;
mod frame;
mod kernel;
mod launch;
mod op_log;
mod site;
mod workers;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use hlo::{HOST_COLLECTIVE_TARGET, HOST_KEEP_TARGET, HOST_KERNEL_TARGET, HOST_REPLICA_ID_TARGET};

use super::plugin::Plugin;
use super::{Error, Result};
use abi::{CallFrame, FfiError};

pub use call::{CallBuffers, HostCall, HostTensor};
pub use denormals::{FlushedDenormals, flush_denormals};
pub(super) use kernel::set as set_kernels;
pub use kernel::{AttentionSite, ConvolutionSite, HostKernels, Kernel, KernelCall, MaxPoolSite};
pub(super) use launch::HostLaunch;
pub use op_log::{HostOp, keep_ops, take_ops};
pub use site::{CollectiveKind, CollectiveSite};
pub use workers::Workers;

/// A launch of a program that leaves its collectives to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchInfo {
    /// Unique among the launches in flight of this process.
    pub id: i64,
    /// Its number among the client's launches with host collectives, from 0: the same in all
    /// processes.
    pub number: u64,
    /// Identifies the program: the same in all processes that launch the same one.
    pub program_digest: u64,
}

/// Computes the collectives of programs that leave them to the host. XLA calls it on several
/// threads.
pub trait HostCollectives: Send + Sync {
    /// A launch is about to start on all replicas of this process.
    fn begin(&self, launch: LaunchInfo);

    /// One replica has arrived at a collective. Must not wait: it runs on a worker of XLA's pool.
    /// The call is completed later, from any thread, when the other replicas of the group have
    /// arrived.
    ///
    /// Completing the call of another replica continues that replica's program on the calling
    /// thread.
    fn start(&self, call: HostCall);

    /// The launch has failed on some replica. All of its calls that wait, and those that arrive
    /// later, are to be completed with an error.
    fn fail(&self, launch_id: i64, reason: &str);

    /// The launch has ended on all replicas of this process: no more calls of it arrive.
    fn end(&self, launch_id: i64);
}

/// Registers the handlers of collectives with a plugin, once.
///
/// # Errors
/// [`Error::HostCalls`] for a plugin without the FFI extension; otherwise what the plugin reports.
pub(super) fn register_collectives(plugin: &Plugin) -> Result<()> {
    let handlers = [
        (HOST_COLLECTIVE_TARGET, handle as abi::Handler),
        (HOST_REPLICA_ID_TARGET, replica_id),
        (HOST_KEEP_TARGET, keep),
    ];
    register(plugin, &handlers)
}

/// Registers the handler of kernels with a plugin, once.
///
/// # Errors
/// As [`register_collectives`].
pub(super) fn register_kernels(plugin: &Plugin) -> Result<()> {
    register(plugin, &[(HOST_KERNEL_TARGET, kernel::run)])
}

fn register(plugin: &Plugin, handlers: &[(&'static str, abi::Handler)]) -> Result<()> {
    static REGISTERED: Mutex<Vec<(PathBuf, &str)>> = Mutex::new(Vec::new());
    const PLATFORM: &str = "Host";
    let missing = || Error::HostCalls {
        reason: "this plugin cannot call functions of this process (it has no FFI extension); set \
                 compile.kernels = \"xla\" and leave out parallel.host_collectives (--unset \
                 parallel.host_collectives)"
            .to_owned(),
    };
    let extension = plugin.extension(abi::FFI_EXTENSION).ok_or_else(missing)?;
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    for (target, handler) in handlers {
        if registered.iter().any(|(path, known)| path == plugin.path() && known == target) {
            continue;
        }
        let mut args = abi::RegisterHandlerArgs {
            struct_size: abi::size::REGISTER_HANDLER,
            target_name: target.as_ptr().cast(),
            target_name_size: target.len(),
            handler: *handler as *mut std::ffi::c_void,
            platform_name: PLATFORM.as_ptr().cast(),
            platform_name_size: PLATFORM.len(),
            traits: 0,
        };
        // SAFETY: an extension of this type begins as `FfiExtension` does, and is static. The
        // function copies the names, and the handler is a function, which stays.
        let error = unsafe {
            let extension = &*extension.cast::<abi::FfiExtension>();
            extension.register_handler.ok_or_else(missing)?(&raw mut args)
        };
        plugin.check("PJRT_FFI_Register_Handler", error)?;
        registered.push((plugin.path().to_path_buf(), target));
    }
    Ok(())
}

/// Called by XLA when a replica arrives at a collective; and once at registration, to ask for the
/// version.
unsafe extern "C" fn handle(frame: *mut CallFrame) -> *mut FfiError {
    // SAFETY: XLA calls with a frame that is valid during the call.
    let read = catch_unwind(AssertUnwindSafe(|| unsafe {
        match frame::answer_version(frame) {
            true => Ok(None),
            false => frame::read(frame).map(Some),
        }
    }));
    let call = match read.unwrap_or_else(|_| Err("reading the call panicked".to_owned())) {
        Ok(None) => return ptr::null_mut(),
        Ok(Some(call)) => call,
        // SAFETY: as above.
        Err(reason) => return unsafe { frame::error((*frame).api, &reason) },
    };
    let (launch, replica) = (call.launch().clone(), call.replica());
    // If it panics, the call is dropped, which completes it with an error.
    if catch_unwind(AssertUnwindSafe(|| launch.collectives().start(call))).is_err() {
        launch.fail(&format!("the collective of replica {replica} panicked"));
    }
    ptr::null_mut()
}

/// Called by XLA when a replica asks for its number; and once at registration, to ask for the
/// version.
unsafe extern "C" fn replica_id(frame: *mut CallFrame) -> *mut FfiError {
    // SAFETY: XLA calls with a frame that is valid during the call.
    let answered = catch_unwind(AssertUnwindSafe(|| unsafe {
        match frame::answer_version(frame) {
            true => Ok(()),
            false => frame::write_replica_id(frame),
        }
    }));
    match answered.unwrap_or_else(|_| Err("reading the call panicked".to_owned())) {
        Ok(()) => ptr::null_mut(),
        // SAFETY: as above.
        Err(reason) => unsafe { frame::error((*frame).api, &reason) },
    }
}

/// Called by XLA at the end of a program whose operands of collectives are kept until then; and
/// once at registration, to ask for the version.
unsafe extern "C" fn keep(frame: *mut CallFrame) -> *mut FfiError {
    // SAFETY: XLA calls with a frame that is valid during the call.
    unsafe { frame::answer_version(frame) };
    ptr::null_mut()
}
