//! Installing plugins with the user's own `pip`.
//!
//! Plugins are published as Python wheels. `pip` respects the user's mirrors, proxies and
//! certificates and needs no root. Python is not used afterwards. Wheels are pinned by version and
//! hash (`catalog.rs`), and only the plugin's part of each is unpacked, into
//! `plugins/NAME-VERSION-PROCESSOR` of the cache directory. The directory has a record of its files
//! (`record.rs`), which are checked before a library is loaded (`elf.rs`).

mod catalog;
mod elf;
mod error;
mod find;
mod hash;
mod installed;
mod location;
mod record;
mod wheel;

use std::fs;
use std::io;

use catalog::catalog_entry;
use installed::{lock, verify_files};
use location::{install_dir, installed};
use record::Record;
use wheel::{check_hash, download, hashes, unpack, wheel_of};

pub(super) use elf::missing_bytes;
pub use error::InstallError;
pub use find::{find, nvidia_packages};
pub(super) use hash::hex;
pub use installed::{Listed, Verified, installed_names, list, remove, verify};
pub use location::{FoundPlugin, InstallOptions, PluginSource};
pub(super) use record::{
    check_before_load, check_library_to_load, explain_load_failure, files_below,
};

/// Installs the plugin called `name` (`cpu`, `cuda`, `tpu`) unless it is installed with all files
/// unchanged, and returns where it is. A damaged one is reported through `say` and installed again.
/// Concurrent installs are safe: the second waits for the first. The CPU plugin takes 260 MB of
/// disk space, the CUDA plugin with NVIDIA's libraries several gigabytes.
///
/// # Errors
/// See [`InstallError`]. A failed install leaves no files and does not change an existing
/// installation.
pub fn install(
    name: &str,
    options: &InstallOptions,
    say: impl Fn(&str),
) -> Result<FoundPlugin, InstallError> {
    let plugin =
        catalog_entry(name).ok_or_else(|| InstallError::UnknownName { name: name.to_owned() })?;
    let hashes = hashes(plugin)?;
    let plugins_dir = options.plugins_dir();
    let cache_error = |source| InstallError::Cache { path: plugins_dir.clone(), source };
    let _lock = lock(options)?;
    if let Some(found) = installed(plugin, options) {
        match verify_files(plugin, options) {
            Ok(verified) => {
                if !verified.was_recorded {
                    say(&format!(
                        "the {name} plugin was installed by an older version of this program; its \
                         files are recorded now"
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
    // In the cache directory, so that the finished tree can be renamed into place.
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
    let old = work.path().join("old");
    if target.exists() {
        // Processes that have loaded it are not affected: their mappings stay valid until they end.
        fs::rename(&target, &old).map_err(cache_error)?;
    }
    fs::rename(&tree, &target).map_err(|error| {
        if old.exists() {
            // The first error is the one to report.
            let _ = fs::rename(&old, &target);
        }
        cache_error(error)
    })?;
    installed(plugin, options).ok_or_else(|| InstallError::Cache {
        path: target,
        source: io::Error::other("the plugin vanished while it was installed"),
    })
}

/// [`find`], but installs the CPU plugin if it is missing and reports that through `say`. The other
/// plugins are large and need their hardware, so they are only installed on request.
///
/// # Errors
/// [`InstallError::NotInstalled`], or those of [`install`] for the CPU plugin.
pub fn find_or_install(
    name: &str,
    options: &InstallOptions,
    say: impl Fn(&str),
) -> Result<FoundPlugin, InstallError> {
    if let Some(found) = find(name, options)? {
        return Ok(found);
    }
    match catalog_entry(name) {
        Some(plugin) if plugin.name == "cpu" => {
            say(&format!(
                "fetching the CPU plugin with pip, once: {} {}",
                plugin.packages[0].distribution,
                plugin.version()
            ));
            install(name, options, say)
        }
        Some(plugin) => Err(InstallError::NotInstalled { name: plugin.name }),
        None => Err(InstallError::UnknownName { name: name.into() }),
    }
}
