//! Columns of numbers and words, with a column to predict: `.csv`, `.tsv`, `.jsonl` and `.parquet`
//! files.
//!
//! `cells.rs` reads the formats, `collect.rs` finds out which columns are numbers, `rows.rs` keeps
//! the values, and `encode.rs` makes of them what the model sees. `survey.rs` looks at a table for
//! `lockstep init`.

mod cells;
mod collect;
mod encode;
#[cfg(feature = "parquet")]
mod parquet;
mod rows;
mod survey;

use std::path::Path;
use std::sync::Arc;

use hlo::DType;

use super::fingerprint::Fingerprinter;
use super::memory::memory_budget;
use super::row_labels::{RowLabels, Targets};
use super::source::checked_index;
use super::{Error, Field, LabelKind, Purpose, Source, StratifiedSplit};
use crate::config::{ColumnEncoding, DataConfig, TableConfig, shorten};
use cells::{Cell, RowFault, RowSink};
use collect::{Collected, Collector};
use encode::FeatureEncoder;

pub use survey::{SurveyedColumn, survey};

/// One part of a table. Field `x` is f32 `[num_inputs]`: a number, scaled, for each column of
/// numbers, and a 0 or 1 for each name of a column of names. Field `y` is i32 `[]`, the class; or
/// f32 `[k]`, the values, scaled, or 0 or 1 for each label.
pub struct Table {
    file: Arc<Encoded>,
    /// The rows of the file that belong to this part, in order.
    rows: Vec<usize>,
    learned: Arc<Learned>,
    fields: [Field; 2],
}

/// The parts of a table, and what its training rows teach.
pub struct TableSplits {
    /// The training rows.
    pub train: Table,
    /// The evaluation rows.
    pub eval: Table,
    /// What looks like a mistake, but may be none.
    pub warnings: Vec<String>,
}

/// A file, and how its cells are encoded.
struct Encoded {
    collected: Collected,
    encoder: FeatureEncoder,
    labels: RowLabels,
}

/// What the training rows teach, in the terms of the configuration.
struct Learned {
    columns: Vec<ColumnEncoding>,
    targets: Targets,
}

impl Table {
    /// Reads the training and the evaluation rows. Without `data.eval_path`, the seed draws those
    /// that are held out: see [`StratifiedSplit`].
    ///
    /// # Errors
    /// A file that cannot be read or is no such table; a column that it lacks; a cell that does not
    /// fit its column.
    pub fn load(config: &TableConfig, purpose: Purpose) -> Result<TableSplits, Error> {
        Self::load_within(config, purpose, memory_budget())
    }

    fn load_within(
        config: &TableConfig,
        purpose: Purpose,
        budget: u64,
    ) -> Result<TableSplits, Error> {
        let path = &config.path;
        let unreadable = |source| super::files::unreadable(path, "data.path", source);
        let at = |(line, problem)| Error::Row { path: path.clone(), line, problem };
        let collected = collect(config, path, "data.path", true, budget)?;
        let mut target_columns = match &config.target_columns[..] {
            [] => encode::kind_of(&collected.targets, purpose.loss, &config.labels).map_err(at)?,
            learned => learned.to_vec(),
        };
        let labels = encode::encode_targets(&collected.targets, &target_columns).map_err(at)?;
        let num_rows = collected.rows.len();
        let (kept, held_out) = match config.eval_path {
            Some(_) => ((0..num_rows).collect(), vec![]),
            None => {
                let classes = labels.classes(num_rows);
                let StratifiedSplit { kept, held_out } =
                    StratifiedSplit::draw(&classes, config.eval_fraction(), purpose.seed);
                if held_out.is_empty() {
                    let problem = format!(
                        "its {num_rows} rows leave none for evaluation; set data.eval_path, or \
                         change data.eval_fraction"
                    );
                    return Err(Error::Table { path: path.clone(), problem });
                }
                (kept, held_out)
            }
        };
        if config.target_columns.is_empty() && config.standardize {
            labels.learn_scales(&mut target_columns, &kept);
        }
        let columns = match &config.columns[..] {
            [] => encode::learn_features(&collected, &kept, config).map_err(unreadable)?,
            learned => learned.to_vec(),
        };
        let learned = Arc::new(Learned { columns, targets: Targets::new(target_columns) });
        let mut warnings = vec![];
        let train_file = Arc::new(Encoded::new(collected, labels, &learned));
        let train = Self::new(train_file.clone(), kept, &learned);
        let eval = match &config.eval_path {
            None => Self::new(train_file, held_out, &learned),
            Some(eval_path) => {
                let config = learned.in_config(config);
                let collected = collect(&config, eval_path, "data.eval_path", true, budget)?;
                let at = |(line, problem)| Error::Row { path: eval_path.clone(), line, problem };
                let labels = encode::encode_targets(&collected.targets, &learned.targets.columns)
                    .map_err(at)?;
                let rows = (0..collected.rows.len()).collect();
                let file = Encoded::new(collected, labels, &learned);
                warnings.extend(file.warnings());
                Self::new(Arc::new(file), rows, &learned)
            }
        };
        if config.eval_path.is_none() {
            warnings.extend(train.file.warnings());
        }
        Ok(TableSplits { train, eval, warnings })
    }

    /// Rows to predict the targets of, in the columns that `config` has learned. Their labels are
    /// class 0, or 0.
    ///
    /// # Errors
    /// As [`Self::load`], for the features. `key` names the file in messages.
    pub fn unlabeled(
        config: &TableConfig,
        path: &Path,
        key: &'static str,
    ) -> Result<(Self, Vec<String>), Error> {
        let collected = collect(config, path, key, false, memory_budget())?;
        let targets = Targets::new(config.target_columns.clone());
        let labels = targets.none(collected.rows.len());
        let learned = Arc::new(Learned { columns: config.columns.clone(), targets });
        let num_rows = collected.rows.len();
        let file = Encoded::new(collected, labels, &learned);
        let warnings = file.warnings();
        Ok((Self::new(Arc::new(file), (0..num_rows).collect(), &learned), warnings))
    }

    fn new(file: Arc<Encoded>, rows: Vec<usize>, learned: &Arc<Learned>) -> Self {
        let x = Field { name: "x", dtype: DType::F32, dims: vec![file.encoder.num_inputs] };
        let y = learned.targets.field();
        Self { file, rows, learned: learned.clone(), fields: [x, y] }
    }
}

impl Learned {
    fn in_config(&self, config: &TableConfig) -> TableConfig {
        TableConfig {
            columns: self.columns.clone(),
            target_columns: self.targets.columns.clone(),
            ..config.clone()
        }
    }
}

impl Encoded {
    fn new(collected: Collected, labels: RowLabels, learned: &Learned) -> Self {
        let encoder = FeatureEncoder::new(&collected.features, &learned.columns);
        Self { collected, encoder, labels }
    }

    /// Names that no training row has.
    fn warnings(&self) -> Vec<String> {
        let mut unknown = self.encoder.unknown(&self.collected.features);
        let Some((column, name)) = unknown.next() else { return vec![] };
        let others = match unknown.count() {
            0 => String::new(),
            count => format!(" and {}", hlo::counted(count, "other")),
        };
        vec![format!(
            "no training row has {:?} in the column {:?}{others}: such a row has none of the names",
            shorten(name),
            shorten(column)
        )]
    }
}

/// The names of the columns of a file, in its order; of JSON, those of its first object. `key`
/// names the file in messages.
///
/// # Errors
/// A file that cannot be read, or has no columns.
pub fn column_names(path: &Path, key: &'static str) -> Result<Vec<String>, Error> {
    struct Names(Option<Vec<String>>);
    impl RowSink for Names {
        fn columns(&mut self, names: &[String]) -> Result<Vec<usize>, String> {
            self.0 = Some(names.to_vec());
            Ok(vec![])
        }

        fn row(&mut self, _line: usize, _cells: &[Cell<'_>]) -> Result<(), RowFault> {
            // Ends the reading: the names are known.
            Err(RowFault { line: None, column: None, problem: String::new() })
        }
    }
    let mut names = Names(None);
    let read = read(path, key, &mut names);
    match (names.0, read) {
        (Some(names), _) => Ok(names),
        (None, Err(error)) => Err(error),
        (None, Ok(())) => Err(Error::NoExamples { path: path.to_owned() }),
    }
}

impl Source for Table {
    fn num_examples(&self) -> u64 {
        self.rows.len() as u64
    }

    fn num_outputs(&self) -> usize {
        self.learned.targets.names.len()
    }

    fn label_kind(&self) -> LabelKind {
        self.learned.targets.kind.clone()
    }

    fn class_counts(&self) -> Option<Vec<u64>> {
        self.file.labels.count(&self.rows, self.num_outputs())
    }

    fn labels(&self) -> &[String] {
        &self.learned.targets.names
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn write_learned(&self, config: &mut DataConfig) {
        if let DataConfig::Table(table) = config {
            *table = self.learned.in_config(table);
        }
    }

    fn fingerprint(&self) -> Result<Option<u128>, Error> {
        let mut all = Fingerprinter::new("table");
        let names = self.learned.columns.iter().map(|column| &column.name);
        for name in names.chain(&self.learned.targets.names) {
            all = all.bytes(name.as_bytes());
        }
        let [x, y] = &self.fields;
        let (mut x, mut y) = (vec![0; x.num_bytes()], vec![0; y.num_bytes()]);
        for example in 0..self.num_examples() {
            self.read(example, None, &mut [&mut x, &mut y])?;
            all = all.bytes(&x).bytes(&y);
        }
        Ok(Some(all.finish()))
    }

    fn read(&self, example: u64, _epoch: Option<u64>, out: &mut [&mut [u8]]) -> Result<(), Error> {
        let row = self.rows[checked_index(example, self.num_examples())?];
        let Encoded { collected, encoder, labels } = &*self.file;
        let [x, y] = out else { unreachable!("a slice for each field") };
        let mut values = vec![0.0; collected.features.len()];
        let read = collected.rows.read(row, &mut values);
        read.map_err(|source| {
            super::files::unreadable(Path::new("the cache"), "LOCKSTEP_CACHE", source)
        })?;
        encoder.encode(&values, bytemuck::cast_slice_mut(x));
        labels.write(row, &self.learned.targets.columns, y);
        Ok(())
    }
}

/// Collects the rows of a file.
fn collect(
    config: &TableConfig,
    path: &Path,
    key: &'static str,
    with_targets: bool,
    budget: u64,
) -> Result<Collected, Error> {
    let mut collector = Collector::new(config, with_targets, budget);
    read(path, key, &mut collector)?;
    let collected = collector.finish().map_err(|fault: RowFault| match fault.line {
        Some(line) => fault.at(path, line),
        None => Error::Table { path: path.to_owned(), problem: fault.problem },
    })?;
    match collected.rows.len() {
        0 => {
            let problem = format!("it has no rows; set {key} to a file with some");
            Err(Error::Table { path: path.to_owned(), problem })
        }
        _ => Ok(collected),
    }
}

/// Gives the rows of a file of any format to `sink`.
fn read(path: &Path, key: &'static str, sink: &mut dyn RowSink) -> Result<(), Error> {
    let is_parquet = path.extension().is_some_and(|ext| ext.eq_ignore_ascii_case("parquet"));
    match is_parquet {
        #[cfg(feature = "parquet")]
        true => parquet::read(path, key, sink),
        #[cfg(not(feature = "parquet"))]
        true => {
            let problem = "this program was built without the feature `parquet`; save the table \
                           as .csv"
                .to_owned();
            Err(Error::Table { path: path.to_owned(), problem })
        }
        false => cells::read(path, key, sink),
    }
}
