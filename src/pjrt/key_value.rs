//! The key-value store through which a plugin's instances in several processes find each other.

use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::Code;
use super::abi::*;
use super::value::slice;

/// A store that all processes of a job share. The plugin calls it from several threads.
pub trait KeyValueStore: Send + Sync {
    /// The value of `key`, waiting up to `timeout` for a process to set it.
    ///
    /// # Errors
    /// [`Code::DeadlineExceeded`] if none did.
    fn get(&self, key: &[u8], timeout: Duration) -> Result<Vec<u8>, KeyValueError>;

    /// The value of `key` if it is set.
    ///
    /// # Errors
    /// [`Code::NotFound`] if it is not.
    fn try_get(&self, key: &[u8]) -> Result<Vec<u8>, KeyValueError>;

    /// Sets the value of `key`.
    ///
    /// # Errors
    /// [`Code::AlreadyExists`] if the store does not overwrite.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), KeyValueError>;
}

/// An error of a [`KeyValueStore`], passed on to the plugin.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{code}: {message}")]
pub struct KeyValueError {
    /// The kind of error.
    pub code: Code,
    /// The cause.
    pub message: String,
}

/// Points the callbacks of `args` at the store, which must outlive the client made with them.
#[allow(clippy::borrowed_box, reason = "the plugin is given the address inside the box")]
pub(super) fn attach(store: &Box<Arc<dyn KeyValueStore>>, args: &mut PJRT_Client_Create_Args) {
    let user_arg = ptr::from_ref::<Arc<dyn KeyValueStore>>(store).cast_mut().cast();
    args.kv_get_callback = Some(get);
    args.kv_get_user_arg = user_arg;
    args.kv_try_get_callback = Some(try_get);
    args.kv_try_get_user_arg = user_arg;
    args.kv_put_callback = Some(put);
    args.kv_put_user_arg = user_arg;
}

unsafe extern "C" fn get(args: *mut PJRT_KeyValueGetCallback_Args) -> *mut PJRT_Error {
    // SAFETY: the plugin calls with valid arguments and the `user_arg` that `attach` gave it; the
    // store behind that outlives the client; the value goes to the plugin, which calls the deleter.
    unsafe {
        let args = &mut *args;
        let store = &*args.user_arg.cast::<Arc<dyn KeyValueStore>>();
        let key = slice(args.key.cast(), args.key_size);
        let timeout = Duration::from_millis(u64::try_from(args.timeout_in_ms).unwrap_or(0));
        match guarded(|| store.get(key, timeout)) {
            Ok(value) => {
                args.value_size = value.len();
                args.value = lend(&value);
                args.value_deleter_callback = Some(delete);
                ptr::null_mut()
            }
            Err(error) => report(args.callback_error, &error),
        }
    }
}

unsafe extern "C" fn try_get(args: *mut PJRT_KeyValueTryGetCallback_Args) -> *mut PJRT_Error {
    // SAFETY: as in `get`.
    unsafe {
        let args = &mut *args;
        let store = &*args.user_arg.cast::<Arc<dyn KeyValueStore>>();
        let key = slice(args.key.cast(), args.key_size);
        match guarded(|| store.try_get(key)) {
            Ok(value) => {
                args.value_size = value.len();
                args.value = lend(&value);
                args.value_deleter_callback = Some(delete);
                ptr::null_mut()
            }
            Err(error) => report(args.callback_error, &error),
        }
    }
}

unsafe extern "C" fn put(args: *mut PJRT_KeyValuePutCallback_Args) -> *mut PJRT_Error {
    // SAFETY: as in `get`; key and value are only read during the call.
    unsafe {
        let args = &*args;
        let store = &*args.user_arg.cast::<Arc<dyn KeyValueStore>>();
        let key = slice(args.key.cast(), args.key_size);
        let value = slice(args.value.cast(), args.value_size);
        match guarded(|| store.put(key, value)) {
            Ok(()) => ptr::null_mut(),
            Err(error) => report(args.callback_error, &error),
        }
    }
}

/// A panic must not unwind into the plugin.
fn guarded<T>(call: impl FnOnce() -> Result<T, KeyValueError>) -> Result<T, KeyValueError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        Err(KeyValueError { code: Code::Internal, message: "the key-value store panicked".into() })
    })
}

const LENGTH_BYTES: usize = size_of::<usize>();

/// A copy of `value` that [`delete`] frees. The deleter only gets the pointer, so the length is
/// stored in front of the value.
fn lend(value: &[u8]) -> *mut c_char {
    let mut block = Vec::with_capacity(LENGTH_BYTES + value.len());
    block.extend_from_slice(&value.len().to_ne_bytes());
    block.extend_from_slice(value);
    let block = Box::into_raw(block.into_boxed_slice()).cast::<u8>();
    // SAFETY: the block is at least this long.
    unsafe { block.add(LENGTH_BYTES).cast() }
}

unsafe extern "C" fn delete(value: *mut c_char) {
    // SAFETY: `value` was made by `lend` and is deleted once: in front of it stands its length.
    unsafe {
        let block = value.cast::<u8>().sub(LENGTH_BYTES);
        let length = usize::from_ne_bytes(block.cast::<[u8; LENGTH_BYTES]>().read());
        drop(Box::from_raw(ptr::slice_from_raw_parts_mut(block, LENGTH_BYTES + length)));
    }
}

/// Makes an error object of the plugin to return to it.
///
/// # Panics
/// Without a callback, which aborts the process in a function that the plugin calls. There is no
/// other way to make an error object, and null would mean success: the plugin would continue with a
/// missing value.
///
/// # Safety
/// `callback` must be null or point to the plugin's function that makes an error object.
unsafe fn report(callback: *const CallbackError, error: &KeyValueError) -> *mut PJRT_Error {
    assert!(
        !callback.is_null(),
        "cannot report to the plugin that a call of its key-value store failed: {error}"
    );
    // SAFETY: by this function's contract; the plugin copies the message.
    unsafe {
        (*callback)(error.code.raw() as c_int, error.message.as_ptr().cast(), error.message.len())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicI32, Ordering};

    use super::*;

    #[derive(Default)]
    struct InMemory(Mutex<HashMap<Vec<u8>, Vec<u8>>>);

    impl KeyValueStore for InMemory {
        fn get(&self, key: &[u8], _timeout: Duration) -> Result<Vec<u8>, KeyValueError> {
            self.try_get(key)
        }

        fn try_get(&self, key: &[u8]) -> Result<Vec<u8>, KeyValueError> {
            assert_ne!(key, b"panic");
            self.0.lock().unwrap().get(key).cloned().ok_or_else(|| KeyValueError {
                code: Code::NotFound,
                message: "no such key".into(),
            })
        }

        fn put(&self, key: &[u8], value: &[u8]) -> Result<(), KeyValueError> {
            self.0.lock().unwrap().insert(key.to_vec(), value.to_vec());
            Ok(())
        }
    }

    static REPORTED: AtomicI32 = AtomicI32::new(0);

    unsafe extern "C" fn record(code: c_int, _: *const c_char, _: usize) -> *mut PJRT_Error {
        REPORTED.store(code, Ordering::SeqCst);
        ptr::null_mut()
    }

    #[test]
    fn values_go_in_and_come_out_as_often_as_the_plugin_asks() {
        let store: Box<Arc<dyn KeyValueStore>> = Box::new(Arc::new(InMemory::default()));
        let mut create = PJRT_Client_Create_Args::new();
        attach(&store, &mut create);
        let callback_error: CallbackError = record;
        let (key, value) = ("key", "value\0with a zero");
        let mut put_args = PJRT_KeyValuePutCallback_Args {
            key: key.as_ptr().cast(),
            key_size: key.len(),
            value: value.as_ptr().cast(),
            value_size: value.len(),
            callback_error: &raw const callback_error,
            user_arg: create.kv_put_user_arg,
            ..PJRT_KeyValuePutCallback_Args::new()
        };
        // SAFETY: the arguments are valid, and the store lives to the end of the test.
        unsafe { put(&raw mut put_args) };
        for _ in 0..3 {
            let mut args = PJRT_KeyValueGetCallback_Args {
                key: key.as_ptr().cast(),
                key_size: key.len(),
                callback_error: &raw const callback_error,
                user_arg: create.kv_get_user_arg,
                ..PJRT_KeyValueGetCallback_Args::new()
            };
            // SAFETY: as above; the value is read before it is deleted, and deleted once.
            unsafe {
                assert!(get(&raw mut args).is_null());
                assert_eq!(slice(args.value.cast::<u8>(), args.value_size), value.as_bytes());
                args.value_deleter_callback.unwrap()(args.value);
            }
        }
        for (key, code) in [("absent", Code::NotFound), ("panic", Code::Internal)] {
            let mut args = PJRT_KeyValueTryGetCallback_Args {
                key: key.as_ptr().cast(),
                key_size: key.len(),
                callback_error: &raw const callback_error,
                user_arg: create.kv_try_get_user_arg,
                ..PJRT_KeyValueTryGetCallback_Args::new()
            };
            // SAFETY: as above.
            unsafe { try_get(&raw mut args) };
            assert_eq!(REPORTED.load(Ordering::SeqCst), code.raw());
        }
    }

    #[test]
    #[should_panic(expected = "failed: NOT_FOUND: no such key")]
    fn a_failure_that_cannot_be_reported_is_no_success() {
        let error = KeyValueError { code: Code::NotFound, message: "no such key".into() };
        // SAFETY: null is allowed.
        unsafe { report(ptr::null(), &error) };
    }
}
