//! Files that get records while a run goes on. One that cannot be written costs only itself.

use std::fs::File;
use std::io::{self, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use super::{Error, Writer, WriterTarget, say};

/// The bytes of records that wait while they cannot be written.
const MAX_PENDING_BYTES: usize = 16 << 20;

/// Something that a file gets one after the other.
pub(super) trait ToRecord: Send + 'static {
    /// As it stands in the file.
    fn bytes(&self) -> Vec<u8>;
}

/// A new file of records.
pub(super) struct RecordFile<T> {
    path: PathBuf,
    file: File,
    pending: Vec<u8>,
    /// Records that did not fit, since that was said.
    num_lost: u64,
    has_said: bool,
    of: PhantomData<fn(T)>,
}

impl<T: ToRecord> RecordFile<T> {
    /// Creates the file, and starts the thread that writes it.
    ///
    /// # Errors
    /// A file that cannot be created, or is there already.
    pub fn create(path: &Path) -> Result<Writer<Self>, Error> {
        let file = File::options().create_new(true).append(true).open(path);
        let file = file.map_err(|source| Error::Write { path: path.to_owned(), source })?;
        Writer::start(path, Self::of(path, file))
    }

    fn of(path: &Path, file: File) -> Self {
        let (pending, num_lost, has_said) = (vec![], 0, false);
        Self { path: path.to_owned(), file, pending, num_lost, has_said, of: PhantomData }
    }
}

impl<T: ToRecord> WriterTarget for RecordFile<T> {
    type Item = T;

    fn add(&mut self, record: T) {
        if self.pending.len() > MAX_PENDING_BYTES {
            self.num_lost += 1;
            return;
        }
        self.pending.extend(record.bytes());
    }

    fn try_to_write(&mut self) -> bool {
        let written = write_some(&mut self.file, &mut self.pending);
        if let Err(error) = written
            && !std::mem::replace(&mut self.has_said, true)
        {
            let path = self.path.display();
            say(&format!("warning: {path} cannot be written: {error}; the run goes on"));
        }
        !self.pending.is_empty()
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.try_to_write();
        if self.num_lost > 0 {
            let num_lost = std::mem::take(&mut self.num_lost);
            let path = self.path.display();
            say(&format!("warning: {path} could not be written: events lost: {num_lost}"));
        }
        Ok(())
    }
}

/// Writes what can be written, and keeps the rest.
fn write_some(file: &mut impl Write, pending: &mut Vec<u8>) -> io::Result<()> {
    while !pending.is_empty() {
        match file.write(pending) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => drop(pending.drain(..written)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    impl ToRecord for u8 {
        fn bytes(&self) -> Vec<u8> {
            vec![*self; 9]
        }
    }

    #[test]
    fn a_full_disk_is_no_failure_and_what_waits_is_bounded() {
        let full = Path::new("/dev/full");
        if !full.exists() {
            return;
        }
        let file = File::options().write(true).open(full).unwrap();
        let mut records = RecordFile::of(full, file);
        records.add(7_u8);
        assert!(records.try_to_write(), "the record waits");
        records.flush().unwrap();
        assert!(records.has_said);
        records.pending.resize(MAX_PENDING_BYTES + 1, 0);
        records.add(7);
        assert_eq!((records.num_lost, records.pending.len()), (1, MAX_PENDING_BYTES + 1));
        records.flush().unwrap();
        assert_eq!(records.num_lost, 0, "said");
    }

    #[test]
    fn what_was_written_in_part_is_continued_where_it_ended() {
        struct Narrow(Vec<u8>, usize);
        impl Write for Narrow {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let num_bytes = bytes.len().min(self.1).min(3);
                if num_bytes == 0 {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                self.0.extend(&bytes[..num_bytes]);
                self.1 -= num_bytes;
                Ok(num_bytes)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (mut disk, mut pending) = (Narrow(vec![], 7), (0..10).collect::<Vec<u8>>());
        assert!(write_some(&mut disk, &mut pending).is_err());
        assert_eq!(pending, [7, 8, 9]);
        disk.1 = 100;
        write_some(&mut disk, &mut pending).unwrap();
        assert_eq!(disk.0, (0..10).collect::<Vec<u8>>());
    }
}
