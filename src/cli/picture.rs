//! The files of options that name a picture.

use std::path::Path;

use anyhow::Result;

use super::output::OutputFile;
use crate::figure::{Figure, PictureFormat, is_figure};

/// The file of an option that names a picture: it may be written. Nothing that is there is replaced
/// without `overwrite`. Call this before anything that takes long.
///
/// # Errors
/// As [`OutputFile::check`]; a name with another extension.
pub fn new_file<'a>(
    option: &'static str,
    path: &'a Path,
    overwrite: bool,
    is_own: fn(&[u8]) -> bool,
) -> Result<OutputFile<'a>> {
    PictureFormat::of(path)?;
    let file = OutputFile { option, path, overwrite, is_own };
    file.check()?;
    Ok(file)
}

/// The file of `--plot`, if there is one, as [`new_file`]. An earlier picture of ours is replaced.
pub fn file(plot: Option<&Path>, overwrite: bool) -> Result<Option<OutputFile<'_>>> {
    plot.map(|path| new_file("--plot", path, overwrite, is_figure)).transpose()
}

/// Draws into a file; its extension gives the format.
pub fn save(file: OutputFile<'_>, figure: &Figure) -> Result<()> {
    file.write(&figure.draw(PictureFormat::of(file.path)?)?)
}

/// The last part of a path, for a title.
pub fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
