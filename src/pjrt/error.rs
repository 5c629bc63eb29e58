//! Errors of loading plugins, compiling, moving data and executing.

use std::fmt;
use std::path::PathBuf;

use hlo::{DType, counted};

use super::{InstallError, Placement};

/// Result of this module's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure of loading a plugin, compiling, moving data or executing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The plugin reported a failure.
    #[error("{call}: {code}: {message}")]
    Pjrt {
        /// The function of the C API.
        call: &'static str,
        /// PJRT's error code.
        code: Code,
        /// The plugin's message.
        message: String,
    },
    /// One replica of a launch failed.
    #[error("replica {replica} failed: {source}")]
    Replica {
        /// The replica's number in the program, over all processes.
        replica: usize,
        /// The device's error.
        source: Box<Error>,
    },
    /// The plugin does not have a function of the API.
    #[error("the plugin has no {call}; it needs a newer version of the plugin")]
    NoSuchCall {
        /// The function of the C API.
        call: &'static str,
    },

    /// The file cannot be read.
    #[error("cannot read the plugin {path}: {source}")]
    UnreadablePlugin {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file is not a PJRT plugin.
    #[error(
        "{path} is not a PJRT plugin: {reason}. Give the path of a plugin's .so file, or a name \
         (cpu, cuda, tpu) that `lockstep plugin install` knows"
    )]
    NotAPlugin {
        /// The file.
        path: PathBuf,
        /// The problem with it.
        reason: String,
    },
    /// The plugin's file is truncated: loading it would end the process.
    #[error(
        "{path} is cut off (bytes missing: at least {missing}); copy it again, or give the name of \
         a plugin that `lockstep plugin install` knows (cpu, cuda, tpu)"
    )]
    IncompletePlugin {
        /// The file.
        path: PathBuf,
        /// Missing bytes at least, according to its header.
        missing: u64,
    },
    /// The plugin is a shared library for another processor.
    #[error(
        "{path} is built for {found}, but this machine is {host}; install the plugin again on this \
         machine"
    )]
    WrongArchitecture {
        /// The file.
        path: PathBuf,
        /// The processor that it is for.
        found: String,
        /// The processor of this machine.
        host: &'static str,
    },
    /// The plugin has another major version of the C API.
    #[error(
        "{path} has PJRT C API {major}.{minor}, but this program supports {}.x; use another \
         version of the plugin",
        super::abi::API_MAJOR
    )]
    IncompatibleAbi {
        /// The file.
        path: PathBuf,
        /// The plugin's major version.
        major: i32,
        /// The plugin's minor version.
        minor: i32,
    },
    /// `XLA_FLAGS` has a flag that XLA does not know and would abort on.
    #[error(
        "XLA_FLAGS holds {flag}, which {path} does not know and would abort on; remove it from \
         XLA_FLAGS, or from the file that it names"
    )]
    UnknownXlaFlag {
        /// The flag as given in the environment.
        flag: String,
        /// The plugin.
        path: PathBuf,
    },
    /// `XLA_FLAGS` does not begin with a dash and so names a file, which is unreadable. XLA would
    /// abort.
    #[error(
        "XLA_FLAGS names the file {path}, which cannot be read: {source}; flags themselves begin \
         with --"
    )]
    UnreadableXlaFlags {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file is not an NCCL library.
    #[error(
        "{path} is not an NCCL library that can be loaded: {reason}; `lockstep plugin install \
         cuda` installs one"
    )]
    NotNccl {
        /// The file.
        path: PathBuf,
        /// The problem with it.
        reason: String,
    },
    /// A value that a compile option cannot have.
    #[error("compile option {name}: {reason}")]
    CompileOption {
        /// The option.
        name: String,
        /// The allowed values.
        reason: String,
    },
    /// A client option that the plugin would ignore or abort on.
    #[error("client option {name}: {reason}")]
    ClientOption {
        /// The option's name.
        name: String,
        /// The problem with it.
        reason: String,
    },

    /// The program needs more devices than the client has.
    #[error(
        "the program runs on {}, but the client has {}; make the mesh smaller or the client larger",
        counted(*needed, "replica"), counted(*available, "device")
    )]
    TooFewDevices {
        /// Replicas of the program.
        needed: usize,
        /// Devices of the client, in all processes.
        available: usize,
    },
    /// A list of devices is not one distinct device of the client per replica, or has none of this
    /// process.
    #[error("device assignment {assignment:?}: {reason}")]
    DeviceAssignment {
        /// The device ids that were given.
        assignment: Vec<i32>,
        /// The problem with them.
        reason: String,
    },
    /// A compile option that needs more workers than the client has.
    #[error(
        "{option} needs more workers than this client of the CPU plugin has; make the client with \
         Client::cpu_with and CpuWaits::XnnFusions, or leave the option out"
    )]
    TooFewWorkers {
        /// The option's name.
        option: &'static str,
    },
    /// A program's text does not have the declared signature.
    #[error("the program's text does not agree with its declared {what}: {reason}")]
    SignatureMismatch {
        /// `inputs`, `outputs` or `replicas`.
        what: &'static str,
        /// How they differ.
        reason: String,
    },
    /// A program that would abort the process, or in which replicas would differ.
    #[error("the program cannot be compiled: {reason}")]
    ForbiddenProgram {
        /// The problem with it.
        reason: String,
    },
    /// A program cannot call functions of this process.
    #[error("calls of this process: {reason}")]
    HostCalls {
        /// Why not.
        reason: String,
    },
    /// Bytes that are not a serialized executable, or one of another program.
    #[error("cannot load the serialized executable: {reason}")]
    Serialized {
        /// The problem with them.
        reason: String,
    },

    /// Wrong number of arguments for an executable.
    #[error("the executable takes {expected} arguments, but {found} were given")]
    ArgumentCount {
        /// Inputs of the program.
        expected: usize,
        /// Arguments given.
        found: usize,
    },
    /// An argument of the wrong dtype or shape.
    #[error(
        "argument {index} ({name}) must be {expected_dtype}{expected_dims:?}, but is \
         {dtype}{dims:?}"
    )]
    ArgumentType {
        /// Position among the arguments.
        index: usize,
        /// Path of the leaf.
        name: String,
        /// The program's dtype.
        expected_dtype: DType,
        /// The program's dims, on one replica.
        expected_dims: Vec<usize>,
        /// The argument's dtype.
        dtype: DType,
        /// The argument's dims.
        dims: Vec<usize>,
    },
    /// An argument on other devices than those the executable runs on.
    #[error(
        "argument {index} ({name}) is on devices {found:?}, but the executable runs on {expected:?}"
    )]
    ArgumentDevices {
        /// Position among the arguments.
        index: usize,
        /// Path of the leaf.
        name: String,
        /// The executable's devices.
        expected: Placement,
        /// The argument's devices.
        found: Placement,
    },
    /// An argument that belongs to another client.
    #[error(
        "argument {index} ({name}) belongs to another client; upload it through this executable's \
         client"
    )]
    ArgumentClient {
        /// Position among the arguments.
        index: usize,
        /// Path of the leaf.
        name: String,
    },
    /// Literals uploaded together must be one per device, all with the same dtype and shape.
    #[error("cannot upload: {reason}")]
    Upload {
        /// The problem with the literals.
        reason: String,
    },
    /// There is no such replica.
    #[error("replica {replica} was asked for, but the value has {num_replicas}")]
    NoSuchReplica {
        /// The index asked for.
        replica: usize,
        /// How many there are.
        num_replicas: usize,
    },
    /// The replica runs in another process.
    #[error("replica {replica} is in another process; this one has replicas {addressable:?}")]
    ReplicaElsewhere {
        /// The replica asked for.
        replica: usize,
        /// The replicas of this process.
        addressable: Vec<usize>,
    },

    /// A plugin could not be found or installed.
    #[error(transparent)]
    Install(#[from] InstallError),
}

impl Error {
    /// `true` if a device or the host had no memory left, by the code or, where a plugin reports
    /// that as an internal failure, by its words.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Pjrt { code: Code::ResourceExhausted, .. } => true,
            Self::Pjrt { message, .. } => {
                let message = message.to_lowercase();
                ["out of memory", "failed to allocate", "resource_exhausted"]
                    .iter()
                    .any(|words| message.contains(words))
            }
            Self::Replica { source, .. } => source.is_out_of_memory(),
            _ => false,
        }
    }
}

/// PJRT's error codes, which are those of Abseil's `Status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// The operation was cancelled.
    Cancelled,
    /// No further information.
    Unknown,
    /// An argument that is invalid regardless of the state of the system.
    InvalidArgument,
    /// Time ran out.
    DeadlineExceeded,
    /// A requested entity does not exist.
    NotFound,
    /// An entity to be created already exists.
    AlreadyExists,
    /// Not allowed.
    PermissionDenied,
    /// Out of memory or another resource.
    ResourceExhausted,
    /// The system is not in the state that the operation requires.
    FailedPrecondition,
    /// Stopped because of a conflict.
    Aborted,
    /// Past the valid range.
    OutOfRange,
    /// Not implemented by this plugin.
    Unimplemented,
    /// A broken invariant inside the plugin.
    Internal,
    /// The service cannot be reached now.
    Unavailable,
    /// Unrecoverable loss or corruption of data.
    DataLoss,
    /// No valid credentials.
    Unauthenticated,
    /// A number unknown to this version.
    Other(i32),
}

const CODES: [(Code, i32, &str); 16] = [
    (Code::Cancelled, 1, "CANCELLED"),
    (Code::Unknown, 2, "UNKNOWN"),
    (Code::InvalidArgument, 3, "INVALID_ARGUMENT"),
    (Code::DeadlineExceeded, 4, "DEADLINE_EXCEEDED"),
    (Code::NotFound, 5, "NOT_FOUND"),
    (Code::AlreadyExists, 6, "ALREADY_EXISTS"),
    (Code::PermissionDenied, 7, "PERMISSION_DENIED"),
    (Code::ResourceExhausted, 8, "RESOURCE_EXHAUSTED"),
    (Code::FailedPrecondition, 9, "FAILED_PRECONDITION"),
    (Code::Aborted, 10, "ABORTED"),
    (Code::OutOfRange, 11, "OUT_OF_RANGE"),
    (Code::Unimplemented, 12, "UNIMPLEMENTED"),
    (Code::Internal, 13, "INTERNAL"),
    (Code::Unavailable, 14, "UNAVAILABLE"),
    (Code::DataLoss, 15, "DATA_LOSS"),
    (Code::Unauthenticated, 16, "UNAUTHENTICATED"),
];

impl Code {
    /// The code with PJRT's number.
    pub fn from_raw(raw: i32) -> Self {
        CODES.iter().find(|row| row.1 == raw).map_or(Code::Other(raw), |row| row.0)
    }

    /// PJRT's number of the code.
    pub fn raw(self) -> i32 {
        match self {
            Code::Other(raw) => raw,
            code => CODES.iter().find(|row| row.0 == code).map_or(2, |row| row.1),
        }
    }
}

/// PJRT's name: `INVALID_ARGUMENT`.
impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match CODES.iter().find(|row| row.0 == *self) {
            Some(row) => f.write_str(row.2),
            None => write!(f, "error code {}", self.raw()),
        }
    }
}
