//! Arguments of the commands for a user's own data.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::ValueEnum;

use super::{Changes, ConfigArgs, path};

/// Arguments of `predict`.
#[derive(Debug, clap::Args)]
pub struct PredictArgs {
    /// The --out of a run, a checkpoint, or a Hugging Face folder with a model that classifies
    #[arg(value_parser = path())]
    pub model: PathBuf,
    /// What to predict: a file of what the model was trained on (rows or texts: .tsv or .csv with a
    /// header, .jsonl, of a table also .parquet; arrays: .npy or .npz; images: a file or a folder),
    /// "-" for the same on stdin, or a text
    #[arg(value_parser = path())]
    pub input: PathBuf,
    /// File for the predictions, instead of stdout; it must not exist. With the extension .csv,
    /// rows with a header; with .npy, an array of probabilities or values
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub to: Option<PathBuf>,
    /// Replace the file of --to
    #[arg(long, requires = "to")]
    pub overwrite: bool,
    /// Column of the text; by default that of the training data
    #[arg(long, value_name = "COLUMN")]
    pub text: Option<String>,
    /// Column of a second text
    #[arg(long, value_name = "COLUMN")]
    pub text_pair: Option<String>,
    /// Use the beginning of texts that are too long
    #[arg(long)]
    pub truncate: bool,
    #[command(flatten)]
    pub sets: Changes,
    /// Examples of a batch on each replica
    #[arg(long, value_name = "N", default_value = "32")]
    pub batch_per_replica: NonZeroUsize,
}

/// Arguments of `init`.
#[derive(Debug, clap::Args)]
pub struct InitArgs {
    /// What it is for
    #[arg(value_enum)]
    pub kind: InitKind,
    /// The data, which are looked at: columns, classes, counts
    #[arg(long, value_name = "PATH", value_parser = path())]
    pub data: Option<PathBuf>,
    /// The column to predict; by default a likely one, or the last
    #[arg(long, value_name = "COLUMN")]
    pub target: Option<String>,
    /// The Hugging Face folder to start from
    #[arg(long, value_name = "FOLDER", value_parser = path())]
    pub model: Option<PathBuf>,
    /// The file to write; by default KIND.toml beside the data. It must not exist
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub to: Option<PathBuf>,
    /// Replace the file
    #[arg(long)]
    pub overwrite: bool,
}

/// What a new configuration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InitKind {
    /// Rows of numbers and words: CSV, TSV, JSON lines, Parquet
    Tabular,
    /// NumPy's arrays
    Arrays,
    /// Images in a folder for each class
    Images,
    /// Texts with a label each
    TextClassification,
    /// Plain text
    LanguageModel,
    /// ResNet-50 on images of 224x224
    ResnetImagenet,
    /// A model of a Hugging Face folder, on texts with a label each
    HuggingFace,
}

impl InitKind {
    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Arguments of `data`.
#[derive(Debug, clap::Args)]
pub struct DataArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Training examples to show
    #[arg(long, value_name = "N", default_value = "2")]
    pub examples: u64,
    /// Print one line of JSON
    #[arg(long)]
    pub json: bool,
}
