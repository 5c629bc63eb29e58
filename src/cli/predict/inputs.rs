//! What is predicted: a file, stdin, or the text in the argument itself.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Map, Value, json};
use tempfile::NamedTempFile;

use super::super::args::PredictArgs;
use super::super::in_words;
use super::outputs::Classes;
use crate::config::{ArraysConfig, ClassificationConfig, Config, DataConfig};
use crate::data::{
    self, Arrays, Cifar10, Classification, ExampleKind, ImageFolder, LikeTraining, Source, Table,
    TextEncoder, TextRow, read_text_rows,
};
use crate::observe::say;

/// The argument, in messages.
const INPUT: &str = "INPUT";
/// Extensions of files: an argument with one of them is not a text.
const EXTENSIONS: [&str; 9] = ["tsv", "csv", "jsonl", "parquet", "npy", "npz", "gz", "txt", "json"];
/// Gray levels of `digits`.
const DIGITS_SCALE: f64 = 1.0 / 16.0;

/// Examples to predict.
pub struct Opened {
    /// What is said about each.
    pub inputs: Inputs,
    /// What the model sees.
    pub source: Arc<dyn Source>,
    /// Where they are read.
    pub place: InputPlace,
}

/// What a line says about its example, beside the prediction.
pub enum Inputs {
    /// The texts.
    Texts(Vec<TextRow>),
    /// The files.
    Files(Vec<PathBuf>),
    /// The number of the row, from 1.
    Rows,
}

impl Inputs {
    /// Of an example, by name.
    pub fn of(&self, example: usize) -> Map<String, Value> {
        let mut line = Map::new();
        match self {
            Self::Rows => drop(line.insert("row".to_owned(), json!(example + 1))),
            Self::Files(paths) => {
                drop(line.insert("file".to_owned(), json!(paths[example].to_string_lossy())));
            }
            Self::Texts(rows) => {
                for (name, cell) in ["text", "text_pair"].iter().zip(&rows[example].cells) {
                    line.insert((*name).to_owned(), json!(cell));
                }
            }
        }
        line
    }
}

/// Where the input is.
pub enum InputPlace {
    File(PathBuf),
    /// Stdin, copied into a file with an extension that says what it is.
    Copy(NamedTempFile),
}

impl InputPlace {
    fn path(&self) -> &Path {
        match self {
            Self::File(path) => path,
            Self::Copy(file) => file.path(),
        }
    }

    /// An error about the input, with `stdin` in place of the path of its copy.
    pub fn name_stdin(&self, error: anyhow::Error) -> anyhow::Error {
        match self {
            Self::File(_) => error,
            Self::Copy(file) => {
                let path = file.path().display().to_string();
                anyhow!(in_words(&error).replace(&path, "stdin"))
            }
        }
    }
}

/// Opens the examples of the input, as those that the model was trained on.
///
/// # Errors
/// What is wrong with the input, or that the source has no inputs to predict.
pub fn open(
    args: &PredictArgs,
    config: &Config,
    classes: &Classes,
    is_folder: bool,
) -> Result<Opened> {
    if let DataConfig::Classification(texts) = &config.data {
        let (rows, source) = open_texts(args, texts, &classes.labels, is_folder)?;
        let place = InputPlace::File(args.input.clone());
        return Ok(Opened { inputs: Inputs::Texts(rows), source, place });
    }
    let place = place(&args.input)?;
    let opened = open_file(config, place.path());
    let (inputs, source) = opened.map_err(|error| place.name_stdin(error))?;
    Ok(Opened { inputs, source, place })
}

fn open_file(config: &Config, path: &Path) -> Result<(Inputs, Arc<dyn Source>)> {
    let examples = ExampleKind::of(&config.model);
    let source: Arc<dyn Source> = match &config.data {
        DataConfig::Table(table) => {
            let (source, warnings) = Table::unlabeled(table, path, INPUT)?;
            for warning in warnings {
                say(&format!("warning: {warning}"));
            }
            Arc::new(source)
        }
        DataConfig::Arrays(arrays) => Arc::new(Arrays::unlabeled(arrays, path, INPUT, examples)?),
        DataConfig::ImageFolder(images) => {
            let like = training(config)?;
            let source = ImageFolder::unlabeled(images, path, INPUT)?;
            let files = source.paths();
            let source = LikeTraining::new(Arc::new(source), like)?;
            return Ok((Inputs::Files(files), Arc::new(source)));
        }
        other => {
            let scale = match other {
                DataConfig::Digits(_) => Some(DIGITS_SCALE),
                DataConfig::Idx(_) | DataConfig::Cifar10(_) => Some(1.0 / 255.0),
                _ => Some(1.0),
            };
            let arrays = ArraysConfig { scale, ..ArraysConfig::default() };
            let source = Arrays::unlabeled(&arrays, path, INPUT, examples)?;
            if matches!(other, DataConfig::Cifar10(_)) && !source.is_whole() {
                bail!(
                    "{}: images for a model of data.source = \"cifar10\" are bytes from 0 to 255; \
                     save them as uint8",
                    path.display()
                );
            }
            let source = LikeTraining::new(Arc::new(source), training(config)?)?;
            Arc::new(match other {
                DataConfig::Cifar10(_) => source.normalized(&Cifar10::NORMALIZATION),
                _ => source,
            })
        }
    };
    Ok((Inputs::Rows, source))
}

/// The training examples, which say what the model predicts.
fn training(config: &Config) -> Result<Arc<dyn Source>> {
    let splits = data::open(config).context(
        "the classes that the model predicts are those of its training data, which cannot be read",
    )?;
    Ok(splits.train)
}

/// The input that is not a text.
fn place(input: &Path) -> Result<InputPlace> {
    if input != "-" {
        return Ok(InputPlace::File(input.to_owned()));
    }
    let bytes = stdin()?;
    let suffix = match &bytes[..] {
        [0x93, b'N', ..] => ".npy",
        [b'P', b'K', ..] => ".npz",
        [b'P', b'A', b'R', b'1', ..] => ".parquet",
        [0xff, 0xd8, ..] => ".jpg",
        [0x89, b'P', ..] => ".png",
        bytes if bytes.trim_ascii_start().starts_with(b"{") => ".jsonl",
        _ => ".csv",
    };
    let file = tempfile::Builder::new().prefix("stdin-").suffix(suffix).tempfile();
    let mut file = file.context("cannot make a temporary file for stdin")?;
    file.write_all(&bytes).context("cannot write stdin to a temporary file")?;
    Ok(InputPlace::Copy(file))
}

fn stdin() -> Result<Vec<u8>> {
    let mut bytes = vec![];
    std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read stdin")?;
    Ok(bytes)
}

/// The texts of a file, of the lines of stdin, or the one in the argument; and the same as tokens.
fn open_texts(
    args: &PredictArgs,
    texts: &ClassificationConfig,
    labels: &[String],
    is_folder: bool,
) -> Result<(Vec<TextRow>, Arc<dyn Source>)> {
    let Some(tokenizer) = &texts.tokenizer else {
        bail!("data.tokenizer is not set: --set data.tokenizer=FOLDER");
    };
    let open = |length| TextEncoder::open(tokenizer, "data.tokenizer", length, texts.truncate);
    let mut encoder = open(texts.max_length)?;
    // As transformers. The texts of a run are cut as in its training.
    if let Some(most) = encoder.model_max_length()
        && texts.truncate
        && is_folder
        && most < texts.max_length
    {
        encoder = open(most)?;
    }
    for warning in encoder.warnings(args.text_pair.is_some() || texts.text_pair.is_some()) {
        say(&format!("warning: {warning}"));
    }
    let text = args.text.as_ref().unwrap_or(&texts.text);
    let pair = args.text_pair.as_ref().or(texts.text_pair.as_ref());
    let columns: Vec<_> = [Some(text), pair].into_iter().flatten().map(String::as_str).collect();
    let rows = match given_text(&args.input) {
        Some(text) => lines(text, pair.is_some())?,
        None if args.input.as_os_str() == "-" => {
            let text = String::from_utf8(stdin()?).context("stdin is not UTF-8")?;
            lines(&text, pair.is_some())?
        }
        None => read_text_rows(&args.input, INPUT, &columns)?,
    };
    if rows.is_empty() {
        bail!("{} has no rows", args.input.display());
    }
    let source = Classification::unlabeled(
        &rows,
        &args.input,
        &encoder,
        labels,
        pair.is_some(),
        &texts.pad_to,
    )?;
    Ok((rows, Arc::new(source)))
}

/// The argument, if it is a text: it names no file, and does not look like a misspelt one.
fn given_text(input: &Path) -> Option<&str> {
    let text = input.to_str()?;
    let extension = input.extension().and_then(|extension| extension.to_str());
    let is_path = extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
        || (text.contains('/') && !text.contains(char::is_whitespace));
    (text != "-" && !is_path && !input.exists()).then_some(text)
}

/// A text on each line; of pairs, a tab is between the two.
fn lines(text: &str, has_pairs: bool) -> Result<Vec<TextRow>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let row = |(index, line): (usize, &str)| {
        let cells: Vec<_> = match has_pairs {
            true => line.splitn(2, '\t').map(str::to_owned).collect(),
            false => vec![line.to_owned()],
        };
        if has_pairs && cells.len() < 2 {
            bail!("line {}: it has one text; put a tab between the two of a pair", index + 1);
        }
        Ok(TextRow { line: index + 1, cells })
    };
    lines.map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_file_is_no_text() {
        for text in ["good film", "good", "1/2 of it, at best", "so bad."] {
            assert_eq!(given_text(Path::new(text)), Some(text));
        }
        for path in ["-", "dev.tsv", "data/dev", "/", "Cargo.toml", "a.npy"] {
            assert_eq!(given_text(Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn lines_are_texts_or_pairs() {
        let cells = |text: &str, has_pairs| -> Result<Vec<Vec<String>>> {
            Ok(lines(text, has_pairs)?.into_iter().map(|row| row.cells).collect())
        };
        assert_eq!(cells("a\tb\n\n c\r\n", false).unwrap(), [["a\tb"], [" c"]]);
        assert_eq!(cells("a\tb\tc\n", true).unwrap(), [["a", "b\tc"]]);
        assert!(cells("a\tb\nc\n", true).unwrap_err().to_string().starts_with("line 2"));
    }
}
