//! Errors of finding and installing plugins.

use std::io;
use std::path::PathBuf;

use super::catalog::PLUGINS;

/// Why a plugin could not be found or installed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// No plugin with this name can be installed.
    #[error(
        "there is no plugin called {name:?}; known are {}, or give the path of a .so file",
        names()
    )]
    UnknownName {
        /// The requested name.
        name: String,
    },
    /// The plugin is not installed, and is only installed on request.
    #[error("the {name} plugin is not installed; `lockstep plugin install {name}` does it")]
    NotInstalled {
        /// The plugin.
        name: &'static str,
    },
    /// Files of an installed plugin are missing or have changed.
    #[error(
        "the {name} plugin is damaged: {reason}; `lockstep plugin install {name}` installs it again"
    )]
    Damaged {
        /// The plugin.
        name: String,
        /// Which file, and what is wrong with it.
        reason: String,
    },
    /// The plugin to verify or remove was not installed by this program.
    #[error("the {name} plugin at {path} was installed by a Python's own pip, not by this program")]
    OfPython {
        /// The plugin.
        name: &'static str,
        /// Its library.
        path: PathBuf,
    },
    /// There is no wheel for this machine.
    #[error("the {name} plugin exists for Linux on {supported}, not for {os} on {arch}")]
    UnsupportedHost {
        /// The plugin.
        name: &'static str,
        /// The processors that it exists for.
        supported: String,
        /// This machine's operating system.
        os: &'static str,
        /// This machine's processor.
        arch: &'static str,
    },
    /// There is neither a home directory nor an explicit cache directory.
    #[error("there is no home directory to keep plugins in; set LOCKSTEP_CACHE to a directory")]
    NoCacheDir,
    /// The cache cannot be written.
    #[error(
        "cannot write to the cache at {path}: {source}; set LOCKSTEP_CACHE to a directory that can \
         be written"
    )]
    Cache {
        /// The path that could not be written.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Python could not be started.
    #[error(
        "cannot start {python} to fetch the plugin: {source}; install Python 3 with pip, or set \
         LOCKSTEP_PYTHON to one"
    )]
    NoPython {
        /// The command.
        python: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// pip failed: no network, no such version on a mirror, or no pip.
    #[error(
        "pip could not fetch the {name} plugin:\n{last_lines}\nWithout a network, run this on a \
         machine that has one:\n  {command}\nthen copy the directory `wheels` here and run:\n  \
         PIP_NO_INDEX=1 PIP_FIND_LINKS=wheels lockstep plugin install {name}"
    )]
    Pip {
        /// The plugin.
        name: &'static str,
        /// The end of pip's output.
        last_lines: String,
        /// A command that downloads the same wheels.
        command: String,
    },
    /// A wheel does not have the pinned hash.
    #[error(
        "{file} is not the wheel that this version expects (sha256 {found}, expected {expected}); \
         it was not installed. Is a mirror serving something else?"
    )]
    WrongHash {
        /// The wheel or distribution.
        file: String,
        /// The pinned hash.
        expected: String,
        /// The actual hash.
        found: String,
    },
    /// A wheel with the right hash could not be unpacked.
    #[error("cannot unpack {file}: {reason}")]
    Unpack {
        /// The wheel.
        file: String,
        /// The problem.
        reason: String,
    },
}

fn names() -> String {
    PLUGINS.iter().map(|plugin| plugin.name).collect::<Vec<_>>().join(", ")
}
