//! Executing compiled programs.

use std::fmt;
use std::ops::Deref;
use std::ptr;
use std::sync::Arc;

use hlo::{ProgramInput, ProgramOutput};

use super::abi::*;
use super::buffer::{Block, Buffers, ValueType};
use super::client::{Client, LaunchId, Scratch};
use super::event::{Completion, Event};
use super::ffi::{HostLaunch, LaunchInfo};
use super::plugin::call;
use super::{Compiled, Error, Placement, Result};

/// A program that is compiled for a client's devices and loaded. It keeps its client alive.
pub struct Executable {
    /// The view of `loaded` for queries. It must be dropped before the client, so it is the first
    /// field.
    pub(super) compiled: Compiled,
    pub(super) client: Client,
    pub(super) loaded: *mut PJRT_LoadedExecutable,
    pub(super) inputs: Vec<ProgramInput>,
    pub(super) outputs: Vec<ProgramOutput>,
    pub(super) num_replicas: usize,
    pub(super) replicas_per_process: usize,
    pub(super) has_host_collectives: bool,
    pub(super) program_digest: u64,
    pub(super) placement: Placement,
    pub(super) output_types: Arc<[ValueType]>,
}

// SAFETY: PJRT's functions on executables may be called from any thread; nothing in here is written
// after construction.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

/// One argument of a launch.
#[derive(Debug)]
pub enum Arg<'a> {
    /// Given away. If the program donates this input, a result reuses its memory; otherwise it is
    /// freed once the launch no longer needs it.
    Donate(Buffers),
    /// Borrowed: unchanged and usable afterwards, even if the program donates this input.
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
    /// The results in the program's order. They may be arguments of further launches immediately.
    pub outputs: Vec<Buffers>,
    /// The end of the launch on all devices.
    pub done: Completion,
    /// Handles of the arguments that were given away. XLA's CPU backend waits for the launch when
    /// one of them is freed; keep them until it is done to avoid that.
    pub spent: Vec<Buffers>,
}

impl Executable {
    /// The client it was compiled for.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The inputs of [`Self::execute`], in order.
    pub fn inputs(&self) -> &[ProgramInput] {
        &self.inputs
    }

    /// The outputs of [`Self::execute`], in order.
    pub fn outputs(&self) -> &[ProgramOutput] {
        &self.outputs
    }

    /// Number of replicas of the program, over all processes.
    pub fn num_replicas(&self) -> usize {
        self.num_replicas
    }

    /// The replicas that run in this process and their devices, where its arguments must lie.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Starts the program on all its addressable devices and returns without waiting, unless
    /// several launches are still in flight. One [`Buffers`] holds an argument or result of all
    /// these replicas.
    ///
    /// An input that the program donates is not donated if it is passed as [`Arg::Borrow`].
    ///
    /// # Errors
    /// Before anything is started: [`Error::ArgumentCount`], [`Error::ArgumentType`],
    /// [`Error::ArgumentDevices`], [`Error::ArgumentClient`]. The client stays usable; arguments
    /// that were given away are freed. Failures while the program runs are reported by
    /// [`Launch::done`].
    pub fn execute(&self, arguments: Vec<Arg<'_>>) -> Result<Launch> {
        self.validate(&arguments)?;
        let num_devices = self.placement.num_addressable();
        let num_outputs = self.outputs.len();
        let mut pointers = vec![ptr::null_mut(); num_devices * num_outputs].into_boxed_slice();
        let done = self.client.launch(self.has_host_collectives, |id, scratch| {
            self.launch(&arguments, &mut pointers, id, scratch)
        })?;
        let outputs = Block {
            client: self.client.clone(),
            types: self.output_types.clone(),
            placement: self.placement.clone(),
            pointers,
        }
        .into_values();
        let spent = arguments.into_iter().filter_map(|argument| match argument {
            Arg::Donate(buffers) => Some(buffers),
            Arg::Borrow(_) => None,
        });
        Ok(Launch { outputs, done, spent: spent.collect() })
    }

    /// Checks everything for which the plugin would reject the launch: after a rejected launch of
    /// several replicas XLA's CPU client hangs forever. Liveness needs no check, since [`Buffers`]
    /// that were given away no longer exist.
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
                    expected: self.placement.clone(),
                    found: block.placement.clone(),
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
        id: LaunchId,
        scratch: &mut Scratch,
    ) -> Result<Completion> {
        let plugin = *self.client.plugin();
        let (num_devices, num_args) = (self.placement.num_addressable(), arguments.len());
        scratch.arguments.clear();
        for position in 0..num_devices {
            scratch.arguments.extend(arguments.iter().map(|arg| arg.buffers().pointer(position)));
        }
        scratch.non_donatable.clear();
        for (index, (argument, input)) in arguments.iter().zip(&self.inputs).enumerate() {
            if input.donated && matches!(argument, Arg::Borrow(_)) {
                scratch.non_donatable.push(index as i64);
            }
        }
        scratch.argument_lists.clear();
        scratch.output_lists.clear();
        for position in 0..num_devices {
            scratch.argument_lists.push(scratch.arguments[position * num_args..].as_ptr());
            scratch.output_lists.push(outputs[position * self.outputs.len()..].as_mut_ptr());
        }
        scratch.events.clear();
        scratch.events.resize(num_devices, ptr::null_mut());
        let mut options = PJRT_ExecuteOptions {
            launch_id: id.id,
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
        let host_launch = self.host_launch(id);
        // SAFETY: the executable is live; there is one list of arguments per device it runs on,
        // with as many live buffers as the program takes, of its types, on that device; one list of
        // results per device with room for as many as the executable itself says that it gives; one
        // event per device. All arrays live through the call.
        let started = unsafe { call!(plugin, PJRT_LoadedExecutable_Execute, args) };
        if let Err(error) = started {
            if let Some(launch) = host_launch {
                launch.end();
            }
            return Err(error);
        }
        let events: Box<[_]> = scratch.events.iter().map(|raw| Event::new(plugin, *raw)).collect();
        if let Some(launch) = host_launch {
            launch.watch(&events)?;
        }
        Ok(Completion::new(events, self.placement.clone()))
    }

    /// The replica on each device, by XLA's device ordinal.
    pub fn replica_of_device(&self) -> Vec<(i32, usize)> {
        let ordinal = |(replica, device): &(usize, usize)| {
            (self.client.devices()[*device].local_hardware_id, *replica)
        };
        self.placement.pairs().iter().map(ordinal).collect()
    }

    /// Announces a launch to the handler of host collectives, if the program has some.
    fn host_launch(&self, id: LaunchId) -> Option<Arc<HostLaunch>> {
        let collectives = self.client.host_collectives().filter(|_| self.has_host_collectives)?;
        let replica_of = self.replica_of_device();
        let info = LaunchInfo {
            id: i64::from(id.id),
            number: id.number,
            program_digest: self.program_digest,
        };
        Some(HostLaunch::begin(info, &self.placement, replica_of, collectives.clone()))
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

/// Queries about the compiled program: memory, cost, the optimised program.
impl Deref for Executable {
    type Target = Compiled;

    fn deref(&self) -> &Compiled {
        &self.compiled
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        let mut loaded = PJRT_LoadedExecutable_Destroy_Args {
            executable: self.loaded,
            ..PJRT_LoadedExecutable_Destroy_Args::new()
        };
        // SAFETY: it is owned by `self` and not used afterwards. Launches in flight keep what they
        // need.
        let _ = unsafe { call!(self.client.plugin(), PJRT_LoadedExecutable_Destroy, loaded) };
    }
}
