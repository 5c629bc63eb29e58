//! Which files a folder holds, in an order that is the same everywhere.

use std::fs;
use std::path::{Path, PathBuf};

use super::Error;

/// The file itself, or all files of the folder and the folders in it, sorted by path. With `extensions`
/// (`rs` or `.rs`, in capitals or not) only those that end so.
///
/// Left out are names that begin with a point, as a repository's `.git`, links to folders, which could
/// lead in a circle, and what is neither file nor folder: sockets, pipes, links that lead nowhere.
///
/// # Errors
/// A path that is not there, a folder that cannot be listed, or no such file in it.
pub(super) fn list(path: &Path, extensions: &[String]) -> Result<Vec<PathBuf>, Error> {
    let metadata = fs::metadata(path).map_err(|source| unreadable(path, source))?;
    if !metadata.is_dir() {
        return Ok(vec![path.to_owned()]);
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
            } else if has_extension(&entry, extensions) && is_file(&entry) {
                files.push(entry);
            }
        }
    }
    if files.is_empty() {
        return Err(Error::NoFiles { path: path.to_owned(), extensions: extensions.to_vec() });
    }
    files.sort();
    Ok(files)
}

pub(super) fn unreadable(path: &Path, source: std::io::Error) -> Error {
    Error::Read { path: path.to_owned(), source }
}

pub(super) fn is_hidden(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// Links to files count as files.
fn is_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
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
        let name = |path: PathBuf| path.strip_prefix(root).unwrap().display().to_string();
        list(root, &extensions).unwrap().into_iter().map(name).collect()
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
        assert_eq!(list(&file, &["rs".to_owned()]).unwrap(), [file]);
    }

    #[test]
    fn nothing_to_read_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let message = list(dir.path(), &[]).unwrap_err().to_string();
        assert!(message.contains("holds no file;") && message.contains("data.path"), "{message}");
        fs::write(dir.path().join("a.md"), "a").unwrap();
        let message = list(dir.path(), &["rs".to_owned()]).unwrap_err().to_string();
        assert!(message.contains("holds no file that ends in .rs"), "{message}");
        let message = list(&dir.path().join("no"), &[]).unwrap_err().to_string();
        assert!(message.contains("/no: ") && message.contains("data.path"), "{message}");
    }
}
