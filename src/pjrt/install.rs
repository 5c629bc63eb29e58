//! Installing plugins with the user's own `pip`.
//!
//! Plugins are published as Python wheels, so `pip` is what reaches them: it honours the user's
//! mirrors, proxies and certificates, and needs no root. Nothing of Python is used afterwards. Wheels
//! are pinned by version and hash, and of each only the plugin's part is unpacked, into
//! `plugins/NAME-VERSION-PROCESSOR` of the cache directory.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use etcetera::BaseStrategy;
use sha2::{Digest, Sha256};

use super::pinned::{PLUGINS, Package, Pinned, pinned};

/// Where plugins are put, and who fetches them.
#[derive(Clone, Debug)]
pub struct InstallOptions {
    /// The directory for plugins and compiled programs.
    pub cache_dir: PathBuf,
    /// The Python whose pip is used.
    pub python: PathBuf,
}

impl InstallOptions {
    /// The user's cache directory and `python3`, or what `LOCKSTEP_CACHE` and `LOCKSTEP_PYTHON` name
    /// instead.
    ///
    /// # Errors
    /// [`InstallError::NoCacheDir`] when there is no home directory and no `LOCKSTEP_CACHE`.
    pub fn from_env() -> Result<Self, InstallError> {
        let set =
            |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache_dir = match set("LOCKSTEP_CACHE") {
            Some(cache_dir) => cache_dir,
            None => etcetera::choose_base_strategy()
                .map_err(|_| InstallError::NoCacheDir)?
                .cache_dir()
                .join("lockstep"),
        };
        Ok(Self { cache_dir, python: set("LOCKSTEP_PYTHON").unwrap_or_else(|| "python3".into()) })
    }

    /// Where compiled programs are kept.
    pub fn compile_cache_dir(&self) -> PathBuf {
        self.cache_dir.join("compiled")
    }
}

/// A plugin on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The name or path that it was asked for by.
    pub name: String,
    /// Its shared library.
    pub path: PathBuf,
    /// Its version, where known.
    pub version: Option<String>,
    /// Where it was found.
    pub source: Source,
}

/// Where a plugin was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Its path was given.
    Path,
    /// Our own cache.
    Cache,
    /// A package installed in the user's Python.
    Python,
}

/// Why a plugin could not be found or installed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// Not a plugin that can be installed.
    #[error(
        "there is no plugin called {name:?}; known are {}, or give the path of a .so file",
        names()
    )]
    UnknownName {
        /// What was asked for.
        name: String,
    },
    /// The plugin is known, but neither installed nor one that is installed unasked.
    #[error("the {name} plugin is not installed; `lockstep plugin install {name}` does it")]
    NotInstalled {
        /// The plugin.
        name: &'static str,
    },
    /// There is no wheel for this machine.
    #[error("the {name} plugin exists for Linux on {supported}, not for {os} on {arch}")]
    UnsupportedHost {
        /// The plugin.
        name: &'static str,
        /// The processors that it exists for.
        supported: String,
        /// This machine's operating system.
        os: &'static str,
        /// This machine's processor.
        arch: &'static str,
    },
    /// Neither a home directory nor an explicit cache.
    #[error("there is no home directory to keep plugins in; set LOCKSTEP_CACHE to a directory")]
    NoCacheDir,
    /// The cache cannot be written.
    #[error(
        "cannot write to the cache at {path}: {source}; set LOCKSTEP_CACHE to a directory that can be written"
    )]
    Cache {
        /// Where it failed.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// There is no Python.
    #[error(
        "cannot start {python} to fetch the plugin: {source}; install Python 3 with pip, or set LOCKSTEP_PYTHON to one"
    )]
    NoPython {
        /// What was started.
        python: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// pip failed: no network, no such version on a mirror, no pip at all.
    #[error(
        "pip could not fetch the {name} plugin:\n{last_lines}\nWithout a network, run this on a machine that has one:\n  \
         {command}\nthen copy the directory `wheels` here and run:\n  \
         PIP_NO_INDEX=1 PIP_FIND_LINKS=wheels lockstep plugin install {name}"
    )]
    Pip {
        /// The plugin.
        name: &'static str,
        /// The end of pip's output.
        last_lines: String,
        /// What fetches the same wheels.
        command: String,
    },
    /// A wheel is not the one that was pinned.
    #[error(
        "{file} is not the wheel that this version expects (sha256 {found}, expected {expected}); it was not \
         installed. Is a mirror serving something else?"
    )]
    WrongHash {
        /// The wheel or distribution.
        file: String,
        /// The pinned hash.
        expected: String,
        /// The hash that it has.
        found: String,
    },
    /// A wheel with the right hash could not be unpacked.
    #[error("cannot unpack {file}: {reason}")]
    Unpack {
        /// The wheel.
        file: String,
        /// What is wrong.
        reason: String,
    },
}

fn names() -> String {
    PLUGINS.iter().map(|plugin| plugin.name).collect::<Vec<_>>().join(", ")
}

/// Installs the plugin called `name` (`cpu`, `cuda`, `tpu`) unless it is installed, and says where it
/// is. Two installs at once are safe: the second waits for the first. The CPU plugin takes 260 MB on
/// the disk and the CUDA plugin, with NVIDIA's libraries, several gigabytes.
///
/// # Errors
/// See [`InstallError`]; a failed install leaves nothing behind.
pub fn install(name: &str, options: &InstallOptions) -> Result<Found, InstallError> {
    let plugin = pinned(name).ok_or_else(|| InstallError::UnknownName { name: name.to_owned() })?;
    let hashes = hashes(plugin)?;
    let plugins_dir = options.cache_dir.join("plugins");
    let cache_error = |source| InstallError::Cache { path: plugins_dir.clone(), source };
    fs::create_dir_all(&plugins_dir).map_err(cache_error)?;
    let lock = File::create(plugins_dir.join(".lock")).map_err(cache_error)?;
    lock.lock().map_err(cache_error)?;
    if let Some(found) = installed(plugin, options) {
        return Ok(found);
    }
    // In the cache itself, so that the finished tree can be renamed into place.
    let work = tempfile::Builder::new()
        .prefix(".installing-")
        .tempdir_in(&plugins_dir)
        .map_err(cache_error)?;
    let wheels = work.path().join("wheels");
    let tree = work.path().join("tree");
    fs::create_dir_all(&wheels).and_then(|()| fs::create_dir_all(&tree)).map_err(cache_error)?;

    download(plugin, &hashes, &wheels, options)?;
    for (package, expected) in plugin.packages.iter().zip(&hashes) {
        let wheel = wheel_of(package, &wheels).ok_or_else(|| InstallError::Unpack {
            file: package.distribution.to_owned(),
            reason: "pip reported success but left no wheel".into(),
        })?;
        check_hash(&wheel, expected)?;
        unpack(&wheel, package, &tree)?;
    }
    if !tree.join(plugin.library_path()).is_file() {
        return Err(InstallError::Unpack {
            file: plugin.packages[0].distribution.to_owned(),
            reason: format!("there is no {} in it", plugin.library_path()),
        });
    }
    let target = install_dir(plugin, options);
    if target.exists() {
        fs::remove_dir_all(&target).map_err(cache_error)?;
    }
    fs::rename(&tree, &target).map_err(cache_error)?;
    installed(plugin, options).ok_or_else(|| InstallError::Cache {
        path: target,
        source: io::Error::other("the plugin vanished while it was installed"),
    })
}

/// The plugin in our own cache.
pub(super) fn installed(plugin: &'static Pinned, options: &InstallOptions) -> Option<Found> {
    let path = install_dir(plugin, options).join(plugin.library_path());
    path.is_file().then(|| Found {
        name: plugin.name.to_owned(),
        path,
        version: Some(plugin.version().to_owned()),
        source: Source::Cache,
    })
}

/// The processor stands in the name because home directories are shared between machines.
fn install_dir(plugin: &Pinned, options: &InstallOptions) -> PathBuf {
    let name = format!("{}-{}-{}", plugin.name, plugin.version(), std::env::consts::ARCH);
    options.cache_dir.join("plugins").join(name)
}

/// The hash of each wheel for this machine.
fn hashes(plugin: &'static Pinned) -> Result<Vec<&'static str>, InstallError> {
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    let of = |package: &Package| package.sha256.iter().find(|row| row.0 == arch).map(|row| row.1);
    let hashes: Option<Vec<_>> = plugin.packages.iter().map(of).collect();
    hashes.filter(|_| os == "linux").ok_or_else(|| InstallError::UnsupportedHost {
        name: plugin.name,
        supported: plugin.packages[0]
            .sha256
            .iter()
            .map(|row| row.0)
            .collect::<Vec<_>>()
            .join(" and "),
        os,
        arch,
    })
}

/// pip's arguments, but for the destination and what to fetch.
fn pip_arguments(plugin: &Pinned) -> Vec<String> {
    let mut arguments: Vec<String> =
        ["-m", "pip", "download", "--no-deps", "--only-binary=:all:"].map(String::from).into();
    for platform in plugin.platforms {
        arguments.push("--platform".into());
        arguments.push(platform.replace("{arch}", std::env::consts::ARCH));
    }
    if let Some(version) = plugin.python_version {
        let abi = format!("cp{}", version.replace('.', ""));
        arguments.extend(["--python-version", version, "--implementation", "cp"].map(String::from));
        arguments.extend(["--abi".into(), abi]);
    }
    arguments
}

fn download(
    plugin: &'static Pinned,
    hashes: &[&str],
    wheels: &Path,
    options: &InstallOptions,
) -> Result<(), InstallError> {
    // Hashes can be given in a requirements file only.
    let requirements = wheels.with_file_name("requirements.txt");
    let mut text = String::new();
    for (package, hash) in plugin.packages.iter().zip(hashes) {
        text += &format!("{}=={} --hash=sha256:{hash}\n", package.distribution, package.version);
    }
    fs::write(&requirements, text)
        .map_err(|source| InstallError::Cache { path: requirements.clone(), source })?;
    let output = Command::new(&options.python)
        .args(pip_arguments(plugin))
        .args(["--no-input", "--disable-pip-version-check", "--progress-bar=off"])
        .args(["--require-hashes", "--requirement"])
        .arg(&requirements)
        .arg("--dest")
        .arg(wheels)
        .output()
        .map_err(|source| InstallError::NoPython { python: options.python.clone(), source })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("DO NOT MATCH THE HASHES") {
        return Err(hash_mismatch(&said));
    }
    let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    let wanted = plugin
        .packages
        .iter()
        .map(|package| format!("{}=={}", package.distribution, package.version));
    Err(InstallError::Pip {
        name: plugin.name,
        last_lines: lines[lines.len().saturating_sub(6)..].join("\n"),
        command: format!(
            "python3 {} --dest wheels {}",
            pip_arguments(plugin).join(" "),
            wanted.collect::<Vec<_>>().join(" ")
        ),
    })
}

/// pip names the requirement, then `Expected sha256 ...` and `Got ...` on lines of their own.
fn hash_mismatch(said: &str) -> InstallError {
    let after = |word: &str| {
        said.lines()
            .find_map(|line| line.trim().strip_prefix(word))
            .map_or_else(|| "not told by pip".into(), |rest| rest.trim().to_owned())
    };
    let file = said
        .lines()
        .find_map(|line| line.trim().split_once(" from ").map(|(file, _)| file.to_owned()))
        .unwrap_or_else(|| "a wheel".into());
    InstallError::WrongHash { file, expected: after("Expected sha256"), found: after("Got") }
}

/// The wheel of `package` among the downloaded ones: its name begins with that of the distribution,
/// dashes written as underscores.
fn wheel_of(package: &Package, wheels: &Path) -> Option<PathBuf> {
    let prefix = format!("{}-{}-", package.distribution.replace('-', "_"), package.version);
    fs::read_dir(wheels).ok()?.flatten().map(|entry| entry.path()).find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
    })
}

fn check_hash(wheel: &Path, expected: &str) -> Result<(), InstallError> {
    let found = sha256_of(wheel)
        .map_err(|source| InstallError::Cache { path: wheel.to_path_buf(), source })?;
    if found == expected {
        return Ok(());
    }
    Err(InstallError::WrongHash { file: file_name(wheel), expected: expected.to_owned(), found })
}

fn sha256_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut chunk)?;
        if read == 0 {
            return Ok(hex(&hasher.finalize()));
        }
        hasher.update(&chunk[..read]);
    }
}

/// Lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn unpack(wheel: &Path, package: &Package, tree: &Path) -> Result<(), InstallError> {
    let broken = |reason: String| InstallError::Unpack { file: file_name(wheel), reason };
    let file =
        File::open(wheel).map_err(|source| InstallError::Cache { path: wheel.into(), source })?;
    let mut archive = zip::ZipArchive::new(file).map_err(|error| broken(error.to_string()))?;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(|error| broken(error.to_string()))?;
        let Some(inside) = entry.enclosed_name() else {
            return Err(broken(format!("entry {index} points out of the wheel")));
        };
        let name = inside.to_string_lossy().into_owned();
        let development =
            name.starts_with("nvidia/") && (name.contains("/include/") || name.ends_with(".a"));
        if entry.is_dir() || development || !name.starts_with(package.keep) {
            continue;
        }
        let path = tree.join(&inside);
        let written = (|| {
            fs::create_dir_all(path.parent().unwrap_or(tree))?;
            let mut out = File::create(&path)?;
            io::copy(&mut entry, &mut out)?;
            out.flush()?;
            // Tools that the compiler starts; wheels do not always carry the mode.
            let mode = if name.contains("/bin/") { 0o755 } else { 0o644 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))
        })();
        written.map_err(|source| InstallError::Cache { path: path.clone(), source })?;
    }
    Ok(())
}
