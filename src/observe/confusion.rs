//! How the examples of each class are classified.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, PrettyFormatter};

use super::{EvalCounts, StepEval};

/// A confusion matrix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfusionMatrix {
    /// Index, from 0, of the step after which it was made.
    pub step: u64,
    /// Names of the classes; empty where the data has none.
    pub classes: Vec<String>,
    /// A row for each class, with the number of its examples that are predicted as each class.
    pub counts: Vec<Vec<u64>>,
}

impl ConfusionMatrix {
    /// Of more classes there is no matrix: nobody would read it, and it would be most of the file.
    pub const MAX_CLASSES: usize = 100;

    /// What an evaluation has counted, if that is classes and they are not too many.
    pub fn of(found: &StepEval, names: &[String]) -> Option<Self> {
        let EvalCounts::Classes(counts) = &found.eval.counts else { return None };
        let num = counts.len();
        let whole = |row: &Vec<f64>| row.iter().map(|count| count.round() as u64).collect();
        (2..=Self::MAX_CLASSES).contains(&num).then(|| Self {
            step: found.step,
            classes: if names.len() == num { names.to_vec() } else { vec![] },
            counts: counts.iter().map(whole).collect(),
        })
    }
}

/// JSON for people, in which each row of a matrix is a line.
#[derive(Default)]
pub(super) struct RowsOnLines<'a> {
    pretty: PrettyFormatter<'a>,
    /// Arrays that are open, since the last object within them began.
    depth: usize,
    /// The same of the objects around.
    outer: Vec<usize>,
}

impl RowsOnLines<'_> {
    fn is_in_row(&self) -> bool {
        self.depth > 1
    }
}

impl Formatter for RowsOnLines<'_> {
    fn begin_array<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.depth += 1;
        if self.is_in_row() { to.write_all(b"[") } else { self.pretty.begin_array(to) }
    }

    fn end_array<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        let is_row = self.is_in_row();
        self.depth = self.depth.saturating_sub(1);
        if is_row { to.write_all(b"]") } else { self.pretty.end_array(to) }
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        match (self.is_in_row(), first) {
            (false, _) => self.pretty.begin_array_value(to, first),
            (true, true) => Ok(()),
            (true, false) => to.write_all(b", "),
        }
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        if self.is_in_row() { Ok(()) } else { self.pretty.end_array_value(to) }
    }

    fn begin_object<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.outer.push(std::mem::take(&mut self.depth));
        self.pretty.begin_object(to)
    }

    fn end_object<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.depth = self.outer.pop().unwrap_or(0);
        self.pretty.end_object(to)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.pretty.begin_object_key(to, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.pretty.begin_object_value(to)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.pretty.end_object_value(to)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Serializer, json};

    use super::*;
    use crate::observe::EvalResult;

    #[test]
    fn a_matrix_is_recorded_of_classes_that_are_not_too_many() {
        let of = |counts: EvalCounts| {
            let eval = EvalResult { counts, ..EvalResult::default() };
            ConfusionMatrix::of(&StepEval { step: 9, eval }, &["a".to_owned(), "b".to_owned()])
        };
        let found = of(EvalCounts::Classes(vec![vec![2.0, 1.0], vec![0.0, 3.0]])).unwrap();
        assert_eq!((found.step, &found.classes[1]), (9, &"b".to_owned()));
        assert_eq!(found.counts, [[2, 1], [0, 3]]);
        assert!(of(EvalCounts::Classes(vec![vec![1.0; 3]; 3])).unwrap().classes.is_empty());
        for none in [
            EvalCounts::None,
            EvalCounts::Labels(vec![[1.0; 3]; 3]),
            EvalCounts::Classes(vec![vec![1.0; 101]; 101]),
        ] {
            assert_eq!(of(none), None);
        }
    }

    #[test]
    fn rows_of_a_matrix_are_lines_and_all_else_is_as_usual() {
        let text = |value: &serde_json::Value| {
            let mut to = vec![];
            value
                .serialize(&mut Serializer::with_formatter(&mut to, RowsOnLines::default()))
                .unwrap();
            String::from_utf8(to).unwrap()
        };
        let usual =
            json!({"a": [1, 2], "b": {"c": [], "d": [{"e": [3], "f": {}}, "g"]}, "h": null});
        assert_eq!(text(&usual), serde_json::to_string_pretty(&usual).unwrap());
        let matrix = json!({"a": {"m": [[1, 2], [3, 4], []]}, "b": [1]});
        let expected = "{\n  \"a\": {\n    \"m\": [\n      [1, 2],\n      [3, 4],\n      []\n    ]\n  \
                        },\n  \"b\": [\n    1\n  ]\n}";
        assert_eq!(text(&matrix), expected);
    }
}
