//! What can be wrong with data.

use std::io;
use std::path::PathBuf;

use hlo::counted;

use crate::config::shorten;

/// Data that cannot be read or put into batches.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is missing, or reading it is not permitted.
    #[error("cannot read the data file {}: {source}; set {key}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The key that names it.
        key: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A folder with no file to read.
    #[error("{} holds no file{}; set data.path{}", path.display(), that_ends_in(extensions), or_extensions(extensions))]
    NoFiles {
        /// The folder.
        path: PathBuf,
        /// The extensions that were looked for; empty for all.
        extensions: Vec<String>,
    },
    /// Not enough tokens for an example in each split.
    #[error(
        "{} holds {}, but training and evaluation need at least one window of {window} each; set \
         {key} to more, or make data.context smaller",
        path.display(), counted(*found, "token")
    )]
    TooFewTokens {
        /// The file or folder.
        path: PathBuf,
        /// The key that names it.
        key: &'static str,
        /// Number of tokens.
        found: u64,
        /// Tokens per example.
        window: u64,
    },
    /// A file that ends within a token or an image.
    #[error(
        "{} has {found} bytes, which is not a whole number of {unit}; download it again or set \
         {key}",
        path.display()
    )]
    NotWhole {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        found: u64,
        /// What it should consist of.
        unit: String,
        /// The key that may be wrong.
        key: &'static str,
    },
    /// A token outside the vocabulary.
    #[error(
        "{}, offset {offset}: token {found}, but data.vocab_size is {vocab_size}; {hint}",
        path.display()
    )]
    Token {
        /// The file.
        path: PathBuf,
        /// Its offset in bytes.
        offset: u64,
        /// The token.
        found: u32,
        /// Size of the vocabulary.
        vocab_size: usize,
        /// What may be wrong.
        hint: String,
    },
    /// Tokens that are stored in another width than is configured.
    #[error("{}: {problem}", path.display())]
    TokenWidth {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to change.
        problem: String,
    },
    /// A file that is of a known format, but not of the one that is needed.
    #[error("{} is {found}, not {expected}; {advice}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What it is.
        found: String,
        /// What is needed.
        expected: &'static str,
        /// What to do.
        advice: String,
    },
    /// A file in another format.
    #[error(
        "{} begins with {}, but should begin with {}; does {key} name the right file?",
        path.display(), in_hex(found), in_hex(expected)
    )]
    Magic {
        /// The file.
        path: PathBuf,
        /// The key that names it.
        key: &'static str,
        /// Its first bytes.
        found: Vec<u8>,
        /// The expected bytes.
        expected: Vec<u8>,
    },
    /// A file with another size than its header gives.
    #[error(
        "{} has {found} bytes, but {expected} are expected from its header; download it again",
        path.display()
    )]
    NumBytes {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        found: u64,
        /// The expected size in bytes.
        expected: u128,
    },
    /// Two files that do not match.
    #[error(
        "{} has {found}, but {} has {expected}; they must match",
        path.display(), other.display()
    )]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// What it has.
        found: String,
        /// The other file.
        other: PathBuf,
        /// What that has.
        expected: String,
    },
    /// A file with no example.
    #[error("{} holds no example; set data.path to more", path.display())]
    NoExamples {
        /// The file.
        path: PathBuf,
    },
    /// A label in a binary file that is not a class.
    #[error(
        "{}, offset {offset}: label {found}, but classes are 0 to {max}; download the file again",
        path.display()
    )]
    LabelByte {
        /// The file.
        path: PathBuf,
        /// Offset of the label in the unpacked file, in bytes.
        offset: usize,
        /// The label.
        found: u8,
        /// The highest class.
        max: usize,
    },
    /// An image that cannot be decoded.
    #[error(
        "cannot decode {}: {reason}; replace the file, or leave such files out with \
         data.on_broken = \"skip\"",
        path.display()
    )]
    Image {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// So many images that cannot be decoded that leaving them out leaves none.
    #[error(
        "none of {tried} images can be decoded, too many to be left out by data.on_broken = \
         \"skip\"; the first is {}: {reason}; replace the files, or set {key} to another folder",
        path.display()
    )]
    NothingDecodes {
        /// Images that were tried.
        tried: u64,
        /// The first of them.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// The key that names their folder.
        key: &'static str,
    },
    /// A folder with no class folders.
    #[error(
        "{} has no folders in it; {key} takes a folder that has a folder of images for each class",
        path.display()
    )]
    NoClasses {
        /// The folder.
        path: PathBuf,
        /// The key that names it.
        key: &'static str,
    },
    /// A class folder with no image.
    #[error(
        "{} holds no image, no file that ends in .jpg, .jpeg or .png; add some or remove the \
         folder: each folder in {key} is a class",
        path.display()
    )]
    NoImages {
        /// The class folder.
        path: PathBuf,
        /// The key that names the folder of all classes.
        key: &'static str,
    },
    /// A class for evaluation that training does not have.
    #[error(
        "{} is not a training class: {} has no folder of that name",
        path.display(), train.display()
    )]
    UnknownClass {
        /// The class folder.
        path: PathBuf,
        /// The folder for training.
        train: PathBuf,
    },
    /// No class has enough images to hold one out.
    #[error(
        "no image of {} is held out for evaluation; make data.eval_fraction larger or set \
         data.eval_path",
        path.display()
    )]
    NothingHeldOut {
        /// The folder.
        path: PathBuf,
    },
    /// The file is not gzip, or is truncated.
    #[error("{} is not a whole gzip file: {source}; download it again or set data.path", path.display())]
    Gzip {
        /// The file.
        path: PathBuf,
        /// Where decompression failed.
        source: io::Error,
    },
    /// The wrong number of rows.
    #[error("{} has {}, but the set has {expected}: download the file again", path.display(), counted(*found, "row"))]
    NumRows {
        /// The file.
        path: PathBuf,
        /// Number of rows.
        found: usize,
        /// The expected number.
        expected: usize,
    },
    /// The wrong number of columns.
    #[error("{} line {line}: {}, but a row has {expected}", path.display(), counted(*found, "column"))]
    NumColumns {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Number of columns.
        found: usize,
        /// The expected number.
        expected: usize,
    },
    /// An invalid pixel.
    #[error(
        "{} line {line}, column {column}: found {:?}, but a pixel is a whole number, 0 to {max}",
        path.display(), shorten(found)
    )]
    Pixel {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// What stands there.
        found: String,
        /// The highest value.
        max: u8,
    },
    /// An invalid label.
    #[error(
        "{} line {line}: found label {:?}, but a label is a whole number, 0 to {max}",
        path.display(), shorten(found)
    )]
    Label {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What stands there.
        found: String,
        /// The highest label.
        max: usize,
    },
    /// A row of a table that cannot be used.
    #[error("{} line {line}: {problem}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong, and what to change.
        problem: String,
    },
    /// Arrays that cannot be used.
    #[error("{problem}")]
    Array {
        /// The array, what is wrong with it, and what to change.
        problem: String,
    },
    /// A table or another file that cannot be used as a whole.
    #[error("{}: {problem}", path.display())]
    Table {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to change.
        problem: String,
    },
    /// No tokenizer is named.
    #[error(
        "data.source = \"classification\" needs a tokenizer; set data.tokenizer to a folder with \
         tokenizer.json or vocab.txt, or to such a file"
    )]
    NoTokenizer,
    /// A tokenizer that cannot be used.
    #[error(
        "cannot use the tokenizer {}: {}; set {key} to a tokenizer.json or a vocab.txt, or to a \
         folder with one",
        path.display(), shorten(reason)
    )]
    Tokenizer {
        /// The file or folder.
        path: PathBuf,
        /// The key that names it.
        key: &'static str,
        /// Why not.
        reason: String,
    },
    /// A file beside a tokenizer that cannot be followed.
    #[error("{}: {reason}; correct the file, or set {key} to another tokenizer", path.display())]
    TokenizerSetting {
        /// The file.
        path: PathBuf,
        /// The key that leads to it.
        key: &'static str,
        /// Why not, and what to change.
        reason: String,
    },
    /// Examples that are too short for a text.
    #[error(
        "data.max_length is {max_length}, but the tokenizer adds {added} special tokens to a pair; \
         set it to more than {added}"
    )]
    TooFewPositions {
        /// The configured number of tokens.
        max_length: usize,
        /// Special tokens around two texts.
        added: usize,
    },
    /// An id past the last example.
    #[error("example {example} was requested, but the source has {num_examples}")]
    NoSuchExample {
        /// The id.
        example: u64,
        /// Number of examples.
        num_examples: u64,
    },
    /// A batch that the replicas do not divide.
    #[error(
        "a batch of {batch} cannot be split over {}; make it a multiple of them", counted(*num_batch_shards, "replica")
    )]
    UnevenBatch {
        /// Examples in the batch.
        batch: usize,
        /// Number of replicas.
        num_batch_shards: usize,
    },
    /// The configured number of examples is not that of the data.
    #[error(
        "data.num_examples is {given}, but the data have {}: epochs, and with them the learning \
         rates, would not be those that were planned; set it to {found} or leave it out (--unset \
         data.num_examples)",
        counted(*found, "training example")
    )]
    NumExamples {
        /// The configured number.
        given: usize,
        /// Number of training examples.
        found: u64,
    },
    /// More data in one launch than the limit.
    #[error(
        "a launch has {}, which take {} GiB, but the limit is {} GiB; make train.global_batch, \
         train.steps_per_launch or the examples smaller",
        counted(*examples, "example"), bytes >> 30, max >> 30
    )]
    BatchBytes {
        /// Examples of the launch.
        examples: u64,
        /// Their size in bytes.
        bytes: u128,
        /// The limit in bytes.
        max: u128,
    },
    /// A batch with more examples than the source.
    #[error(
        "a batch of {batch} is more than the data have: {}; make it smaller", counted(*num_examples, "example")
    )]
    BatchExceedsData {
        /// Examples in the batch.
        batch: usize,
        /// Number of examples.
        num_examples: u64,
    },
}

fn that_ends_in(extensions: &[String]) -> String {
    let dotted: Vec<_> =
        extensions.iter().map(|word| format!(".{}", word.trim_start_matches('.'))).collect();
    if dotted.is_empty() { String::new() } else { format!(" that ends in {}", dotted.join(" or ")) }
}

fn or_extensions(extensions: &[String]) -> &'static str {
    if extensions.is_empty() { "" } else { " or data.extensions" }
}

fn in_hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "nothing".to_owned();
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}
