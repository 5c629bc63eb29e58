//! Installing plugins with the user's own `pip`.
//!
//! Plugins are published as Python wheels, so `pip` is what reaches them: it honours the user's
//! mirrors, proxies and certificates, and needs no root. Nothing of Python is used afterwards. Wheels
//! are pinned by version and hash, and of each only the plugin's part is unpacked, into
//! `plugins/NAME-VERSION-PROCESSOR` of the cache directory. A record of the files stands beside them, see
//! `record.rs`.

use std::fs;
use std::io;
use std::path::PathBuf;

use etcetera::BaseStrategy;

use super::InstallError;
use super::installed::{install_dir, installed, lock, verify_files};
use super::pinned::pinned;
use super::record::Record;
use super::wheel::{check_hash, download, hashes, unpack, wheel_of};

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

    /// Where installed plugins are kept, a directory for each.
    pub(super) fn plugins_dir(&self) -> PathBuf {
        self.cache_dir.join("plugins")
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

/// Installs the plugin called `name` (`cpu`, `cuda`, `tpu`) unless it is installed and all its files are
/// what they were then, and says where it is. A damaged one is installed again, after telling `say` so.
/// Two installs at once are safe: the second waits for the first. The CPU plugin takes 260 MB on
/// the disk and the CUDA plugin, with NVIDIA's libraries, several gigabytes.
///
/// # Errors
/// See [`InstallError`]; a failed install leaves nothing behind, and what was there before as it was.
pub fn install(
    name: &str,
    options: &InstallOptions,
    say: impl Fn(&str),
) -> Result<Found, InstallError> {
    let plugin = pinned(name).ok_or_else(|| InstallError::UnknownName { name: name.to_owned() })?;
    let hashes = hashes(plugin)?;
    let plugins_dir = options.plugins_dir();
    let cache_error = |source| InstallError::Cache { path: plugins_dir.clone(), source };
    let _lock = lock(options)?;
    if let Some(found) = installed(plugin, options) {
        match verify_files(plugin, options) {
            Ok(verified) => {
                if !verified.was_recorded {
                    say(&format!(
                        "the {name} plugin was installed by an older version of this program; its files are \
                         recorded now as they are"
                    ));
                }
                return Ok(found);
            }
            Err(InstallError::Damaged { name, reason }) => {
                say(&format!("the {name} plugin is damaged: {reason}; it is installed again now"));
            }
            Err(other) => return Err(other),
        }
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
    Record::of(&tree).and_then(|record| record.write(&tree)).map_err(cache_error)?;
    let target = install_dir(plugin, options);
    if target.exists() {
        // Processes that have it loaded go on with it: what they have mapped stays until they end.
        fs::rename(&target, work.path().join("old")).map_err(cache_error)?;
    }
    fs::rename(&tree, &target).map_err(cache_error)?;
    installed(plugin, options).ok_or_else(|| InstallError::Cache {
        path: target,
        source: io::Error::other("the plugin vanished while it was installed"),
    })
}
