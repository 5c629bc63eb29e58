//! The version of NCCL, which the CUDA plugin loads for collectives.
//!
//! The plugin finds it by its own path, as `libnccl.so.2` in NVIDIA's Python package installed with
//! it. So it is looked up by path here too, not through the system's loader.

use std::ffi::c_int;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::install::{check_before_load, missing_bytes, nvidia_packages};
use super::{Error, Result};

/// A version of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NcclVersion {
    /// Changes rarely; 2 since 2017.
    pub major: i32,
    /// Release.
    pub minor: i32,
    /// Patch level.
    pub patch: i32,
}

impl NcclVersion {
    /// From the number in NCCL's header: 2804 is 2.8.4. From 2.9 on the minor version has two
    /// digits, as in 22703.
    fn from_code(code: i32) -> Self {
        let factor = if code < 10_000 { 1000 } else { 10_000 };
        Self { major: code / factor, minor: code % factor / 100, patch: code % 100 }
    }
}

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { major, minor, patch } = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// The path of the NCCL library that the CUDA plugin at `plugin` uses.
pub fn nccl_library(plugin: &Path) -> PathBuf {
    nvidia_packages(plugin).join("nccl/lib/libnccl.so.2")
}

/// The version that an NCCL library reports. It needs neither GPU nor driver.
///
/// # Errors
/// [`Error::NotNccl`] for a file that cannot be loaded, or is something else;
/// [`super::InstallError::Damaged`].
pub fn nccl_version(library: &Path) -> Result<NcclVersion> {
    type GetVersion = unsafe extern "C" fn(version: *mut c_int) -> c_int;
    let error = |reason: String| Error::NotNccl { path: library.to_path_buf(), reason };
    check_before_load(library)?;
    let missing = File::open(library).and_then(|file| missing_bytes(&file));
    if missing.map_err(|source| error(source.to_string()))? > 0 {
        return Err(error("it is cut off".into()));
    }
    // SAFETY: NCCL's initialisers set up its own tables only, and it stays loaded as long as
    // `loaded` lives.
    let loaded = unsafe { libloading::Library::new(library) };
    let loaded = loaded.map_err(|source| error(source.to_string()))?;
    let mut code: c_int = 0;
    // SAFETY: NCCL declares `ncclResult_t ncclGetVersion(int *version)`, where the result is an
    // enum of C; it writes one int, and the library is loaded for the time of the call.
    let status = unsafe {
        let get_version = loaded.get::<GetVersion>(b"ncclGetVersion\0");
        get_version.map_err(|source| error(source.to_string()))?(&raw mut code)
    };
    match status {
        0 => Ok(NcclVersion::from_code(code)),
        status => Err(error(format!("ncclGetVersion returned {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_write_a_version_as_a_number_are_read() {
        for (code, version) in [(2804, "2.8.4"), (21003, "2.10.3"), (22703, "2.27.3")] {
            assert_eq!(NcclVersion::from_code(code).to_string(), version);
        }
    }

    #[test]
    fn what_is_not_nccl_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("libnccl.so.2");
        std::fs::write(&file, "text").unwrap();
        for library in [file, dir.path().join("missing.so")] {
            let error = nccl_version(&library).unwrap_err().to_string();
            assert!(error.contains(&library.display().to_string()), "{error}");
        }
    }
}
