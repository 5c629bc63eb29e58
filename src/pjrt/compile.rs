//! Compiling and loading programs.

use std::ptr;

use hlo::{Program, TensorType};

use super::abi::*;
use super::buffer::{ValueType, dtype_of};
use super::client::Client;
use super::envelope;
use super::plugin::call;
use super::signature_check;
use super::value::slice;
use super::{CompileOptions, Compiled, Error, Executable, Plugin, Result};

impl Client {
    /// Compiles a program for as many of this client's devices as it has replicas.
    ///
    /// # Errors
    /// [`Error::TooFewDevices`], [`Error::DeviceAssignment`], [`Error::TooFewWorkers`],
    /// [`Error::SignatureMismatch`], [`Error::HostCalls`] without [`Self::use_host_collectives`] or
    /// [`Self::use_host_kernels`] for a program that needs them, or what the compiler reports,
    /// which for an unknown override is INVALID_ARGUMENT.
    pub fn compile(&self, program: &Program, options: &CompileOptions) -> Result<Executable> {
        signature_check::check_inputs(program)?;
        self.check_host_calls(program)?;
        let assignment = options.assignment(self, program)?;
        let encoded = options.encode_for(self, &assignment)?;
        let c_program = mlir(program);
        let mut args = PJRT_Client_Compile_Args {
            client: self.raw(),
            program: &raw const c_program,
            compile_options: encoded.as_ptr().cast(),
            compile_options_size: encoded.len(),
            ..PJRT_Client_Compile_Args::new()
        };
        // SAFETY: the client is live; program and options live through the call, which reads them.
        unsafe { call!(self.plugin(), PJRT_Client_Compile, args) }?;
        Executable::new(self, args.executable, program, &assignment)
    }

    /// Loads an executable that was serialized with [`Compiled::serialize`]. Program, options,
    /// plugin and kind of machine must be the same, which [`super::compile_cached`] ensures.
    ///
    /// # Errors
    /// [`Error::Serialized`] when the bytes are damaged or of another program,
    /// [`Error::DeviceAssignment`] when they were compiled for other devices,
    /// [`Error::TooFewDevices`], or what the plugin reports.
    pub fn deserialize(
        &self,
        program: &Program,
        options: &CompileOptions,
        bytes: &[u8],
    ) -> Result<Executable> {
        signature_check::check_inputs(program)?;
        self.check_host_calls(program)?;
        let assignment = options.assignment(self, program)?;
        let bytes = envelope::open(&envelope::digest(program), bytes)?;
        let mut args = PJRT_Executable_DeserializeAndLoad_Args {
            client: self.raw(),
            serialized_executable: bytes.as_ptr().cast(),
            serialized_executable_size: bytes.len(),
            ..PJRT_Executable_DeserializeAndLoad_Args::new()
        };
        // SAFETY: the client is live; the bytes live through the call, which reads them.
        unsafe { call!(self.plugin(), PJRT_Executable_DeserializeAndLoad, args) }?;
        Executable::new(self, args.loaded_executable, program, &assignment)
    }

    fn check_host_calls(&self, program: &Program) -> Result<()> {
        let missing = |what: &str, function: &str| {
            let reason = format!("the program has {what}; call Client::{function} first");
            Err(Error::HostCalls { reason })
        };
        if program.has_host_collectives() && self.host_collectives().is_none() {
            return missing("host collectives", "use_host_collectives");
        }
        if program.has_host_kernels() && !self.has_host_kernels() {
            return missing("host kernels", "use_host_kernels");
        }
        Ok(())
    }
}

impl Executable {
    /// Takes ownership of a loaded executable and checks its signature against the program.
    fn new(
        client: &Client,
        loaded: *mut PJRT_LoadedExecutable,
        program: &Program,
        assignment: &[i32],
    ) -> Result<Self> {
        let plugin = *client.plugin();
        let digest = envelope::digest(program);
        let mut executable = Self {
            // SAFETY: null may be destroyed.
            compiled: unsafe { Compiled::new(plugin, ptr::null_mut(), digest) },
            client: client.clone(),
            loaded,
            inputs: program.inputs.clone(),
            outputs: program.outputs.clone(),
            num_replicas: program.num_replicas,
            replicas_per_process: program.replicas_per_process(),
            has_host_collectives: program.has_host_collectives(),
            program_digest: short(&digest),
            placement: client.placement().clone(),
            output_types: program.outputs.iter().map(|output| value_type(&output.ty)).collect(),
        };
        let mut get = PJRT_LoadedExecutable_GetExecutable_Args {
            loaded_executable: loaded,
            ..PJRT_LoadedExecutable_GetExecutable_Args::new()
        };
        let mut devices = PJRT_LoadedExecutable_AddressableDevices_Args {
            executable: loaded,
            ..PJRT_LoadedExecutable_AddressableDevices_Args::new()
        };
        // SAFETY: the executable is live; the array of devices lives as long as it does.
        let raw_devices = unsafe {
            call!(plugin, PJRT_LoadedExecutable_GetExecutable, get)?;
            executable.compiled = Compiled::new(plugin, get.executable, digest);
            call!(plugin, PJRT_LoadedExecutable_AddressableDevices, devices)?;
            slice(devices.addressable_devices, devices.num_addressable_devices)
        };
        executable.placement = client.place(assignment, raw_devices)?;
        executable.check_outputs()?;
        Ok(executable)
    }

    fn check_outputs(&self) -> Result<()> {
        let differ = |what, reason: String| Err(Error::SignatureMismatch { what, reason });
        let executable = self.compiled.raw();
        let mut replicas = PJRT_Executable_NumReplicas_Args {
            executable,
            ..PJRT_Executable_NumReplicas_Args::new()
        };
        // SAFETY: the executable is live.
        unsafe { call!(self.client.plugin(), PJRT_Executable_NumReplicas, replicas) }?;
        let (found, declared) = (replicas.num_replicas, self.replicas_per_process);
        if found != declared {
            return differ("replicas", format!("compiled for {found}, declared {declared}"));
        }
        let found = self.plugin_output_types()?;
        if found.len() != self.outputs.len() {
            return differ(
                "outputs",
                format!("@main gives {}, the declaration has {}", found.len(), self.outputs.len()),
            );
        }
        for (output, found) in self.outputs.iter().zip(found) {
            if found.as_ref() != Some(&value_type(&output.ty)) {
                let found = found
                    .map_or("of an unknown type".into(), |ty| format!("{}{:?}", ty.dtype, ty.dims));
                return differ(
                    "outputs",
                    format!(
                        "{} is {found} in the text and {} in the declaration",
                        output.name, output.ty
                    ),
                );
            }
        }
        Ok(())
    }

    /// Result types as the plugin reports them; `None` for a dtype that `hlo` does not have.
    fn plugin_output_types(&self) -> Result<Vec<Option<ValueType>>> {
        let plugin: &Plugin = self.client.plugin();
        let executable = self.compiled.raw();
        let mut types = PJRT_Executable_OutputElementTypes_Args {
            executable,
            ..PJRT_Executable_OutputElementTypes_Args::new()
        };
        let mut dims = PJRT_Executable_OutputDimensions_Args {
            executable,
            ..PJRT_Executable_OutputDimensions_Args::new()
        };
        let mut count = PJRT_Executable_NumOutputs_Args {
            executable,
            ..PJRT_Executable_NumOutputs_Args::new()
        };
        // SAFETY: the executable is live, and owns arrays of one type and one number of dims per
        // output, and of all their dims, one output's after the other's.
        let (types, ranks, dims) = unsafe {
            call!(plugin, PJRT_Executable_NumOutputs, count)?;
            call!(plugin, PJRT_Executable_OutputElementTypes, types)?;
            call!(plugin, PJRT_Executable_OutputDimensions, dims)?;
            let ranks = slice(dims.dim_sizes, count.num_outputs);
            let types = slice(types.output_types, count.num_outputs);
            (types, ranks, slice(dims.dims, ranks.iter().sum()))
        };
        let mut dims = dims.iter().map(|dim| *dim as usize);
        let mut found = Vec::new();
        for (ty, rank) in types.iter().zip(ranks) {
            let dims: Box<[usize]> = dims.by_ref().take(*rank).collect();
            found.push(dtype_of(*ty).map(|dtype| ValueType { dtype, dims }));
        }
        Ok(found)
    }
}

/// The first bytes of a digest, for comparing the programs that processes launch.
fn short(digest: &[u8; 32]) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first)
}

/// The C form of a program. It points into the program and is valid while that lives.
pub(super) fn mlir(program: &Program) -> PJRT_Program {
    const FORMAT: &str = "mlir";
    PJRT_Program {
        code: program.text.as_ptr().cast_mut().cast(),
        code_size: program.text.len(),
        format: FORMAT.as_ptr().cast(),
        format_size: FORMAT.len(),
        ..PJRT_Program::new()
    }
}

fn value_type(ty: &TensorType) -> ValueType {
    ValueType { dtype: ty.dtype, dims: ty.dims.as_slice().into() }
}
