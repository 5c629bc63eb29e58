//! The record of an installed plugin's files, in the directory of the plugin.
//!
//! A plugin is mapped into memory, so a truncated or modified one ends the process or worse.
//! Hashing it at every start would take longer than many runs, so the record holds modification
//! times: a start compares sizes and times, and only hashes files whose time has changed.
//! `lockstep plugin verify` and `lockstep plugin install` hash all of them.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::InstallError;
use super::catalog::CatalogEntry;
use super::elf::{self, check_library};
use super::hash::sha256_of;
use super::location::{PLUGINS_DIR, plugin_of_dir};
use crate::pjrt::Error;

/// File name of the record.
const FILE: &str = ".lockstep-files.json";

/// How many directories above a library its record may be. `nvidia/nccl/lib` is the deepest;
/// `nvidia/cu13/nvvm/lib64` has no library that is loaded on its own.
const MAX_DEPTH: usize = 5;

/// The lock file in the directory of all plugins, locked while installed plugins are changed.
pub(super) const LOCK: &str = ".lock";

/// The files of an installed plugin.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    files: Vec<RecordedFile>,
}

#[derive(Debug, Serialize, Deserialize)]
struct RecordedFile {
    /// Relative to the plugin's directory.
    path: PathBuf,
    num_bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    sha256: String,
}

/// Which files are hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hashed {
    /// Files whose modification time has changed.
    Changed,
    /// All files.
    All,
}

impl Record {
    /// Records all files below `dir`.
    pub fn of(dir: &Path) -> io::Result<Self> {
        let mut files = Vec::new();
        for path in files_below(dir)? {
            let name = path.strip_prefix(dir).map_err(io::Error::other)?;
            if name.to_string_lossy().starts_with(FILE) {
                continue;
            }
            let metadata = path.metadata()?;
            files.push(RecordedFile {
                path: name.to_path_buf(),
                num_bytes: metadata.len(),
                modified: modified(&metadata),
                sha256: sha256_of(&path)?,
            });
        }
        Ok(Self { files })
    }

    /// Reads the record in `dir`. `None` if an older version of this program installed the plugin.
    ///
    /// # Errors
    /// A message if the record cannot be read.
    pub fn read(dir: &Path) -> Result<Option<Self>, String> {
        let path = dir.join(FILE);
        let unreadable = |error: String| format!("{} cannot be read: {error}", path.display());
        match fs::read(&path) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map_err(|error| unreadable(error.to_string()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unreadable(error.to_string())),
        }
    }

    /// Writes the record to `dir` atomically.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        // Readable by everybody who can read the plugin, as far as the process's umask allows.
        let permissions = Permissions::from_mode(0o666);
        let mut file =
            tempfile::Builder::new().prefix(FILE).permissions(permissions).tempfile_in(dir)?;
        serde_json::to_writer(&mut file, self)?;
        file.persist(dir.join(FILE))?;
        Ok(())
    }

    /// Compares the record with the files below `dir` and updates the times of those that were
    /// hashed. Returns `true` if a time has changed.
    ///
    /// # Errors
    /// A message about the first file that is missing or has changed.
    pub fn check(&mut self, dir: &Path, hashed: Hashed) -> Result<bool, String> {
        let mut is_changed = false;
        for file in &mut self.files {
            let path = dir.join(&file.path);
            let shown = path.display();
            let metadata = path.metadata().map_err(|error| format!("{shown}: {error}"))?;
            if !metadata.is_file() {
                return Err(format!("{shown} is not a file"));
            }
            let (num_bytes, expected) = (metadata.len(), file.num_bytes);
            if num_bytes != expected {
                return Err(format!("{shown} has {num_bytes} bytes instead of {expected}"));
            }
            let modified = modified(&metadata);
            if modified == file.modified && hashed == Hashed::Changed {
                continue;
            }
            let sha256 = sha256_of(&path).map_err(|error| format!("{shown}: {error}"))?;
            if sha256 != file.sha256 {
                return Err(format!("{shown} does not hold what was installed"));
            }
            is_changed |= modified != file.modified;
            file.modified = modified;
        }
        Ok(is_changed)
    }

    pub fn num_files(&self) -> usize {
        self.files.len()
    }

    pub fn num_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.num_bytes).sum()
    }
}

/// Checks the files of the plugin in `dir` without reading those whose time is unchanged. Does
/// nothing if there is no record.
///
/// # Errors
/// A message about what is damaged.
pub(super) fn check(dir: &Path) -> Result<(), String> {
    let Some(mut record) = Record::read(dir)? else { return Ok(()) };
    if record.check(dir, Hashed::Changed)? {
        // Otherwise the same files are hashed again next time. Not while another process changes
        // installed plugins.
        let lock = dir.parent().map(|plugins| File::create(plugins.join(LOCK)));
        if let Some(Ok(lock)) = lock
            && lock.try_lock().is_ok()
        {
            let _ = record.write(dir);
        }
    }
    Ok(())
}

/// [`check`] for a library that is about to be loaded, if this program has installed it.
///
/// # Errors
/// [`InstallError::Damaged`].
pub(in crate::pjrt) fn check_before_load(library: &Path) -> Result<(), InstallError> {
    let mut dirs = library.ancestors().skip(1).take(MAX_DEPTH);
    let Some(dir) = dirs.find(|dir| dir.join(FILE).exists()) else { return Ok(()) };
    check(dir).map_err(|reason| InstallError::Damaged {
        name: plugin_of_dir(dir).map_or("NAME", |plugin| plugin.name).to_owned(),
        reason,
    })
}

/// [`check_library`] for a library that is about to be loaded. If it stands where this program
/// installs plugins, the error says so, whether or not there is a record.
///
/// # Errors
/// [`InstallError::Damaged`]; those of [`check_library`] for other libraries.
pub(in crate::pjrt) fn check_library_to_load(library: &Path) -> Result<(), Error> {
    check_library(library).map_err(|error| match installed_plugin(library) {
        Some((_, plugin)) => damaged(plugin, &error).into(),
        None => error,
    })
}

/// The error that `library` cannot be loaded, with its cause if it is damaged: then all of its
/// plugin's files are read.
pub(in crate::pjrt) fn explain_load_failure(library: &Path, error: Error) -> Error {
    let Some((dir, plugin)) = installed_plugin(library) else { return error };
    let damaged = |reason| InstallError::Damaged { name: plugin.name.to_owned(), reason }.into();
    match (Record::read(dir), &error) {
        (Err(reason), _) => damaged(reason),
        (Ok(Some(mut record)), _) => record.check(dir, Hashed::All).err().map_or(error, damaged),
        // Nothing says what it should hold, and `install` would believe what is there.
        (Ok(None), Error::NotAPlugin { path, reason }) => damaged(format!(
            "{}: {reason}; remove it first with `lockstep plugin remove {}`",
            path.display(),
            plugin.name
        )),
        (Ok(None), _) => error,
    }
}

/// The directory of the plugin that a library belongs to, if it stands where this program installs
/// plugins.
fn installed_plugin(library: &Path) -> Option<(&Path, &'static CatalogEntry)> {
    let mut dirs = library.ancestors().skip(1).take(MAX_DEPTH);
    let is_of_plugins = |dir: &&Path| dir.parent().is_some_and(|dir| dir.ends_with(PLUGINS_DIR));
    let dir = dirs.find(is_of_plugins)?;
    Some((dir, plugin_of_dir(dir)?))
}

/// The error that an installed plugin has a library about which [`check_library`] complains.
pub(super) fn damaged(plugin: &CatalogEntry, error: &Error) -> InstallError {
    // Without what to do about a library from elsewhere.
    let reason = match error {
        Error::IncompletePlugin { path, missing } => cut_off(path, *missing),
        Error::NotAPlugin { path, reason } => format!("{}: {reason}", path.display()),
        Error::WrongArchitecture { path, found, .. } => {
            format!("{} is built for {found}", path.display())
        }
        error => error.to_string(),
    };
    InstallError::Damaged { name: plugin.name.to_owned(), reason }
}

fn cut_off(path: &Path, missing: u64) -> String {
    format!("{} is cut off (bytes missing: at least {missing})", path.display())
}

/// Checks that no ELF file below `dir` is truncated, for a plugin without a record.
///
/// # Errors
/// A message about the first file that is.
pub(super) fn check_unrecorded(dir: &Path) -> Result<(), String> {
    let files = files_below(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    for path in files {
        let missing = File::open(&path).and_then(|file| elf::missing_bytes(&file));
        match missing.map_err(|error| format!("{}: {error}", path.display()))? {
            0 => {}
            missing => return Err(cut_off(&path, missing)),
        }
    }
    Ok(())
}

/// All files below `dir`, sorted.
pub(in crate::pjrt) fn files_below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let path = entry.path();
            // Links to files are followed, but not links to directories, which could form a cycle.
            if entry.file_type()?.is_dir() {
                dirs.push(path);
            } else if path.is_file() {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

fn modified(metadata: &fs::Metadata) -> (i64, i64) {
    (metadata.mtime(), metadata.mtime_nsec())
}
