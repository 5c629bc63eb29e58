//! `lockstep checkpoint export`.

use std::path::Path;

use anyhow::{Result, bail};
use models::{Counterpart, Library};

use crate::checkpoint::CheckpointDir;
use crate::cli::args::{ExportArgs, ExportFormat};
use crate::cli::print_line;
use crate::config::{Config, DataConfig};
use crate::data;
use crate::train::params_file::{self, FolderOptions, SavedModel};

/// Writes what evaluation needs: under the model's own names, or as another library has it.
pub fn run(args: &ExportArgs) -> Result<()> {
    let ExportArgs { dir, to, format, without_ema, max_file_bytes } = args;
    if to.symlink_metadata().is_ok() {
        bail!("{} exists; choose another --to", to.display());
    }
    let saved = find(dir, *without_ema)?;
    let counterpart = match library_of(*format) {
        None => None,
        Some(library) => Some(counterpart(&saved, library)?),
    };
    let values = saved.values(!*without_ema)?;
    match counterpart {
        None => params_file::save(to, &values)?,
        Some(counterpart) => {
            let options = folder_options(&saved, max_file_bytes.get())?;
            params_file::save_for_library(to, &values, &counterpart, &options)?;
        }
    }
    print_line(&format!("{} has the model from {saved}", to.display()))
}

/// The checkpoint or the run in a directory.
fn find(dir: &Path, without_ema: bool) -> Result<SavedModel> {
    let saved = match SavedModel::find(dir)? {
        // Its file may have running means in their place.
        SavedModel::Run { .. } if without_ema => match SavedModel::newest_checkpoint(dir)? {
            Some(checkpoint) => checkpoint,
            None => bail!(
                "--without-ema needs a checkpoint, but the run in {} has none; the parameters in \
                 its {} are running means, if the optimizer keeps them",
                dir.display(),
                params_file::FILE
            ),
        },
        saved => saved,
    };
    match saved {
        // Says what is missing.
        SavedModel::Files { .. } => Ok(SavedModel::Checkpoint(CheckpointDir::open(dir)?.into())),
        saved => Ok(saved),
    }
}

fn library_of(format: ExportFormat) -> Option<Library> {
    match format {
        ExportFormat::Safetensors => None,
        ExportFormat::Huggingface => Some(Library::Transformers),
        ExportFormat::Torchvision => Some(Library::Torchvision),
    }
}

/// The tokenizer and the names of the classes, if the data are texts.
fn folder_options(saved: &SavedModel, max_file_bytes: usize) -> Result<FolderOptions> {
    let max_file_bytes = Some(max_file_bytes);
    let without_texts = FolderOptions { max_file_bytes, ..FolderOptions::default() };
    let Some((text, path)) = saved.config()? else { return Ok(without_texts) };
    let config = Config::parse(&text, &path, &[])?;
    let DataConfig::Classification(texts) = &config.data else { return Ok(without_texts) };
    // The names may follow from the training file. Without it the classes have no names.
    let labels = data::class_names(texts).unwrap_or_default();
    let tokenizer = texts.tokenizer.clone().filter(|path| path.exists());
    Ok(FolderOptions { labels, tokenizer, max_file_bytes })
}

/// The model of `library` that the saved one is.
fn counterpart(saved: &SavedModel, library: Library) -> Result<Counterpart> {
    let Some((text, path)) = saved.config()? else { bail!("{saved} has no configuration") };
    let model = Config::parse(&text, &path, &[])?.model;
    let counterpart = model.counterpart();
    let available = counterpart.as_ref().map(|counterpart| counterpart.format.library);
    match counterpart.filter(|_| available == Some(library)) {
        Some(counterpart) => Ok(counterpart),
        None => {
            let other = match available {
                Some(Library::Transformers) => " or huggingface",
                Some(Library::Torchvision) => " or torchvision",
                None => "",
            };
            let name = match library {
                Library::Transformers => "transformers",
                Library::Torchvision => "torchvision",
            };
            bail!(
                "{name} has no model that computes the same as model.name = {:?} of {saved}; \
                 choose --format safetensors{other}",
                model.name()
            )
        }
    }
}
