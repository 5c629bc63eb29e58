//! What can be wrong with data.

use std::io;
use std::path::PathBuf;

use crate::config::shorten;

/// Data that cannot be read or put into batches.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is not there, or not for us to read.
    #[error("cannot read the data file {}: {source}; set {key}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The key that leads to it.
        key: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A folder without a file to read.
    #[error("{} holds no file{}; set data.path{}", path.display(), that_ends_in(extensions), or_extensions(extensions))]
    NoFiles {
        /// The folder.
        path: PathBuf,
        /// The extensions that were looked for; none are all.
        extensions: Vec<String>,
    },
    /// Not enough for an example in each split.
    #[error(
        "{} holds {found} tokens, but training and evaluation take at least one window of {window} \
         each; set {key} to more, or make data.context smaller",
        path.display()
    )]
    TooFewTokens {
        /// The file or folder.
        path: PathBuf,
        /// The key that names it.
        key: &'static str,
        /// Tokens there are.
        found: u64,
        /// Tokens of an example.
        window: u64,
    },
    /// A file that ends in the middle.
    #[error(
        "{} has {found} bytes, which is not a whole number of {unit}; get it anew or set {key}",
        path.display()
    )]
    NotWhole {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        found: u64,
        /// What it should consist of.
        unit: String,
        /// The key that may be wrong instead.
        key: &'static str,
    },
    /// A token that the vocabulary does not have.
    #[error(
        "{}, offset {offset}: token {found}, but data.vocab_size is {vocab_size}; is data.dtype that \
         of the file?",
        path.display()
    )]
    Token {
        /// The file.
        path: PathBuf,
        /// Where the token stands, in bytes.
        offset: u64,
        /// The token.
        found: u32,
        /// Tokens of the vocabulary.
        vocab_size: usize,
    },
    /// A file of another format.
    #[error(
        "{} begins with {}, but must with {}; is it another file than {key} should name?",
        path.display(), in_hex(found), in_hex(expected)
    )]
    Magic {
        /// The file.
        path: PathBuf,
        /// The key that names it.
        key: &'static str,
        /// Its first bytes.
        found: Vec<u8>,
        /// What they should be.
        expected: Vec<u8>,
    },
    /// A file that is longer or shorter than its header says.
    #[error(
        "{} has {found} bytes, but its header takes or announces {expected}; get it anew",
        path.display()
    )]
    NumBytes {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        found: u64,
        /// Bytes that there should be.
        expected: u128,
    },
    /// Two files that do not belong together.
    #[error(
        "{} has {found}, but {} has {expected}; they must fit each other",
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
    /// A file without an example.
    #[error("{} holds no example; set data.path to more", path.display())]
    NoExamples {
        /// The file.
        path: PathBuf,
    },
    /// A label in a binary file that is no class.
    #[error(
        "{}, offset {offset}: label {found}, but classes are 0 to {max}; get the file anew",
        path.display()
    )]
    LabelByte {
        /// The file.
        path: PathBuf,
        /// Where the label stands, in bytes, once the file is unpacked.
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
    /// A folder without a folder for any class.
    #[error(
        "{} has no folders in it; {key} takes a folder with a folder of images for each class",
        path.display()
    )]
    NoClasses {
        /// The folder.
        path: PathBuf,
        /// The key that names it.
        key: &'static str,
    },
    /// A class's folder without an image.
    #[error(
        "{} holds no image, no file that ends in .jpg, .jpeg or .png; put some in or take the folder away: \
         each folder in {key} is a class",
        path.display()
    )]
    NoImages {
        /// The class's folder.
        path: PathBuf,
        /// The key that names the folder of all classes.
        key: &'static str,
    },
    /// A class that is evaluated but never trained.
    #[error(
        "{} is no class of training: {} has no folder of that name",
        path.display(), train.display()
    )]
    UnknownClass {
        /// The class's folder.
        path: PathBuf,
        /// The folder for training.
        train: PathBuf,
    },
    /// No class has enough images for one to be held out.
    #[error(
        "nothing of {} is held out for evaluation; make data.eval_fraction larger or set \
         data.eval_path",
        path.display()
    )]
    NothingHeldOut {
        /// The folder.
        path: PathBuf,
    },
    /// The file is not gzip, or ends too early.
    #[error("{} is not a whole gzip file: {source}; get it anew or set data.path", path.display())]
    Gzip {
        /// The file.
        path: PathBuf,
        /// Where decompression failed.
        source: io::Error,
    },
    /// The wrong number of rows.
    #[error("{} has {found} rows, but the set has {expected}: get the file anew", path.display())]
    NumRows {
        /// The file.
        path: PathBuf,
        /// Rows there are.
        found: usize,
        /// Rows there should be.
        expected: usize,
    },
    /// The wrong number of columns.
    #[error("{} line {line}: {found} columns, but a row has {expected}", path.display())]
    NumColumns {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Columns there are.
        found: usize,
        /// Columns there should be.
        expected: usize,
    },
    /// A pixel that is none.
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
    /// A label that is none.
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
    /// An id behind the last example.
    #[error("example {example} was asked for, but the source has {num_examples}")]
    NoSuchExample {
        /// The id.
        example: u64,
        /// Examples there are.
        num_examples: u64,
    },
    /// A batch that replicas cannot share evenly.
    #[error(
        "a batch of {batch} cannot be cut over {num_replicas} replicas; make it a multiple of them"
    )]
    UnevenBatch {
        /// Examples in the batch.
        batch: usize,
        /// Replicas to share it.
        num_replicas: usize,
    },
    /// The configuration counts other examples than there are.
    #[error(
        "data.num_examples is {given}, but there are {found} training examples: epochs, and with them \
         the learning rates, would not be those that were planned; set it to {found} or leave it out"
    )]
    NumExamples {
        /// What the configuration says.
        given: usize,
        /// Training examples there are.
        found: u64,
    },
    /// More data at once than any host has room for.
    #[error(
        "the {examples} examples of a launch take {} GiB, but at most {} GiB of data are put together at once; \
         make train.global_batch, train.steps_per_launch or the examples smaller",
        bytes >> 30, max >> 30
    )]
    BatchBytes {
        /// Examples that are put together.
        examples: u64,
        /// Bytes that they take.
        bytes: u128,
        /// Bytes that they may.
        max: u128,
    },
    /// A batch that the source cannot fill.
    #[error(
        "a batch of {batch} is more than the {num_examples} examples there are; make it smaller"
    )]
    BatchExceedsData {
        /// Examples in the batch.
        batch: usize,
        /// Examples there are.
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
