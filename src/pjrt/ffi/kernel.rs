//! Calls of kernels.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, OnceLock};

use hlo::{DotDims, Threefry};

use super::abi::{CallFrame, FfiError};
use super::call::{self, CallBuffers, HostTensor, TensorMemory};
use super::frame;
use super::op_log::{begin_op, end_op};
use super::site::Attributes;
use super::workers::Workers;

/// Computes ops for programs that leave them to the process. XLA calls it on several threads at
/// once.
pub trait HostKernels: Send + Sync {
    /// Writes the results of a call. It runs on a worker of XLA's pool, or on a replica's own
    /// thread, and may wait for nothing but [`Workers::join`].
    ///
    /// # Errors
    /// If there is no kernel for what is called. The program fails on this replica.
    fn run(&self, call: &mut KernelCall<'_>) -> Result<(), String>;
}

/// The kernels of the process. A handler gets nothing by which to tell clients apart.
static KERNELS: OnceLock<Arc<dyn HostKernels>> = OnceLock::new();

/// Sets the kernels of the process, unless there are some already.
pub(in crate::pjrt) fn set(kernels: impl FnOnce() -> Arc<dyn HostKernels>) {
    KERNELS.get_or_init(kernels);
}

/// The computation of a kernel, from its custom call.
#[derive(Clone, Debug, PartialEq)]
pub enum Kernel {
    /// The generalised matrix product of two operands.
    DotGeneral(DotDims),
    /// The sum of an operand over its leading dims.
    Sum,
    /// Self-attention, or its gradient.
    Attention(AttentionSite),
    /// A convolution of images NHWC, or the gradient of its kernel.
    Convolution(ConvolutionSite),
    /// Maxima over windows of images NHWC, or their gradient.
    MaxPool(MaxPoolSite),
    /// Random bits.
    Threefry(Threefry),
}

impl Kernel {
    /// The name in custom calls.
    pub fn name(&self) -> &'static str {
        match self {
            Self::DotGeneral(_) => "dot_general",
            Self::Sum => "sum",
            Self::Attention(site) if site.is_gradient => "attention_gradient",
            Self::Attention(_) => "attention",
            Self::Convolution(site) if site.is_gradient => "convolution_gradient",
            Self::Convolution(_) => "convolution",
            Self::MaxPool(site) if site.is_gradient => "max_pool_gradient",
            Self::MaxPool(_) => "max_pool",
            Self::Threefry(_) => "threefry",
        }
    }
}

/// A convolution of two spatial dims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvolutionSite {
    /// The dims of the kernel that are output features, input features, rows and columns: each
    /// once.
    pub kernel: [usize; 4],
    /// Distance of windows, at least 1.
    pub stride: [usize; 2],
    /// Padding before the input; negative padding cuts elements off.
    pub low: [i64; 2],
    /// Distance of the input's elements, at least 1.
    pub base_dilation: [usize; 2],
    /// `true` for the gradient of the kernel, from input and cotangent.
    pub is_gradient: bool,
}

/// A maximum over windows of rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPoolSite {
    /// Rows and columns of a window.
    pub window: [usize; 2],
    /// Distance of windows, at least 1.
    pub stride: [usize; 2],
    /// Padding before the input; negative padding cuts elements off.
    pub low: [i64; 2],
    /// `true` for the gradient, from the input and the cotangent of the result.
    pub is_gradient: bool,
}

/// `dropout(softmax(q k^T / sqrt(d) + mask)) v` in each head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSite {
    /// Positions of an example.
    pub num_positions: usize,
    /// Number of query heads.
    pub num_heads: usize,
    /// Number of key and value heads.
    pub num_kv_heads: usize,
    /// `true` if a position attends only to itself and earlier ones.
    pub causal: bool,
    /// `true` if an operand is added to the scores of each key.
    pub is_masked: bool,
    /// The dropout rate. An operand has the words that the mask depends on.
    pub dropout: Option<f64>,
    /// `true` for the gradient.
    pub is_gradient: bool,
}

/// A program waits for the results of an op.
pub struct KernelCall<'c> {
    kernel: Kernel,
    operands: Vec<TensorMemory>,
    results: Vec<TensorMemory>,
    workers: Workers<'c>,
}

impl<'c> KernelCall<'c> {
    /// # Safety
    /// Each memory must be valid as long as the call, written by nobody else, and that of results
    /// overlap no other.
    pub(super) unsafe fn new(
        kernel: Kernel,
        operands: Vec<TensorMemory>,
        results: Vec<TensorMemory>,
        workers: Workers<'c>,
    ) -> Self {
        Self { kernel, operands, results, workers }
    }

    /// The threads that may help to compute it.
    pub fn workers(&self) -> Workers<'c> {
        self.workers
    }

    /// The computation.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The types of the operands.
    pub fn operand_types(&self) -> impl ExactSizeIterator<Item = &HostTensor> {
        self.operands.iter().map(|memory| &memory.tensor)
    }

    /// The types of the results.
    pub fn result_types(&self) -> impl ExactSizeIterator<Item = &HostTensor> {
        self.results.iter().map(|memory| &memory.tensor)
    }

    /// The memory of operands and results.
    pub fn buffers(&mut self) -> CallBuffers<'_> {
        // SAFETY: by the contract of `new`. `self` is borrowed mutably.
        unsafe { call::buffers(&self.operands, &mut self.results) }
    }
}

impl fmt::Debug for KernelCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (operands, results) = (self.operand_types(), self.result_types());
        f.debug_struct("KernelCall")
            .field("kernel", &self.kernel)
            .field("operands", &operands.collect::<Vec<_>>())
            .field("results", &results.collect::<Vec<_>>())
            .finish()
    }
}

impl Attributes {
    /// The kernel that they describe.
    pub fn kernel(&self) -> Result<Kernel, String> {
        match self.text("kind")? {
            "dot_general" => Ok(Kernel::DotGeneral(DotDims {
                lhs_batch: self.numbers("lhs_batch")?,
                rhs_batch: self.numbers("rhs_batch")?,
                lhs_contracting: self.numbers("lhs_contracting")?,
                rhs_contracting: self.numbers("rhs_contracting")?,
            })),
            "sum" => Ok(Kernel::Sum),
            "attention" => Ok(Kernel::Attention(self.attention(false)?)),
            "attention_gradient" => Ok(Kernel::Attention(self.attention(true)?)),
            "convolution" => Ok(Kernel::Convolution(self.convolution(false)?)),
            "convolution_gradient" => Ok(Kernel::Convolution(self.convolution(true)?)),
            "max_pool" => Ok(Kernel::MaxPool(self.max_pool(false)?)),
            "max_pool_gradient" => Ok(Kernel::MaxPool(self.max_pool(true)?)),
            "threefry" => Ok(Kernel::Threefry(self.threefry()?)),
            other => Err(format!("there is no kernel {other:?}")),
        }
    }

    /// Two numbers, each at least 1.
    fn pair(&self, name: &str) -> Result<[usize; 2], String> {
        let found: Result<[usize; 2], _> = self.numbers(name)?.try_into();
        let found = found.ok().filter(|pair| !pair.contains(&0));
        found.ok_or_else(|| format!("{name} is not two numbers"))
    }

    fn low(&self) -> Result<[i64; 2], String> {
        self.integers("low")?.try_into().map_err(|_| "low is not two numbers".to_owned())
    }

    fn threefry(&self) -> Result<Threefry, String> {
        let strides = self.numbers("strides")?.into_iter().map(u32::try_from);
        let strides = strides.collect::<Result<_, _>>().map_err(|_| "strides are of 32 bits")?;
        let num_words = self.number("num_words")?;
        if !(1..=2).contains(&num_words) {
            return Err(format!("{num_words} words of two"));
        }
        Ok(Threefry { dims: self.numbers("dims")?, strides, num_words })
    }

    fn max_pool(&self, is_gradient: bool) -> Result<MaxPoolSite, String> {
        let (window, stride) = (self.pair("window")?, self.pair("stride")?);
        Ok(MaxPoolSite { window, stride, low: self.low()?, is_gradient })
    }

    fn convolution(&self, is_gradient: bool) -> Result<ConvolutionSite, String> {
        let misfit = || "not a convolution of two spatial dims".to_owned();
        let kernel: [usize; 4] = self.numbers("kernel")?.try_into().map_err(|_| misfit())?;
        let mut sorted = kernel;
        sorted.sort_unstable();
        if sorted != [0, 1, 2, 3] {
            return Err(misfit());
        }
        let (stride, base_dilation) = (self.pair("stride")?, self.pair("base_dilation")?);
        Ok(ConvolutionSite { kernel, stride, low: self.low()?, base_dilation, is_gradient })
    }

    fn attention(&self, is_gradient: bool) -> Result<AttentionSite, String> {
        let rate = self.text("dropout")?;
        let parsed = rate.parse().ok().filter(|rate| (0.0..1.0).contains(rate));
        let rate: f64 = parsed.ok_or_else(|| format!("a dropout rate of {rate:?}"))?;
        Ok(AttentionSite {
            num_positions: self.number("num_positions")?,
            num_heads: self.number("num_heads")?,
            num_kv_heads: self.number("num_kv_heads")?,
            causal: self.number("causal")? != 0,
            is_masked: self.number("masked")? != 0,
            dropout: (rate > 0.0).then_some(rate),
            is_gradient,
        })
    }
}

/// Called by XLA for each call of a kernel; and once at registration, to ask for the version.
pub(super) unsafe extern "C" fn run(frame: *mut CallFrame) -> *mut FfiError {
    // Results must not depend on the thread, and XLA's workers flush, too.
    let _flushed = super::flush_denormals();
    // SAFETY: XLA calls with a frame that is valid during the call.
    let done = catch_unwind(AssertUnwindSafe(|| unsafe {
        if frame::answer_version(frame) {
            return Ok(());
        }
        let mut call = frame::read_kernel(frame)?;
        let kernels = KERNELS.get().ok_or("the process has no kernels")?;
        let begun = begin_op();
        kernels.run(&mut call).map_err(|reason| format!("{call:?}: {reason}"))?;
        if let Some(begun) = begun
            && let Some(device) = frame::device_of(frame)
        {
            end_op(begun, call.kernel().name(), device, call.operand_types());
        }
        Ok(())
    }));
    match done.unwrap_or_else(|_| Err("a kernel panicked".to_owned())) {
        Ok(()) => ptr::null_mut(),
        // SAFETY: as above.
        Err(reason) => unsafe { frame::error((*frame).api, &reason) },
    }
}
