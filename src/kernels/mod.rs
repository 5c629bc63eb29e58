//! The kernels of this process, for programs on the CPU backend that leave ops to it ([`hlo::HostCalls`]).
//!
//! The crate `kernels` computes on slices; this module reads what a program asks for.

mod dot;

use std::fmt;
use std::sync::OnceLock;
use std::thread;

use kernels::Pool;

use crate::pjrt::{HostKernels, Kernel, KernelCall, flush_denormals};

/// The kernels, and the threads that all replicas of the process share: the thread that calls, and a helper for each
/// further processor. They are started with the first call.
#[derive(Default)]
pub struct CpuKernels {
    pool: OnceLock<Pool>,
}

impl CpuKernels {
    fn pool(&self) -> &Pool {
        self.pool.get_or_init(|| {
            let num_helpers = thread::available_parallelism().map_or(0, |count| count.get() - 1);
            // The helpers' results must be those of XLA's threads.
            let flush = || std::mem::forget(flush_denormals());
            // Without helpers the calling thread computes all of it, with the same results.
            Pool::new(num_helpers, flush).unwrap_or_else(|_| Pool::without_helpers())
        })
    }
}

impl HostKernels for CpuKernels {
    fn run(&self, call: &mut KernelCall<'_>) -> Result<(), String> {
        match call.kernel() {
            Kernel::DotGeneral(dims) => dot::run(self.pool(), &dims.clone(), call),
        }
    }
}

impl fmt::Debug for CpuKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuKernels").finish_non_exhaustive()
    }
}

/// Elements of a buffer. Its address is aligned: XLA's buffers are, and `pjrt::ffi` has checked it.
fn elements<T: bytemuck::Pod>(bytes: &[u8]) -> Result<&[T], String> {
    bytemuck::try_cast_slice(bytes).map_err(|error| error.to_string())
}

/// As [`elements`].
fn elements_mut<T: bytemuck::Pod>(bytes: &mut [u8]) -> Result<&mut [T], String> {
    bytemuck::try_cast_slice_mut(bytes).map_err(|error| error.to_string())
}
