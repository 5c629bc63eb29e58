//! Where plugins are kept on this machine.

use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;

use super::InstallError;
use super::catalog::{CatalogEntry, PLUGINS};

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
pub struct FoundPlugin {
    /// The name or path that it was asked for by.
    pub name: String,
    /// Its shared library.
    pub path: PathBuf,
    /// Its version, where known.
    pub version: Option<String>,
    /// Where it was found.
    pub source: PluginSource,
}

/// Where a plugin was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginSource {
    /// Its path was given.
    Path,
    /// Our own cache.
    Cache,
    /// A package installed in the user's Python.
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

/// Where the library of an installed plugin is.
pub(super) fn library(plugin: &CatalogEntry, options: &InstallOptions) -> PathBuf {
    install_dir(plugin, options).join(plugin.library_path())
}

/// The directory of an installed plugin. The processor stands in the name because home directories are shared between machines.
pub(super) fn install_dir(plugin: &CatalogEntry, options: &InstallOptions) -> PathBuf {
    let name = format!("{}-{}-{}", plugin.name, plugin.version(), std::env::consts::ARCH);
    options.plugins_dir().join(name)
}

/// The plugin that a directory is named for, in whatever version.
pub(super) fn plugin_of_dir(dir: &Path) -> Option<&'static CatalogEntry> {
    let file_name = dir.file_name()?.to_str()?;
    PLUGINS.iter().find(|plugin| {
        let rest = file_name.strip_prefix(plugin.name).and_then(|rest| rest.strip_prefix('-'));
        // `cuda-compiler-1.0-x86_64` is no version of `cuda`.
        rest.is_some_and(|version| version.starts_with(|first: char| first.is_ascii_digit()))
    })
}
