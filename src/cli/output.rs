//! Files that the user names for what a command writes. One rule for all of them: what is there
//! already is not replaced unless the user says `--overwrite`, or it is recognized as what the same
//! option has written before and anyone can draw or compile again.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::observe::{create_file, replace_file};

/// A file that the user names in an option.
#[derive(Clone, Copy)]
pub struct OutputFile<'a> {
    /// The option.
    pub option: &'static str,
    /// The file.
    pub path: &'a Path,
    /// `true` with `--overwrite`.
    pub overwrite: bool,
    /// Is this the beginning of a file that the option has written before, and that may be
    /// replaced?
    pub is_own: fn(&[u8]) -> bool,
}

/// Bytes at the beginning of a file in which it is recognized.
const HEAD_BYTES: u64 = 4096;

/// Nothing that is there may be replaced: it could be somebody's data.
pub fn never(_head: &[u8]) -> bool {
    false
}

impl OutputFile<'_> {
    /// Checks that the file may be written. Call this before anything that takes long.
    ///
    /// # Errors
    /// A file that is there and not to be replaced; a directory; a directory for it that is
    /// missing.
    pub fn check(&self) -> Result<()> {
        let Self { option, path, overwrite, .. } = *self;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        if let Some(dir) = dir.filter(|dir| !dir.is_dir()) {
            bail!(
                "{option}: cannot write {}: there is no directory {}",
                path.display(),
                dir.display()
            );
        }
        if path.is_dir() {
            bail!("{option}: cannot write {}: it is a directory", path.display());
        }
        match self.may_write() {
            true => Ok(()),
            false if overwrite => Ok(()),
            false => bail!(
                "{option}: {} exists; choose another name, or replace it with --overwrite",
                path.display()
            ),
        }
    }

    /// Writes the file, after the same check: another program may have written it meanwhile.
    ///
    /// # Errors
    /// As [`Self::check`], and a file that cannot be written.
    pub fn write(&self, contents: &[u8]) -> Result<()> {
        self.check()?;
        let written = match self.path.symlink_metadata().is_ok() {
            true => replace_file(self.path, contents),
            false => create_file(self.path, contents),
        };
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// `true` if nothing would be lost: there is no such file, or it is empty or one of our own, or
    /// a pipe or a device.
    fn may_write(&self) -> bool {
        let is_free = self.path.symlink_metadata().is_err();
        let is_stream = fs::metadata(self.path).is_ok_and(|found| !found.is_file());
        let may_replace = |head: Vec<u8>| head.is_empty() || (self.is_own)(&head);
        is_free || is_stream || head(self.path).is_ok_and(may_replace)
    }
}

/// The beginning of a file.
fn head(path: &Path) -> io::Result<Vec<u8>> {
    let mut head = vec![];
    fs::File::open(path)?.take(HEAD_BYTES).read_to_end(&mut head)?;
    Ok(head)
}

/// Checks that files of these names may be written into a directory: it has none of them, or the
/// first of them is one that `is_own` recognizes, and the others are of the same command.
///
/// # Errors
/// Something of one of these names that is not to be replaced, or is not a file.
pub fn check_dir(
    (option, dir): (&'static str, &Path),
    names: &[&str],
    overwrite: bool,
    is_own: fn(&[u8]) -> bool,
) -> Result<()> {
    let there: Vec<_> =
        names.iter().copied().filter(|name| dir.join(name).symlink_metadata().is_ok()).collect();
    let is_earlier = || {
        let first = names.first().map(|name| dir.join(name));
        first.is_some_and(|first| head(&first).is_ok_and(|head| is_own(&head)))
    };
    match there.first() {
        None => Ok(()),
        Some(_) if overwrite || is_earlier() => Ok(()),
        Some(_) => bail!(
            "{option}: {} has files of these names: {}; choose another directory, or replace them \
             with --overwrite",
            dir.display(),
            there.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &Path, overwrite: bool, is_own: fn(&[u8]) -> bool) -> OutputFile<'_> {
        OutputFile { option: "--to", path, overwrite, is_own }
    }

    fn is_ours(head: &[u8]) -> bool {
        head.starts_with(b"ours")
    }

    #[test]
    fn what_is_there_is_replaced_only_if_it_is_our_own_or_the_user_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        file(&path, false, never).write(b"first").unwrap();
        let error = file(&path, false, never).write(b"second").unwrap_err().to_string();
        assert!(error.contains("/a exists; choose another name, or replace it with --overwrite"));
        file(&path, false, is_ours).check().unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"first");
        file(&path, true, never).write(b"ours: 1").unwrap();
        file(&path, false, is_ours).write(b"ours: 2").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"ours: 2");
        // As `mktemp` makes it.
        fs::write(dir.path().join("empty"), "").unwrap();
        file(&dir.path().join("empty"), false, never).check().unwrap();
        // A link that leads nowhere is something of the user's, too.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        file(&link, false, is_ours).check().unwrap_err();
        file(Path::new("/dev/null"), false, never).write(b"lost").unwrap();
        for (path, expected) in [
            (dir.path().to_owned(), "it is a directory"),
            (path.join("b"), "there is no directory"),
        ] {
            let error = file(&path, true, never).check().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_directory_may_have_other_files_and_an_earlier_dump() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["first", "second"];
        let check = |overwrite| check_dir(("--dump", dir.path()), &names, overwrite, is_ours);
        fs::write(dir.path().join("notes"), "mine").unwrap();
        check(false).unwrap();
        fs::write(dir.path().join("second"), "mine").unwrap();
        let error = check(false).unwrap_err().to_string();
        assert!(error.contains("has files of these names: second; choose"), "{error}");
        check(true).unwrap();
        fs::write(dir.path().join("first"), "mine").unwrap();
        check(false).unwrap_err();
        fs::write(dir.path().join("first"), "ours").unwrap();
        check(false).unwrap();
    }
}
