//! What a table looks like, before anything is decided about its columns.

use std::collections::HashSet;
use std::path::Path;

use hlo::counted;
use xxhash_rust::xxh3::xxh3_64;

use super::cells::{Cell, RowFault, RowSink};
use super::collect::MAX_CATEGORIES;
use crate::data::Error;

/// Most cells of a column that are compared with each other.
const MAX_COMPARED: usize = 1 << 20;
/// Fewer words may all differ by chance.
const MIN_ROWS: u64 = 20;
/// Names of columns of numbers that tell rows apart, and ends of such names.
const ID_NAMES: [&str; 5] = ["id", "index", "idx", "row", "unnamed: 0"];
const ID_ENDS: [&str; 3] = ["_id", " id", "-id"];

/// A column of a table.
pub struct SurveyedColumn {
    /// Its name.
    pub name: String,
    /// Empty cells.
    pub num_missing: u64,
    num_rows: u64,
    num_words: u64,
    /// Hashes of the cells; `None` after two equal ones, or too many.
    words: Option<HashSet<u64>>,
    whole_numbers: Option<HashSet<u64>>,
    has_too_many_words: bool,
}

impl SurveyedColumn {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            num_missing: 0,
            num_rows: 0,
            num_words: 0,
            words: Some(HashSet::new()),
            whole_numbers: Some(HashSet::new()),
            has_too_many_words: false,
        }
    }

    fn add(&mut self, cell: &Cell<'_>) {
        self.num_rows += 1;
        let hash = |cell: &Cell<'_>| xxh3_64(cell.text().as_bytes());
        match (cell, cell.number()) {
            (Cell::Missing, _) => self.num_missing += 1,
            (_, Some(number)) => {
                let numbers = self.whole_numbers.as_mut();
                let is_new = numbers.is_some_and(|numbers| {
                    number.fract() == 0.0
                        && numbers.len() < MAX_COMPARED
                        && numbers.insert(hash(cell))
                });
                if !is_new {
                    self.whole_numbers = None;
                }
            }
            (_, None) => {
                self.num_words += 1;
                if let Some(words) = &mut self.words
                    && words.len() <= MAX_CATEGORIES
                {
                    words.insert(hash(cell));
                    self.has_too_many_words = words.len() > MAX_CATEGORIES;
                }
            }
        }
    }

    /// Why it is no feature, if its cells only tell rows apart.
    pub fn why_id(&self) -> Option<String> {
        let lower = self.name.to_lowercase();
        let is_called_id = ID_NAMES.contains(&&*lower)
            || ID_ENDS.iter().any(|end| lower.ends_with(end))
            || self.name.ends_with("Id");
        let num_different = self.words.as_ref().map_or(0, HashSet::len) as u64;
        let num_cells = self.num_rows - self.num_missing;
        if self.has_too_many_words {
            Some(format!("more than {MAX_CATEGORIES} different words"))
        } else if self.num_words == num_cells && num_different == num_cells && num_cells >= MIN_ROWS
        {
            Some("another word in each row".to_owned())
        } else if self.num_words == 0 && is_called_id && self.whole_numbers.is_some() {
            Some("another whole number in each row".to_owned())
        } else {
            None
        }
    }

    /// How many of its cells are empty, if any.
    pub fn describe_missing(&self) -> Option<String> {
        let Self { name, num_missing, .. } = self;
        (*num_missing > 0).then(|| format!("{} in {name}", counted(*num_missing, "empty cell")))
    }
}

struct Survey(Vec<SurveyedColumn>);

impl RowSink for Survey {
    fn columns(&mut self, names: &[String]) -> Result<Vec<usize>, String> {
        self.0 = names.iter().map(|name| SurveyedColumn::new(name)).collect();
        Ok((0..names.len()).collect())
    }

    fn row(&mut self, _line: usize, cells: &[Cell<'_>]) -> Result<(), RowFault> {
        self.0.iter_mut().zip(cells).for_each(|(column, cell)| column.add(cell));
        Ok(())
    }
}

/// Reads a whole table. `key` names it in messages.
///
/// # Errors
/// A file that cannot be read, or is no table.
pub fn survey(path: &Path, key: &'static str) -> Result<Vec<SurveyedColumn>, Error> {
    let mut survey = Survey(vec![]);
    super::read(path, key, &mut survey)?;
    Ok(survey.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_tell_rows_apart_are_recognized() {
        let column = |name: &str, cell: &dyn Fn(usize) -> String| {
            let mut column = SurveyedColumn::new(name);
            (0..1500).for_each(|row| column.add(&Cell::of_text(&cell(row))));
            column.why_id()
        };
        let number = |row: usize| row.to_string();
        assert_eq!(column("age", &|row| (row % 90).to_string()), None);
        assert_eq!(column("seconds", &number), None, "it may mean something");
        for name in ["id", "customer_id", "Unnamed: 0", "PassengerId"] {
            assert_eq!(column(name, &number).as_deref(), Some("another whole number in each row"));
        }
        assert_eq!(column("id", &|row| (row / 2).to_string()), None, "of something else");
        let words = column("name", &|row| format!("n{row}"));
        assert_eq!(words.as_deref(), Some("more than 1000 different words"));
        assert_eq!(column("plan", &|row| format!("p{}", row % 3)), None);
        let mut few = SurveyedColumn::new("code");
        (0..30).for_each(|row| few.add(&Cell::of_text(&format!("c{row}"))));
        few.add(&Cell::Missing);
        assert_eq!(few.why_id().as_deref(), Some("another word in each row"));
        assert_eq!(few.describe_missing().as_deref(), Some("1 empty cell in code"));
    }
}
