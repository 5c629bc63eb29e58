//! Collects the rows of a file: which columns it has, and which of them are numbers.

use std::collections::HashMap;

use super::cells::{Cell, RowFault, RowSink};
use super::rows::StoredRows;
use crate::config::{ColumnEncoding, MissingValues, TableConfig, shorten};

/// Rows by which a column is known to be of numbers or of names.
const NUM_SNIFFED: usize = 10_000;
/// Most different names of a feature: each is an input of the model.
pub(super) const MAX_CATEGORIES: usize = 1000;
/// What to do about a column that a model was trained on.
const LEARNED_COLUMNS: &str = "the model was trained on that column: give one that name in the \
                               first line of the file";
/// Most different names of a target.
const MAX_CLASSES: usize = 10_000;

/// What the rows of a file have.
pub struct Collected {
    /// The features of each row; a name is its place in [`Feature::names`], a missing cell NaN.
    pub rows: StoredRows,
    /// The features.
    pub features: Vec<Feature>,
    /// The targets; none where they are not wanted.
    pub targets: Vec<TargetColumn>,
}

/// A feature of the file.
pub struct Feature {
    /// The column's name.
    pub name: String,
    /// The different names in it; `None` if it has numbers.
    pub names: Option<Interned>,
}

/// A target of the file.
pub struct TargetColumn {
    /// The column's name.
    pub name: String,
    /// The number in each row; NaN if it has none.
    pub numbers: Vec<f64>,
    /// The place in `names` of each row's text.
    pub codes: Vec<u32>,
    /// The different texts; `None` if they are too many.
    pub names: Option<Interned>,
    /// The first row that has no number, and its text.
    pub first_text: Option<(usize, String)>,
    /// The line of each row.
    pub lines: Vec<u32>,
}

/// Different texts, by the order in which they were found.
#[derive(Default)]
pub struct Interned {
    codes: HashMap<String, u32>,
    /// The texts.
    pub texts: Vec<String>,
}

impl Interned {
    fn code(&mut self, text: &str) -> u32 {
        if let Some(code) = self.codes.get(text) {
            return *code;
        }
        let code = self.texts.len() as u32;
        self.codes.insert(text.to_owned(), code);
        self.texts.push(text.to_owned());
        code
    }
}

/// What a feature may hold.
enum Kind {
    /// Not known yet: how many cells have text that is no number, the first of them, and the first
    /// number.
    Open {
        num_texts: usize,
        num_numbers: usize,
        text: Option<Seen>,
        number: Option<Seen>,
    },
    Numbers,
    Names,
}

/// The line of a cell, and its text.
type Seen = (usize, String);

/// Collects rows.
pub struct Collector<'c> {
    config: &'c TableConfig,
    /// `false` if the file needs no targets.
    with_targets: bool,
    budget: u64,
    features: Vec<(Feature, Kind)>,
    targets: Vec<TargetColumn>,
    /// The first rows, until the kinds of the columns are known: numbers, and texts.
    first: Vec<(usize, Vec<Cell<'static>>)>,
    rows: StoredRows,
    row: Vec<f64>,
}

impl<'c> Collector<'c> {
    /// For the columns of a configuration; those that it has learned are of the kinds that they
    /// were.
    pub fn new(config: &'c TableConfig, with_targets: bool, budget: u64) -> Self {
        Self {
            config,
            with_targets,
            budget,
            features: vec![],
            targets: vec![],
            first: vec![],
            rows: StoredRows::new(0, 0),
            row: vec![],
        }
    }

    /// Ends the collecting.
    ///
    /// # Errors
    /// What is wrong with a row.
    pub fn finish(mut self) -> Result<Collected, RowFault> {
        self.settle()?;
        self.rows.finish().map_err(|error| spilled(&error))?;
        let features = self.features.into_iter().map(|(feature, _)| feature).collect();
        Ok(Collected { rows: self.rows, features, targets: self.targets })
    }

    /// Decides the kinds of the columns that are open, and adds the rows that waited for it.
    fn settle(&mut self) -> Result<(), RowFault> {
        for (feature, kind) in &mut self.features {
            let decided = match kind {
                Kind::Open { num_texts: 0, .. } => Kind::Numbers,
                Kind::Open { num_numbers: 0, .. } => Kind::Names,
                Kind::Open { num_texts, num_numbers, text, number } => {
                    let (odd, found, most) = match num_texts > num_numbers {
                        true => (number, "is a number", "are none"),
                        false => (text, "is no number", "are numbers"),
                    };
                    let (line, text) = odd.take().unwrap_or_default();
                    let problem = format!(
                        "{:?} {found}, but most of its cells {most}; correct it, list the column \
                         in data.categorical, or in data.exclude",
                        shorten(&text)
                    );
                    let column = Some(feature.name.clone());
                    return Err(RowFault { line: Some(line), column, problem });
                }
                _ => continue,
            };
            if matches!(decided, Kind::Names) {
                feature.names = Some(Interned::default());
            }
            *kind = decided;
        }
        for (line, cells) in std::mem::take(&mut self.first) {
            self.add(&cells).map_err(|fault| RowFault { line: Some(line), ..fault })?;
        }
        Ok(())
    }

    fn is_open(&self) -> bool {
        self.rows.len() == 0
            && self.first.len() < NUM_SNIFFED
            && self.features.iter().any(|(_, kind)| matches!(kind, Kind::Open { .. }))
    }

    /// Adds the features of a row.
    fn add(&mut self, cells: &[Cell<'_>]) -> Result<(), RowFault> {
        self.row.clear();
        for ((Feature { name, names }, _), cell) in self.features.iter_mut().zip(cells) {
            let at = |problem| RowFault { line: None, column: Some(name.clone()), problem };
            self.row.push(match (names, cell) {
                (_, Cell::Missing) if self.config.missing == MissingValues::Refuse => {
                    return Err(at("the cell is empty; fill it in, remove the row, or set \
                                   data.missing = \"mean\""
                        .to_owned()));
                }
                (_, Cell::Missing) => f64::NAN,
                (None, cell) => finite(cell, !self.config.columns.is_empty()).map_err(at)?,
                (Some(names), cell) => {
                    let code = names.code(&cell.text());
                    if names.texts.len() > MAX_CATEGORIES {
                        return Err(at(format!(
                            "it has more than {MAX_CATEGORIES} different names, each of which \
                             would be an input of the model; set data.exclude = [{name:?}]"
                        )));
                    }
                    f64::from(code)
                }
            });
        }
        self.rows.push(&self.row).map_err(|error| spilled(&error))
    }

    fn add_targets(&mut self, line: usize, cells: &[Cell<'_>]) -> Result<(), RowFault> {
        for (target, cell) in self.targets.iter_mut().zip(cells) {
            let at = |problem: &str| RowFault {
                line: None,
                column: Some(target.name.clone()),
                problem: problem.to_owned(),
            };
            if *cell == Cell::Missing {
                return Err(at("the target is empty; fill it in or remove the row"));
            }
            let number = cell.number().filter(|number| !number.is_nan());
            if number.is_some_and(|number| (number as f32).is_infinite()) {
                return Err(at("the target is infinite in f32; correct it or remove the row"));
            }
            if number.is_none() && target.first_text.is_none() {
                target.first_text = Some((line, cell.text().into_owned()));
            }
            target.numbers.push(number.unwrap_or(f64::NAN));
            target.lines.push(u32::try_from(line).unwrap_or(u32::MAX));
            if let Some(names) = &mut target.names {
                target.codes.push(names.code(&cell.text()));
                if names.texts.len() > MAX_CLASSES {
                    (target.names, target.codes) = (None, vec![]);
                }
            }
        }
        Ok(())
    }
}

impl RowSink for Collector<'_> {
    fn columns(&mut self, names: &[String]) -> Result<Vec<usize>, String> {
        check_names(names)?;
        let targets: &[String] = if self.with_targets { &self.config.target.0 } else { &[] };
        let place = |name: &str, advice: &str| {
            names.iter().position(|other| other == name).ok_or_else(|| {
                format!(
                    "there is no column {name:?}; the columns are {}; {advice}",
                    shorten(&format!("{names:?}"))
                )
            })
        };
        let targets = targets
            .iter()
            .map(|name| place(name, "set data.target"))
            .collect::<Result<Vec<_>, String>>()?;
        let chosen = match &self.config.columns[..] {
            [] => chosen(self.config, names)?,
            learned => learned
                .iter()
                .map(|column| place(&column.name, LEARNED_COLUMNS))
                .collect::<Result<_, String>>()?,
        };
        for column in &chosen {
            let name = names[*column].clone();
            let learned = self.config.columns.iter().find(|column| column.name == name);
            let kind = match learned {
                Some(ColumnEncoding { categories: Some(_), .. }) => Kind::Names,
                Some(_) => Kind::Numbers,
                None if self.config.categorical.matches(&name) => Kind::Names,
                None => Kind::Open { num_texts: 0, num_numbers: 0, text: None, number: None },
            };
            let names = matches!(kind, Kind::Names).then(Interned::default);
            self.features.push((Feature { name, names }, kind));
        }
        self.targets = targets
            .iter()
            .map(|column| TargetColumn {
                name: names[*column].clone(),
                numbers: vec![],
                codes: vec![],
                names: Some(Interned::default()),
                first_text: None,
                lines: vec![],
            })
            .collect();
        self.rows = StoredRows::new(self.features.len(), self.budget);
        Ok(chosen.into_iter().chain(targets).collect())
    }

    fn row(&mut self, line: usize, cells: &[Cell<'_>]) -> Result<(), RowFault> {
        let (features, targets) = cells.split_at(self.features.len());
        self.add_targets(line, targets)?;
        if !self.is_open() {
            if !self.first.is_empty() {
                self.settle()?;
            }
            return self.add(features);
        }
        for ((_, kind), cell) in self.features.iter_mut().zip(features) {
            let Kind::Open { num_texts, num_numbers, text, number } = kind else { continue };
            match cell {
                Cell::Missing => {}
                cell if cell.number().is_some() => {
                    *num_numbers += 1;
                    number.get_or_insert_with(|| (line, cell.text().into_owned()));
                }
                cell => {
                    *num_texts += 1;
                    text.get_or_insert_with(|| (line, cell.text().into_owned()));
                }
            }
        }
        let owned = |cell: &Cell<'_>| match cell {
            Cell::Missing => Cell::Missing,
            Cell::Number(number) => Cell::Number(*number),
            Cell::Text(text) => Cell::Text(text.clone().into_owned().into()),
        };
        self.first.push((line, features.iter().map(owned).collect()));
        Ok(())
    }
}

/// The columns that the model sees.
fn chosen(config: &TableConfig, names: &[String]) -> Result<Vec<usize>, String> {
    let TableConfig { features, categorical, exclude, target, .. } = config;
    let all: Vec<_> = names.iter().map(String::as_str).collect();
    let all_patterns = [("features", features), ("categorical", categorical), ("exclude", exclude)];
    for (key, patterns) in all_patterns {
        if let Some(pattern) = patterns.unmatched(&all) {
            return Err(format!(
                "data.{key}: no column matches {pattern:?}; the columns are {}",
                shorten(&format!("{names:?}"))
            ));
        }
    }
    if let Some(name) = target.0.iter().find(|name| features.contains(name)) {
        return Err(format!(
            "data.features names the target {name:?}: the model would see what it is to predict; \
             remove it from one of both"
        ));
    }
    let is_feature = |name: &String| {
        (features.is_empty() || features.matches(name))
            && !exclude.matches(name)
            && !target.0.contains(name)
    };
    let chosen: Vec<_> = (0..names.len()).filter(|column| is_feature(&names[*column])).collect();
    match chosen.is_empty() {
        true => {
            Err("no column is left but the target; set data.features, data.exclude or data.target"
                .to_owned())
        }
        false => Ok(chosen),
    }
}

/// Refuses columns without a name, and those with the same.
fn check_names(names: &[String]) -> Result<(), String> {
    for (column, name) in names.iter().enumerate() {
        if name.is_empty() {
            return Err(format!(
                "column {} has no name; the first line must name the columns",
                column + 1
            ));
        }
        if names[..column].contains(name) {
            return Err(format!("two columns are named {:?}; rename one", shorten(name)));
        }
    }
    // A file without a header has its first row there.
    match names.iter().all(|name| name.parse::<f64>().is_ok()) {
        true => Err(format!(
            "the names of the columns are numbers, {}; add a line with names before the rows",
            shorten(&names.join(", "))
        )),
        false => Ok(()),
    }
}

/// The number in a cell.
fn finite(cell: &Cell<'_>, is_learned: bool) -> Result<f64, String> {
    match cell.number() {
        // Models take f32.
        Some(number) if (number as f32).is_finite() => Ok(number),
        Some(number) if number.is_finite() => {
            Err(format!("{number:e} is beyond the range of f32; correct it or scale the column"))
        }
        Some(number) => Err(format!("{number} is not finite; correct it or remove the row")),
        None => Err(format!(
            "{:?} is no number, but the column has numbers; correct it{}",
            shorten(&cell.text()),
            if is_learned { "" } else { ", or list the column in data.categorical" }
        )),
    }
}

fn spilled(error: &std::io::Error) -> RowFault {
    let problem = format!(
        "the table does not fit into memory, and what is beyond cannot be written into the cache \
         ({error}); set LOCKSTEP_CACHE to a directory with more space"
    );
    RowFault { line: None, column: None, problem }
}
