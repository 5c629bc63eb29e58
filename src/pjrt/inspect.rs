//! Queries about a compiled program.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::abi::*;
use super::plugin::call;
use super::value::{self, slice, string};
use super::{Plugin, Result, Value, envelope};

/// Memory that a compiled program needs on each device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompiledMemory {
    /// The code.
    pub generated_code_bytes: u64,
    /// The arguments.
    pub argument_bytes: u64,
    /// The results.
    pub output_bytes: u64,
    /// Results that reuse the memory of donated arguments, included in `output_bytes`.
    pub alias_bytes: u64,
    /// Intermediate values.
    pub temporary_bytes: u64,
    /// Peak use, 0 if the plugin does not report it.
    pub peak_bytes: u64,
}

/// A compiled program: the one that an [`Executable`](super::Executable) runs, or the result of
/// [`Topology::compile`](super::Topology::compile) for absent devices.
pub struct Compiled {
    plugin: Plugin,
    raw: *mut PJRT_Executable,
    program_digest: [u8; 32],
}

// SAFETY: PJRT's functions on executables may be called from any thread; nothing in here is written
// after construction.
unsafe impl Send for Compiled {}
// SAFETY: as above.
unsafe impl Sync for Compiled {}

impl Drop for Compiled {
    fn drop(&mut self) {
        let mut args = PJRT_Executable_Destroy_Args {
            executable: self.raw,
            ..PJRT_Executable_Destroy_Args::new()
        };
        // SAFETY: this owns the executable, and nothing uses it afterwards. An error, which no
        // version gives, could not be handled.
        let _ = unsafe { call!(self.plugin, PJRT_Executable_Destroy, args) };
    }
}

impl Compiled {
    /// Takes ownership of an executable.
    ///
    /// # Safety
    /// `raw` must be a live executable of `plugin` that nobody else destroys.
    pub(super) unsafe fn new(
        plugin: Plugin,
        raw: *mut PJRT_Executable,
        program_digest: [u8; 32],
    ) -> Self {
        Self { plugin, raw, program_digest }
    }

    pub(super) fn raw(&self) -> *mut PJRT_Executable {
        self.raw
    }

    /// Memory that the program needs on each device.
    ///
    /// # Errors
    /// Errors of the plugin.
    pub fn memory(&self) -> Result<CompiledMemory> {
        let mut args = PJRT_Executable_GetCompiledMemoryStats_Args {
            executable: self.raw,
            ..PJRT_Executable_GetCompiledMemoryStats_Args::new()
        };
        // SAFETY: the executable is live.
        unsafe { call!(self.plugin, PJRT_Executable_GetCompiledMemoryStats, args) }?;
        let bytes = |value: i64| u64::try_from(value).unwrap_or(0);
        Ok(CompiledMemory {
            generated_code_bytes: bytes(args.generated_code_size_in_bytes),
            argument_bytes: bytes(args.argument_size_in_bytes),
            output_bytes: bytes(args.output_size_in_bytes),
            alias_bytes: bytes(args.alias_size_in_bytes),
            temporary_bytes: bytes(args.temp_size_in_bytes),
            peak_bytes: bytes(args.peak_memory_in_bytes),
        })
    }

    /// The compiler's estimates by name: `flops`, `bytes accessed` and so on. Loop bodies count
    /// once.
    ///
    /// # Errors
    /// Errors of the plugin; GPU plugins have no such analysis.
    pub fn cost_analysis(&self) -> Result<BTreeMap<String, f64>> {
        let mut args = PJRT_Executable_GetCostAnalysis_Args {
            executable: self.raw,
            ..PJRT_Executable_GetCostAnalysis_Args::new()
        };
        // SAFETY: the executable is live and owns the array, which is copied here.
        let properties = unsafe {
            call!(self.plugin, PJRT_Executable_GetCostAnalysis, args)?;
            value::read_all(args.properties, args.num_properties)
        };
        Ok(properties
            .into_iter()
            .filter_map(|(name, value)| match value {
                Value::Float(value) => Some((name, f64::from(value))),
                Value::Int64(value) => Some((name, value as f64)),
                _ => None,
            })
            .collect())
    }

    /// The optimised program with the name of its format. For XLA's own backends that is
    /// `hlo_with_config`, a protocol buffer with the HloModuleProto as field 1.
    ///
    /// # Errors
    /// Errors of the plugin.
    pub fn optimized_program(&self) -> Result<(String, Vec<u8>)> {
        let mut program = PJRT_Program::new();
        let mut args = PJRT_Executable_OptimizedProgram_Args {
            executable: self.raw,
            program: &raw mut program,
            ..PJRT_Executable_OptimizedProgram_Args::new()
        };
        // SAFETY: the executable is live; without code the call only says how much room it needs.
        unsafe { call!(self.plugin, PJRT_Executable_OptimizedProgram, args) }?;
        let mut code = vec![0u8; program.code_size];
        program.code = code.as_mut_ptr().cast();
        args.program = &raw mut program;
        // SAFETY: as above; `code` has the room asked for. The format is owned by the plugin.
        let format = unsafe {
            call!(self.plugin, PJRT_Executable_OptimizedProgram, args)?;
            string(program.format, program.format_size)
        };
        Ok((format, code))
    }

    /// The plugin's fingerprint, equal for equal programs compiled with equal options.
    ///
    /// # Errors
    /// Errors of the plugin.
    pub fn fingerprint(&self) -> Result<String> {
        let mut args = PJRT_Executable_Fingerprint_Args {
            executable: self.raw,
            ..PJRT_Executable_Fingerprint_Args::new()
        };
        // SAFETY: the executable is live and owns the string.
        unsafe {
            call!(self.plugin, PJRT_Executable_Fingerprint, args)?;
            Ok(string(args.executable_fingerprint, args.executable_fingerprint_size))
        }
    }

    /// Serializes the compiled program for [`Client::deserialize`](super::Client::deserialize) with
    /// the same plugin on the same kind of machine.
    ///
    /// # Errors
    /// Errors of the plugin.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        let mut args = PJRT_Executable_Serialize_Args {
            executable: self.raw,
            ..PJRT_Executable_Serialize_Args::new()
        };
        // SAFETY: the executable is live; the bytes live until the deleter is called, once, after
        // they were copied.
        unsafe {
            call!(self.plugin, PJRT_Executable_Serialize, args)?;
            let (data, size) = (args.serialized_bytes.cast::<u8>(), args.serialized_bytes_size);
            let bytes = envelope::enclose(&self.program_digest, slice(data, size));
            if let Some(delete) = args.serialized_executable_deleter {
                delete(args.serialized_executable);
            }
            Ok(bytes)
        }
    }
}
