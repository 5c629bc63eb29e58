//! Reading of the frames in which XLA passes calls, and completing them.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;

use hlo::DType;

use super::abi::{self, Api, Buffer, CallFrame, FfiError, attribute};
use super::call::{HostCall, HostTensor, PendingCall, TensorMemory};
use super::kernel::KernelCall;
use super::launch::HostLaunch;
use super::site::{Attribute, Attributes};
use super::workers::Workers;
use crate::pjrt::value::slice;

/// Answers the question for the version that XLA asks a handler at registration; `false` for a
/// call.
///
/// # Safety
/// `frame` must be a valid frame.
pub(super) unsafe fn answer_version(frame: *mut CallFrame) -> bool {
    // SAFETY: by this function's contract, extensions are a list of live objects that begin as
    // `Extension` does, and the one of this type is a `MetadataExtension`.
    unsafe {
        let mut extension = (*frame).extension_start;
        while !extension.is_null() {
            if (*extension).kind == abi::METADATA_EXTENSION {
                let metadata = (*extension.cast::<abi::MetadataExtension>()).metadata;
                // The fields that are used here have been the same in all versions, so XLA's own
                // struct is the right one.
                let api = &*(*frame).api;
                (*metadata).api_version.major_version = api.api_version.major_version;
                (*metadata).api_version.minor_version = api.api_version.minor_version;
                (*metadata).traits = 0;
                return true;
            }
            extension = (*extension).next;
        }
        false
    }
}

/// Reads a call, and checks everything that its memory safety rests on. The call's future goes into
/// the frame.
///
/// # Errors
/// A frame of another form. Then the launch has failed.
///
/// # Safety
/// `frame` must be a valid frame in the stage of execution.
pub(super) unsafe fn read(frame: *mut CallFrame) -> Result<HostCall, String> {
    // SAFETY: by this function's contract.
    unsafe {
        let launch = launch(frame)?;
        let read = read_call(frame, &launch);
        read.inspect_err(|reason| launch.fail(reason))
    }
}

/// Writes the number of the replica that calls to the call's result, a `u32`.
///
/// # Errors
/// A frame of another form. Then the launch has failed.
///
/// # Safety
/// `frame` must be a valid frame in the stage of execution.
pub(super) unsafe fn write_replica_id(frame: *mut CallFrame) -> Result<(), String> {
    // SAFETY: by this function's contract. The result is a `u32` at an aligned address, as
    // `memories` has checked.
    unsafe {
        let launch = launch(frame)?;
        let replica = replica(frame, &launch)?;
        match &memories(&(*frame).rets)?[..] {
            [TensorMemory { tensor: HostTensor { dtype: DType::U32, dims }, data }]
                if dims.is_empty() =>
            {
                data.cast::<u32>().write(replica as u32);
                Ok(())
            }
            results => Err(format!("a replica's number is a u32, not {} results", results.len())),
        }
    }
}

/// The launch that a call belongs to.
///
/// # Safety
/// As [`read`].
unsafe fn launch(frame: *mut CallFrame) -> Result<Arc<HostLaunch>, String> {
    // SAFETY: by this function's contract.
    unsafe {
        check_frame(frame)?;
        let id = run_id(&*(*frame).api, (*frame).ctx)?;
        let launch = HostLaunch::of_id(id);
        launch.ok_or_else(|| format!("there is no launch {id} with host collectives"))
    }
}

/// # Safety
/// As [`read`].
unsafe fn check_frame(frame: *mut CallFrame) -> Result<(), String> {
    // SAFETY: by this function's contract.
    let (size, api_size, stage) =
        unsafe { ((*frame).struct_size, (*(*frame).api).struct_size, (*frame).stage) };
    if size < abi::size::CALL_FRAME || api_size < abi::size::API {
        return Err("the plugin's FFI is older than this program supports".to_owned());
    }
    match stage {
        abi::EXECUTE => Ok(()),
        other => Err(format!("called in stage {other}")),
    }
}

/// Reads a call of a kernel, and checks everything that its memory safety rests on.
///
/// # Errors
/// A frame of another form.
///
/// # Safety
/// `frame` must be a valid frame in the stage of execution. The call must not outlive it.
pub(super) unsafe fn read_kernel<'c>(frame: *mut CallFrame) -> Result<KernelCall<'c>, String> {
    // SAFETY: by this function's contract: arrays have as many elements as the frame says, each of
    // its type. The memory of operands and results is valid during the call, and nobody else writes
    // it.
    unsafe {
        check_frame(frame)?;
        let kernel = attributes(&(*frame).attrs)?.kernel()?;
        let operands = memories(&(*frame).args)?;
        let results = memories(&(*frame).rets)?;
        check_disjoint(&operands, &results)?;
        let workers = Workers::new((*frame).api, (*frame).ctx);
        Ok(KernelCall::new(kernel, operands, results, workers))
    }
}

/// XLA's ordinal of the device that calls, if it says.
///
/// # Safety
/// `frame` must be a valid frame in the stage of execution.
pub(super) unsafe fn device_of(frame: *mut CallFrame) -> Option<i32> {
    // SAFETY: by this function's contract.
    unsafe { device_ordinal(&*(*frame).api, (*frame).ctx).ok() }
}

/// The replica that calls.
///
/// # Safety
/// As [`read`].
unsafe fn replica(frame: *mut CallFrame, launch: &HostLaunch) -> Result<usize, String> {
    // SAFETY: by this function's contract.
    let ordinal = unsafe { device_ordinal(&*(*frame).api, (*frame).ctx) }?;
    let replica = launch.replica_on(ordinal);
    replica.ok_or_else(|| format!("no replica of the launch is on device {ordinal}"))
}

/// # Safety
/// As [`read`].
unsafe fn read_call(frame: *mut CallFrame, launch: &Arc<HostLaunch>) -> Result<HostCall, String> {
    // SAFETY: by this function's contract: arrays have as many elements as the frame says, each of
    // its type.
    unsafe {
        let api = (*frame).api;
        let replica = replica(frame, launch)?;
        let site = attributes(&(*frame).attrs)?.site()?;
        let operands = memories(&(*frame).args)?;
        let results = memories(&(*frame).rets)?;
        check_disjoint(&operands, &results)?;
        let future = create_future(&*api)?;
        (*frame).future = future;
        let pending = PendingCall { api, future };
        Ok(HostCall::new(launch.clone(), replica, site, operands, results, pending))
    }
}

/// Result memory must not overlap any other: it is written while operands are read.
fn check_disjoint(operands: &[TensorMemory], results: &[TensorMemory]) -> Result<(), String> {
    let range = |memory: &TensorMemory| {
        let from = memory.data as usize;
        from..from + memory.tensor.num_bytes()
    };
    let overlap = |a: &TensorMemory, b: &TensorMemory| {
        range(a).start < range(b).end && range(b).start < range(a).end
    };
    for (index, result) in results.iter().enumerate() {
        let mut others = operands.iter().chain(&results[..index]);
        if others.any(|other| overlap(result, other)) {
            return Err(format!("result {index} shares memory with another buffer"));
        }
    }
    Ok(())
}

/// # Safety
/// `buffers` must be part of a valid frame.
unsafe fn memories(buffers: &abi::BufferList) -> Result<Vec<TensorMemory>, String> {
    let size = usize::try_from(buffers.size).map_err(|_| "a negative number of buffers")?;
    // SAFETY: by this function's contract.
    let (types, buffers) = unsafe { (slice(buffers.types, size), slice(buffers.buffers, size)) };
    if types.iter().any(|ty| *ty != abi::BUFFER) {
        return Err("an operand or result is not a buffer".to_owned());
    }
    // SAFETY: by this function's contract, buffers are live.
    buffers.iter().map(|buffer| unsafe { memory(&**buffer) }).collect()
}

/// # Safety
/// `buffer` must be part of a valid frame.
unsafe fn memory(buffer: &Buffer) -> Result<TensorMemory, String> {
    let rank = usize::try_from(buffer.rank).map_err(|_| "a negative rank")?;
    // SAFETY: by this function's contract.
    let dims = unsafe { slice(buffer.dims, rank) };
    let dims: Option<Vec<usize>> = dims.iter().map(|dim| usize::try_from(*dim).ok()).collect();
    let dims = dims.ok_or("a dim is negative")?;
    let Some(dtype) = dtype_of(buffer.dtype) else {
        return Err(format!("element type {} of XLA's FFI is not supported", buffer.dtype));
    };
    let num_bytes = dims.iter().try_fold(dtype.size_bytes(), |bytes, dim| bytes.checked_mul(*dim));
    if num_bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(format!("{dtype}{dims:?} does not fit the memory"));
    }
    let tensor = HostTensor { dtype, dims };
    let is_empty = tensor.num_bytes() == 0;
    let data = buffer.data.cast::<u8>();
    if !is_empty && (data.is_null() || !data.addr().is_multiple_of(dtype.size_bytes())) {
        return Err(format!("a buffer is at address {data:?}"));
    }
    Ok(TensorMemory { tensor, data })
}

/// The dtype with this number in `XLA_FFI_DataType`, which are not all PJRT's.
fn dtype_of(raw: i32) -> Option<DType> {
    Some(match raw {
        1 => DType::Pred,
        2 => DType::I8,
        4 => DType::I32,
        5 => DType::I64,
        6 => DType::U8,
        8 => DType::U32,
        9 => DType::U64,
        10 => DType::F16,
        11 => DType::F32,
        12 => DType::F64,
        16 => DType::Bf16,
        _ => return None,
    })
}

/// # Safety
/// `attrs` must be part of a valid frame.
unsafe fn attributes(attrs: &abi::Attrs) -> Result<Attributes, String> {
    let size = usize::try_from(attrs.size).map_err(|_| "a negative number of attributes")?;
    let mut found = Vec::with_capacity(size);
    // SAFETY: by this function's contract: names are byte spans, and each value is of the type that
    // goes with it.
    unsafe {
        let (types, names) = (slice(attrs.types, size), slice(attrs.names, size));
        for ((ty, name), value) in types.iter().zip(names).zip(slice(attrs.attrs, size)) {
            let name = text(&**name);
            let value = match *ty {
                attribute::SCALAR => {
                    let scalar = &*value.cast::<abi::Scalar>();
                    is_s64(scalar.dtype, &name)?;
                    Attribute::Integer(*scalar.value.cast::<i64>())
                }
                attribute::ARRAY => {
                    let array = &*value.cast::<abi::Array>();
                    is_s64(array.dtype, &name)?;
                    Attribute::Integers(slice(array.data.cast::<i64>(), array.size).to_vec())
                }
                attribute::STRING => Attribute::Text(text(&*value.cast::<abi::ByteSpan>())),
                other => return Err(format!("attribute {name} is of type {other}")),
            };
            found.push((name, value));
        }
    }
    Ok(Attributes(found))
}

fn is_s64(dtype: i32, name: &str) -> Result<(), String> {
    match dtype {
        abi::S64 => Ok(()),
        other => Err(format!("attribute {name} has elements of type {other}, not i64")),
    }
}

/// # Safety
/// `span` must be part of a valid frame.
unsafe fn text(span: &abi::ByteSpan) -> String {
    // SAFETY: by this function's contract.
    String::from_utf8_lossy(unsafe { slice(span.ptr, span.len) }).into_owned()
}

/// # Safety
/// `api` and `ctx` must be those of a valid frame.
unsafe fn run_id(api: &Api, ctx: *mut c_void) -> Result<i64, String> {
    let mut args = abi::RunIdArgs {
        struct_size: abi::size::RUN_ID,
        extension_start: ptr::null_mut(),
        ctx,
        run_id: 0,
    };
    let get = api.RunId_Get.ok_or("RunId_Get is missing")?;
    // SAFETY: by this function's contract.
    unsafe { check(api, get(&raw mut args), "RunId_Get") }?;
    Ok(args.run_id)
}

/// # Safety
/// `api` and `ctx` must be those of a valid frame.
unsafe fn device_ordinal(api: &Api, ctx: *mut c_void) -> Result<i32, String> {
    let mut args = abi::DeviceOrdinalArgs {
        struct_size: abi::size::DEVICE_ORDINAL,
        extension_start: ptr::null_mut(),
        ctx,
        device_ordinal: -1,
    };
    let get = api.DeviceOrdinal_Get.ok_or("DeviceOrdinal_Get is missing")?;
    // SAFETY: by this function's contract.
    unsafe { check(api, get(&raw mut args), "DeviceOrdinal_Get") }?;
    Ok(args.device_ordinal)
}

/// # Safety
/// `api` must be that of a valid frame.
unsafe fn create_future(api: &Api) -> Result<*mut abi::Future, String> {
    if api.Future_SetAvailable.is_none() || api.Future_SetError.is_none() {
        return Err("the functions that complete a future are missing".to_owned());
    }
    let mut args = abi::FutureArgs {
        struct_size: abi::size::FUTURE_CREATE,
        extension_start: ptr::null_mut(),
        future: ptr::null_mut(),
    };
    let create = api.Future_Create.ok_or("Future_Create is missing")?;
    // SAFETY: by this function's contract.
    unsafe { check(api, create(&raw mut args), "Future_Create") }?;
    match args.future.is_null() {
        true => Err("Future_Create returned null".to_owned()),
        false => Ok(args.future),
    }
}

/// Converts the return value of a function to a result, and frees the error object.
///
/// # Safety
/// `error` must be null or a live error of `api`.
pub(super) unsafe fn check(api: &Api, error: *mut FfiError, name: &str) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    let mut args = abi::ErrorDestroyArgs {
        struct_size: abi::size::ERROR_DESTROY,
        extension_start: ptr::null_mut(),
        error,
    };
    if let Some(destroy) = api.Error_Destroy {
        // SAFETY: by this function's contract; it is not used afterwards.
        unsafe { destroy(&raw mut args) };
    }
    Err(format!("{name} failed"))
}

/// An error object with a message, for a handler to return or a future to be completed with.
///
/// # Panics
/// Without the function that makes one, which aborts the process in a function that XLA calls. Null
/// would mean success.
///
/// # Safety
/// `api` must be that of a frame.
pub(super) unsafe fn error(api: *const Api, message: &str) -> *mut FfiError {
    let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
    let mut args = abi::ErrorCreateArgs {
        struct_size: abi::size::ERROR_CREATE,
        extension_start: ptr::null_mut(),
        message: message.as_ptr(),
        code: abi::INTERNAL,
    };
    // SAFETY: by this function's contract; the function copies the message.
    unsafe {
        let Some(create) = (*api).Error_Create else {
            panic!("cannot report to XLA that a collective failed: {message:?}");
        };
        create(&raw mut args)
    }
}

/// Completes a future.
///
/// # Safety
/// `api` must be that of a frame, and `future` live. It must not be used afterwards.
pub(super) unsafe fn finish(api: *const Api, future: *mut abi::Future, result: Result<(), &str>) {
    // SAFETY: by this function's contract. XLA takes ownership of the error. `create_future` has
    // checked that both functions exist. Neither fails on arguments of the right size.
    unsafe {
        match result {
            Ok(()) => {
                let mut args = abi::FutureArgs {
                    struct_size: abi::size::FUTURE_SET_AVAILABLE,
                    extension_start: ptr::null_mut(),
                    future,
                };
                if let Some(set) = (*api).Future_SetAvailable {
                    let _ = check(&*api, set(&raw mut args), "Future_SetAvailable");
                }
            }
            Err(reason) => {
                let mut args = abi::FutureSetErrorArgs {
                    struct_size: abi::size::FUTURE_SET_ERROR,
                    extension_start: ptr::null_mut(),
                    future,
                    error: error(api, reason),
                };
                if let Some(set) = (*api).Future_SetError {
                    let _ = check(&*api, set(&raw mut args), "Future_SetError");
                }
            }
        }
    }
}
