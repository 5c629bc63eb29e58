//! Reading the files of a checkpoint, wherever they are.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::config::open_regular;

/// The files of one checkpoint.
pub trait CheckpointSource: fmt::Debug + Send + Sync {
    /// Opens a file by its name.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] without such a file; others if it cannot be opened.
    fn open(&self, name: &str) -> io::Result<Box<dyn SourceFile>>;
}

/// A file that is read in ranges.
pub trait SourceFile: fmt::Debug + Send + Sync {
    /// Its size.
    fn num_bytes(&self) -> u64;

    /// Fills `bytes` from the file, starting at `offset`.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the file ends before; others if it cannot be read.
    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
}

/// The files in a directory.
#[derive(Clone, Debug)]
pub struct LocalSource {
    dir: PathBuf,
}

impl LocalSource {
    /// The files in `dir`.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }
}

impl CheckpointSource for LocalSource {
    fn open(&self, name: &str) -> io::Result<Box<dyn SourceFile>> {
        let file = open_regular(&self.dir.join(name))?;
        let num_bytes = file.metadata()?.len();
        Ok(Box::new(LocalFile { file, num_bytes }))
    }
}

#[derive(Debug)]
struct LocalFile {
    file: File,
    num_bytes: u64,
}

impl SourceFile for LocalFile {
    fn num_bytes(&self) -> u64 {
        self.num_bytes
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }
}
