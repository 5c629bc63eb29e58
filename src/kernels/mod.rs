//! The kernels of this process, for programs on the CPU backend that leave ops to it
//! ([`hlo::HostCalls`]).
//!
//! The crate `kernels` computes on slices; this module reads what a program asks for: large sums,
//! convolutions, maxima over windows, products and random bits, where [`crate::lowering`] leaves
//! them to the process, and attention, which its layer calls. The workers of XLA's pool help.

mod attention;
mod convolution;
mod dot;
mod max_pool;
mod sum;
mod threefry;

use std::thread;

use bytemuck::Pod;
use hlo::DType;
use kernels::{Element, Helpers, Pool};

use crate::pjrt::{HostKernels, Kernel, KernelCall, Workers};

/// The kernels. They run on the workers of XLA's pool, which all replicas of the process share.
#[derive(Debug)]
pub struct CpuKernels {
    num_processors: usize,
}

impl Default for CpuKernels {
    /// For all processors.
    fn default() -> Self {
        Self { num_processors: thread::available_parallelism().map_or(1, usize::from) }
    }
}

struct XlaWorkers<'c>(Workers<'c>);

impl Helpers for XlaWorkers<'_> {
    fn join(&self, num_helpers: usize, work: &(dyn Fn() + Sync)) {
        self.0.join(num_helpers, work);
    }
}

impl HostKernels for CpuKernels {
    fn run(&self, call: &mut KernelCall<'_>) -> Result<(), String> {
        let workers = XlaWorkers(call.workers());
        let pool = Pool::of(&workers, self.num_processors - 1);
        if let Kernel::Threefry(bits) = call.kernel().clone() {
            return threefry::run(&pool, &bits, call);
        }
        let dtype = call.operand_types().next().map(|first| first.dtype);
        match dtype {
            Some(DType::F32) => run::<f32>(&pool, call),
            Some(DType::F64) => run::<f64>(&pool, call),
            other => Err(format!("this kernel computes in f32 and f64, not in {other:?}")),
        }
    }
}

/// Computes a call with elements `T` in the first operand.
fn run<T: Element + Pod>(pool: &Pool<'_>, call: &mut KernelCall<'_>) -> Result<(), String> {
    match call.kernel().clone() {
        Kernel::DotGeneral(dims) => dot::run::<T>(pool, &dims, call),
        Kernel::Sum => sum::run::<T>(pool, call),
        Kernel::Convolution(site) => convolution::run::<T>(pool, site, call),
        Kernel::MaxPool(site) => max_pool::run::<T>(pool, site, call),
        Kernel::Attention(site) => attention::run::<T>(pool, site, call),
        Kernel::Threefry(_) => unreachable!("random bits are u32"),
    }
}

/// Elements of a buffer. Its address is aligned: XLA's buffers are, and `pjrt::ffi` has checked it.
fn elements<T: Pod>(bytes: &[u8]) -> Result<&[T], String> {
    bytemuck::try_cast_slice(bytes).map_err(|error| error.to_string())
}

/// As [`elements`].
fn elements_mut<T: Pod>(bytes: &mut [u8]) -> Result<&mut [T], String> {
    bytemuck::try_cast_slice_mut(bytes).map_err(|error| error.to_string())
}

/// Distances of neighbours along each dim of a row-major tensor, in elements.
fn strides(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for i in (1..dims.len()).rev() {
        strides[i - 1] = strides[i] * dims[i];
    }
    strides
}
