//! The part of XLA's FFI that handlers of custom calls use, and the PJRT extension that registers
//! them.
//!
//! Structs are named as in `xla/ffi/api/c_api.h`, without their prefix. The header does not come
//! with the plugin, so the offsets that were found in it are asserted at compile time.

#![allow(non_snake_case)]

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

use crate::pjrt::abi::{PJRT_Error, PJRT_Extension_Base};

/// `PJRT_Extension_Type_FFI`.
pub(super) const FFI_EXTENSION: i32 = 5;
/// `XLA_FFI_ExecutionStage_EXECUTE`.
pub(super) const EXECUTE: i32 = 3;
/// `XLA_FFI_Error_Code_INTERNAL`.
pub(super) const INTERNAL: i32 = 13;
/// `XLA_FFI_Extension_Metadata`.
pub(super) const METADATA_EXTENSION: i32 = 1;
/// `XLA_FFI_ArgType_BUFFER` and `XLA_FFI_RetType_BUFFER`.
pub(super) const BUFFER: i32 = 1;
/// `XLA_FFI_DataType_S64`.
pub(super) const S64: i32 = 5;

/// `XLA_FFI_AttrType`.
pub(super) mod attribute {
    pub const ARRAY: i32 = 1;
    pub const SCALAR: i32 = 3;
    pub const STRING: i32 = 4;
}

pub(super) type Handler = unsafe extern "C" fn(*mut CallFrame) -> *mut FfiError;
type Call<A> = Option<unsafe extern "C" fn(*mut A) -> *mut FfiError>;
type Uncalled = *const c_void;

/// `XLA_FFI_Error`.
#[repr(C)]
pub(super) struct FfiError {
    _opaque: [u8; 0],
}

/// `XLA_FFI_Future`.
#[repr(C)]
pub(super) struct Future {
    _opaque: [u8; 0],
}

/// `PJRT_FFI_Extension`.
#[repr(C)]
pub(super) struct FfiExtension {
    pub base: PJRT_Extension_Base,
    pub type_register: Uncalled,
    pub user_data_add: Uncalled,
    pub register_handler: Option<unsafe extern "C" fn(*mut RegisterHandlerArgs) -> *mut PJRT_Error>,
}

/// `PJRT_FFI_Register_Handler_Args`, which has no chain of extensions.
#[repr(C)]
pub(super) struct RegisterHandlerArgs {
    pub struct_size: usize,
    pub target_name: *const c_char,
    pub target_name_size: usize,
    pub handler: *mut c_void,
    pub platform_name: *const c_char,
    pub platform_name_size: usize,
    pub traits: u32,
}

/// The common beginning of the FFI's extensions.
#[repr(C)]
pub(super) struct Extension {
    pub struct_size: usize,
    pub kind: c_int,
    pub next: *mut Extension,
}

#[repr(C)]
pub(super) struct MetadataExtension {
    pub base: Extension,
    pub metadata: *mut Metadata,
}

#[repr(C)]
pub(super) struct ApiVersion {
    pub struct_size: usize,
    pub extension_start: *mut Extension,
    pub major_version: c_int,
    pub minor_version: c_int,
}

/// Up to the fields that are written here.
#[repr(C)]
pub(super) struct Metadata {
    pub struct_size: usize,
    pub api_version: ApiVersion,
    pub traits: u32,
}

#[repr(C)]
pub(super) struct Api {
    pub struct_size: usize,
    pub extension_start: *mut Extension,
    pub api_version: ApiVersion,
    pub internal_api: Uncalled,
    pub Error_Create: Call<ErrorCreateArgs>,
    pub Error_GetMessage: Uncalled,
    pub Error_Destroy: Option<unsafe extern "C" fn(*mut ErrorDestroyArgs)>,
    pub Handler_Register: Uncalled,
    pub Stream_Get: Uncalled,
    pub Type_Register: Uncalled,
    pub ExecutionContext_Get: Uncalled,
    pub State_Set: Uncalled,
    pub State_Get: Uncalled,
    pub DeviceMemory_Allocate: Uncalled,
    pub DeviceMemory_Free: Uncalled,
    pub ThreadPool_Schedule: Call<PoolTaskArgs>,
    pub ThreadPool_NumThreads: Uncalled,
    pub Future_Create: Call<FutureArgs>,
    pub Future_SetAvailable: Call<FutureArgs>,
    pub Future_SetError: Call<FutureSetErrorArgs>,
    pub RunId_Get: Call<RunIdArgs>,
    pub DeviceOrdinal_Get: Call<DeviceOrdinalArgs>,
}

#[repr(C)]
pub(super) struct ErrorCreateArgs {
    pub struct_size: usize,
    pub extension_start: *mut Extension,
    pub message: *const c_char,
    pub code: c_int,
}

#[repr(C)]
pub(super) struct PoolTaskArgs {
    pub struct_size: usize,
    pub extension_start: *mut Extension,
    pub ctx: *mut c_void,
    pub task: Option<unsafe extern "C" fn(*mut c_void)>,
    pub data: *mut c_void,
}

#[repr(C)]
pub(super) struct ErrorDestroyArgs {
    pub struct_size: usize,
    pub extension_start: *mut Extension,
    pub error: *mut FfiError,
}

/// The arguments of `Future_Create`, which sets `future`, and of `Future_SetAvailable`. The
/// former's size ends before `future`.
#[repr(C)]
pub(super) struct FutureArgs {
    pub struct_size: usize,
    pub extension_start: *mut Extension,
    pub future: *mut Future,
}

#[repr(C)]
pub(super) struct FutureSetErrorArgs {
    pub struct_size: usize,
    pub extension_start: *mut Extension,
    pub future: *mut Future,
    pub error: *mut FfiError,
}

#[repr(C)]
pub(super) struct RunIdArgs {
    pub struct_size: usize,
    pub extension_start: *mut Extension,
    pub ctx: *mut c_void,
    pub run_id: i64,
}

#[repr(C)]
pub(super) struct DeviceOrdinalArgs {
    pub struct_size: usize,
    pub extension_start: *mut Extension,
    pub ctx: *mut c_void,
    pub device_ordinal: i32,
}

/// Operands, and results.
#[repr(C)]
pub(super) struct BufferList {
    pub struct_size: usize,
    pub extension_start: *mut Extension,
    pub size: i64,
    pub types: *const c_int,
    pub buffers: *const *const Buffer,
}

#[repr(C)]
pub(super) struct Buffer {
    pub struct_size: usize,
    pub extension_start: *mut Extension,
    pub dtype: c_int,
    pub data: *mut c_void,
    pub rank: i64,
    pub dims: *const i64,
}

#[repr(C)]
pub(super) struct Attrs {
    pub struct_size: usize,
    pub extension_start: *mut Extension,
    pub size: i64,
    pub types: *const c_int,
    pub names: *const *const ByteSpan,
    pub attrs: *const *const c_void,
}

#[repr(C)]
pub(super) struct ByteSpan {
    pub ptr: *const u8,
    pub len: usize,
}

#[repr(C)]
pub(super) struct Scalar {
    pub dtype: c_int,
    pub value: *const c_void,
}

#[repr(C)]
pub(super) struct Array {
    pub dtype: c_int,
    pub size: usize,
    pub data: *const c_void,
}

#[repr(C)]
pub(super) struct CallFrame {
    pub struct_size: usize,
    pub extension_start: *mut Extension,
    pub api: *const Api,
    pub ctx: *mut c_void,
    pub stage: c_int,
    pub args: BufferList,
    pub rets: BufferList,
    pub attrs: Attrs,
    /// Past the end that `struct_size` says, but always there.
    pub future: *mut Future,
}

/// The value of `struct_size`: up to the end of the last field, without padding.
pub(super) mod size {
    pub const API: usize = 192;
    pub const CALL_FRAME: usize = 168;
    pub const REGISTER_HANDLER: usize = 52;
    pub const ERROR_CREATE: usize = 28;
    pub const ERROR_DESTROY: usize = 24;
    pub const SCHEDULE: usize = 40;
    pub const FUTURE_CREATE: usize = 16;
    pub const FUTURE_SET_AVAILABLE: usize = 24;
    pub const FUTURE_SET_ERROR: usize = 32;
    pub const RUN_ID: usize = 32;
    pub const DEVICE_ORDINAL: usize = 28;
}

const _: () = {
    assert!(offset_of!(FfiExtension, register_handler) == 40);
    assert!(offset_of!(RegisterHandlerArgs, traits) + size_of::<u32>() == size::REGISTER_HANDLER);
    assert!(offset_of!(MetadataExtension, metadata) == 24);
    assert!(offset_of!(Metadata, api_version) + offset_of!(ApiVersion, major_version) == 24);
    assert!(offset_of!(Metadata, traits) == 32);
    assert!(offset_of!(Api, api_version) + offset_of!(ApiVersion, major_version) == 32);
    assert!(offset_of!(Api, Error_Create) == 48);
    assert!(offset_of!(Api, Future_Create) == 152);
    assert!(offset_of!(Api, Future_SetError) == 168);
    assert!(size_of::<Api>() == size::API);
    assert!(offset_of!(ErrorCreateArgs, code) + size_of::<c_int>() == size::ERROR_CREATE);
    assert!(size_of::<ErrorDestroyArgs>() == size::ERROR_DESTROY);
    assert!(offset_of!(Api, ThreadPool_Schedule) == 136);
    assert!(size_of::<PoolTaskArgs>() == size::SCHEDULE);
    assert!(offset_of!(FutureArgs, future) == size::FUTURE_CREATE);
    assert!(size_of::<FutureArgs>() == size::FUTURE_SET_AVAILABLE);
    assert!(size_of::<FutureSetErrorArgs>() == size::FUTURE_SET_ERROR);
    assert!(size_of::<RunIdArgs>() == size::RUN_ID);
    assert!(offset_of!(DeviceOrdinalArgs, device_ordinal) + 4 == size::DEVICE_ORDINAL);
    assert!(offset_of!(Buffer, dtype) == 16 && offset_of!(Buffer, dims) == 40);
    assert!(offset_of!(CallFrame, args) == 40 && offset_of!(CallFrame, rets) == 80);
    assert!(offset_of!(CallFrame, attrs) == 120);
    assert!(offset_of!(CallFrame, future) == size::CALL_FRAME);
};
