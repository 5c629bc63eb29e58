//! Arrays of NumPy, `.npy` and `.npz` files, and those of a program that uses this library.
//!
//! `npy.rs` reads headers, `stored.rs` finds arrays in files, and `labels.rs` says what labels are.
//! Elements stay in their files, unless an archive compresses them.

mod labels;
mod npy;
mod stored;

use std::io;
use std::path::Path;
use std::sync::Arc;

use hlo::{DType, Element, counted};
use ndarray::{ArrayView, ArrayView1, ArrayView2, Dimension};

use super::fingerprint::Fingerprinter;
use super::row_labels::{RowLabels, Targets};
use super::source::checked_index;
use super::{Error, ExampleKind, Field, LabelKind, Purpose, Source, StratifiedSplit};
use crate::config::{ArraysConfig, ChannelsDim, ColumnEncoding, DataConfig};
pub use npy::npy_file;

use labels::LabelValues;
use npy::ElementType;
use stored::{ArrayFiles, StoredArray};

/// One part of a data set of arrays.
///
/// Field `x` is f32 with the dims of an example: images `[height, width]` become `[1, height,
/// width]`, and `[height, width, channels]` become `[channels, height, width]`. Field `y` is i32
/// `[]`, the class; or f32 `[k]`, the values, scaled, or 0 or 1 for each label. For models of
/// tokens `x` is i32 `[positions]`, with `segments` (0) and `mask` (1) of the same dims if an
/// example has one label; if it has one for each position, `y` is i32 `[positions]`.
#[derive(Clone)]
pub struct Arrays {
    data: Arc<Data>,
    /// The examples of the arrays that belong to this part, in order.
    rows: Vec<usize>,
    targets: Arc<Targets>,
    fields: Vec<Field>,
}

/// The parts of a data set of arrays.
pub struct ArraySplits {
    /// The training examples.
    pub train: Arrays,
    /// The evaluation examples.
    pub eval: Arrays,
    /// What looks like a mistake, but may be none.
    pub warnings: Vec<String>,
}

/// The labels of arrays that a program has.
pub enum ArrayLabels<'a> {
    /// The class of each example, from 0; and how many classes there are.
    Classes(ArrayView1<'a, i32>, usize),
    /// The values of each example, `[n, k]`.
    Values(ArrayView2<'a, f64>),
    /// 0 or 1 for each label of each example, `[n, k]`.
    Labels(ArrayView2<'a, f32>),
    /// The next token of each position: `x` is i32 `[n, positions + 1]`.
    NextTokens,
}

struct Data {
    x: StoredArray,
    input: Input,
    labels: Labels,
}

/// How `x` is read.
enum Input {
    Numbers {
        scale: f64,
        /// Channels and pixels of an image with its channels last.
        channels_last: Option<[usize; 2]>,
    },
    Tokens {
        /// One more than the highest id.
        vocab_size: usize,
    },
}

enum Labels {
    /// One row for each example.
    Rows(RowLabels),
    /// A token for each position.
    Positions(StoredArray),
    /// The token behind each position.
    Next,
}

impl Arrays {
    /// Opens the arrays for training and for evaluation. Without arrays for evaluation, the seed
    /// draws the examples that are held out: see [`StratifiedSplit`].
    ///
    /// # Errors
    /// A file that cannot be read; an array that it lacks, or that does not fit.
    pub fn load(config: &ArraysConfig, purpose: Purpose) -> Result<ArraySplits, Error> {
        let mut files = ArrayFiles::open(&config.path, "data.path")?;
        let (train, mut targets) = Data::open(config, &mut files, purpose, None)?;
        let all = |data: &Data| (0..data.x.num_examples).collect::<Vec<_>>();
        let (rows, held_out) = match (&config.eval_path, &config.eval_x) {
            (None, None) => {
                let classes = train.labels.classes(train.x.num_examples);
                let StratifiedSplit { kept, held_out } =
                    StratifiedSplit::draw(&classes, config.eval_fraction(), purpose.seed);
                if held_out.is_empty() {
                    let problem = format!(
                        "its {} examples leave none for evaluation; set data.eval_path, or change \
                         data.eval_fraction",
                        train.x.num_examples
                    );
                    return Err(Error::Table { path: config.path.clone(), problem });
                }
                (kept, Some(held_out))
            }
            _ => (all(&train), None),
        };
        if let Labels::Rows(labels) = &train.labels
            && config.target_columns.is_empty()
            && config.standardize
        {
            labels.learn_scales(&mut targets, &rows);
        }
        let targets = Arc::new(Targets::new(targets));
        let train = Arc::new(train);
        let eval = match held_out {
            Some(rows) => Self::part(train.clone(), rows, &targets),
            None => {
                let eval_config = ArraysConfig {
                    x: config.eval_x.clone().unwrap_or_else(|| config.x.clone()),
                    y: config.eval_y.clone().unwrap_or_else(|| config.y.clone()),
                    ..config.clone()
                };
                let (eval, _) = match &config.eval_path {
                    Some(path) => {
                        let mut files = ArrayFiles::open(path, "data.eval_path")?;
                        Data::open(&eval_config, &mut files, purpose, Some(&targets.columns))?
                    }
                    None => Data::open(&eval_config, &mut files, purpose, Some(&targets.columns))?,
                };
                if eval.x.dims != train.x.dims {
                    let problem = format!(
                        "{}: an example has the dims {:?}, but those for training have {:?}",
                        eval.x.place, eval.x.dims, train.x.dims
                    );
                    return Err(Error::Table { path: config.path.clone(), problem });
                }
                let rows = all(&eval);
                Self::part(Arc::new(eval), rows, &targets)
            }
        };
        Ok(ArraySplits { train: Self::part(train, rows, &targets), eval, warnings: vec![] })
    }

    /// Inputs to predict the labels of, read as `config` says and has learned. Their labels are
    /// class 0, or 0.
    ///
    /// # Errors
    /// As [`Self::load`], for the inputs. `key` names the file in messages.
    pub fn unlabeled(
        config: &ArraysConfig,
        path: &Path,
        key: &'static str,
        examples: ExampleKind,
    ) -> Result<Self, Error> {
        let mut files = ArrayFiles::open(path, key)?;
        let x = files.array(&config.x, key)?;
        let input = Input::of(&x, config, examples)?;
        let targets = Targets::new(config.target_columns.clone());
        let labels = Labels::Rows(targets.none(x.num_examples));
        let rows = (0..x.num_examples).collect();
        Ok(Self::part(Arc::new(Data { x, input, labels }), rows, &Arc::new(targets)))
    }

    /// Examples from memory, which are copied. `x` has any dims behind the first, which counts the
    /// examples: numbers are taken as f32, and as they are, and integers (`i32`, `u32`, `i64`,
    /// `u64`) are ids of tokens. Values are neither scaled nor shifted.
    ///
    /// ```
    /// use lockstep::data::{ArrayLabels, Arrays, Source};
    /// use ndarray::{Array, array};
    ///
    /// let x = Array::from_shape_fn((6, 2), |(row, column)| (row * 2 + column) as f32);
    /// let classes = array![0, 1, 0, 1, 0, 1];
    /// let (train, eval) =
    ///     Arrays::new(x.view(), ArrayLabels::Classes(classes.view(), 2))?.split(1.0 / 3.0, 7)?;
    /// assert_eq!((train.num_examples(), eval.num_examples()), (4, 2));
    /// # Ok::<(), lockstep::data::Error>(())
    /// ```
    ///
    /// # Errors
    /// Another number of labels than of examples, or none; a class beyond their number; a number
    /// that is not finite.
    pub fn new<E: Element, D: Dimension>(
        x: ArrayView<'_, E, D>,
        labels: ArrayLabels<'_>,
    ) -> Result<Self, Error> {
        let is_id = matches!(E::DTYPE, DType::I32 | DType::U32 | DType::I64 | DType::U64);
        let x = StoredArray::of(&x)?;
        let no_channels = ArraysConfig { channels: ChannelsDim::First, ..ArraysConfig::default() };
        let class = |num_classes: usize| ColumnEncoding {
            categories: Some((0..num_classes).map(|class| class.to_string()).collect()),
            ..ColumnEncoding::default()
        };
        let value =
            ColumnEncoding { mean: Some(0.0), deviation: Some(1.0), ..ColumnEncoding::default() };
        let (y, columns) = match labels {
            ArrayLabels::NextTokens => (None, vec![]),
            ArrayLabels::Classes(y, num_classes) => {
                (Some(StoredArray::of(&y)?), vec![class(num_classes)])
            }
            ArrayLabels::Values(y) => (Some(StoredArray::of(&y)?), vec![value; y.ncols()]),
            ArrayLabels::Labels(y) => {
                (Some(StoredArray::of(&y)?), vec![ColumnEncoding::default(); y.ncols()])
            }
        };
        let labels = match y {
            None => Labels::Next,
            Some(y) => {
                check_counts(&x, y.num_examples)?;
                let values = LabelValues::read(&y).map_err(|source| failed(&y, source))?;
                let rows = values.and_then(|values| values.encode(&columns)).map_err(bad)?;
                Labels::Rows(rows)
            }
        };
        let examples = match (is_id, &labels) {
            (false, _) => ExampleKind::Numbers,
            (true, Labels::Rows(_)) => ExampleKind::Text,
            (true, _) => ExampleKind::Sequence,
        };
        let input = Input::of(&x, &no_channels, examples)?;
        let data = Data { x, input, labels }.with_positions()?;
        data.check()?;
        let rows = (0..data.x.num_examples).collect();
        Ok(Self::part(Arc::new(data), rows, &Arc::new(Targets::new(columns))))
    }

    /// `true` if the inputs are whole numbers in their file.
    pub fn is_whole(&self) -> bool {
        self.data.x.element.is_whole()
    }

    /// Holds out a share of the examples, above 0 and below 1, for evaluation; see
    /// [`StratifiedSplit`].
    ///
    /// # Errors
    /// If one part has no example.
    pub fn split(&self, share: f64, seed: u64) -> Result<(Self, Self), Error> {
        let classes = self.data.labels.classes(self.data.x.num_examples);
        let classes: Vec<_> = self.rows.iter().map(|row| classes[*row]).collect();
        let StratifiedSplit { kept, held_out } = StratifiedSplit::draw(&classes, share, seed);
        if kept.is_empty() || held_out.is_empty() {
            let problem = format!(
                "{} examples cannot be split: the evaluation has {}; change the share",
                self.rows.len(),
                held_out.len()
            );
            return Err(Error::Array { problem });
        }
        let part = |places: Vec<usize>| {
            let rows = places.into_iter().map(|place| self.rows[place]).collect();
            Self::part(self.data.clone(), rows, &self.targets)
        };
        Ok((part(kept), part(held_out)))
    }

    fn part(data: Arc<Data>, rows: Vec<usize>, targets: &Arc<Targets>) -> Self {
        let fields = data.fields(targets);
        Self { data, rows, targets: targets.clone(), fields }
    }
}

impl Source for Arrays {
    fn num_examples(&self) -> u64 {
        self.rows.len() as u64
    }

    fn num_outputs(&self) -> usize {
        match (&self.data.labels, &self.data.input) {
            (Labels::Rows(_), _) => self.targets.names.len(),
            (_, Input::Tokens { vocab_size }) => *vocab_size,
            (_, Input::Numbers { .. }) => 0,
        }
    }

    fn label_kind(&self) -> LabelKind {
        match self.data.labels {
            Labels::Rows(_) => self.targets.kind.clone(),
            Labels::Positions(_) | Labels::Next => LabelKind::Class,
        }
    }

    fn class_counts(&self) -> Option<Vec<u64>> {
        match &self.data.labels {
            Labels::Rows(labels) => labels.count(&self.rows, self.num_outputs()),
            Labels::Positions(_) | Labels::Next => None,
        }
    }

    fn labels(&self) -> &[String] {
        &self.targets.names
    }

    fn vocab_size(&self) -> Option<usize> {
        match (&self.data.input, &self.data.labels) {
            (Input::Tokens { vocab_size }, Labels::Rows(_)) => Some(*vocab_size),
            _ => None,
        }
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn write_learned(&self, config: &mut DataConfig) {
        if let (DataConfig::Arrays(arrays), Labels::Rows(_)) = (config, &self.data.labels) {
            arrays.target_columns.clone_from(&self.targets.columns);
        }
    }

    fn check(&self, _tell: &(dyn Fn(&str) + Sync)) -> Result<(), Error> {
        self.data.check()
    }

    fn fingerprint(&self) -> Result<Option<u128>, Error> {
        let mut all = Fingerprinter::new("arrays");
        let mut fields: Vec<_> =
            self.fields.iter().map(|field| vec![0; field.num_bytes()]).collect();
        for example in 0..self.num_examples() {
            let mut out: Vec<_> = fields.iter_mut().map(|bytes| &mut bytes[..]).collect();
            self.read(example, None, &mut out)?;
            all = fields.iter().fold(all, |all, bytes| all.bytes(bytes));
        }
        Ok(Some(all.finish()))
    }

    fn read(&self, example: u64, _epoch: Option<u64>, out: &mut [&mut [u8]]) -> Result<(), Error> {
        let row = self.rows[checked_index(example, self.num_examples())?];
        let Data { x, input, labels } = &*self.data;
        let failed = |source| failed(x, source);
        let mut bytes = vec![0; x.example_bytes()];
        x.read(row, &mut bytes).map_err(failed)?;
        match input {
            Input::Numbers { scale, channels_last } => {
                let floats: &mut [f32] = bytemuck::cast_slice_mut(out[0]);
                let mut next = 0;
                x.element.decode(&bytes, |value| {
                    let place = channels_last.map_or(next, |[channels, pixels]| {
                        next % channels * pixels + next / channels
                    });
                    floats[place] = (value * scale) as f32;
                    next += 1;
                });
            }
            Input::Tokens { .. } => {
                let ids = ids(x.element, &bytes);
                let positions = out[0].len() / 4;
                out[0].copy_from_slice(bytemuck::cast_slice(&ids[..positions]));
                match labels {
                    Labels::Next => out[1].copy_from_slice(bytemuck::cast_slice(&ids[1..])),
                    Labels::Positions(_) => {}
                    Labels::Rows(_) => {
                        out[1].fill(0);
                        bytemuck::cast_slice_mut(out[2]).fill(1i32);
                    }
                }
            }
        }
        let Some(y) = out.last_mut() else { unreachable!("y is a field") };
        match labels {
            Labels::Rows(labels) => labels.write(row, &self.targets.columns, y),
            Labels::Positions(array) => {
                let mut bytes = vec![0; array.example_bytes()];
                array.read(row, &mut bytes).map_err(failed)?;
                y.copy_from_slice(bytemuck::cast_slice(&ids(array.element, &bytes)));
            }
            Labels::Next => {}
        }
        Ok(())
    }
}

impl Data {
    /// Opens inputs and labels, and says what the labels are: as `learned`, if that is given.
    fn open(
        config: &ArraysConfig,
        files: &mut ArrayFiles<'_>,
        purpose: Purpose,
        learned: Option<&[ColumnEncoding]>,
    ) -> Result<(Self, Vec<ColumnEncoding>), Error> {
        let x = files.array(&config.x, "data.x")?;
        let is_sequence = purpose.examples == ExampleKind::Sequence;
        let has_labels = !files.is_single() && files.has(&config.y);
        let (labels, columns) = if is_sequence && !has_labels {
            (Labels::Next, vec![])
        } else {
            let y = files.array(&config.y, "data.y")?;
            check_counts(&x, y.num_examples)?;
            if is_sequence {
                if y.dims != x.dims {
                    return Err(bad(format!(
                        "{}: an example has the dims {:?}, but {} has {:?}; the model takes a \
                         label for each position",
                        y.place, y.dims, x.place, x.dims
                    )));
                }
                (Labels::Positions(y), vec![])
            } else {
                let values = LabelValues::read(&y).map_err(|source| failed(&y, source))?;
                let values = values.map_err(bad)?;
                let learned = learned.or(Some(&config.target_columns[..]));
                let columns = match learned.filter(|columns| !columns.is_empty()) {
                    Some(columns) => columns.to_vec(),
                    None => values.kind(purpose.loss, &config.labels, &config.y).map_err(bad)?,
                };
                (Labels::Rows(values.encode(&columns).map_err(bad)?), columns)
            }
        };
        let mut input = Input::of(&x, config, purpose.examples)?;
        if let (Input::Tokens { vocab_size }, Labels::Positions(y)) = (&mut input, &labels) {
            *vocab_size = (*vocab_size).max(highest_id(y)? + 1);
        }
        Self { x, input, labels }.with_positions().map(|data| (data, columns))
    }

    /// Refuses sequences of one token if the next one is the label.
    fn with_positions(self) -> Result<Self, Error> {
        match (&self.labels, &self.x.dims[..]) {
            (Labels::Next, [1]) => Err(bad(format!(
                "{}: an example has one token; without labels it needs two or more, and the last \
                 is only a label",
                self.x.place
            ))),
            _ => Ok(self),
        }
    }

    fn fields(&self, targets: &Targets) -> Vec<Field> {
        let StoredArray { dims, .. } = &self.x;
        let tokens = |name, positions| Field { name, dtype: DType::I32, dims: vec![positions] };
        let positions = dims.iter().product::<usize>();
        match (&self.input, &self.labels) {
            (Input::Numbers { channels_last, .. }, _) => {
                let dims = match (channels_last, &dims[..]) {
                    (Some([channels, _]), [height, width, _]) => vec![*channels, *height, *width],
                    (_, []) => vec![1],
                    (_, [height, width]) => vec![1, *height, *width],
                    (_, dims) => dims.to_vec(),
                };
                vec![Field { name: "x", dtype: DType::F32, dims }, targets.field()]
            }
            (Input::Tokens { .. }, Labels::Rows(_)) => {
                let [x, segments, mask] =
                    ["x", "segments", "mask"].map(|name| tokens(name, positions));
                vec![x, segments, mask, targets.field()]
            }
            (Input::Tokens { .. }, Labels::Positions(_)) => {
                vec![tokens("x", positions), tokens("y", positions)]
            }
            (Input::Tokens { .. }, Labels::Next) => {
                vec![tokens("x", positions - 1), tokens("y", positions - 1)]
            }
        }
    }

    /// Looks for inputs that are not finite in f32, which models take.
    fn check(&self) -> Result<(), Error> {
        if self.x.element.is_whole() {
            return Ok(());
        }
        let mut found = None;
        let scanned = self.x.scan(|example, bytes| {
            let (mut at, mut odd) = (0, None);
            self.x.element.decode(bytes, |value| {
                if !(value as f32).is_finite() && odd.is_none() {
                    odd = Some((at, value));
                }
                at += 1;
            });
            match odd {
                None => Ok(()),
                Some((at, value)) => {
                    found = Some((example, at, value));
                    // Ends the scan; what was found is said below.
                    Err(io::Error::other("not finite"))
                }
            }
        });
        match (found, scanned) {
            (Some((example, at, value)), _) => Err(bad(format!(
                "{}: example {example} has {value} at {:?}, which is no finite f32; correct it or \
                 remove the example, for example with numpy.nan_to_num",
                self.x.place,
                place_in(&self.x.dims, at)
            ))),
            (None, Err(source)) => Err(failed(&self.x, source)),
            (None, Ok(())) => Ok(()),
        }
    }
}

impl Input {
    fn of(x: &StoredArray, config: &ArraysConfig, examples: ExampleKind) -> Result<Self, Error> {
        if examples != ExampleKind::Numbers {
            if !x.element.is_whole() {
                return Err(bad(format!(
                    "{} has elements of type {}, but the model takes tokens; save whole numbers",
                    x.place,
                    x.element.name()
                )));
            }
            if x.dims.len() != 1 {
                return Err(bad(format!(
                    "{}: an example has the dims {:?}, but the model takes tokens [positions]",
                    x.place, x.dims
                )));
            }
            return Ok(Self::Tokens { vocab_size: highest_id(x)? + 1 });
        }
        let is_byte = x.element == ElementType::U8;
        let scale = config.scale.unwrap_or(if is_byte { 1.0 / 255.0 } else { 1.0 });
        let channels_last = match (&x.dims[..], config.channels) {
            ([height, width, channels], ChannelsDim::Last) => Some([*channels, height * width]),
            ([height, width, channels @ (1 | 3 | 4)], ChannelsDim::Auto)
                if !matches!(height, 1 | 3 | 4) =>
            {
                Some([*channels, height * width])
            }
            _ => None,
        };
        Ok(Self::Numbers { scale, channels_last })
    }
}

impl Labels {
    /// The class of each example, by which examples are held out: 0 if they have none.
    fn classes(&self, num_examples: usize) -> Vec<i32> {
        match self {
            Self::Rows(labels) => labels.classes(num_examples),
            Self::Positions(_) | Self::Next => vec![0; num_examples],
        }
    }
}

/// The ids in an example; what is beyond i32 was refused when the array was opened.
fn ids(element: ElementType, bytes: &[u8]) -> Vec<i32> {
    let mut ids = Vec::with_capacity(bytes.len() / element.num_bytes());
    element.decode(bytes, |value| ids.push(value as i32));
    ids
}

/// The highest id of a token.
fn highest_id(array: &StoredArray) -> Result<usize, Error> {
    let (mut most, mut odd) = (0.0, None);
    let scanned = array.scan(|example, bytes| {
        array.element.decode(bytes, |value| {
            if value < 0.0 || value >= f64::from(i32::MAX) {
                odd = odd.or(Some((example, value)));
            }
            most = f64::max(most, value);
        });
        Ok::<_, io::Error>(())
    });
    scanned.map_err(|source| failed(array, source))?;
    match odd {
        Some((example, value)) => Err(bad(format!(
            "{}: example {example} has the token {value}, but ids of tokens are from 0 to {}",
            array.place,
            i32::MAX - 1
        ))),
        None => Ok(most as usize),
    }
}

fn check_counts(x: &StoredArray, num_labels: usize) -> Result<(), Error> {
    match x.num_examples == num_labels {
        true => Ok(()),
        false => Err(bad(format!(
            "{} has {}, but there are {num_labels} labels; the first dims of both must be equal",
            x.place,
            counted(x.num_examples, "example")
        ))),
    }
}

/// The indices of an element.
fn place_in(dims: &[usize], mut at: usize) -> Vec<usize> {
    let mut place = vec![0; dims.len()];
    for (index, dim) in place.iter_mut().zip(dims).rev() {
        (*index, at) = (at % dim, at / dim);
    }
    place
}

fn bad(problem: String) -> Error {
    Error::Array { problem }
}

fn failed(array: &StoredArray, source: io::Error) -> Error {
    Error::Array { problem: format!("{} cannot be read: {source}", array.place) }
}
