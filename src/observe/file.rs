//! Files that are whole or not there.

use std::ffi::OsString;
use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Puts a file in the place of another, or where none is: written under another name beside it and then
/// renamed, so that whoever reads it reads all of it, and what was there stays until that is complete.
///
/// # Errors
/// If the file cannot be written, or a directory stands in its place.
pub fn replace_file(path: &Path, contents: &[u8]) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // As any other new file: the process's umask takes its part away.
    let permissions = Permissions::from_mode(0o666);
    let mut file = tempfile::Builder::new()
        .prefix(&unfinished_prefix(path))
        .permissions(permissions)
        .tempfile_in(dir)?;
    // Not through the handle, whose errors name the other name.
    let written = file.as_file_mut();
    written.write_all(contents)?;
    written.sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// How the names of files begin that [`replace_file`] leaves unfinished where the process is killed.
pub fn unfinished_prefix(path: &Path) -> OsString {
    let mut prefix = OsString::from(".unfinished.");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    prefix
}
