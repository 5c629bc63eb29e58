//! What was unpacked for a plugin: a record of its files in the directory that holds them.
//!
//! A plugin is mapped into memory, so one that is cut off, or not what it was, ends the process or worse. Hashing it at
//! every start would cost more than many runs, so the record remembers when each file was last changed: a start looks
//! at sizes and times, and hashes only a file whose time is another one.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::hash::sha256_of;
use super::location::plugin_of_dir;
use super::{InstallError, elf};

/// The record's name in the directory of a plugin.
const FILE: &str = ".lockstep-files.json";

/// Directories above a library in which its record may stand: `nvidia/nccl/lib` is the deepest, `nvidia/cu13/nvvm/lib64`
/// has no library that is loaded by itself.
const MAX_DEPTH: usize = 5;

/// The lock that is held by whoever changes what is installed, in the directory that holds all plugins.
pub(super) const LOCK: &str = ".lock";

/// The files of an installed plugin.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    files: Vec<RecordedFile>,
}

#[derive(Debug, Serialize, Deserialize)]
struct RecordedFile {
    /// Below the plugin's directory.
    path: PathBuf,
    num_bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    sha256: String,
}

/// Which files are hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hashed {
    /// Those that were changed since they were last looked at.
    Changed,
    /// All.
    All,
}

impl Record {
    /// Takes down all files below `dir` as they are.
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

    /// The record in `dir`. None where an older version of this program has installed the plugin.
    ///
    /// # Errors
    /// In words: a record that cannot be read.
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

    /// Puts it into `dir`, whole or not at all.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        // Readable for whoever can read the plugin, as far as the process's umask allows.
        let permissions = Permissions::from_mode(0o666);
        let mut file =
            tempfile::Builder::new().prefix(FILE).permissions(permissions).tempfile_in(dir)?;
        serde_json::to_writer(&mut file, self)?;
        file.persist(dir.join(FILE))?;
        Ok(())
    }

    /// Compares it with the files below `dir`, and takes over the times of those that have been hashed. Is one of them
    /// another than before?
    ///
    /// # Errors
    /// In words: the first file that is missing or is not what it was.
    pub fn check(&mut self, dir: &Path, hashed: Hashed) -> Result<bool, String> {
        let mut is_changed = false;
        for file in &mut self.files {
            let path = dir.join(&file.path);
            let shown = path.display();
            let metadata = path.metadata().map_err(|error| format!("{shown}: {error}"))?;
            if !metadata.is_file() {
                return Err(format!("{shown} is no file"));
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

/// Looks at the files of the plugin in `dir` without reading any that was not changed. Nothing is known, and nothing
/// wrong, where there is no record.
///
/// # Errors
/// What is damaged, in words.
pub(super) fn check(dir: &Path) -> Result<(), String> {
    let Some(mut record) = Record::read(dir)? else { return Ok(()) };
    if record.check(dir, Hashed::Changed)? {
        // Else the same files are hashed again next time. Not while another process is changing what is installed.
        let lock = dir.parent().map(|plugins| File::create(plugins.join(LOCK)));
        if let Some(Ok(lock)) = lock
            && lock.try_lock().is_ok()
        {
            let _ = record.write(dir);
        }
    }
    Ok(())
}

/// [`check`] for a library that is about to be loaded, where it is one that this program has installed.
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

/// Is every ELF file below `dir` whole? All that can be said of a plugin without a record.
///
/// # Errors
/// In words: the first file that is not.
pub(super) fn check_unrecorded(dir: &Path) -> Result<(), String> {
    let files = files_below(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    for path in files {
        let missing = File::open(&path).and_then(|file| elf::missing_bytes(&file));
        match missing.map_err(|error| format!("{}: {error}", path.display()))? {
            0 => {}
            missing => {
                let path = path.display();
                return Err(format!("{path} is cut off (bytes missing: at least {missing})"));
            }
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
            // Links to files count, but none to a directory, which could lead in a circle.
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
