//! The operations on a file system that saving a checkpoint needs.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};

/// A file system. Each operation may fail, or be the last before a crash: tests use that to stop a
/// save anywhere.
pub trait Disk: Send + Sync {
    /// A file that is being written.
    type File: Write;

    /// Creates a directory and its parents.
    ///
    /// # Errors
    /// If it cannot be created.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Creates a file that is not there yet.
    ///
    /// # Errors
    /// If it cannot be created.
    fn create(&self, path: &Path) -> io::Result<Self::File>;

    /// Waits until the file's contents are on the disk.
    ///
    /// # Errors
    /// If the disk reports one.
    fn sync(&self, file: &Self::File) -> io::Result<()>;

    /// Waits until a directory's entries are on the disk.
    ///
    /// # Errors
    /// If the disk reports one.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Renames a directory.
    ///
    /// # Errors
    /// If it cannot be renamed.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Swaps the names of two directories at once.
    ///
    /// # Errors
    /// If they cannot be renamed, or the file system cannot do it at once.
    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()>;

    /// Removes a directory with everything in it.
    ///
    /// # Errors
    /// If it cannot be removed.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;
}

/// The machine's own file systems.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalDisk;

impl Disk for LocalDisk {
    type File = File;

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        File::create_new(path)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()> {
        Ok(renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)?)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }
}
