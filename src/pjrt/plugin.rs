//! A plugin: a shared library with a compiler and a runtime for one kind of device.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Mutex;

use super::abi::{self, *};
use super::install::{check_before_load, check_library_to_load, explain_load_failure};
use super::value::{self, string};
use super::{Code, Error, Result, Value, environment};

/// A handle of a loaded and initialised plugin. Plugins stay loaded until the process ends.
#[derive(Clone, Copy)]
pub struct Plugin(&'static Loaded);

struct Loaded {
    path: PathBuf,
    api: PJRT_Api,
    version: (i32, i32),
    extensions: Vec<i32>,
    attributes: BTreeMap<String, Value>,
}

// SAFETY: the function pointers of the API may be called from any thread, and `api` is never
// written after it was filled in. Its raw pointers are to static data of a library that is never
// unloaded.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// The plugins of this process by canonical path: a library must be initialised only once.
static LOADED: Mutex<Option<HashMap<PathBuf, Plugin>>> = Mutex::new(None);

impl Plugin {
    /// Loads the shared library at `path` and initialises it. The same file gives the same plugin.
    ///
    /// # Errors
    /// If the file cannot be read, is not a complete shared library for this processor, has been
    /// changed since this program installed it ([`super::InstallError::Damaged`], by sizes and
    /// times of all files of the plugin), has no `GetPjrtApi`, has another major version of the C
    /// API, or would abort on a flag in `XLA_FLAGS`.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let given = path.as_ref();
        let path = given
            .canonicalize()
            .map_err(|source| Error::UnreadablePlugin { path: given.to_path_buf(), source })?;
        let mut loaded = LOADED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let loaded = loaded.get_or_insert_default();
        if let Some(plugin) = loaded.get(&path) {
            return Ok(*plugin);
        }
        check_before_load(&path)?;
        check_library_to_load(&path)?;
        environment::prepare(&path, loaded.is_empty())?;
        let plugin = load_library(&path).map_err(|error| explain_load_failure(&path, error))?;
        loaded.insert(path, plugin);
        Ok(plugin)
    }

    /// The canonical path of the library.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Major and minor version of the PJRT C API that the plugin was built with.
    pub fn api_version(&self) -> (i32, i32) {
        self.0.version
    }

    /// The plugin's extensions as numbers of `PJRT_Extension_Type`.
    pub fn extensions(&self) -> &[i32] {
        &self.0.extensions
    }

    /// The plugin's attributes: `xla_version`, `stablehlo_current_version` and so on.
    pub fn attributes(&self) -> &BTreeMap<String, Value> {
        &self.0.attributes
    }

    /// The plugin's extension of a type. It is static and begins as [`PJRT_Extension_Base`] does.
    pub(super) fn extension(&self, wanted: i32) -> Option<*mut PJRT_Extension_Base> {
        let mut next = self.0.api.extension_start;
        while !next.is_null() {
            // SAFETY: the chain consists of static objects that begin as PJRT_Extension_Base does.
            let extension = unsafe { &*next };
            if extension.r#type == wanted {
                return Some(next);
            }
            next = extension.next;
        }
        None
    }

    pub(super) fn api(&self) -> &'static PJRT_Api {
        &self.0.api
    }

    /// Converts the return value of a call to a result and frees the error object.
    pub(super) fn check(&self, call: &'static str, error: *mut PJRT_Error) -> Result<()> {
        if error.is_null() { Ok(()) } else { Err(take_error(self.api(), call, error)) }
    }
}

/// Calls `$function` of the plugin's API with `&mut $args` and returns a `Result<()>`. Must be used
/// in an unsafe block: every pointer in the arguments must be valid for that function.
macro_rules! call {
    ($plugin:expr, $function:ident, $args:expr) => {{
        let plugin: &$crate::pjrt::Plugin = &$plugin;
        match plugin.api().$function {
            Some(function) => plugin.check(stringify!($function), function(&mut $args)),
            None => Err($crate::pjrt::Error::NoSuchCall { call: stringify!($function) }),
        }
    }};
}
pub(super) use call;

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin")
            .field("path", &self.path())
            .field("api", &self.api_version())
            .finish()
    }
}

fn take_error(api: &PJRT_Api, call: &'static str, error: *mut PJRT_Error) -> Error {
    let mut code = PJRT_Error_GetCode_Args { error, ..PJRT_Error_GetCode_Args::new() };
    let mut message = PJRT_Error_Message_Args { error, ..PJRT_Error_Message_Args::new() };
    let mut destroy = PJRT_Error_Destroy_Args { error, ..PJRT_Error_Destroy_Args::new() };
    let mut text = String::new();
    // SAFETY: `error` is a live error object that this function owns; the message is copied before
    // the object is destroyed, and it is not used afterwards.
    unsafe {
        if let Some(function) = api.PJRT_Error_GetCode {
            function(&mut code);
        }
        if let Some(function) = api.PJRT_Error_Message {
            function(&mut message);
            text = string(message.message, message.message_size);
        }
        if let Some(function) = api.PJRT_Error_Destroy {
            function(&mut destroy);
        }
    }
    Error::Pjrt { call, code: Code::from_raw(code.code), message: text }
}

fn load_library(path: &Path) -> Result<Plugin> {
    let not_a_plugin = |reason: String| Error::NotAPlugin { path: path.to_path_buf(), reason };
    // SAFETY: loading runs the library's initialisers. That this file may run its code in this
    // process is what naming it as a plugin means; nothing better can be checked.
    let library = unsafe { libloading::Library::new(path) }
        .map_err(|error| not_a_plugin(error.to_string()))?;
    // Never unloaded, also if it is no plugin: its threads, and objects with destructors, outlive
    // any scope here.
    let library = ManuallyDrop::new(library);
    // SAFETY: every PJRT plugin exports this symbol with this type.
    let get_api =
        unsafe { library.get::<unsafe extern "C" fn() -> *const PJRT_Api>(b"GetPjrtApi\0") }
            .map_err(|_| not_a_plugin("it has no function GetPjrtApi".into()))?;
    // SAFETY: the function takes nothing and returns null or static data.
    let raw = unsafe { get_api() };
    if raw.is_null() {
        return Err(not_a_plugin("GetPjrtApi returned null".into()));
    }
    let mut api = PJRT_Api::new();
    // SAFETY: the table begins with its own size in bytes. Copying no more than that, and no more
    // than we know, leaves functions that an older plugin lacks as `None`.
    unsafe {
        let size = (*raw).struct_size.min(size_of::<PJRT_Api>());
        ptr::copy_nonoverlapping(raw.cast::<u8>(), (&raw mut api).cast::<u8>(), size);
    }
    let version = (api.pjrt_api_version.major_version, api.pjrt_api_version.minor_version);
    if version.0 != abi::API_MAJOR {
        return Err(Error::IncompatibleAbi {
            path: path.to_path_buf(),
            major: version.0,
            minor: version.1,
        });
    }
    let mut extensions = Vec::new();
    let mut next = api.extension_start;
    while !next.is_null() {
        // SAFETY: the chain consists of static objects that begin as PJRT_Extension_Base does.
        let extension = unsafe { &*next };
        extensions.push(extension.r#type);
        next = extension.next;
    }
    let mut loaded =
        Loaded { path: path.to_path_buf(), api, version, extensions, attributes: BTreeMap::new() };
    initialise(&mut loaded)?;
    Ok(Plugin(Box::leak(Box::new(loaded))))
}

fn initialise(loaded: &mut Loaded) -> Result<()> {
    let check = |call, error: *mut PJRT_Error| {
        if error.is_null() { Ok(()) } else { Err(take_error(&loaded.api, call, error)) }
    };
    if let Some(initialize) = loaded.api.PJRT_Plugin_Initialize {
        // SAFETY: called once per library, before any other function of it.
        let error = unsafe { initialize(&mut PJRT_Plugin_Initialize_Args::new()) };
        check("PJRT_Plugin_Initialize", error)?;
    }
    if let Some(attributes) = loaded.api.PJRT_Plugin_Attributes {
        let mut args = PJRT_Plugin_Attributes_Args::new();
        // SAFETY: the plugin is initialised; the arguments are out parameters.
        check("PJRT_Plugin_Attributes", unsafe { attributes(&mut args) })?;
        // SAFETY: the plugin filled in an array of that many named values.
        loaded.attributes = unsafe { value::read_all(args.attributes, args.num_attributes) };
    }
    Ok(())
}
