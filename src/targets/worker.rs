//! Compiling in a child process: compilers abort the process on some topologies, and a plugin that
//! was loaded only to compile for absent hardware cannot be unloaded.
//!
//! The parent writes `request.json` and `program.mlir` into a directory and runs its own binary on
//! it. The child writes `answer.json`, the optimised program and the serialized executable, or
//! `error.txt`. If the compiler aborted there is neither, and the last lines on stderr say why.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use hlo::{Mesh, MeshSizes, Program};

use super::{Chip, Family, Target};
use crate::children;
use crate::cluster::{PlacedDevice, device_order};
use crate::pjrt::{
    self, CompileOptions, CompiledMemory, InstallError, InstallOptions, OverrideValue, Plugin,
    Topology, Value,
};

const REQUEST: &str = "request.json";
const PROGRAM: &str = "program.mlir";
const ANSWER: &str = "answer.json";
const ERROR: &str = "error.txt";
const OPTIMIZED: &str = "optimized.pb";
const EXECUTABLE: &str = "executable.bin";

/// How the names of the directories begin, for a program and for devices.
const PREFIXES: [&str; 2] = ["lockstep-compile-", "lockstep-describe-"];

/// Keeps the TPU plugin from querying the cloud's metadata server, from detecting chips, and from
/// insisting on being the only process that has it loaded.
const TPU_ENVIRONMENT: [(&str, &str); 4] = [
    ("TPU_SKIP_MDS_QUERY", "1"),
    ("TPU_ACCELERATOR_TYPE", "v5litepod-8"),
    ("TPU_WORKER_HOSTNAMES", "localhost"),
    ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1"),
];

/// A request to compile, without the program's text.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// The plugin's library.
    pub plugin: PathBuf,
    /// The topology's name in the plugin's format.
    pub topology: String,
    /// Its options.
    pub topology_options: Vec<(String, Value)>,
    /// The sizes of the mesh's axes: [`Mesh::sizes`].
    pub mesh: MeshSizes,
    /// XLA options by name.
    pub overrides: BTreeMap<String, OverrideValue>,
}

/// The result of a compilation, without its files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// The device of each replica.
    pub devices: Vec<PlacedDevice>,
    /// The plugin's memory analysis.
    pub memory: CompiledMemory,
    /// Bytes of a device's memory that programs may use, if the plugin says so.
    pub limit_bytes: Option<u64>,
}

/// A result with its files.
#[derive(Debug)]
pub struct Compilation {
    /// The result.
    pub answer: Answer,
    /// The optimised program, a wrapped `HloModuleProto` of XLA.
    pub optimized: Vec<u8>,
    /// The serialized executable, for [`pjrt::Client::deserialize`].
    pub executable: Vec<u8>,
}

/// Why a compilation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// There is no plugin.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// A file for the child process could not be written or read.
    #[error(
        "cannot hand the program to the compiler: {source}; is there room for temporary files?"
    )]
    Files {
        /// The system's reason.
        #[from]
        source: io::Error,
    },
    /// The compiler reported an error.
    #[error("{message}")]
    Compiler {
        /// Its message.
        message: String,
    },
    /// The compiler aborted the process.
    #[error(
        "the compiler ended with {status} instead of an error, which it does on topologies or \
         options that it cannot compile for; its last output:\n{last_lines}"
    )]
    Aborted {
        /// How the process ended.
        status: ExitStatus,
        /// The end of its output on stderr.
        last_lines: String,
    },
    /// NVIDIA's assembler or device library is missing.
    #[error(
        "{} is missing; `lockstep plugin install cuda-compiler` installs it, or set its directory \
         with --set compile.overrides.xla_gpu_cuda_data_dir=DIR", path.display()
    )]
    NoCudaTool {
        /// The file.
        path: PathBuf,
    },
    /// The child's files cannot be parsed.
    #[error("the result of the compiling process cannot be read: {reason}")]
    Answer {
        /// The problem.
        reason: String,
    },
}

/// Compiles a program in a child process, `binary compile-worker DIR`.
///
/// # Errors
/// See [`WorkerError`].
pub fn compile(
    binary: &Path,
    request: &Request,
    program: &Program,
) -> Result<Compilation, WorkerError> {
    let dir = tempfile::Builder::new().prefix(PREFIXES[0]).tempdir()?;
    fs::write(dir.path().join(PROGRAM), &program.text)?;
    let answer = ask(binary, request, dir.path())?;
    Ok(Compilation {
        answer,
        optimized: fs::read(dir.path().join(OPTIMIZED))?,
        executable: fs::read(dir.path().join(EXECUTABLE))?,
    })
}

/// The devices of a target in the order of the replicas of a mesh, as its plugin describes them.
///
/// # Errors
/// See [`WorkerError`].
pub fn devices(
    binary: &Path,
    target: &Target,
    mesh: &Mesh,
) -> Result<Vec<PlacedDevice>, WorkerError> {
    let (topology, topology_options) = target.topology();
    let request = Request {
        plugin: find_plugin(target.plugins())?,
        topology,
        topology_options,
        mesh: mesh.sizes(),
        overrides: BTreeMap::new(),
    };
    let dir = tempfile::Builder::new().prefix(PREFIXES[1]).tempdir()?;
    Ok(ask(binary, &request, dir.path())?.devices)
}

/// Runs the child on a directory that holds the program, if there is one.
fn ask(binary: &Path, request: &Request, dir: &Path) -> Result<Answer, WorkerError> {
    let path = |name: &str| dir.join(name);
    fs::write(path(REQUEST), serde_json::to_vec(request).map_err(io::Error::other)?)?;
    let mut command = Command::new(binary);
    command.arg(COMMAND).arg(dir).stdout(Stdio::null()).stderr(Stdio::piped());
    without_hardware(&mut command);
    let output = children::output(&mut command)?;
    if path(ANSWER).is_file() {
        return read_json(&path(ANSWER));
    }
    if let Ok(message) = fs::read_to_string(path(ERROR)) {
        return Err(WorkerError::Compiler { message });
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(WorkerError::Aborted { status: output.status, last_lines: last_words(&said) })
}

/// Prepares a child process that loads a plugin on a machine without its hardware. Variables that
/// the user has set are kept.
pub fn without_hardware(command: &mut Command) {
    for (name, value) in TPU_ENVIRONMENT {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
}

/// The name of the hidden command that [`compile`] runs.
pub const COMMAND: &str = "compile-worker";

/// Serves a request in the child process. Failures are written to a file for the parent. If the
/// parent ends before, so does this process, and removes the directory, which the parent would have
/// removed.
///
/// # Errors
/// If that file cannot be written.
pub fn serve(dir: &Path) -> io::Result<()> {
    let of_parent = dir.to_owned();
    children::end_with_parent(move || {
        let name = of_parent.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| PREFIXES.iter().any(|prefix| name.starts_with(prefix))) {
            // The system may be cleaning up already.
            let _ = fs::remove_dir_all(&of_parent);
        }
    });
    match answer(dir) {
        Ok(()) => Ok(()),
        Err(error) => fs::write(dir.join(ERROR), error.to_string()),
    }
}

fn answer(dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let request: Request = read_json(&dir.join(REQUEST))?;
    let plugin = Plugin::load(&request.plugin)?;
    let options: Vec<(&str, Value)> = request
        .topology_options
        .iter()
        .map(|(name, value)| (name.as_str(), value.clone()))
        .collect();
    let topology = Topology::new(&plugin, &request.topology, &options)?;
    let mesh = Mesh::from(request.mesh);
    let num_replicas = mesh.num_replicas();
    let mut devices = device_order(topology.devices(), &mesh);
    devices.truncate(num_replicas);
    let mut memory = CompiledMemory::default();
    if dir.join(PROGRAM).is_file() {
        let text = fs::read_to_string(dir.join(PROGRAM))?;
        let program =
            Program { text, num_replicas, num_processes: 1, inputs: vec![], outputs: vec![] };
        let options = CompileOptions {
            device_assignment: Some(devices.iter().map(|device| device.id).collect()),
            overrides: request.overrides,
        };
        let compiled = topology.compile(&program, &options)?;
        memory = compiled.memory()?;
        fs::write(dir.join(OPTIMIZED), compiled.optimized_program()?.1)?;
        fs::write(dir.join(EXECUTABLE), compiled.serialize()?)?;
    }
    let limit = topology.devices().first().and_then(|device| {
        match device.attributes.get("device_memory_bytes_limit") {
            Some(Value::Int64(bytes)) => u64::try_from(*bytes).ok(),
            _ => None,
        }
    });
    let answer = Answer { devices, memory, limit_bytes: limit };
    // Written last and atomically: its presence means success.
    let unfinished = dir.join("answer.unfinished");
    fs::write(&unfinished, serde_json::to_vec(&answer)?)?;
    Ok(fs::rename(unfinished, dir.join(ANSWER))?)
}

/// The library of the first of `names` that is installed.
///
/// # Errors
/// [`InstallError::NotInstalled`] with the last of the names.
pub fn find_plugin(names: &[&'static str]) -> Result<PathBuf, WorkerError> {
    let options = InstallOptions::from_env()?;
    for name in names {
        if let Some(found) = pjrt::find(name, &options)? {
            return Ok(found.path);
        }
    }
    Err(InstallError::NotInstalled { name: names.last().copied().unwrap_or("tpu") }.into())
}

/// The files that the GPU compiler runs and reads, relative to its data directory.
const CUDA_TOOLS: [&str; 2] = ["bin/ptxas", "nvvm/libdevice/libdevice.10.bc"];

/// Points the GPU compiler to NVIDIA's tools that are installed with the plugin, unless the options
/// name a directory.
///
/// # Errors
/// [`WorkerError::NoCudaTool`]: without them the compiler omits the kernels or aborts.
pub fn find_cuda_data(
    plugin: &Path,
    chip: &Chip,
    overrides: &mut BTreeMap<String, OverrideValue>,
) -> Result<(), WorkerError> {
    const OPTION: &str = "xla_gpu_cuda_data_dir";
    if matches!(chip.family, Family::Tpu(_)) {
        return Ok(());
    }
    let dir = match overrides.get(OPTION) {
        Some(OverrideValue::String(dir)) => PathBuf::from(dir),
        _ => pjrt::nvidia_packages(plugin).join("cu13"),
    };
    if let Some(missing) = CUDA_TOOLS.map(|tool| dir.join(tool)).into_iter().find(|p| !p.is_file())
    {
        return Err(WorkerError::NoCudaTool { path: missing });
    }
    let dir = OverrideValue::String(dir.display().to_string());
    overrides.insert(OPTION.to_owned(), dir);
    Ok(())
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, WorkerError> {
    let unreadable = |reason: String| WorkerError::Answer { reason };
    let bytes = fs::read(path).map_err(|error| unreadable(error.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|error| unreadable(error.to_string()))
}

/// At most a dozen lines before the stack trace.
fn last_words(said: &str) -> String {
    let is_trace =
        |line: &str| line.contains("@     0x") || line.contains("*** Check failure stack");
    let lines: Vec<&str> =
        said.lines().filter(|line| !line.trim().is_empty() && !is_trace(line)).collect();
    let first =
        lines.iter().position(|line| line.contains("Check failed") || line.starts_with('F'));
    let start = first.unwrap_or(lines.len().saturating_sub(12));
    lines[start..].iter().take(12).copied().collect::<Vec<_>>().join("\n")
}
