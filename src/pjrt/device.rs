//! The devices of a client.

use std::collections::BTreeMap;
use std::ops::Deref;

use super::abi::*;
use super::plugin::call;
use super::value::{self, string};
use super::{Code, Error, Plugin, Result, Value};

/// One addressable device.
#[derive(Debug)]
pub struct Device {
    pub(super) raw: *mut PJRT_Device,
    /// The hardware's number on this machine, -1 if there is none.
    pub local_hardware_id: i32,
    /// The properties that every process knows. They can be accessed on the device directly.
    pub description: DeviceDescription,
}

impl Deref for Device {
    type Target = DeviceDescription;

    fn deref(&self) -> &DeviceDescription {
        &self.description
    }
}

/// Memory statistics of a device's allocator, in bytes. Plugins omit what they do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryStats {
    /// Currently allocated.
    pub bytes_in_use: u64,
    /// Peak allocation.
    pub peak_bytes_in_use: Option<u64>,
    /// Maximum that may be allocated.
    pub bytes_limit: Option<u64>,
    /// The largest block that can currently be allocated.
    pub largest_free_block_bytes: Option<u64>,
}

impl Device {
    /// Memory statistics, or `None` if the plugin has none.
    pub(super) fn memory_stats(&self, plugin: &Plugin) -> Result<Option<MemoryStats>> {
        let mut args = PJRT_Device_MemoryStats_Args {
            device: self.raw,
            ..PJRT_Device_MemoryStats_Args::new()
        };
        // SAFETY: the device lives as long as the client.
        match unsafe { call!(plugin, PJRT_Device_MemoryStats, args) } {
            Err(Error::Pjrt { code: Code::Unimplemented, .. } | Error::NoSuchCall { .. }) => {
                Ok(None)
            }
            Err(error) => Err(error),
            Ok(()) => {
                let bytes = |value: i64| u64::try_from(value).unwrap_or(0);
                let given = |value: i64, is_set: bool| is_set.then_some(bytes(value));
                Ok(Some(MemoryStats {
                    bytes_in_use: bytes(args.bytes_in_use),
                    peak_bytes_in_use: given(args.peak_bytes_in_use, args.peak_bytes_in_use_is_set),
                    bytes_limit: given(args.bytes_limit, args.bytes_limit_is_set),
                    largest_free_block_bytes: given(
                        args.largest_free_block_bytes,
                        args.largest_free_block_bytes_is_set,
                    ),
                }))
            }
        }
    }
}

/// # Safety
/// `device` must be a live device of a client of `plugin`.
pub(super) unsafe fn describe_device(plugin: Plugin, device: *mut PJRT_Device) -> Result<Device> {
    let mut hardware =
        PJRT_Device_LocalHardwareId_Args { device, ..PJRT_Device_LocalHardwareId_Args::new() };
    // SAFETY: by this function's contract.
    let description = unsafe {
        call!(plugin, PJRT_Device_LocalHardwareId, hardware)?;
        describe_global(plugin, device)?
    };
    Ok(Device { raw: device, local_hardware_id: hardware.local_hardware_id, description })
}

/// Describes a device that may belong to another process.
///
/// # Safety
/// `device` must be a live device of a client of `plugin`.
pub(super) unsafe fn describe_global(
    plugin: Plugin,
    device: *mut PJRT_Device,
) -> Result<DeviceDescription> {
    let mut args =
        PJRT_Device_GetDescription_Args { device, ..PJRT_Device_GetDescription_Args::new() };
    // SAFETY: by this function's contract; a description lives as long as its device.
    unsafe {
        call!(plugin, PJRT_Device_GetDescription, args)?;
        describe(&plugin, args.device_description)
    }
}

/// A device that may belong to another process, or be described for ahead-of-time compilation only.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceDescription {
    /// Unique among the devices of all processes. Device assignments are lists of these ids.
    pub id: i32,
    /// The process that can address it.
    pub process_index: usize,
    /// The vendor's name for its model.
    pub kind: String,
    /// The plugin's description.
    pub debug_string: String,
    /// Coordinates, memory sizes and other attributes by name.
    pub attributes: BTreeMap<String, Value>,
}

/// # Safety
/// `device_description` must be a live description of `plugin`.
pub(super) unsafe fn describe(
    plugin: &Plugin,
    device_description: *mut PJRT_DeviceDescription,
) -> Result<DeviceDescription> {
    let mut id = PJRT_DeviceDescription_Id_Args {
        device_description,
        ..PJRT_DeviceDescription_Id_Args::new()
    };
    let mut process = PJRT_DeviceDescription_ProcessIndex_Args {
        device_description,
        ..PJRT_DeviceDescription_ProcessIndex_Args::new()
    };
    let mut kind = PJRT_DeviceDescription_Kind_Args {
        device_description,
        ..PJRT_DeviceDescription_Kind_Args::new()
    };
    let mut debug = PJRT_DeviceDescription_DebugString_Args {
        device_description,
        ..PJRT_DeviceDescription_DebugString_Args::new()
    };
    let mut attributes = PJRT_DeviceDescription_Attributes_Args {
        device_description,
        ..PJRT_DeviceDescription_Attributes_Args::new()
    };
    // SAFETY: by this function's contract; strings and array live as long as the description and
    // are copied here.
    unsafe {
        call!(plugin, PJRT_DeviceDescription_Id, id)?;
        call!(plugin, PJRT_DeviceDescription_ProcessIndex, process)?;
        call!(plugin, PJRT_DeviceDescription_Kind, kind)?;
        call!(plugin, PJRT_DeviceDescription_DebugString, debug)?;
        call!(plugin, PJRT_DeviceDescription_Attributes, attributes)?;
        Ok(DeviceDescription {
            id: id.id,
            process_index: usize::try_from(process.process_index).unwrap_or(0),
            kind: string(kind.device_kind, kind.device_kind_size),
            debug_string: string(debug.debug_string, debug.debug_string_size),
            attributes: value::read_all(attributes.attributes, attributes.num_attributes),
        })
    }
}
