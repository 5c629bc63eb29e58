//! The meaning of the classes of a model that a run starts from.

use std::path::Path;

use super::{Error, SavedModel};
use crate::config::{Config, DataConfig, FolderClasses, FolderConfig};

/// Tensors of a head with a row for each class, by the names that files have.
const ROWS: [&str; 2] = ["classifier.bias", "classifier.weight"];

/// The classes of a model that is in files, or was trained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedClasses {
    /// Their names in order; `None` if they have none.
    pub names: Option<Vec<String>>,
    /// Their number; `None` if nothing says it.
    pub num_classes: Option<usize>,
    /// `true` if there is a head with a row for each of them.
    pub has_head: bool,
    /// `true` if a text has any number of them.
    pub is_multi_label: bool,
}

/// The classes of the model that `path` leads to, see [`SavedModel::find`]. `None` if nothing there
/// says what they are: a file by itself, or a run on other data.
///
/// # Errors
/// A file that cannot be read; a folder with a `config.json` that contradicts itself or the head,
/// or describes a model without classes.
pub fn saved_classes(path: &Path) -> Result<Option<SavedClasses>, Error> {
    let saved = SavedModel::find(path)?;
    if let Some((text, path)) = saved.config()? {
        let config = Config::parse_for_evaluation(&text, &path, &[]);
        let data = config.map(|config| config.data).ok();
        let Some(DataConfig::Classification(texts)) = data else { return Ok(None) };
        let names = Some(texts.labels).filter(|names| !names.is_empty());
        let num_classes = names.as_ref().map(Vec::len);
        return Ok(Some(SavedClasses {
            names,
            num_classes,
            has_head: true,
            is_multi_label: false,
        }));
    }
    if !FolderConfig::is_in(path) {
        return Ok(None);
    }
    let folder = FolderConfig::read(path)?;
    let FolderClasses { names, num_classes, is_multi_label } = folder.classes()?;
    let tensors = saved.tensors()?;
    let head = ROWS.iter().find_map(|name| Some((name, tensors.get(*name)?)));
    let rows = head.and_then(|(name, tensor)| Some((name, *tensor.dims.first()?)));
    if let (Some((name, rows)), Some(num_classes)) = (rows, num_classes)
        && rows != num_classes
    {
        let reason = format!("it has {num_classes} classes, but `{name}` in {saved} has {rows}");
        return Err(folder.wrong(reason).into());
    }
    Ok(Some(SavedClasses {
        names,
        num_classes: num_classes.or(rows.map(|(_, rows)| rows)),
        has_head: head.is_some(),
        is_multi_label,
    }))
}
