//! Files that the user names.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Opens a regular file for reading. Anything else could return bytes forever, or block until
/// another process writes.
///
/// # Errors
/// A file that does not exist, that may not be read, or that is not regular: a directory, a pipe, a
/// device.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Before opening it: opening a pipe waits for its writer.
    let metadata = fs::metadata(path)?;
    if metadata.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !metadata.is_file() {
        let problem = format!("it is {}, not a regular file", kind(&metadata));
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    File::open(path)
}

/// All bytes of a regular file of at most `max_bytes`.
///
/// # Errors
/// As [`open_regular`], and a larger file.
pub fn read_regular(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    let mut bytes = vec![];
    file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        let problem =
            format!("it has more than {max_bytes} bytes, the most that such a file may have");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}

fn kind(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

/// The user's cache directory for this program, unless `LOCKSTEP_CACHE` names another. `None` if
/// there is neither a home directory nor that variable.
pub fn cache_dir() -> Option<PathBuf> {
    let named = std::env::var_os("LOCKSTEP_CACHE").filter(|value| !value.is_empty());
    named.map(PathBuf::from).or_else(|| {
        let strategy = etcetera::choose_base_strategy().ok()?;
        Some(etcetera::BaseStrategy::cache_dir(&strategy).join("lockstep"))
    })
}

/// The path with a leading `~/` replaced by the home directory: shells do this at the start of a
/// word only, not in `--set data.path=~/x` or `--out=~/x`. `./~` is the file of that name.
pub fn expand_home(path: &Path) -> PathBuf {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    under_home(path, home.as_deref())
}

fn under_home(path: &Path, home: Option<&OsStr>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) if rest.as_os_str().is_empty() => home.into(),
        (Ok(rest), Some(home)) => Path::new(home).join(rest),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_some_size_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read_regular(&path, 5).unwrap(), b"12345");
        let error = read_regular(&path, 4).unwrap_err();
        assert!(error.to_string().contains("more than 4 bytes"), "{error}");
        let error = read_regular(Path::new("/dev/zero"), 4).unwrap_err();
        assert_eq!(error.to_string(), "it is a device, not a regular file");
        let error = open_regular(dir.path()).unwrap_err();
        assert_eq!(error.to_string(), "is a directory");
    }

    #[test]
    fn a_leading_tilde_is_the_home_directory() {
        let home = Some(OsStr::new("/home/a"));
        let cases = [
            ("~", "/home/a"),
            ("~/b/c", "/home/a/b/c"),
            ("~b/c", "~b/c"),
            ("./~/b", "./~/b"),
            ("b/~", "b/~"),
        ];
        for (path, expected) in cases {
            assert_eq!(under_home(Path::new(path), home), Path::new(expected));
        }
        assert_eq!(under_home(Path::new("~/b"), None), Path::new("~/b"));
    }
}
