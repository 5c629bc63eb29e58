//! The runtime: the only module that talks to devices, and the only one with unsafe code.
//!
//! PJRT is the C API of XLA's compilers and runtimes for CPU, TPU and GPU. Each comes as a plugin,
//! a shared library loaded at run time. In the order of use:
//!
//! 1. [`find_or_install`] locates a plugin, [`Plugin::load`] loads it once per process.
//! 2. A [`Client`] has the devices. [`Client::compile`], or [`compile_cached`] with a directory for
//!    compiled programs, compiles a program's text to an [`Executable`] (the **compile** phase).
//! 3. [`Client::upload`] copies values to the devices. [`Executable::execute`] starts a program on
//!    all replicas and returns immediately with [`Buffers`], which may be arguments of further
//!    launches. [`Launch::done`] waits for the end, [`Buffers::to_host`] copies values back (the
//!    **run** phase).
//!
//! Replicas are numbered over all processes of a run. A [`Placement`] lists the replicas that run
//! in this process and their devices.
//!
//! # Why no existing crate
//!
//! This is a thin layer of our own on the C interface: `abi.rs` declares the structs that are used,
//! and a test checks their sizes and offsets against the header in the plugin's wheel.
//!
//! - `xla` 0.5.4 can load plugins and compile for replicas, but has no key-value store, no
//!   compilation for topologies and no FFI, and it links a C++ archive of XLA that no package
//!   registry carries.
//! - `pjrt` 0.2.0 reaches the number of replicas through `proto_mut()`, but needs libclang and
//!   protoc to build, follows an API two years older than today's plugins, and frees its key-value
//!   store after one call.
//! - `cudarc` can be asked whether NCCL is there, but the plugin owns the device, so nothing is
//!   left for it to do.
//!
//! # What is checked
//!
//! The types guarantee that a value given away with [`Arg::Donate`] cannot be used again, that
//! everything made through a client keeps the client alive, and that handles may move between
//! threads. Everything on which a plugin would abort the process or hang is checked first, see
//! [`Executable::execute`] and [`Client::compile`].
//!
//! ```
//! use std::sync::Arc;
//! use hlo::{DType, Literal, Program, ProgramInput, ProgramOutput, TensorType};
//! use lockstep::pjrt::{Arg, Client, CompileOptions, InstallOptions, Plugin, find_or_install};
//!
//! let found = find_or_install("cpu", &InstallOptions::from_env()?, |line| eprintln!("{line}"))?;
//! let client = Client::cpu(&Plugin::load(&found.path)?, 2)?;
//! let ty = TensorType::new(DType::F32, &[3]);
//! let double = Program {
//!     text: "module { func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> {
//!         %y = stablehlo.add %x, %x : tensor<3xf32>
//!         return %y : tensor<3xf32> } }".into(),
//!     num_replicas: 2,
//!     num_processes: 1,
//!     inputs: vec![ProgramInput { name: "x".into(), ty: ty.clone(), donated: false }],
//!     outputs: vec![ProgramOutput { name: "y".into(), ty }],
//! };
//! let executable = client.compile(&double, &CompileOptions::default())?;
//! let x = client.upload_replicated(Arc::new(Literal::from_slice(&[3], &[1f32, 2.0, 3.0])))?;
//! let launch = executable.execute(vec![Arg::Borrow(&x)])?;
//! assert_eq!(launch.outputs[0].read(1)?.to_f64(), [2.0, 4.0, 6.0]);
//! # Ok::<(), lockstep::pjrt::Error>(())
//! ```

#![allow(unsafe_code)]

mod abi;
mod buffer;
mod cache;
mod client;
mod compile;
mod compile_options;
mod cpu;
mod device;
mod envelope;
mod environment;
mod error;
mod event;
mod executable;
mod ffi;
mod inspect;
mod install;
mod key_value;
mod nccl;
mod placement;
mod platform;
mod plugin;
mod signature_check;
mod topology;
mod upload;
mod value;

pub use abi::{API_MAJOR, API_MINOR, EXTENSION_BASE, FieldLayout, LAYOUTS, StructLayout};
pub use buffer::{Buffers, Pending};
pub use cache::{CacheOutcome, compile_cached, program_key};
pub use client::Client;
pub use compile_options::CompileOptions;
pub use cpu::CpuWaits;
pub use device::{Device, DeviceDescription, MemoryStats};
pub use error::{Code, Error, Result};
pub use event::{Completion, EndTime};
pub use executable::{Arg, Executable, Launch};
pub use ffi::{
    AttentionSite, CallBuffers, CollectiveKind, CollectiveSite, ConvolutionSite, FlushedDenormals,
    HostCall, HostCollectives, HostKernels, HostOp, HostTensor, Kernel, KernelCall, LaunchInfo,
    MaxPoolSite, Workers, flush_denormals, keep_ops, take_ops,
};
pub use inspect::{Compiled, CompiledMemory};
pub use install::{
    FoundPlugin, InstallError, InstallOptions, Listed, PluginSource, Verified, find,
    find_or_install, install, installed_names, list, nvidia_packages, remove, verify,
};
pub use key_value::{KeyValueError, KeyValueStore};
pub use nccl::{NcclVersion, nccl_library, nccl_version};
pub use placement::{Placement, Process};
pub use platform::Platform;
pub use plugin::Plugin;
pub use topology::Topology;
pub use value::{OverrideValue, Value};
