//! The part of the PJRT C ABI that this crate calls.
//!
//! Structs and fields are named as in `pjrt_c_api.h`. One macro declares a struct together with its
//! row of [`LAYOUTS`], so no struct can be used without being checked: a test compiles a few lines
//! of C against the header that the CPU plugin ships and compares every size and offset with these
//! rows.
//!
//! The first word of a struct is its size as the caller knows it. Versions only append fields.
//! Plugins accept structs that are longer than their own, and shorter ones that lack what later
//! versions appended, so one declaration serves older and newer plugins of the same major version.

#![allow(non_camel_case_types, non_snake_case)]

use std::ffi::{c_char, c_int, c_void};

/// The API major version of these declarations. Other major versions are incompatible.
pub const API_MAJOR: i32 = 0;
/// The API minor version of the header that these declarations were checked against.
pub const API_MINOR: i32 = 81;

/// Size and field offsets of one declared struct.
#[derive(Clone, Copy, Debug)]
pub struct StructLayout {
    /// The struct's name in the header.
    pub name: &'static str,
    /// Size in bytes, including padding.
    pub size: usize,
    /// Size in bytes up to the end of the last field, the value of `struct_size`.
    pub struct_size: usize,
    /// Every field in order.
    pub fields: &'static [FieldLayout],
}

/// Offset and size of one field of a declared struct.
#[derive(Clone, Copy, Debug)]
pub struct FieldLayout {
    /// The field's name, prefixed with `r#` if it is a Rust keyword.
    pub name: &'static str,
    /// Offset in bytes.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

/// A function of the API that returns an error object, or null on success.
pub(super) type Call<A> = Option<unsafe extern "C" fn(*mut A) -> *mut PJRT_Error>;
/// A function of the API that cannot fail.
pub(super) type VoidCall<A> = Option<unsafe extern "C" fn(*mut A)>;
/// A function of the API that this crate does not call.
type Uncalled = *const c_void;

macro_rules! opaque {
    ($($name:ident)*) => { $( #[repr(C)] pub(super) struct $name { _opaque: [u8; 0] } )* };
}

/// A struct of the C API, which begins with its size and an extension chain.
pub(super) trait CStruct: Sized {
    /// The fields in order.
    const FIELDS: &[FieldLayout];
    /// The row of [`LAYOUTS`].
    const LAYOUT: StructLayout;

    /// All fields zero or null except `struct_size`.
    fn new() -> Self;
}

macro_rules! structs {
    ($($name:ident { $($field:ident: $ty:ty,)* })*) => {
        $(
            #[repr(C)]
            pub(super) struct $name {
                pub struct_size: usize,
                pub extension_start: *mut PJRT_Extension_Base,
                $(pub $field: $ty,)*
            }

            impl CStruct for $name {
                fn new() -> Self {
                    // SAFETY: every field is an integer, a bool, a raw pointer, an optional
                    // function pointer, or a struct or union of these: all zero bits is a value of
                    // each.
                    let zeroed: Self = unsafe { std::mem::zeroed() };
                    Self { struct_size: Self::LAYOUT.struct_size, ..zeroed }
                }

                const FIELDS: &[FieldLayout] = &[
                    FieldLayout { name: "struct_size", offset: 0, size: size_of::<usize>() },
                    FieldLayout {
                        name: "extension_start",
                        offset: std::mem::offset_of!($name, extension_start),
                        size: size_of::<*mut PJRT_Extension_Base>(),
                    },
                    $(FieldLayout {
                        name: stringify!($field),
                        offset: std::mem::offset_of!($name, $field),
                        size: size_of::<$ty>(),
                    },)*
                ];

                const LAYOUT: StructLayout = {
                    let last = Self::FIELDS[Self::FIELDS.len() - 1];
                    StructLayout {
                        name: stringify!($name),
                        size: size_of::<Self>(),
                        struct_size: last.offset + last.size,
                        fields: Self::FIELDS,
                    }
                };
            }
        )*

        /// The layout of every declared struct that begins with its size and an extension chain.
        pub const LAYOUTS: &[StructLayout] = &[$(<$name as CStruct>::LAYOUT),*];
    };
}

opaque! {
    PJRT_Error PJRT_Event PJRT_Client PJRT_Device PJRT_DeviceDescription PJRT_Memory PJRT_Executable
    PJRT_LoadedExecutable PJRT_Buffer PJRT_SerializedExecutable PJRT_ExecuteContext PJRT_TopologyDescription
}

/// A link of the extension chain. Unlike in the structs below its second word is the extension's
/// type, so it is not in their table, and the test checks it by name.
#[repr(C)]
pub(super) struct PJRT_Extension_Base {
    pub struct_size: usize,
    pub r#type: c_int,
    pub next: *mut PJRT_Extension_Base,
}

/// The layout of `PJRT_Extension_Base`.
pub const EXTENSION_BASE: StructLayout = StructLayout {
    name: "PJRT_Extension_Base",
    size: size_of::<PJRT_Extension_Base>(),
    struct_size: size_of::<PJRT_Extension_Base>(),
    fields: &[
        FieldLayout {
            name: "type",
            offset: std::mem::offset_of!(PJRT_Extension_Base, r#type),
            size: size_of::<c_int>(),
        },
        FieldLayout {
            name: "next",
            offset: std::mem::offset_of!(PJRT_Extension_Base, next),
            size: size_of::<*mut PJRT_Extension_Base>(),
        },
    ],
};

/// The value of a [`PJRT_NamedValue`]; `type` there says which member is set.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union NamedValueUnion {
    pub string_value: *const c_char,
    pub int64_value: i64,
    pub int64_array_value: *const i64,
    pub float_value: f32,
    pub bool_value: bool,
}

pub(super) mod named_value {
    pub const STRING: i32 = 0;
    pub const INT64: i32 = 1;
    pub const INT64_LIST: i32 = 2;
    pub const FLOAT: i32 = 3;
    pub const BOOL: i32 = 4;
}

pub(super) mod host_buffer_semantics {
    pub const IMMUTABLE_ZERO_COPY: i32 = 2;
}

/// `PJRT_Buffer_MemoryLayout_Type_Tiled`.
pub(super) const MEMORY_LAYOUT_TILED: i32 = 0;

pub(super) type CallbackError =
    unsafe extern "C" fn(code: c_int, message: *const c_char, size: usize) -> *mut PJRT_Error;
pub(super) type ValueDeleter = unsafe extern "C" fn(*mut c_char);

structs! {
    PJRT_Api_Version { major_version: c_int, minor_version: c_int, }
    PJRT_Error_Destroy_Args { error: *mut PJRT_Error, }
    PJRT_Error_Message_Args { error: *const PJRT_Error, message: *const c_char, message_size: usize, }
    PJRT_Error_GetCode_Args { error: *const PJRT_Error, code: c_int, }
    PJRT_NamedValue {
        name: *const c_char, name_size: usize, r#type: c_int, string_value: NamedValueUnion, value_size: usize,
    }
    PJRT_Plugin_Initialize_Args {}
    PJRT_Plugin_Attributes_Args { attributes: *const PJRT_NamedValue, num_attributes: usize, }

    PJRT_Event_Destroy_Args { event: *mut PJRT_Event, }
    PJRT_Event_IsReady_Args { event: *mut PJRT_Event, is_ready: bool, }
    PJRT_Event_Await_Args { event: *mut PJRT_Event, }
    PJRT_Event_OnReady_Args {
        event: *mut PJRT_Event,
        callback: Option<unsafe extern "C" fn(*mut PJRT_Error, *mut c_void)>,
        user_arg: *mut c_void,
    }

    PJRT_KeyValueGetCallback_Args {
        key: *const c_char, key_size: usize, timeout_in_ms: c_int,
        callback_error: *const CallbackError, user_arg: *mut c_void,
        value: *mut c_char, value_size: usize, value_deleter_callback: Option<ValueDeleter>,
    }
    PJRT_KeyValueTryGetCallback_Args {
        key: *const c_char, key_size: usize,
        callback_error: *const CallbackError, user_arg: *mut c_void,
        value: *mut c_char, value_size: usize, value_deleter_callback: Option<ValueDeleter>,
    }
    PJRT_KeyValuePutCallback_Args {
        key: *const c_char, key_size: usize, value: *const c_char, value_size: usize,
        callback_error: *const CallbackError, user_arg: *mut c_void,
    }
    PJRT_Client_Create_Args {
        create_options: *const PJRT_NamedValue, num_options: usize,
        kv_get_callback: Call<PJRT_KeyValueGetCallback_Args>, kv_get_user_arg: *mut c_void,
        kv_put_callback: Call<PJRT_KeyValuePutCallback_Args>, kv_put_user_arg: *mut c_void,
        client: *mut PJRT_Client,
        kv_try_get_callback: Call<PJRT_KeyValueTryGetCallback_Args>, kv_try_get_user_arg: *mut c_void,
    }
    PJRT_Client_Destroy_Args { client: *mut PJRT_Client, }
    PJRT_Client_PlatformName_Args {
        client: *mut PJRT_Client, platform_name: *const c_char, platform_name_size: usize,
    }
    PJRT_Client_PlatformVersion_Args {
        client: *mut PJRT_Client, platform_version: *const c_char, platform_version_size: usize,
    }
    PJRT_Client_ProcessIndex_Args { client: *mut PJRT_Client, process_index: c_int, }
    PJRT_Client_Devices_Args {
        client: *mut PJRT_Client, devices: *const *mut PJRT_Device, num_devices: usize,
    }
    PJRT_Client_AddressableDevices_Args {
        client: *mut PJRT_Client, addressable_devices: *const *mut PJRT_Device, num_addressable_devices: usize,
    }
    PJRT_Program {
        code: *mut c_char, code_size: usize, format: *const c_char, format_size: usize,
    }
    PJRT_Client_Compile_Args {
        client: *mut PJRT_Client, program: *const PJRT_Program,
        compile_options: *const c_char, compile_options_size: usize, executable: *mut PJRT_LoadedExecutable,
    }
    PJRT_Client_BufferFromHostBuffer_Args {
        client: *mut PJRT_Client, data: *const c_void, r#type: c_int, dims: *const i64, num_dims: usize,
        byte_strides: *const i64, num_byte_strides: usize, host_buffer_semantics: c_int,
        device: *mut PJRT_Device, memory: *mut PJRT_Memory, device_layout: *mut PJRT_Buffer_MemoryLayout,
        done_with_host_buffer: *mut PJRT_Event, buffer: *mut PJRT_Buffer,
    }

    PJRT_DeviceDescription_Id_Args { device_description: *mut PJRT_DeviceDescription, id: c_int, }
    PJRT_DeviceDescription_ProcessIndex_Args {
        device_description: *mut PJRT_DeviceDescription, process_index: c_int,
    }
    PJRT_DeviceDescription_Attributes_Args {
        device_description: *mut PJRT_DeviceDescription, num_attributes: usize, attributes: *const PJRT_NamedValue,
    }
    PJRT_DeviceDescription_Kind_Args {
        device_description: *mut PJRT_DeviceDescription, device_kind: *const c_char, device_kind_size: usize,
    }
    PJRT_DeviceDescription_DebugString_Args {
        device_description: *mut PJRT_DeviceDescription, debug_string: *const c_char, debug_string_size: usize,
    }
    PJRT_Device_GetDescription_Args {
        device: *mut PJRT_Device, device_description: *mut PJRT_DeviceDescription,
    }
    PJRT_Device_LocalHardwareId_Args { device: *mut PJRT_Device, local_hardware_id: c_int, }
    PJRT_Device_MemoryStats_Args {
        device: *mut PJRT_Device, bytes_in_use: i64,
        peak_bytes_in_use: i64, peak_bytes_in_use_is_set: bool,
        num_allocs: i64, num_allocs_is_set: bool,
        largest_alloc_size: i64, largest_alloc_size_is_set: bool,
        bytes_limit: i64, bytes_limit_is_set: bool,
        bytes_reserved: i64, bytes_reserved_is_set: bool,
        peak_bytes_reserved: i64, peak_bytes_reserved_is_set: bool,
        bytes_reservable_limit: i64, bytes_reservable_limit_is_set: bool,
        largest_free_block_bytes: i64, largest_free_block_bytes_is_set: bool,
        pool_bytes: i64, pool_bytes_is_set: bool,
        peak_pool_bytes: i64, peak_pool_bytes_is_set: bool,
    }

    PJRT_Executable_Destroy_Args { executable: *mut PJRT_Executable, }
    PJRT_LoadedExecutable_Destroy_Args { executable: *mut PJRT_LoadedExecutable, }
    PJRT_LoadedExecutable_GetExecutable_Args {
        loaded_executable: *mut PJRT_LoadedExecutable, executable: *mut PJRT_Executable,
    }
    PJRT_LoadedExecutable_AddressableDevices_Args {
        executable: *mut PJRT_LoadedExecutable,
        addressable_devices: *const *mut PJRT_Device, num_addressable_devices: usize,
    }
    PJRT_Executable_NumOutputs_Args { executable: *mut PJRT_Executable, num_outputs: usize, }
    PJRT_Executable_NumReplicas_Args { executable: *mut PJRT_Executable, num_replicas: usize, }
    PJRT_Executable_OutputElementTypes_Args {
        executable: *mut PJRT_Executable, output_types: *mut c_int, num_output_types: usize,
    }
    PJRT_Executable_OutputDimensions_Args {
        executable: *mut PJRT_Executable, num_outputs: usize, dims: *const i64, dim_sizes: *const usize,
    }
    PJRT_Executable_OptimizedProgram_Args { executable: *mut PJRT_Executable, program: *mut PJRT_Program, }
    PJRT_Executable_GetCostAnalysis_Args {
        executable: *mut PJRT_Executable, num_properties: usize, properties: *const PJRT_NamedValue,
    }
    PJRT_Executable_GetCompiledMemoryStats_Args {
        executable: *mut PJRT_Executable,
        generated_code_size_in_bytes: i64, argument_size_in_bytes: i64, output_size_in_bytes: i64,
        alias_size_in_bytes: i64, temp_size_in_bytes: i64,
        host_generated_code_size_in_bytes: i64, host_argument_size_in_bytes: i64, host_output_size_in_bytes: i64,
        host_alias_size_in_bytes: i64, host_temp_size_in_bytes: i64,
        peak_memory_in_bytes: i64,
    }
    PJRT_Executable_Fingerprint_Args {
        executable: *mut PJRT_Executable, executable_fingerprint: *const c_char, executable_fingerprint_size: usize,
    }
    PJRT_Executable_Serialize_Args {
        executable: *const PJRT_Executable, serialized_bytes: *const c_char, serialized_bytes_size: usize,
        serialized_executable: *mut PJRT_SerializedExecutable,
        serialized_executable_deleter: Option<unsafe extern "C" fn(*mut PJRT_SerializedExecutable)>,
    }
    PJRT_Executable_DeserializeAndLoad_Args {
        client: *mut PJRT_Client, serialized_executable: *const c_char, serialized_executable_size: usize,
        loaded_executable: *mut PJRT_LoadedExecutable,
        overridden_serialized_compile_options: *const c_char, overridden_serialized_compile_options_size: usize,
    }
    PJRT_ExecuteOptions {
        send_callbacks: *mut c_void, recv_callbacks: *mut c_void, num_send_ops: usize, num_recv_ops: usize,
        launch_id: c_int,
        non_donatable_input_indices: *const i64, num_non_donatable_input_indices: usize,
        context: *mut PJRT_ExecuteContext, call_location: *const c_char,
        num_tasks: usize, task_ids: *mut c_int, incarnation_ids: *mut i64,
    }
    PJRT_LoadedExecutable_Execute_Args {
        executable: *mut PJRT_LoadedExecutable, options: *mut PJRT_ExecuteOptions,
        argument_lists: *const *const *mut PJRT_Buffer, num_devices: usize, num_args: usize,
        output_lists: *const *mut *mut PJRT_Buffer, device_complete_events: *mut *mut PJRT_Event,
        execute_device: *mut PJRT_Device,
    }

    PJRT_Buffer_Destroy_Args { buffer: *mut PJRT_Buffer, }
    PJRT_Buffer_ReadyEvent_Args { buffer: *mut PJRT_Buffer, event: *mut PJRT_Event, }
    PJRT_Buffer_UnsafePointer_Args { buffer: *mut PJRT_Buffer, buffer_pointer: usize, }
    PJRT_Buffer_MemoryLayout_Tiled {
        minor_to_major: *const i64, minor_to_major_size: usize,
        tile_dims: *const i64, tile_dim_sizes: *const usize, num_tiles: usize,
    }
    PJRT_Buffer_MemoryLayout { tiled: PJRT_Buffer_MemoryLayout_Tiled, r#type: c_int, }
    PJRT_Buffer_ToHostBuffer_Args {
        src: *mut PJRT_Buffer, host_layout: *mut PJRT_Buffer_MemoryLayout,
        dst: *mut c_void, dst_size: usize, event: *mut PJRT_Event,
    }

    PJRT_TopologyDescription_Create_Args {
        topology_name: *const c_char, topology_name_size: usize,
        create_options: *const PJRT_NamedValue, num_options: usize, topology: *mut PJRT_TopologyDescription,
    }
    PJRT_TopologyDescription_Destroy_Args { topology: *mut PJRT_TopologyDescription, }
    PJRT_TopologyDescription_GetDeviceDescriptions_Args {
        topology: *mut PJRT_TopologyDescription,
        descriptions: *const *mut PJRT_DeviceDescription, num_descriptions: usize,
    }
    PJRT_Compile_Args {
        topology: *const PJRT_TopologyDescription, program: *const PJRT_Program,
        compile_options: *const c_char, compile_options_size: usize,
        client: *mut PJRT_Client, executable: *mut PJRT_Executable,
    }

    PJRT_Api {
        pjrt_api_version: PJRT_Api_Version,
        PJRT_Error_Destroy: VoidCall<PJRT_Error_Destroy_Args>,
        PJRT_Error_Message: VoidCall<PJRT_Error_Message_Args>,
        PJRT_Error_GetCode: Call<PJRT_Error_GetCode_Args>,
        PJRT_Plugin_Initialize: Call<PJRT_Plugin_Initialize_Args>,
        PJRT_Plugin_Attributes: Call<PJRT_Plugin_Attributes_Args>,
        PJRT_Event_Destroy: Call<PJRT_Event_Destroy_Args>,
        PJRT_Event_IsReady: Call<PJRT_Event_IsReady_Args>,
        PJRT_Event_Error: Uncalled,
        PJRT_Event_Await: Call<PJRT_Event_Await_Args>,
        PJRT_Event_OnReady: Call<PJRT_Event_OnReady_Args>,
        PJRT_Client_Create: Call<PJRT_Client_Create_Args>,
        PJRT_Client_Destroy: Call<PJRT_Client_Destroy_Args>,
        PJRT_Client_PlatformName: Call<PJRT_Client_PlatformName_Args>,
        PJRT_Client_ProcessIndex: Call<PJRT_Client_ProcessIndex_Args>,
        PJRT_Client_PlatformVersion: Call<PJRT_Client_PlatformVersion_Args>,
        PJRT_Client_Devices: Call<PJRT_Client_Devices_Args>,
        PJRT_Client_AddressableDevices: Call<PJRT_Client_AddressableDevices_Args>,
        PJRT_Client_LookupDevice: Uncalled,
        PJRT_Client_LookupAddressableDevice: Uncalled,
        PJRT_Client_AddressableMemories: Uncalled,
        PJRT_Client_Compile: Call<PJRT_Client_Compile_Args>,
        PJRT_Client_DefaultDeviceAssignment: Uncalled,
        PJRT_Client_BufferFromHostBuffer: Call<PJRT_Client_BufferFromHostBuffer_Args>,
        PJRT_DeviceDescription_Id: Call<PJRT_DeviceDescription_Id_Args>,
        PJRT_DeviceDescription_ProcessIndex: Call<PJRT_DeviceDescription_ProcessIndex_Args>,
        PJRT_DeviceDescription_Attributes: Call<PJRT_DeviceDescription_Attributes_Args>,
        PJRT_DeviceDescription_Kind: Call<PJRT_DeviceDescription_Kind_Args>,
        PJRT_DeviceDescription_DebugString: Call<PJRT_DeviceDescription_DebugString_Args>,
        PJRT_DeviceDescription_ToString: Uncalled,
        PJRT_Device_GetDescription: Call<PJRT_Device_GetDescription_Args>,
        PJRT_Device_IsAddressable: Uncalled,
        PJRT_Device_LocalHardwareId: Call<PJRT_Device_LocalHardwareId_Args>,
        PJRT_Device_AddressableMemories: Uncalled,
        PJRT_Device_DefaultMemory: Uncalled,
        PJRT_Device_MemoryStats: Call<PJRT_Device_MemoryStats_Args>,
        PJRT_Memory_Id: Uncalled,
        PJRT_Memory_Kind: Uncalled,
        PJRT_Memory_DebugString: Uncalled,
        PJRT_Memory_ToString: Uncalled,
        PJRT_Memory_AddressableByDevices: Uncalled,
        PJRT_Executable_Destroy: Call<PJRT_Executable_Destroy_Args>,
        PJRT_Executable_Name: Uncalled,
        PJRT_Executable_NumReplicas: Call<PJRT_Executable_NumReplicas_Args>,
        PJRT_Executable_NumPartitions: Uncalled,
        PJRT_Executable_NumOutputs: Call<PJRT_Executable_NumOutputs_Args>,
        PJRT_Executable_SizeOfGeneratedCodeInBytes: Uncalled,
        PJRT_Executable_GetCostAnalysis: Call<PJRT_Executable_GetCostAnalysis_Args>,
        PJRT_Executable_OutputMemoryKinds: Uncalled,
        PJRT_Executable_OptimizedProgram: Call<PJRT_Executable_OptimizedProgram_Args>,
        PJRT_Executable_Serialize: Call<PJRT_Executable_Serialize_Args>,
        PJRT_LoadedExecutable_Destroy: Call<PJRT_LoadedExecutable_Destroy_Args>,
        PJRT_LoadedExecutable_GetExecutable: Call<PJRT_LoadedExecutable_GetExecutable_Args>,
        PJRT_LoadedExecutable_AddressableDevices: Call<PJRT_LoadedExecutable_AddressableDevices_Args>,
        PJRT_LoadedExecutable_Delete: Uncalled,
        PJRT_LoadedExecutable_IsDeleted: Uncalled,
        PJRT_LoadedExecutable_Execute: Call<PJRT_LoadedExecutable_Execute_Args>,
        PJRT_Executable_DeserializeAndLoad: Call<PJRT_Executable_DeserializeAndLoad_Args>,
        PJRT_LoadedExecutable_Fingerprint: Uncalled,
        PJRT_Buffer_Destroy: Call<PJRT_Buffer_Destroy_Args>,
        PJRT_Buffer_ElementType: Uncalled,
        PJRT_Buffer_Dimensions: Uncalled,
        PJRT_Buffer_UnpaddedDimensions: Uncalled,
        PJRT_Buffer_DynamicDimensionIndices: Uncalled,
        PJRT_Buffer_GetMemoryLayout: Uncalled,
        PJRT_Buffer_OnDeviceSizeInBytes: Uncalled,
        PJRT_Buffer_Device: Uncalled,
        PJRT_Buffer_Memory: Uncalled,
        PJRT_Buffer_Delete: Uncalled,
        PJRT_Buffer_IsDeleted: Uncalled,
        PJRT_Buffer_CopyToDevice: Uncalled,
        PJRT_Buffer_ToHostBuffer: Call<PJRT_Buffer_ToHostBuffer_Args>,
        PJRT_Buffer_IsOnCpu: Uncalled,
        PJRT_Buffer_ReadyEvent: Call<PJRT_Buffer_ReadyEvent_Args>,
        PJRT_Buffer_UnsafePointer: Call<PJRT_Buffer_UnsafePointer_Args>,
        PJRT_Buffer_IncreaseExternalReferenceCount: Uncalled,
        PJRT_Buffer_DecreaseExternalReferenceCount: Uncalled,
        PJRT_Buffer_OpaqueDeviceMemoryDataPointer: Uncalled,
        PJRT_CopyToDeviceStream_Destroy: Uncalled,
        PJRT_CopyToDeviceStream_AddChunk: Uncalled,
        PJRT_CopyToDeviceStream_TotalBytes: Uncalled,
        PJRT_CopyToDeviceStream_GranuleSize: Uncalled,
        PJRT_CopyToDeviceStream_CurrentBytes: Uncalled,
        PJRT_TopologyDescription_Create: Call<PJRT_TopologyDescription_Create_Args>,
        PJRT_TopologyDescription_Destroy: Call<PJRT_TopologyDescription_Destroy_Args>,
        PJRT_TopologyDescription_PlatformName: Uncalled,
        PJRT_TopologyDescription_PlatformVersion: Uncalled,
        PJRT_TopologyDescription_GetDeviceDescriptions: Call<PJRT_TopologyDescription_GetDeviceDescriptions_Args>,
        PJRT_TopologyDescription_Serialize: Uncalled,
        PJRT_TopologyDescription_Attributes: Uncalled,
        PJRT_Compile: Call<PJRT_Compile_Args>,
        PJRT_Executable_OutputElementTypes: Call<PJRT_Executable_OutputElementTypes_Args>,
        PJRT_Executable_OutputDimensions: Call<PJRT_Executable_OutputDimensions_Args>,
        PJRT_Buffer_CopyToMemory: Uncalled,
        PJRT_Client_CreateViewOfDeviceBuffer: Uncalled,
        PJRT_Executable_Fingerprint: Call<PJRT_Executable_Fingerprint_Args>,
        PJRT_Client_TopologyDescription: Uncalled,
        PJRT_Executable_GetCompiledMemoryStats: Call<PJRT_Executable_GetCompiledMemoryStats_Args>,
    }
}
