//! Which files a folder holds, in an order that is the same everywhere.

use std::fs;
use std::path::{Path, PathBuf};

use super::Error;

/// A file of a data set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ListedFile {
    /// Its path.
    pub path: PathBuf,
    /// Its size in bytes.
    pub num_bytes: u64,
}

/// The file itself, or all files of the folder and its subfolders, sorted by path. With
/// `extensions` (`rs` or `.rs`, in upper or lower case), only files that end in one of them.
///
/// Hidden names (such as `.git`) are skipped, and so are links to folders, because they can form
/// cycles, and anything that is not a regular file or folder: sockets, pipes, broken links.
///
/// # Errors
/// A missing path, or a folder that cannot be listed. The message says to set `key`.
pub(super) fn list(
    path: &Path,
    key: &'static str,
    extensions: &[String],
) -> Result<Vec<ListedFile>, Error> {
    let unreadable = |path: &Path, source| unreadable(path, key, source);
    let metadata = fs::metadata(path).map_err(|source| unreadable(path, source))?;
    if !metadata.is_dir() {
        return Ok(vec![ListedFile { path: path.to_owned(), num_bytes: metadata.len() }]);
    }
    let mut files = vec![];
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(|source| unreadable(&folder, source))? {
            let entry = entry.map_err(|source| unreadable(&folder, source))?;
            if is_hidden(&entry.file_name()) {
                continue;
            }
            let kind = entry.file_type().map_err(|source| unreadable(&entry.path(), source))?;
            let entry = entry.path();
            if kind.is_dir() {
                folders.push(entry);
            } else if has_extension(&entry, extensions)
                // Links to files count as files.
                && let Ok(metadata) = fs::metadata(&entry)
                && metadata.is_file()
            {
                files.push(ListedFile { path: entry, num_bytes: metadata.len() });
            }
        }
    }
    files.sort();
    Ok(files)
}

pub(super) fn unreadable(path: &Path, key: &'static str, source: std::io::Error) -> Error {
    Error::Read { path: path.to_owned(), key, source }
}

pub(super) fn is_hidden(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

fn has_extension(path: &Path, extensions: &[String]) -> bool {
    let Some(extension) = path.extension() else { return extensions.is_empty() };
    let is_wanted =
        |wanted: &String| extension.eq_ignore_ascii_case(wanted.trim_start_matches('.'));
    extensions.is_empty() || extensions.iter().any(is_wanted)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn names(root: &Path, extensions: &[&str]) -> Vec<String> {
        let extensions: Vec<_> = extensions.iter().map(|word| word.to_string()).collect();
        let name = |file: ListedFile| file.path.strip_prefix(root).unwrap().display().to_string();
        list(root, "data.path", &extensions).unwrap().into_iter().map(name).collect()
    }

    #[test]
    fn files_are_sorted_by_path_and_what_is_none_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for folder in ["b/c", ".git", "b.d"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for file in ["z.rs", "b/c/x.RS", "b/a.md", ".git/objects", ".hidden", "b.d/y", "a"] {
            fs::write(root.join(file), file).unwrap();
        }
        symlink(root, root.join("b/circle")).unwrap();
        symlink("nowhere", root.join("broken.rs")).unwrap();
        symlink(root.join("z.rs"), root.join("b/link.rs")).unwrap();
        let _socket = UnixListener::bind(root.join("socket.rs")).unwrap();
        assert_eq!(names(root, &[]), ["a", "b/a.md", "b/c/x.RS", "b/link.rs", "b.d/y", "z.rs"]);
        assert_eq!(names(root, &["rs"]), ["b/c/x.RS", "b/link.rs", "z.rs"]);
        assert_eq!(names(root, &[".md", "py"]), ["b/a.md"]);
        let file = root.join("b/a.md");
        let listed = list(&file, "data.path", &["rs".to_owned()]).unwrap();
        assert_eq!(listed, [ListedFile { path: file, num_bytes: 6 }]);
    }

    #[test]
    fn a_path_that_is_not_there_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(list(dir.path(), "data.path", &[]).unwrap().is_empty());
        let error = list(&dir.path().join("no"), "data.eval_path", &[]).unwrap_err().to_string();
        assert!(error.contains("/no: ") && error.ends_with("set data.eval_path"), "{error}");
    }
}
