//! Checks of a shared library's ELF header.
//!
//! They run before the dynamic loader: its messages do not name the processor, and with a truncated
//! file the process ends with SIGBUS as soon as it touches the missing part.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::pjrt::{Error, Result};

/// ELF machine numbers of the supported processors.
const MACHINES: [(u16, &str); 2] = [(62, "x86_64"), (183, "aarch64")];

const MAGIC: &[u8] = b"\x7fELF";
/// Size of the header of a 64-bit file, in bytes.
const HEADER: usize = 64;
/// Size of an entry of its segment table, in bytes.
const SEGMENT: u64 = 56;

/// Checks that a file is a complete shared library for this processor.
///
/// # Errors
/// [`Error::UnreadablePlugin`], [`Error::NotAPlugin`], [`Error::WrongArchitecture`],
/// [`Error::IncompletePlugin`].
pub(in crate::pjrt) fn check_library(path: &Path) -> Result<()> {
    let unreadable = |source| Error::UnreadablePlugin { path: path.to_path_buf(), source };
    let not_a_plugin =
        |reason: &str| Error::NotAPlugin { path: path.to_path_buf(), reason: reason.into() };
    let metadata = path.metadata().map_err(unreadable)?;
    // Opening a pipe would wait for its other end.
    if !metadata.is_file() {
        let what = if metadata.is_dir() { "it is a directory" } else { "it is not a regular file" };
        return Err(not_a_plugin(what));
    }
    if metadata.len() == 0 {
        return Err(not_a_plugin("it is empty"));
    }
    let file = File::open(path).map_err(unreadable)?;
    let header = header(&file).map_err(unreadable)?;
    if header.len() < 20 || !header.starts_with(MAGIC) {
        return Err(not_a_plugin("it is not a shared library"));
    }
    let machine = u16_at(&header, 18);
    let found = MACHINES.iter().find(|row| row.0 == machine).map(|row| row.1);
    if found != Some(std::env::consts::ARCH) {
        return Err(Error::WrongArchitecture {
            path: path.to_path_buf(),
            found: found.map_or_else(|| format!("ELF machine {machine}"), str::to_owned),
            host: std::env::consts::ARCH,
        });
    }
    match missing_bytes(&file).map_err(unreadable)? {
        0 => Ok(()),
        missing => Err(Error::IncompletePlugin { path: path.to_path_buf(), missing }),
    }
}

/// A lower bound of the bytes that are missing at the end of a 64-bit ELF file, from the segments
/// and the section table in its header. 0 for other kinds of files, about which nothing is known.
pub(in crate::pjrt) fn missing_bytes(file: &File) -> io::Result<u64> {
    let header = header(file)?;
    let is_elf64 = header.starts_with(MAGIC) && header.get(4..6).is_none_or(|kind| kind == [2, 1]);
    if !is_elf64 {
        return Ok(0);
    }
    let length = file.metadata()?.len();
    if header.len() < HEADER {
        return Ok((HEADER as u64).saturating_sub(length));
    }
    let table = |offset: u64, entry: u64, count: u16| {
        if count == 0 { 0 } else { offset.saturating_add(entry * u64::from(count)) }
    };
    let (segments_at, sections_at) = (u64_at(&header, 32), u64_at(&header, 40));
    let (num_segments, num_sections) = (u16_at(&header, 56), u16_at(&header, 60));
    let sections_end = table(sections_at, u64::from(u16_at(&header, 58)), num_sections);
    let mut end = sections_end.max(table(segments_at, SEGMENT, num_segments));
    if end <= length && num_segments > 0 {
        let mut segments = vec![0; SEGMENT as usize * usize::from(num_segments)];
        file.read_exact_at(&mut segments, segments_at)?;
        for segment in segments.chunks_exact(SEGMENT as usize) {
            // Its offset and size in the file.
            end = end.max(u64_at(segment, 8).saturating_add(u64_at(segment, 32)));
        }
    }
    Ok(end.saturating_sub(length))
}

fn header(mut file: &File) -> io::Result<Vec<u8>> {
    let mut header = Vec::with_capacity(HEADER);
    io::Seek::rewind(&mut file)?;
    file.take(HEADER as u64).read_to_end(&mut header)?;
    Ok(header)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This program's own file is complete; every shorter one is truncated.
    #[test]
    fn every_file_that_is_cut_off_lacks_what_was_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        let length = std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        assert_eq!(missing_bytes(&file).unwrap(), 0);
        for left in [length - 1, length / 2, 4096, 200, 63, 20, 5, 4] {
            file.set_len(left).unwrap();
            let missing = missing_bytes(&file).unwrap();
            assert!(missing > 0 && missing <= length - left, "{left}: {missing}");
            let error = check_library(&path).unwrap_err();
            match left {
                20.. => assert!(matches!(error, Error::IncompletePlugin { .. }), "{error}"),
                _ => assert!(matches!(error, Error::NotAPlugin { .. }), "{error}"),
            }
        }
    }

    #[test]
    fn of_other_files_nothing_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        for text in ["", "text", "a longer text that does not begin as libraries do: long enough"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(missing_bytes(&File::open(&path).unwrap()).unwrap(), 0);
        }
    }
}
