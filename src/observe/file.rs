//! Files that are replaced atomically: complete or not there.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::NamedTempFile;

/// Creates or replaces a file. It is written under another name in the same directory, synced to
/// disk and renamed, so that a reader gets all of the old contents or all of the new. A pipe or a
/// device, such as `/dev/null`, is written to instead: a file in its place would break what else
/// uses it.
///
/// # Errors
/// If the file cannot be written, or `path` is a directory.
pub fn replace_file(path: &Path, contents: &[u8]) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return fs::write(path, contents);
    }
    unfinished(path, contents)?.persist(path)?;
    Ok(())
}

/// As [`replace_file`], but a file of that name stays as it is.
///
/// # Errors
/// If there is such a file, or it cannot be written.
pub fn create_file(path: &Path, contents: &[u8]) -> io::Result<()> {
    unfinished(path, contents)?.persist_noclobber(path)?;
    Ok(())
}

/// Writes a file under another name in the same directory, and waits until it is on the disk.
fn unfinished(path: &Path, contents: &[u8]) -> io::Result<NamedTempFile> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The mode of any new file; the process's umask applies to it.
    let permissions = Permissions::from_mode(0o666);
    let mut file = tempfile::Builder::new()
        .prefix(&unfinished_prefix(path))
        .permissions(permissions)
        .tempfile_in(dir)?;
    // Not through the handle: its errors contain the temporary name.
    let written = file.as_file_mut();
    written.write_all(contents)?;
    written.sync_all()?;
    Ok(file)
}

/// Prefix of the temporary files that remain if the process is killed while it replaces `path`.
pub fn unfinished_prefix(path: &Path) -> OsString {
    let mut prefix = OsString::from(".unfinished.");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    prefix
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_written_to_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        replace_file(&link, b"a").unwrap();
        assert!(link.is_symlink());
    }

    #[test]
    fn a_new_file_replaces_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        create_file(&path, b"first").unwrap();
        assert_eq!(create_file(&path, b"second").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
