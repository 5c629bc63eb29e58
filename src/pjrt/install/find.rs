//! Finding plugins on this machine.
//!
//! A path is used directly. A name is looked up in our own cache first: that takes microseconds,
//! while asking Python for a package takes 30 to 50 ms of every start, and the cache has the
//! version that this program was tested with. Then installed Python packages are searched, so that
//! a machine with `jax` or `libtpu` needs no download.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::InstallError;
use super::catalog::{CatalogEntry, catalog_entry};
use super::location::{FoundPlugin, InstallOptions, PluginSource, installed};

/// The plugin called `name` (`cpu`, `cuda`, `tpu`, or the path of a .so file) if it is on this
/// machine. Whether it is a complete plugin is checked when it is loaded.
///
/// # Errors
/// [`InstallError::UnknownName`] for other names.
pub fn find(name: &str, options: &InstallOptions) -> Result<Option<FoundPlugin>, InstallError> {
    if name.contains('/') || name.ends_with(".so") {
        let path = PathBuf::from(name);
        return Ok(Some(FoundPlugin {
            name: name.into(),
            path,
            version: None,
            source: PluginSource::Path,
        }));
    }
    let plugin =
        catalog_entry(name).ok_or_else(|| InstallError::UnknownName { name: name.into() })?;
    Ok(installed(plugin, options).or_else(|| in_python(plugin, &options.python)))
}

/// The directory of NVIDIA's libraries and tools that a CUDA plugin uses: PACKAGES/nvidia for a
/// plugin at PACKAGES/jax_plugins/xla_cuda13/xla_cuda_plugin.so, installed by this program or in a
/// Python environment.
pub fn nvidia_packages(plugin: &Path) -> PathBuf {
    plugin.ancestors().nth(3).unwrap_or(Path::new("")).join("nvidia")
}

/// Prints the directory of a package and the version of its distribution, without importing it.
const ASK_PYTHON: &str = "
import importlib.metadata, importlib.util, sys
try:
    spec = importlib.util.find_spec(sys.argv[1])
except ImportError:
    spec = None
if spec and spec.submodule_search_locations:
    print(list(spec.submodule_search_locations)[0])
    try:
        print(importlib.metadata.version(sys.argv[2]))
    except importlib.metadata.PackageNotFoundError:
        pass
";

/// The plugin among the packages of a Python environment.
pub(super) fn in_python(plugin: &'static CatalogEntry, python: &Path) -> Option<FoundPlugin> {
    let module = plugin.directory.replace('/', ".");
    let output = Command::new(python)
        .args(["-c", ASK_PYTHON, &module, plugin.packages[0].distribution])
        .output()
        .ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    let mut lines = said.lines();
    let path = Path::new(lines.next()?).join(plugin.library);
    path.is_file().then(|| FoundPlugin {
        name: plugin.name.to_owned(),
        path,
        version: lines.next().map(str::to_owned),
        source: PluginSource::Python,
    })
}
