//! The cache directory, and where plugins are in it.

use std::path::{Path, PathBuf};

use super::InstallError;
use super::catalog::{CatalogEntry, PLUGINS};
use crate::config::cache_dir;

/// The directory of all plugins in the cache directory.
pub(super) const PLUGINS_DIR: &str = "plugins";

/// Where plugins are installed, and with which Python.
#[derive(Clone, Debug)]
pub struct InstallOptions {
    /// The directory for plugins and compiled programs.
    pub cache_dir: PathBuf,
    /// The Python interpreter; its pip is used.
    pub python: PathBuf,
}

impl InstallOptions {
    /// The user's cache directory and `python3`, unless `LOCKSTEP_CACHE` and `LOCKSTEP_PYTHON` name
    /// others.
    ///
    /// # Errors
    /// [`InstallError::NoCacheDir`] if there is neither a home directory nor `LOCKSTEP_CACHE`.
    pub fn from_env() -> Result<Self, InstallError> {
        let python = std::env::var_os("LOCKSTEP_PYTHON").filter(|value| !value.is_empty());
        Ok(Self {
            cache_dir: cache_dir().ok_or(InstallError::NoCacheDir)?,
            python: python.map_or_else(|| "python3".into(), PathBuf::from),
        })
    }

    /// The directory of installed plugins, with a subdirectory for each.
    pub(super) fn plugins_dir(&self) -> PathBuf {
        self.cache_dir.join(PLUGINS_DIR)
    }

    /// The directory of compiled programs.
    pub fn compile_cache_dir(&self) -> PathBuf {
        self.cache_dir.join("compiled")
    }
}

/// A plugin on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPlugin {
    /// The name or path that was requested.
    pub name: String,
    /// Its shared library.
    pub path: PathBuf,
    /// Its version, if known.
    pub version: Option<String>,
    /// Where it was found.
    pub source: PluginSource,
}

/// Where a plugin was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginSource {
    /// At a path that the user gave.
    Path,
    /// In our own cache.
    Cache,
    /// In a package of the user's Python environment.
    Python,
}

/// The plugin in our own cache.
pub(super) fn installed(
    plugin: &'static CatalogEntry,
    options: &InstallOptions,
) -> Option<FoundPlugin> {
    let path = library(plugin, options);
    path.is_file().then(|| FoundPlugin {
        name: plugin.name.to_owned(),
        path,
        version: Some(plugin.version().to_owned()),
        source: PluginSource::Cache,
    })
}

/// The path of an installed plugin's library.
pub(super) fn library(plugin: &CatalogEntry, options: &InstallOptions) -> PathBuf {
    install_dir(plugin, options).join(plugin.library_path())
}

/// The directory of an installed plugin. Its name has the processor because machines may share a
/// home directory.
pub(super) fn install_dir(plugin: &CatalogEntry, options: &InstallOptions) -> PathBuf {
    let name = format!("{}-{}-{}", plugin.name, plugin.version(), std::env::consts::ARCH);
    options.plugins_dir().join(name)
}

/// The plugin that a directory holds by its name, in any version.
pub(super) fn plugin_of_dir(dir: &Path) -> Option<&'static CatalogEntry> {
    let file_name = dir.file_name()?.to_str()?;
    PLUGINS.iter().find(|plugin| {
        let rest = file_name.strip_prefix(plugin.name).and_then(|rest| rest.strip_prefix('-'));
        // `cuda-compiler-1.0-x86_64` is not a version of `cuda`.
        rest.is_some_and(|version| version.starts_with(|first: char| first.is_ascii_digit()))
    })
}
