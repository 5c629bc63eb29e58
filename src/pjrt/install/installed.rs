//! Listing, verifying and removing installed plugins.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use super::catalog::{CatalogEntry, PLUGINS, catalog_entry};
use super::find::{find, in_python};
use super::location::{
    FoundPlugin, InstallOptions, install_dir, installed, library, plugin_of_dir,
};
use super::record::{self, Hashed, LOCK, Record};
use super::{InstallError, elf};

/// A plugin that can be installed.
#[derive(Clone, Debug)]
pub struct Listed {
    /// `cpu`, `cuda`, `tpu`.
    pub name: &'static str,
    /// The version that this program installs.
    pub version: &'static str,
    /// The plugin on this machine, if there is one.
    pub found: Option<FoundPlugin>,
    /// The damage of its files, judged by their sizes and times.
    pub damage: Option<String>,
}

/// The result of a successful [`verify`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The plugin.
    pub found: FoundPlugin,
    /// Number of its files.
    pub num_files: usize,
    /// Total size of its files in bytes.
    pub num_bytes: u64,
    /// `true` if there was a record of them. Older versions of this program made none: then no
    /// library is truncated, and the files have been recorded without further checks.
    pub was_recorded: bool,
}

/// All plugins that can be installed, and where they are if they are on this machine.
pub fn list(options: &InstallOptions) -> Vec<Listed> {
    PLUGINS
        .iter()
        .map(|plugin| Listed {
            name: plugin.name,
            version: plugin.version(),
            found: installed(plugin, options).or_else(|| in_python(plugin, &options.python)),
            damage: installed(plugin, options).and_then(|_| damage(plugin, options)),
        })
        .collect()
}

/// The plugins that this program has installed, damaged or not.
pub fn installed_names(options: &InstallOptions) -> Vec<&'static str> {
    let is_there = |plugin: &&CatalogEntry| install_dir(plugin, options).is_dir();
    PLUGINS.iter().filter(is_there).map(|plugin| plugin.name).collect()
}

/// Hashes all files of an installed plugin and compares them with the record.
///
/// # Errors
/// [`InstallError::Damaged`]; [`InstallError::UnknownName`], [`InstallError::NotInstalled`],
/// [`InstallError::OfPython`], and [`InstallError::Cache`] if files cannot be recorded.
pub fn verify(name: &str, options: &InstallOptions) -> Result<Verified, InstallError> {
    let plugin =
        catalog_entry(name).ok_or_else(|| InstallError::UnknownName { name: name.to_owned() })?;
    if !install_dir(plugin, options).is_dir() {
        return Err(not_ours(plugin, options));
    }
    // Where nothing can be written, nobody changes it.
    let _lock = lock(options).ok();
    verify_files(plugin, options)
}

/// [`verify`] while holding the lock.
pub(super) fn verify_files(
    plugin: &'static CatalogEntry,
    options: &InstallOptions,
) -> Result<Verified, InstallError> {
    let dir = install_dir(plugin, options);
    let damaged = |reason| InstallError::Damaged { name: plugin.name.to_owned(), reason };
    let cache_error = |source| InstallError::Cache { path: dir.clone(), source };
    let Some(found) = installed(plugin, options) else {
        return Err(damaged(format!("{} is not a file", library(plugin, options).display())));
    };
    let recorded = Record::read(&dir).map_err(damaged)?;
    let was_recorded = recorded.is_some();
    let record = match recorded {
        Some(mut record) => {
            if record.check(&dir, Hashed::All).map_err(damaged)? {
                // If it cannot be written, the same files are hashed at every start. That is not an
                // error.
                let _ = record.write(&dir);
            }
            record
        }
        None => {
            record::check_unrecorded(&dir).map_err(damaged)?;
            elf::check_library(&found.path).map_err(|error| record::damaged(plugin, &error))?;
            let record = Record::of(&dir).map_err(cache_error)?;
            record.write(&dir).map_err(cache_error)?;
            record
        }
    };
    let (num_files, num_bytes) = (record.num_files(), record.num_bytes());
    Ok(Verified { found, num_files, num_bytes, was_recorded })
}

/// Removes a plugin that this program has installed, in all versions for this processor, and
/// returns the removed directories. Processes that have loaded it are not affected.
///
/// # Errors
/// [`InstallError::UnknownName`], [`InstallError::NotInstalled`], [`InstallError::OfPython`], and
/// [`InstallError::Cache`] if it cannot be removed.
pub fn remove(name: &str, options: &InstallOptions) -> Result<Vec<PathBuf>, InstallError> {
    let plugin =
        catalog_entry(name).ok_or_else(|| InstallError::UnknownName { name: name.to_owned() })?;
    let plugins_dir = options.plugins_dir();
    if !plugins_dir.is_dir() {
        return Err(not_ours(plugin, options));
    }
    let _lock = lock(options)?;
    let cache_error = |source| InstallError::Cache { path: plugins_dir.clone(), source };
    // Renamed first, so that nobody finds a partial plugin.
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

/// The error if there is nothing to verify or remove.
fn not_ours(plugin: &'static CatalogEntry, options: &InstallOptions) -> InstallError {
    match find(plugin.name, options) {
        Ok(Some(found)) => InstallError::OfPython { name: plugin.name, path: found.path },
        _ => InstallError::NotInstalled { name: plugin.name },
    }
}

/// The damage of the plugin in our own cache, judged by sizes and times.
pub(super) fn damage(plugin: &'static CatalogEntry, options: &InstallOptions) -> Option<String> {
    record::check(&install_dir(plugin, options)).err()
}

/// Takes the lock on installed plugins. It is released when the file is closed.
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
