//! PJRT: the C interface through which XLA's compilers and runtimes for CPU, TPU and GPU are reached.
//! The only place with unsafe code.

#![allow(unsafe_code)]

mod abi;
mod border;
mod buffer;
mod client;
mod compile_options;
mod error;
mod event;
mod executable;
pub mod install;
mod key_value;
mod plugin;
mod value;

pub use buffer::{Buffers, Pending};
pub use client::{Client, Device, MemoryStats, Placement};
pub use compile_options::{CompileOptions, OverrideValue};
pub use error::{Code, Error, Result};
pub use event::Completion;
pub use executable::{Arg, CompiledMemory, Executable, Launch};
pub use key_value::{KeyValueError, KeyValueStore};
pub use plugin::Plugin;
pub use value::Value;
