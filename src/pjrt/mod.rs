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
mod find;
mod install;
mod key_value;
mod pinned;
mod plugin;
mod value;

pub use abi::{API_MAJOR, API_MINOR, EXTENSION_BASE, FieldLayout, LAYOUTS, StructLayout};
pub use buffer::{Buffers, Pending};
pub use client::{Client, Device, MemoryStats, Placement};
pub use compile_options::{CompileOptions, OverrideValue};
pub use error::{Code, Error, Result};
pub use event::Completion;
pub use executable::{Arg, CompiledMemory, Executable, Launch};
pub use find::{Found, Listed, Source, find, find_or_install, list};
pub use install::{InstallError, InstallOptions, install};
pub use key_value::{KeyValueError, KeyValueStore};
pub use plugin::Plugin;
pub use value::Value;
