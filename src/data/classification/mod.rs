//! Texts, or pairs of texts, with a label each: `.tsv`, `.csv` and `.jsonl` files, as GLUE has
//! them.
//!
//! `table.rs` reads the rows, `labels.rs` checks their labels. `tokenizer` makes a tokenizer of the
//! files of a folder as transformers does, and `encoder.rs` makes tokens with it.

mod encoder;
mod labels;
mod table;
mod tokenizer;

use std::path::Path;
use std::sync::Arc;

use hlo::DType;
use rayon::prelude::*;

use super::fingerprint::Fingerprinter;
use super::source::checked_index;
use super::{Error, Field, Source, StratifiedSplit};
use crate::config::{ClassificationConfig, DataConfig};

pub use encoder::{EncodedText, TextEncoder};
use labels::Labels;
pub use table::{TextRow, read_text_rows};
pub use tokenizer::TokenizerClass;

/// One part of a data set of labeled texts, with `T` of `data.pad_to` or `data.max_length`. Field
/// `x` is i32 `[T]`, the ids of tokens; `segments` i32 `[T]`, 0 for the first text and 1 for the
/// second; `mask` i32 `[T]`, 1 for a token and 0 for padding; `y` i32 `[]`, the class.
///
/// All texts are tokenized when the files are opened, on all cores.
pub struct Classification {
    texts: Arc<Texts>,
    /// The rows of the file that belong to this part, in order.
    rows: Vec<usize>,
    labels: Arc<Labels>,
    fields: Vec<Field>,
    smaller_fields: Vec<Vec<Field>>,
    /// `T` of each of them.
    lengths: Vec<usize>,
    vocab_size: usize,
    pad_id: i32,
}

/// The tokens and the classes of a file.
struct Texts {
    encoded: Vec<EncodedText>,
    classes: Vec<i32>,
}

/// The two parts of a data set, and what to say about it.
pub struct ClassificationSplits {
    /// The training examples.
    pub train: Classification,
    /// The evaluation examples.
    pub eval: Classification,
    /// What looks like a mistake, but may be none.
    pub warnings: Vec<String>,
}

impl Classification {
    /// Reads and tokenizes the training and the evaluation examples. Without `data.eval_path`,
    /// `seed` draws those that are held out: see [`StratifiedSplit`].
    ///
    /// # Errors
    /// A file that cannot be read or is not such a table; a column that it lacks; a label that is
    /// not a class; a text without a token, or with more than `data.max_length` if they are not to
    /// be truncated; no tokenizer, or a damaged one.
    pub fn load(config: &ClassificationConfig, seed: u64) -> Result<ClassificationSplits, Error> {
        let tokenizer = config.tokenizer.as_deref().ok_or(Error::NoTokenizer)?;
        let encoder =
            TextEncoder::open(tokenizer, "data.tokenizer", config.max_length, config.truncate)?;
        let columns: Vec<_> = [Some(&config.text), config.text_pair.as_ref(), Some(&config.label)]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .collect();
        let rows = some_rows(&config.path, "data.path", &columns)?;
        let labels = Arc::new(Labels::new(&config.labels, &rows, &config.path)?);
        let texts = |rows: &[TextRow], path: &Path| {
            Texts::of(rows, path, &encoder, &labels, config.text_pair.is_some()).map(Arc::new)
        };
        let part = |texts: &Arc<Texts>, rows: Vec<usize>| Self {
            texts: texts.clone(),
            rows,
            labels: labels.clone(),
            fields: fields(config.max_length),
            smaller_fields: config.pad_to.iter().copied().map(fields).collect(),
            lengths: config.pad_to.clone(),
            vocab_size: encoder.vocab_size(),
            pad_id: encoder.pad_id(),
        };
        let train = texts(&rows, &config.path)?;
        let all = |texts: &Arc<Texts>| (0..texts.classes.len()).collect();
        let (train, eval) = match &config.eval_path {
            Some(eval_path) => {
                let rows = some_rows(eval_path, "data.eval_path", &columns)?;
                let eval = texts(&rows, eval_path)?;
                (part(&train, all(&train)), part(&eval, all(&eval)))
            }
            None => {
                let split = StratifiedSplit::draw(&train.classes, config.eval_fraction(), seed);
                let StratifiedSplit { kept, held_out } = split;
                if held_out.is_empty() {
                    return Err(Error::Table {
                        path: config.path.clone(),
                        problem: format!(
                            "its {} rows leave none for evaluation; set data.eval_path, or change \
                             data.eval_fraction",
                            rows.len(),
                        ),
                    });
                }
                (part(&train, kept), part(&train, held_out))
            }
        };
        let mut warnings = encoder.warnings(config.text_pair.is_some());
        if config.labels.is_empty() {
            let of_file = |doubt| format!("{}: {doubt}", config.path.display());
            warnings.extend(labels.doubts().into_iter().map(of_file));
        }
        for (name, part) in [("training", &train), ("evaluation", &eval)] {
            let missing = labels.missing(part.rows.iter().map(|row| part.texts.classes[*row]));
            warnings.extend(
                missing.map(|missing| format!("{name} has no row with the label {missing}")),
            );
        }
        Ok(ClassificationSplits { train, eval, warnings })
    }

    /// Texts to predict the labels of: rows of a text and, if `has_pairs`, of a second one. All
    /// have class 0. Batches are padded to those of the lengths `pad_to`, ascending, that are below
    /// the longest text, or to its length.
    ///
    /// # Errors
    /// A text without a token, or with too many. `path` names the file.
    pub fn unlabeled(
        rows: &[TextRow],
        path: &Path,
        encoder: &TextEncoder,
        labels: &[String],
        has_pairs: bool,
        pad_to: &[usize],
    ) -> Result<Self, Error> {
        let encoded = encoded(rows, path, encoder, has_pairs)?;
        let longest = encoded.iter().map(|text| text.ids.len()).max().unwrap_or(1);
        let lengths: Vec<_> = pad_to.iter().copied().filter(|length| *length < longest).collect();
        Ok(Self {
            texts: Arc::new(Texts { classes: vec![0; rows.len()], encoded }),
            rows: (0..rows.len()).collect(),
            labels: Arc::new(Labels::of(labels.to_vec())),
            fields: fields(longest),
            smaller_fields: lengths.iter().copied().map(fields).collect(),
            lengths,
            vocab_size: encoder.vocab_size(),
            pad_id: encoder.pad_id(),
        })
    }
}

impl Source for Classification {
    fn num_examples(&self) -> u64 {
        self.rows.len() as u64
    }

    fn num_outputs(&self) -> usize {
        self.labels.names().len()
    }

    fn labels(&self) -> &[String] {
        self.labels.names()
    }

    fn write_learned(&self, config: &mut DataConfig) {
        if let DataConfig::Classification(texts) = config {
            texts.labels = self.labels.names().to_vec();
        }
    }

    fn class_counts(&self) -> Option<Vec<u64>> {
        let mut counts = vec![0; self.num_outputs()];
        self.rows.iter().for_each(|row| counts[self.texts.classes[*row] as usize] += 1);
        Some(counts)
    }

    fn vocab_size(&self) -> Option<usize> {
        Some(self.vocab_size)
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn smaller_fields(&self) -> &[Vec<Field>] {
        &self.smaller_fields
    }

    fn size_class_of(&self, example: u64) -> usize {
        let row = usize::try_from(example).ok().and_then(|example| self.rows.get(example));
        let num_tokens = row.map_or(0, |row| self.texts.encoded[*row].ids.len());
        self.lengths.partition_point(|length| *length < num_tokens)
    }

    fn fingerprint(&self) -> Result<Option<u128>, Error> {
        let all = Fingerprinter::new("classification");
        let names = self.labels.names().iter();
        let all = names.fold(all, |all, name| all.bytes(name.as_bytes()));
        let one = |all: Fingerprinter, row: &usize| {
            let EncodedText { ids, segments } = &self.texts.encoded[*row];
            let all = all.bytes(bytemuck::cast_slice(ids)).bytes(bytemuck::cast_slice(segments));
            all.numbers([self.texts.classes[*row] as u64])
        };
        Ok(Some(self.rows.iter().fold(all, one).finish()))
    }

    fn read(&self, example: u64, _epoch: Option<u64>, out: &mut [&mut [u8]]) -> Result<(), Error> {
        let row = self.rows[checked_index(example, self.num_examples())?];
        let text = &self.texts.encoded[row];
        let fields = [text.ids.iter().copied(), text.segments.iter().copied()]
            .into_iter()
            .zip([self.pad_id, 0]);
        let (sequences, y) = out.split_at_mut(3);
        for (out, (values, padding)) in sequences.iter_mut().zip(fields) {
            write(out, values.chain(std::iter::repeat(padding)));
        }
        let mask = std::iter::repeat_n(1, text.ids.len()).chain(std::iter::repeat(0));
        write(sequences[2], mask);
        y[0].copy_from_slice(&self.texts.classes[row].to_ne_bytes());
        Ok(())
    }
}

impl Texts {
    /// `rows` have the cells text, the second text if `has_pairs`, and label.
    fn of(
        rows: &[TextRow],
        path: &Path,
        encoder: &TextEncoder,
        labels: &Labels,
        has_pairs: bool,
    ) -> Result<Self, Error> {
        let encoded = encoded(rows, path, encoder, has_pairs)?;
        let class = |row: &TextRow| labels.class(labels::label(row)).map_err(at(row, path));
        Ok(Self { encoded, classes: rows.iter().map(class).collect::<Result<_, _>>()? })
    }
}

/// The names of the classes: `data.labels` or, without it, the labels in `data.path`. Nothing is
/// tokenized.
///
/// # Errors
/// If the labels are in `data.path`: as [`Classification::load`], for this column.
pub fn class_names(config: &ClassificationConfig) -> Result<Vec<String>, Error> {
    if !config.labels.is_empty() {
        return Ok(config.labels.clone());
    }
    let rows = some_rows(&config.path, "data.path", &[&config.label])?;
    let labels = Labels::new(&config.labels, &rows, &config.path)?;
    Ok(labels.names().to_vec())
}

/// The different labels in `data.path`, sorted, whatever they are. Nothing is tokenized.
///
/// # Errors
/// As [`Classification::load`], for reading this column.
pub fn labels_of_file(config: &ClassificationConfig) -> Result<Vec<String>, Error> {
    let rows = some_rows(&config.path, "data.path", &[&config.label])?;
    Ok(labels::distinct(&rows).into_iter().cloned().collect())
}

/// An error in a row.
fn at(row: &TextRow, path: &Path) -> impl FnOnce(String) -> Error + use<> {
    let (line, path) = (row.line, path.to_owned());
    move |problem| Error::Row { path, line, problem }
}

/// The tokens of rows that begin with a text, and a second one if they have pairs.
fn encoded(
    rows: &[TextRow],
    path: &Path,
    encoder: &TextEncoder,
    has_pairs: bool,
) -> Result<Vec<EncodedText>, Error> {
    let of_row = |row: &TextRow| {
        let pair = has_pairs.then(|| row.cells[1].as_str());
        encoder.encode(&row.cells[0], pair).map_err(at(row, path))
    };
    // All results first, so that the error is the first of the file on any number of threads.
    let encoded: Vec<_> = rows.par_iter().map(of_row).collect();
    encoded.into_iter().collect()
}

/// The rows of a file, at least one.
fn some_rows(path: &Path, key: &'static str, columns: &[&str]) -> Result<Vec<TextRow>, Error> {
    let rows = read_text_rows(path, key, columns)?;
    if rows.is_empty() {
        let problem = format!("it has no rows; set {key} to a file with some");
        return Err(Error::Table { path: path.to_owned(), problem });
    }
    Ok(rows)
}

/// Writes as many numbers as fit.
fn write(out: &mut [u8], values: impl Iterator<Item = i32>) {
    for (out, value) in out.chunks_exact_mut(size_of::<i32>()).zip(values) {
        out.copy_from_slice(&value.to_ne_bytes());
    }
}

fn fields(length: usize) -> Vec<Field> {
    let field = |name, dims| Field { name, dtype: DType::I32, dims };
    let row = vec![length];
    vec![
        field("x", row.clone()),
        field("segments", row.clone()),
        field("mask", row),
        field("y", vec![]),
    ]
}
