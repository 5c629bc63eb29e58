//! The compile cache: compiled programs on disk.
//!
//! The key of an entry is a hash of everything that the compiler's output depends on: the program
//! without source locations, the options with the device assignment, the plugin and its libraries
//! and tools, the devices, the host's processor, `XLA_FLAGS` and `LIBTPU_INIT_ARGS`. Entries have a
//! checksum and are renamed into place, so that neither a crash nor two processes at once can leave
//! a partial one. Entries are never removed; the directory may be deleted at any time. Of several
//! processes that need the same program, one compiles it, and the others wait for its entry.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use hlo::Program;
use sha2::{Digest, Sha256};

use super::install::{files_below, hex, nvidia_packages};
use super::{Client, CompileOptions, Error, Executable, Result};

/// The longest wait for another process that compiles the same program. After it this one compiles
/// it too: the other may be stopped.
const MAX_WAIT: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(20);

/// How the cache was involved in making an [`Executable`].
#[derive(Debug)]
pub enum CacheOutcome {
    /// Compiled without a cache.
    Off,
    /// Loaded from the cache.
    Hit,
    /// Compiled and stored.
    Stored,
    /// Compiled and stored, because the existing entry could not be used.
    Replaced {
        /// The problem with the entry.
        reason: String,
    },
    /// Compiled, but not stored. Every start will compile again, so the user should be told once.
    NotStored {
        /// Why.
        reason: String,
    },
}

/// [`Client::compile`] with a cache in `cache_dir`. Problems with the cache are not errors: the
/// program is compiled, and the outcome says what the problem was.
///
/// # Errors
/// As [`Client::compile`].
pub fn compile_cached(
    client: &Client,
    program: &Program,
    options: &CompileOptions,
    cache_dir: Option<&Path>,
) -> Result<(Executable, CacheOutcome)> {
    let Some(cache_dir) = cache_dir else {
        return Ok((client.compile(program, options)?, CacheOutcome::Off));
    };
    let entry = cache_dir.join(format!("{}.xla", program_key(client, program, options)?));
    let load = || match fs::read(&entry) {
        Ok(bytes) => match client.deserialize(program, options, &bytes) {
            Ok(executable) => Loaded::Hit(executable),
            Err(error) => Loaded::Damaged(error.to_string()),
        },
        // Absent or unreadable; if the directory is the problem, storing will report it.
        Err(_) => Loaded::Absent,
    };
    let mut loaded = load();
    let mut turn = None;
    if !matches!(loaded, Loaded::Hit(_)) {
        turn = Turn::wait(cache_dir, &entry, MAX_WAIT);
        if turn.as_ref().is_some_and(|turn| turn.has_waited) {
            loaded = load();
        }
    }
    let damage = match loaded {
        Loaded::Hit(executable) => return Ok((executable, CacheOutcome::Hit)),
        Loaded::Damaged(reason) => Some(reason),
        Loaded::Absent => None,
    };
    let executable = client.compile(program, options)?;
    let outcome = match store(&executable, cache_dir, &entry) {
        Ok(()) => damage.map_or(CacheOutcome::Stored, |reason| CacheOutcome::Replaced { reason }),
        Err(reason) => CacheOutcome::NotStored { reason },
    };
    drop(turn);
    Ok((executable, outcome))
}

/// The entry in the cache.
enum Loaded {
    Hit(Executable),
    Damaged(String),
    Absent,
}

/// The right to compile a program: a lock on a file beside the entry, which the system releases
/// when the process ends. It only saves work: without it each process compiles by itself.
struct Turn {
    path: PathBuf,
    _locked: File,
    has_waited: bool,
}

impl Turn {
    /// Waits until no other process compiles for this entry. `None` if that takes longer than
    /// `max_wait`, or the file system has no locks.
    fn wait(cache_dir: &Path, entry: &Path, max_wait: Duration) -> Option<Self> {
        fs::create_dir_all(cache_dir).ok()?;
        let path = entry.with_extension("lock");
        let locked = File::create(&path).ok()?;
        let began = Instant::now();
        let mut has_waited = false;
        loop {
            match locked.try_lock() {
                Ok(()) => return Some(Self { path, _locked: locked, has_waited }),
                Err(TryLockError::WouldBlock) if began.elapsed() < max_wait => {
                    has_waited = true;
                    thread::sleep(POLL);
                }
                Err(_) => return None,
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Processes that wait have the file open, and find the entry when they get the lock.
        let _ = fs::remove_file(&self.path);
    }
}

/// The environment variables that compilers read. If `XLA_FLAGS` named a file, its contents have
/// replaced the name.
const ENVIRONMENT: [&str; 2] = ["XLA_FLAGS", "LIBTPU_INIT_ARGS"];

/// A hexadecimal hash of everything that the compiled program depends on. Each field is preceded by
/// its length, so that different lists of fields never give the same bytes.
///
/// # Errors
/// A plugin that cannot be read, or options that do not fit the client.
pub fn program_key(client: &Client, program: &Program, options: &CompileOptions) -> Result<String> {
    let mut hasher = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hasher.update((bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    add(b"compiled program 1");
    add(program.text_without_locations().as_bytes());
    let assignment = options.assignment(client, program)?;
    add(&options.encode_for(client, &assignment)?);
    add(plugin_identity(client.plugin().path())?.as_bytes());
    add(client.platform_name().as_bytes());
    add(client.platform_version().as_bytes());
    for device in client.devices() {
        add(device.kind.as_bytes());
    }
    // Read once, so that what a process compiled before it was bound to fewer processors is found
    // afterwards.
    static PROCESSOR: LazyLock<String> = LazyLock::new(processor);
    add(PROCESSOR.as_bytes());
    for name in ENVIRONMENT {
        add(std::env::var_os(name).unwrap_or_default().as_encoded_bytes());
    }
    Ok(hex(&hasher.finalize()))
}

/// Identifies a plugin by path, size and modification time: hashing 260 MB would take longer than
/// many compilations. Includes NVIDIA's libraries, assembler and device code, which a CUDA plugin
/// compiles with.
fn plugin_identity(path: &Path) -> Result<String> {
    let unreadable = |source| Error::UnreadablePlugin { path: path.to_path_buf(), source };
    let mut files = vec![path.to_path_buf()];
    // Other plugins have no such directory.
    let nvidia = files_below(&nvidia_packages(path)).unwrap_or_default();
    files.extend(nvidia.into_iter().filter(|file| is_used_by_compilers(file)));
    let mut identity = String::new();
    for file in files {
        let metadata = fs::metadata(&file).map_err(unreadable)?;
        let modified = metadata.modified().map_err(unreadable)?;
        identity += &format!("{} {} {modified:?}\n", file.display(), metadata.len());
    }
    Ok(identity)
}

/// `true` for libraries, tools and device code, but not for the thousands of headers in Python
/// packages.
fn is_used_by_compilers(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.contains(".so")
        || name.ends_with(".bc")
        || file.parent().is_some_and(|dir| dir.ends_with("bin"))
}

/// Model and features of the first processor, for which a CPU compiler generates code, and the
/// number of processors that this process may use, among which compiled loops are divided.
fn processor() -> String {
    const FIELDS: [&str; 8] = [
        "vendor_id",
        "model name",
        "flags",
        "Features",
        "CPU implementer",
        "CPU architecture",
        "CPU variant",
        "CPU part",
    ];
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let first = info.split("\n\n").next().unwrap_or_default();
    let is_relevant =
        |line: &&str| line.split(':').next().is_some_and(|name| FIELDS.contains(&name.trim()));
    let relevant: Vec<&str> = first.lines().filter(is_relevant).collect();
    let num_processors = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{} {num_processors} {}", std::env::consts::ARCH, relevant.join("\n"))
}

fn store(executable: &Executable, cache_dir: &Path, entry: &PathBuf) -> Result<(), String> {
    let bytes = executable.serialize().map_err(|error| error.to_string())?;
    let write = || -> io::Result<()> {
        fs::create_dir_all(cache_dir)?;
        let mut file = tempfile::NamedTempFile::new_in(cache_dir)?;
        file.write_all(&bytes)?;
        file.persist(entry).map_err(|error| error.error)?;
        Ok(())
    };
    write().map_err(|error| {
        format!(
            "cannot write to the compile cache at {}: {error}; set LOCKSTEP_CACHE to a directory \
             that can be written",
            cache_dir.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_compiles_while_the_others_wait() {
        let dir = tempfile::tempdir().unwrap();
        let entry = dir.path().join("key.xla");
        let wait = |max_wait| Turn::wait(dir.path(), &entry, max_wait);
        let first = wait(MAX_WAIT).unwrap();
        assert!(!first.has_waited);
        assert!(wait(Duration::from_millis(50)).is_none(), "the first may be stopped");
        let second = thread::scope(|scope| {
            let second = scope.spawn(|| wait(MAX_WAIT));
            thread::sleep(Duration::from_millis(100));
            assert!(!second.is_finished());
            drop(first);
            second.join().unwrap().unwrap()
        });
        assert!(second.has_waited);
        drop(second);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_cuda_plugin_compiles_with_is_a_part_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let plugin = "jax_plugins/xla_cuda13/xla_cuda_plugin.so";
        write(plugin, "plugin");
        let identity = || plugin_identity(&dir.path().join(plugin)).unwrap();
        let mut last = identity();
        for (path, is_used) in [
            (plugin, true),
            ("nvidia/cudnn/lib/libcudnn.so.9", true),
            ("nvidia/cu13/bin/ptxas", true),
            ("nvidia/cu13/nvvm/libdevice/libdevice.10.bc", true),
            ("nvidia/cu13/include/cuda.h", false),
        ] {
            // Created, then with another size.
            for text in ["one", "three"] {
                write(path, text);
                let next = identity();
                assert_eq!(next != last, is_used, "{path}: {text}");
                last = next;
            }
        }
    }
}
