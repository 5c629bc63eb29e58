//! The plugins that this program has installed: where they are, whether they are whole, and taking them away.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::find::find;
use super::install::{Found, InstallOptions, Source};
use super::pinned::{PLUGINS, Pinned, pinned};
use super::record::{self, Hashed, LOCK, Record};
use super::{InstallError, elf};

/// What [`verify`] has found in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The plugin.
    pub found: Found,
    /// Files of it.
    pub num_files: usize,
    /// Their bytes.
    pub num_bytes: u64,
    /// Was there a record of them? Older versions of this program made none: then no library is cut off, and the files
    /// have been recorded as they are now.
    pub was_recorded: bool,
}

/// The plugins of which this program has installed something, be it damaged.
pub fn installed_names(options: &InstallOptions) -> Vec<&'static str> {
    let is_there = |plugin: &&Pinned| install_dir(plugin, options).is_dir();
    PLUGINS.iter().filter(is_there).map(|plugin| plugin.name).collect()
}

/// Hashes all files of an installed plugin, and compares them with what was installed.
///
/// # Errors
/// [`InstallError::Damaged`]; [`InstallError::UnknownName`], [`InstallError::NotInstalled`],
/// [`InstallError::OfPython`], and [`InstallError::Cache`] where files cannot be recorded.
pub fn verify(name: &str, options: &InstallOptions) -> Result<Verified, InstallError> {
    let plugin = pinned(name).ok_or_else(|| InstallError::UnknownName { name: name.to_owned() })?;
    if !install_dir(plugin, options).is_dir() {
        return Err(not_ours(plugin, options));
    }
    // Where nothing can be written, nobody changes it.
    let _lock = lock(options).ok();
    verify_files(plugin, options)
}

/// [`verify`] for who holds the lock.
pub(super) fn verify_files(
    plugin: &'static Pinned,
    options: &InstallOptions,
) -> Result<Verified, InstallError> {
    let dir = install_dir(plugin, options);
    let damaged = |reason| InstallError::Damaged { name: plugin.name.to_owned(), reason };
    let cache_error = |source| InstallError::Cache { path: dir.clone(), source };
    let Some(found) = installed(plugin, options) else {
        return Err(damaged(format!("{} is no file", library(plugin, options).display())));
    };
    let recorded = Record::read(&dir).map_err(damaged)?;
    let was_recorded = recorded.is_some();
    let record = match recorded {
        Some(mut record) => {
            if record.check(&dir, Hashed::All).map_err(damaged)? {
                // Without it the same files are hashed at every start: no reason to fail.
                let _ = record.write(&dir);
            }
            record
        }
        None => {
            record::check_unrecorded(&dir).map_err(damaged)?;
            elf::check_library(&found.path).map_err(|error| damaged(error.to_string()))?;
            let record = Record::of(&dir).map_err(cache_error)?;
            record.write(&dir).map_err(cache_error)?;
            record
        }
    };
    let (num_files, num_bytes) = (record.num_files(), record.num_bytes());
    Ok(Verified { found, num_files, num_bytes, was_recorded })
}

/// Removes a plugin that this program has installed, in all its versions for this processor, and says which
/// directories are gone. Processes that have it loaded go on.
///
/// # Errors
/// [`InstallError::UnknownName`], [`InstallError::NotInstalled`], [`InstallError::OfPython`], and
/// [`InstallError::Cache`] where it cannot be removed.
pub fn remove(name: &str, options: &InstallOptions) -> Result<Vec<PathBuf>, InstallError> {
    let plugin = pinned(name).ok_or_else(|| InstallError::UnknownName { name: name.to_owned() })?;
    let plugins_dir = options.plugins_dir();
    if !plugins_dir.is_dir() {
        return Err(not_ours(plugin, options));
    }
    let _lock = lock(options)?;
    let cache_error = |source| InstallError::Cache { path: plugins_dir.clone(), source };
    // Renamed first: nobody is to find half of it.
    let work = tempfile::Builder::new().prefix(".removing-").tempdir_in(&plugins_dir);
    let work = work.map_err(cache_error)?;
    let mut removed = Vec::new();
    for entry in fs::read_dir(&plugins_dir).map_err(cache_error)? {
        let dir = entry.map_err(cache_error)?.path();
        let file_name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_of_this_processor = file_name.ends_with(&format!("-{}", std::env::consts::ARCH));
        if is_of_this_processor && plugin_of_dir(&dir).is_some_and(|found| found.name == name) {
            fs::rename(&dir, work.path().join(file_name)).map_err(cache_error)?;
            removed.push(dir);
        }
    }
    work.close().map_err(cache_error)?;
    if removed.is_empty() { Err(not_ours(plugin, options)) } else { Ok(removed) }
}

/// Why there is nothing to verify or to remove.
fn not_ours(plugin: &'static Pinned, options: &InstallOptions) -> InstallError {
    match find(plugin.name, options) {
        Ok(Some(found)) => InstallError::OfPython { name: plugin.name, path: found.path },
        _ => InstallError::NotInstalled { name: plugin.name },
    }
}

/// The plugin in our own cache.
pub(super) fn installed(plugin: &'static Pinned, options: &InstallOptions) -> Option<Found> {
    let path = library(plugin, options);
    path.is_file().then(|| Found {
        name: plugin.name.to_owned(),
        path,
        version: Some(plugin.version().to_owned()),
        source: Source::Cache,
    })
}

/// What is wrong with the plugin in our own cache, as far as sizes and times tell.
pub(super) fn damage(plugin: &'static Pinned, options: &InstallOptions) -> Option<String> {
    record::check(&install_dir(plugin, options)).err()
}

fn library(plugin: &Pinned, options: &InstallOptions) -> PathBuf {
    install_dir(plugin, options).join(plugin.library_path())
}

/// The processor stands in the name because home directories are shared between machines.
pub(super) fn install_dir(plugin: &Pinned, options: &InstallOptions) -> PathBuf {
    let name = format!("{}-{}-{}", plugin.name, plugin.version(), std::env::consts::ARCH);
    options.plugins_dir().join(name)
}

/// The plugin that a directory is named for, in whatever version.
pub(super) fn plugin_of_dir(dir: &Path) -> Option<&'static Pinned> {
    let file_name = dir.file_name()?.to_str()?;
    PLUGINS.iter().find(|plugin| {
        let rest = file_name.strip_prefix(plugin.name).and_then(|rest| rest.strip_prefix('-'));
        // `cuda-compiler-1.0-x86_64` is no version of `cuda`.
        rest.is_some_and(|version| version.starts_with(|first: char| first.is_ascii_digit()))
    })
}

/// Waits until no other process changes what is installed, and keeps others from it while the file is open.
pub(super) fn lock(options: &InstallOptions) -> Result<File, InstallError> {
    let plugins_dir = options.plugins_dir();
    let locked = || -> io::Result<File> {
        fs::create_dir_all(&plugins_dir)?;
        let lock = File::create(plugins_dir.join(LOCK))?;
        lock.lock()?;
        Ok(lock)
    };
    locked().map_err(|source| InstallError::Cache { path: plugins_dir.clone(), source })
}
