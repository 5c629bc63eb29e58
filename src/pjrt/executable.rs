//! Compiled programs, and running them.

use std::collections::BTreeMap;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use hlo::{Program, ProgramInput, ProgramOutput, TensorType};

use super::abi::*;
use super::border;
use super::buffer::{Block, Buffers, ValueType, dtype_of};
use super::client::{Client, Placement};
use super::event::{Completion, Event};
use super::plugin::{call, string};
use super::value;
use super::{CompileOptions, Error, Plugin, Result, Value};

/// A program compiled for a client's devices, loaded and ready to run. It keeps its client alive.
pub struct Executable {
    client: Client,
    loaded: *mut PJRT_LoadedExecutable,
    /// The view of `loaded` that answers questions.
    raw: *mut PJRT_Executable,
    inputs: Vec<ProgramInput>,
    outputs: Vec<ProgramOutput>,
    num_replicas: usize,
    placement: Placement,
    output_types: Arc<[ValueType]>,
}

// SAFETY: PJRT's functions on executables may be called from any thread; nothing in here is written
// after construction.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

/// One argument of a launch.
#[derive(Debug)]
pub enum Arg<'a> {
    /// Given away. If the program donates this input, its memory becomes that of a result; otherwise
    /// it is freed once the launch has no more use for it.
    Donate(Buffers),
    /// Lent: unchanged and usable afterwards, also where the program would donate the input.
    Borrow(&'a Buffers),
}

impl Arg<'_> {
    fn buffers(&self) -> &Buffers {
        match self {
            Arg::Donate(buffers) => buffers,
            Arg::Borrow(buffers) => buffers,
        }
    }
}

/// A program that has been started.
#[derive(Debug)]
pub struct Launch {
    /// The results in the program's order. They may be arguments of further launches at once.
    pub outputs: Vec<Buffers>,
    /// The end of the launch on all devices.
    pub done: Completion,
}

/// Bytes that a compiled program needs on each device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompiledMemory {
    /// The code.
    pub generated_code_bytes: u64,
    /// The arguments.
    pub argument_bytes: u64,
    /// The results.
    pub output_bytes: u64,
    /// Results that take over the memory of donated arguments, contained in `output_bytes`.
    pub alias_bytes: u64,
    /// Intermediate values.
    pub temporary_bytes: u64,
    /// The most that is alive at once, 0 where the plugin does not say.
    pub peak_bytes: u64,
}

/// Pointer arrays of a launch, reused by the next one.
#[derive(Default)]
pub(super) struct Scratch {
    arguments: Vec<*mut PJRT_Buffer>,
    argument_lists: Vec<*const *mut PJRT_Buffer>,
    output_lists: Vec<*mut *mut PJRT_Buffer>,
    events: Vec<*mut PJRT_Event>,
    non_donatable: Vec<i64>,
}

impl Client {
    /// Compiles a program for as many of this client's devices as it has replicas.
    ///
    /// # Errors
    /// [`Error::TooFewDevices`], [`Error::DeviceAssignment`], [`Error::ProgramBorder`], or what the
    /// compiler reports, which for an unknown override is INVALID_ARGUMENT.
    pub fn compile(&self, program: &Program, options: &CompileOptions) -> Result<Executable> {
        border::check_inputs(program)?;
        let encoded = options.encode(&options.assignment(self, program.num_replicas)?);
        let format = "mlir";
        let c_program = PJRT_Program {
            code: program.text.as_ptr().cast_mut().cast(),
            code_size: program.text.len(),
            format: format.as_ptr().cast(),
            format_size: format.len(),
            ..PJRT_Program::new()
        };
        let mut args = PJRT_Client_Compile_Args {
            client: self.raw(),
            program: &raw const c_program,
            compile_options: encoded.as_ptr().cast(),
            compile_options_size: encoded.len(),
            ..PJRT_Client_Compile_Args::new()
        };
        // SAFETY: the client is live; program and options live through the call, which reads them.
        unsafe { call!(self.plugin(), PJRT_Client_Compile, args) }?;
        Executable::new(self, args.executable, program)
    }

    /// Loads what [`Executable::serialize`] made from the same program on the same kind of machine
    /// with the same plugin. [`super::compile_cached`] makes sure of that.
    ///
    /// # Errors
    /// [`Error::Serialized`] when the bytes hold another program, or what the plugin reports.
    pub fn deserialize(&self, program: &Program, bytes: &[u8]) -> Result<Executable> {
        border::check_inputs(program)?;
        let mut args = PJRT_Executable_DeserializeAndLoad_Args {
            client: self.raw(),
            serialized_executable: bytes.as_ptr().cast(),
            serialized_executable_size: bytes.len(),
            ..PJRT_Executable_DeserializeAndLoad_Args::new()
        };
        // SAFETY: the client is live; the bytes live through the call, which reads them.
        unsafe { call!(self.plugin(), PJRT_Executable_DeserializeAndLoad, args) }?;
        Executable::new(self, args.loaded_executable, program).map_err(|error| match error {
            Error::ProgramBorder { what, reason } => {
                Error::Serialized { reason: format!("its {what} differ: {reason}") }
            }
            other => other,
        })
    }
}

impl Executable {
    /// Takes over a loaded executable and holds what it says of itself against the program.
    fn new(client: &Client, loaded: *mut PJRT_LoadedExecutable, program: &Program) -> Result<Self> {
        let plugin = *client.plugin();
        let mut executable = Self {
            client: client.clone(),
            loaded,
            raw: ptr::null_mut(),
            inputs: program.inputs.clone(),
            outputs: program.outputs.clone(),
            num_replicas: program.num_replicas,
            placement: Placement::new([]),
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
            executable.raw = get.executable;
            call!(plugin, PJRT_LoadedExecutable_AddressableDevices, devices)?;
            std::slice::from_raw_parts(devices.addressable_devices, devices.num_addressable_devices)
        };
        let index_of = |raw: &*mut PJRT_Device| {
            (0..client.devices().len()).find(|index| client.raw_device(*index) == *raw)
        };
        executable.placement = Placement::new(raw_devices.iter().filter_map(index_of));
        executable.check_border()?;
        if executable.placement.is(client.placement()) {
            // One allocation for all, so that comparing is comparing pointers.
            executable.placement = client.placement().clone();
        }
        Ok(executable)
    }

    fn check_border(&self) -> Result<()> {
        let differ = |what, reason: String| Err(Error::ProgramBorder { what, reason });
        let executable = self.raw;
        let mut replicas = PJRT_Executable_NumReplicas_Args {
            executable,
            ..PJRT_Executable_NumReplicas_Args::new()
        };
        // SAFETY: the executable is live.
        unsafe { call!(self.client.plugin(), PJRT_Executable_NumReplicas, replicas) }?;
        if replicas.num_replicas != self.num_replicas {
            return differ(
                "replicas",
                format!("compiled for {}, declared {}", replicas.num_replicas, self.num_replicas),
            );
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
                let found = found.map_or("of a type unknown here".into(), |ty| {
                    format!("{}{:?}", ty.dtype, ty.dims)
                });
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

    /// What the plugin says the results are; none for a dtype that `hlo` does not have.
    fn plugin_output_types(&self) -> Result<Vec<Option<ValueType>>> {
        let plugin: &Plugin = self.client.plugin();
        let executable = self.raw;
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
        let mut found = Vec::new();
        // SAFETY: the executable is live, and owns arrays of one type and one number of dims per
        // output, and of all their dims behind each other.
        unsafe {
            call!(plugin, PJRT_Executable_NumOutputs, count)?;
            call!(plugin, PJRT_Executable_OutputElementTypes, types)?;
            call!(plugin, PJRT_Executable_OutputDimensions, dims)?;
            let mut next_dim = dims.dims;
            for output in 0..count.num_outputs {
                let rank = *dims.dim_sizes.add(output);
                let sizes: Box<[usize]> = (0..rank).map(|at| *next_dim.add(at) as usize).collect();
                next_dim = next_dim.add(rank);
                found.push(
                    dtype_of(*types.output_types.add(output))
                        .map(|dtype| ValueType { dtype, dims: sizes }),
                );
            }
        }
        Ok(found)
    }

    /// The client it was compiled for.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The inputs that [`Self::execute`] takes, in order.
    pub fn inputs(&self) -> &[ProgramInput] {
        &self.inputs
    }

    /// The outputs that [`Self::execute`] gives, in order.
    pub fn outputs(&self) -> &[ProgramOutput] {
        &self.outputs
    }

    /// Replicas of the program, in all processes.
    pub fn num_replicas(&self) -> usize {
        self.num_replicas
    }

    /// The addressable devices it runs on, replica by replica: where its arguments must lie.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Starts the program on all its devices and returns without waiting, unless several launches are
    /// still in flight. Every replica's argument and result stands in one [`Buffers`].
    ///
    /// An input that the program donates is not donated when it is lent with [`Arg::Borrow`].
    ///
    /// # Errors
    /// Before anything is started: [`Error::ArgumentCount`], [`Error::ArgumentType`],
    /// [`Error::ArgumentDevices`], [`Error::ArgumentClient`]. The client stays usable; arguments that
    /// were given away are freed. Failures while the program runs come out of [`Launch::done`].
    pub fn execute(&self, arguments: Vec<Arg<'_>>) -> Result<Launch> {
        self.validate(&arguments)?;
        let num_devices = self.placement.len();
        let num_outputs = self.outputs.len();
        let mut pointers = vec![ptr::null_mut(); num_devices * num_outputs].into_boxed_slice();
        let done = self.client.launch(|launch_id, scratch| {
            self.launch(&arguments, &mut pointers, launch_id, scratch)
        })?;
        let outputs = Block {
            client: self.client.clone(),
            types: self.output_types.clone(),
            placement: self.placement.clone(),
            pointers,
        }
        .into_values();
        // The handles of what was given away are freed while the devices work.
        drop(arguments);
        Ok(Launch { outputs, done })
    }

    /// Everything that would make the plugin reject the launch: after a rejected launch of several
    /// replicas XLA's CPU client hangs for ever. Liveness needs no check, since [`Buffers`] that were
    /// given away no longer exist.
    fn validate(&self, arguments: &[Arg<'_>]) -> Result<()> {
        if arguments.len() != self.inputs.len() {
            return Err(Error::ArgumentCount {
                expected: self.inputs.len(),
                found: arguments.len(),
            });
        }
        for (index, (argument, input)) in arguments.iter().zip(&self.inputs).enumerate() {
            let buffers = argument.buffers();
            let block = buffers.block();
            if !block.client.is(&self.client) {
                return Err(Error::ArgumentClient { index, name: input.name.clone() });
            }
            if !block.placement.is(&self.placement) {
                return Err(Error::ArgumentDevices {
                    index,
                    name: input.name.clone(),
                    expected: self.placement.to_vec(),
                    found: block.placement.to_vec(),
                });
            }
            let found = buffers.value_type();
            if found.dtype != input.ty.dtype || *found.dims != *input.ty.dims {
                return Err(Error::ArgumentType {
                    index,
                    name: input.name.clone(),
                    expected_dtype: input.ty.dtype,
                    expected_dims: input.ty.dims.clone(),
                    dtype: found.dtype,
                    dims: found.dims.to_vec(),
                });
            }
        }
        Ok(())
    }

    fn launch(
        &self,
        arguments: &[Arg<'_>],
        outputs: &mut [*mut PJRT_Buffer],
        launch_id: i32,
        scratch: &mut Scratch,
    ) -> Result<Completion> {
        let plugin = *self.client.plugin();
        let (num_devices, num_args) = (self.placement.len(), arguments.len());
        scratch.arguments.clear();
        for replica in 0..num_devices {
            scratch.arguments.extend(arguments.iter().map(|arg| arg.buffers().pointer(replica)));
        }
        scratch.non_donatable.clear();
        for (index, (argument, input)) in arguments.iter().zip(&self.inputs).enumerate() {
            if input.donated && matches!(argument, Arg::Borrow(_)) {
                scratch.non_donatable.push(index as i64);
            }
        }
        scratch.argument_lists.clear();
        scratch.output_lists.clear();
        for replica in 0..num_devices {
            scratch.argument_lists.push(scratch.arguments[replica * num_args..].as_ptr());
            scratch.output_lists.push(outputs[replica * self.outputs.len()..].as_mut_ptr());
        }
        scratch.events.clear();
        scratch.events.resize(num_devices, ptr::null_mut());
        let mut options = PJRT_ExecuteOptions {
            launch_id,
            non_donatable_input_indices: scratch.non_donatable.as_ptr(),
            num_non_donatable_input_indices: scratch.non_donatable.len(),
            ..PJRT_ExecuteOptions::new()
        };
        let mut args = PJRT_LoadedExecutable_Execute_Args {
            executable: self.loaded,
            options: &raw mut options,
            argument_lists: scratch.argument_lists.as_ptr(),
            num_devices,
            num_args,
            output_lists: scratch.output_lists.as_ptr(),
            device_complete_events: scratch.events.as_mut_ptr(),
            ..PJRT_LoadedExecutable_Execute_Args::new()
        };
        // SAFETY: the executable is live; there is one list of arguments per device it runs on, with
        // as many live buffers as the program takes, of its types, on that device; one list of
        // results per device with room for as many as the executable itself says that it gives; one
        // event per device. All arrays live through the call.
        unsafe { call!(plugin, PJRT_LoadedExecutable_Execute, args) }?;
        let events = scratch.events.iter().map(|raw| Event::new(plugin, *raw)).collect();
        Ok(Completion::new(events))
    }

    /// What the program needs on each device, as compiled.
    ///
    /// # Errors
    /// What the plugin reports.
    pub fn memory(&self) -> Result<CompiledMemory> {
        let mut args = PJRT_Executable_GetCompiledMemoryStats_Args {
            executable: self.raw,
            ..PJRT_Executable_GetCompiledMemoryStats_Args::new()
        };
        // SAFETY: the executable is live.
        unsafe { call!(self.client.plugin(), PJRT_Executable_GetCompiledMemoryStats, args) }?;
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

    /// The compiler's own estimates by name: `flops`, `bytes accessed` and so on. Bodies of loops
    /// count once.
    ///
    /// # Errors
    /// What the plugin reports; GPU plugins have no such analysis.
    pub fn cost_analysis(&self) -> Result<BTreeMap<String, f64>> {
        let mut args = PJRT_Executable_GetCostAnalysis_Args {
            executable: self.raw,
            ..PJRT_Executable_GetCostAnalysis_Args::new()
        };
        // SAFETY: the executable is live and owns the array, which is copied here.
        let properties = unsafe {
            call!(self.client.plugin(), PJRT_Executable_GetCostAnalysis, args)?;
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

    /// The optimised program as the plugin hands it out, with the name of its format: for XLA's own
    /// backends `hlo_with_config`, a protocol buffer whose field 1 is the HloModuleProto.
    ///
    /// # Errors
    /// What the plugin reports.
    pub fn optimized_program(&self) -> Result<(String, Vec<u8>)> {
        let mut program = PJRT_Program::new();
        let mut args = PJRT_Executable_OptimizedProgram_Args {
            executable: self.raw,
            program: &raw mut program,
            ..PJRT_Executable_OptimizedProgram_Args::new()
        };
        // SAFETY: the executable is live; without code the call only says how much room it needs.
        unsafe { call!(self.client.plugin(), PJRT_Executable_OptimizedProgram, args) }?;
        let mut code = vec![0u8; program.code_size];
        program.code = code.as_mut_ptr().cast();
        args.program = &raw mut program;
        // SAFETY: as above; `code` has the room asked for. The format is owned by the plugin.
        let format = unsafe {
            call!(self.client.plugin(), PJRT_Executable_OptimizedProgram, args)?;
            string(program.format, program.format_size)
        };
        Ok((format, code))
    }

    /// A name that equal programs compiled with equal options share.
    ///
    /// # Errors
    /// What the plugin reports.
    pub fn fingerprint(&self) -> Result<String> {
        let mut args = PJRT_Executable_Fingerprint_Args {
            executable: self.raw,
            ..PJRT_Executable_Fingerprint_Args::new()
        };
        // SAFETY: the executable is live and owns the string.
        unsafe {
            call!(self.client.plugin(), PJRT_Executable_Fingerprint, args)?;
            Ok(string(args.executable_fingerprint, args.executable_fingerprint_size))
        }
    }

    /// The compiled program as bytes, for [`Client::deserialize`] with the same plugin on the same
    /// kind of machine.
    ///
    /// # Errors
    /// What the plugin reports.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        let mut args = PJRT_Executable_Serialize_Args {
            executable: self.raw,
            ..PJRT_Executable_Serialize_Args::new()
        };
        // SAFETY: the executable is live; the bytes live until the deleter is called, once, after
        // they were copied.
        unsafe {
            call!(self.client.plugin(), PJRT_Executable_Serialize, args)?;
            let (data, size) = (args.serialized_bytes.cast::<u8>(), args.serialized_bytes_size);
            let bytes = std::slice::from_raw_parts(data, size).to_vec();
            if let Some(delete) = args.serialized_executable_deleter {
                delete(args.serialized_executable);
            }
            Ok(bytes)
        }
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Executable({} inputs, {} outputs, {} replicas)",
            self.inputs.len(),
            self.outputs.len(),
            self.num_replicas
        )
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        let plugin = *self.client.plugin();
        let mut view = PJRT_Executable_Destroy_Args {
            executable: self.raw,
            ..PJRT_Executable_Destroy_Args::new()
        };
        let mut loaded = PJRT_LoadedExecutable_Destroy_Args {
            executable: self.loaded,
            ..PJRT_LoadedExecutable_Destroy_Args::new()
        };
        // SAFETY: both are owned by `self` and not used afterwards; null is allowed. Launches in
        // flight keep what they need.
        unsafe {
            let _ = call!(plugin, PJRT_Executable_Destroy, view);
            let _ = call!(plugin, PJRT_LoadedExecutable_Destroy, loaded);
        }
    }
}

fn value_type(ty: &TensorType) -> ValueType {
    ValueType { dtype: ty.dtype, dims: ty.dims.as_slice().into() }
}
