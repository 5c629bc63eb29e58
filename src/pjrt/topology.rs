//! Descriptions of absent devices for ahead-of-time compilation.

use std::fmt;
use std::ptr;

use hlo::Program;

use super::abi::*;
use super::compile::mlir;
use super::device::{DeviceDescription, describe};
use super::plugin::call;
use super::value::{self, Value, slice};
use super::{CompileOptions, Compiled, Plugin, Result, envelope};

/// A description of the devices of a TPU slice or a GPU cluster.
///
/// Plugins abort the process on some descriptions that they cannot compile for, so this belongs in
/// a child process.
pub struct Topology {
    plugin: Plugin,
    raw: *mut PJRT_TopologyDescription,
    devices: Vec<DeviceDescription>,
}

// SAFETY: PJRT's functions on topologies may be called from any thread; nothing in here is written
// after construction.
unsafe impl Send for Topology {}
// SAFETY: as above.
unsafe impl Sync for Topology {}

impl Topology {
    /// Describes the topology called `name`. Name and `options` are plugin specific.
    ///
    /// # Errors
    /// Errors of the plugin.
    pub fn new(plugin: &Plugin, name: &str, options: &[(&str, Value)]) -> Result<Self> {
        let named: Vec<PJRT_NamedValue> =
            options.iter().map(|(name, value)| value::named(name, value)).collect();
        let mut args = PJRT_TopologyDescription_Create_Args {
            topology_name: name.as_ptr().cast(),
            topology_name_size: name.len(),
            create_options: named.as_ptr(),
            num_options: named.len(),
            ..PJRT_TopologyDescription_Create_Args::new()
        };
        // SAFETY: name and options live through the call, which reads them.
        unsafe { call!(plugin, PJRT_TopologyDescription_Create, args) }?;
        let mut topology = Self { plugin: *plugin, raw: args.topology, devices: Vec::new() };
        let mut list = PJRT_TopologyDescription_GetDeviceDescriptions_Args {
            topology: topology.raw,
            ..PJRT_TopologyDescription_GetDeviceDescriptions_Args::new()
        };
        // SAFETY: the topology is live and owns the array and the descriptions, which are copied
        // here.
        unsafe {
            call!(plugin, PJRT_TopologyDescription_GetDeviceDescriptions, list)?;
            for description in slice(list.descriptions, list.num_descriptions) {
                topology.devices.push(describe(plugin, *description)?);
            }
        }
        Ok(topology)
    }

    /// The devices in the plugin's order, which is neither that of their ids nor that of a ring.
    pub fn devices(&self) -> &[DeviceDescription] {
        &self.devices
    }

    /// Compiles a program for as many of these devices as it has replicas. Only the program's text
    /// and number of replicas are used, since it is not launched.
    ///
    /// # Errors
    /// [`super::Error::TooFewDevices`], [`super::Error::DeviceAssignment`], or what the compiler
    /// reports.
    pub fn compile(&self, program: &Program, options: &CompileOptions) -> Result<Compiled> {
        let encoded = options.encode_on(&self.devices, program.num_replicas)?;
        let c_program = mlir(program);
        let mut args = PJRT_Compile_Args {
            topology: self.raw,
            program: &raw const c_program,
            compile_options: encoded.as_ptr().cast(),
            compile_options_size: encoded.len(),
            client: ptr::null_mut(),
            ..PJRT_Compile_Args::new()
        };
        // SAFETY: the topology is live; program and options live through the call, which reads
        // them.
        unsafe { call!(self.plugin, PJRT_Compile, args) }?;
        // SAFETY: the call made the executable, for us to own.
        Ok(unsafe { Compiled::new(self.plugin, args.executable, envelope::digest(program)) })
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        let mut args = PJRT_TopologyDescription_Destroy_Args {
            topology: self.raw,
            ..PJRT_TopologyDescription_Destroy_Args::new()
        };
        // SAFETY: this owns the topology; compiled programs keep what they need of it. An error,
        // which no version gives, could not be handled.
        let _ = unsafe { call!(self.plugin, PJRT_TopologyDescription_Destroy, args) };
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Topology({} devices, {:?})", self.devices.len(), self.plugin)
    }
}
