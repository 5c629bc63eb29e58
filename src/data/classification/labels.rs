//! The names of classes, and which class a label is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use super::TextRow;
use crate::config::shorten;
use crate::data::Error;

/// Labels that a message lists.
const MAX_LISTED: usize = 20;

/// The classes.
pub(super) struct Labels {
    names: Vec<String>,
    classes: HashMap<String, i32>,
    /// `true` if a label may also be the number of a class: no class is named with a number.
    has_numbers: bool,
}

impl Labels {
    /// The `given` names; without any, those in the last cell of the training `rows`: numbers in
    /// their order, which must be 0, 1, 2 and so on, or else names in alphabetical order.
    ///
    /// # Errors
    /// Labels that are not so, numbers among names, negative numbers, empty labels, or fewer than
    /// two classes.
    pub(super) fn new(given: &[String], rows: &[TextRow], path: &Path) -> Result<Self, Error> {
        let problem = |problem| Error::Table { path: path.to_owned(), problem };
        if !given.is_empty() {
            return Ok(Self::of(given.to_vec()));
        }
        let found = distinct(rows);
        if found.len() < 2 {
            let text = format!("all rows have the same label, {}", listed(found));
            return Err(problem(text + "; name the classes in data.labels, or check data.label"));
        }
        if found.len() == rows.len() && rows.len() > MAX_LISTED {
            let text =
                format!("each of its {} rows has another label, {}", rows.len(), listed(found));
            return Err(problem(text + "; correct data.label, or name the classes in data.labels"));
        }
        check_kinds(rows, path)?;
        let numbers: Option<BTreeSet<_>> = found.iter().map(|label| number(label)).collect();
        let Some(numbers) = numbers else {
            return Ok(Self::of(found.into_iter().cloned().collect()));
        };
        let is_beyond = |row: &&TextRow| number(label(row)).is_none_or(|n| n >= numbers.len());
        if let Some(row) = rows.iter().find(is_beyond) {
            let problem = format!(
                "the labels of the file are {}, but whole numbers must be 0, 1, 2 and so on \
                 without a gap; list the labels in data.labels, in the order of the classes",
                listed(found)
            );
            return Err(Error::Row { path: path.to_owned(), line: row.line, problem });
        }
        Ok(Self::of(numbers.iter().map(usize::to_string).collect()))
    }

    pub(super) fn of(names: Vec<String>) -> Self {
        let classes = names.iter().cloned().zip(0..).collect();
        let has_numbers = !names.iter().any(|name| number(name).is_some());
        Self { names, classes, has_numbers }
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// The class of a label.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn class(&self, label: &str) -> Result<i32, String> {
        let by_number = || {
            let class = number(label).filter(|class| *class < self.names.len())?;
            self.has_numbers.then_some(class as i32)
        };
        self.classes.get(label).copied().or_else(by_number).ok_or_else(|| {
            format!(
                "label {:?} is none of the {} classes, {}; correct it, or set data.labels",
                shorten(label),
                self.names.len(),
                listed(&self.names)
            )
        })
    }

    /// What looks like a mistake in names that a file has: classes that differ in capital letters
    /// and blanks only.
    pub(super) fn doubts(&self) -> Vec<String> {
        let mut alike: BTreeMap<String, Vec<&String>> = BTreeMap::new();
        for name in &self.names {
            let words: Vec<_> = name.split_whitespace().map(str::to_lowercase).collect();
            alike.entry(words.join(" ")).or_default().push(name);
        }
        let mut doubts: Vec<_> = alike
            .values()
            .filter(|names| names.len() > 1)
            .map(|names| {
                format!(
                    "the classes {} differ only in capital letters or blanks",
                    listed(names.iter().copied())
                )
            })
            .collect();
        let padded: Vec<_> = self.names.iter().filter(|name| name.trim() != *name).collect();
        if !padded.is_empty() {
            doubts.push(format!(
                "blanks at an end belong to the name of a class: {}",
                listed(padded)
            ));
        }
        let number = |name: &String| name.parse().ok().filter(|number: &f64| number.is_finite());
        let numbers: Option<Vec<_>> = self.names.iter().map(number).collect();
        if numbers.is_some_and(|numbers| numbers.iter().any(|number| number.fract() != 0.0)) {
            doubts.push(format!(
                "the labels have fractions, but each is a class of its own and no value: {}",
                listed(&self.names)
            ));
        }
        doubts
    }

    /// The classes that none of the examples have.
    pub(super) fn missing(&self, classes: impl Iterator<Item = i32>) -> Option<String> {
        let found: BTreeSet<_> = classes.collect();
        let of_class = self.names.iter().zip(0..).filter(|(_, class)| !found.contains(class));
        let missing: Vec<_> = of_class.map(|(name, _)| name).collect();
        (!missing.is_empty()).then(|| listed(missing))
    }
}

/// The labels that rows have.
pub(super) fn distinct(rows: &[TextRow]) -> BTreeSet<&String> {
    rows.iter().filter_map(|row| row.cells.last()).collect()
}

/// The label of a row, its last cell.
pub(super) fn label(row: &TextRow) -> &str {
    row.cells.last().map_or("", String::as_str)
}

/// What a label is, as a person reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Negative,
    OtherNumber,
    Name,
    Whole,
}

impl Kind {
    fn of(label: &str) -> Self {
        let parsed = || label.trim().parse().ok().filter(|number: &f64| number.is_finite());
        match number(label) {
            Some(_) => Self::Whole,
            None => match parsed() {
                Some(number) if number < 0.0 => Self::Negative,
                Some(_) => Self::OtherNumber,
                None => Self::Name,
            },
        }
    }

    fn in_words(self) -> &'static str {
        match self {
            Self::Negative => "a number below 0",
            Self::OtherNumber => "a number, but none of 0, 1, 2 and so on",
            Self::Name => "no number",
            Self::Whole => "a whole number",
        }
    }

    fn in_words_for_many(self) -> &'static str {
        match self {
            Self::Negative => "numbers below 0",
            Self::OtherNumber => "other numbers",
            Self::Name => "no numbers",
            Self::Whole => "whole numbers from 0 on",
        }
    }
}

/// Refuses labels that no file has on purpose: an empty one, a negative number, or one of another
/// kind than most.
fn check_kinds(rows: &[TextRow], path: &Path) -> Result<(), Error> {
    let at = |row: &TextRow, problem| Error::Row { path: path.to_owned(), line: row.line, problem };
    if let Some(row) = rows.iter().find(|row| label(row).trim().is_empty()) {
        let problem = "the label is empty; add it or remove the row".to_owned();
        return Err(at(row, problem));
    }
    // The number of rows of each kind, and the first one.
    let mut kinds: BTreeMap<Kind, (usize, &TextRow)> = BTreeMap::new();
    for row in rows {
        kinds.entry(Kind::of(label(row))).or_insert((0, row)).0 += 1;
    }
    let negative = kinds.get_key_value(&Kind::Negative);
    let rarest = kinds.iter().min_by_key(|(_, (count, _))| *count).filter(|_| kinds.len() > 1);
    let Some((kind, (_, row))) = negative.or(rarest) else { return Ok(()) };
    let most =
        kinds.iter().filter(|(other, _)| *other != kind).max_by_key(|(_, (count, _))| *count);
    let others = most.map_or(String::new(), |(other, (_, row))| {
        format!(", but others are {}, such as {:?}", other.in_words_for_many(), shorten(label(row)))
    });
    let hint = match kind {
        Kind::Negative => "-1 often marks a row without a label: remove the row",
        _ => "correct it or remove the row",
    };
    let problem = format!(
        "label {:?} is {}{others}; {hint}, or list all labels in data.labels, in the order of the \
         classes",
        shorten(label(row)),
        kind.in_words(),
    );
    Err(at(row, problem))
}

/// A whole number from 0 on, written in the usual way.
pub(super) fn number(label: &str) -> Option<usize> {
    label.parse().ok().filter(|number: &usize| number.to_string() == label)
}

fn listed<'a>(labels: impl IntoIterator<Item = &'a String>) -> String {
    let mut labels = labels.into_iter().map(|label| format!("{:?}", shorten(label)));
    let mut text = labels.by_ref().take(MAX_LISTED).collect::<Vec<_>>().join(", ");
    match labels.count() {
        0 => {}
        more => text += &format!(" and {more} more"),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(labels: &[&str]) -> Vec<TextRow> {
        let row =
            |(label, line): (&&str, usize)| TextRow { line, cells: vec![(*label).to_owned()] };
        labels.iter().zip(2..).map(row).collect()
    }

    #[test]
    fn odd_labels_are_refused_with_their_line() {
        for (labels, expected) in [
            (
                &["0", "1", "0", "-1"][..],
                "line 5: label \"-1\" is a number below 0, but others are whole numbers from 0 on",
            ),
            (&["-1", "1", "-1"], "line 2: label \"-1\" is a number below 0"),
            (
                &["good", "-2", "bad"],
                "line 3: label \"-2\" is a number below 0, but others are no numbers",
            ),
            (
                &["0", "1", "1", "N/A"],
                "line 5: label \"N/A\" is no number, but others are whole numbers from 0 on",
            ),
            (
                &["bad", "good", "2", "bad"],
                "line 4: label \"2\" is a whole number, but others are no numbers",
            ),
            (&["0", "1", "1.0", "0"], "line 4: label \"1.0\" is a number, but none of 0, 1, 2"),
            (&["0", "1", " 1", "0"], "line 4: label \" 1\" is a number, but none of 0, 1, 2"),
            (&["0", "1", "", "0"], "line 4: the label is empty"),
            (&["good", " ", "bad"], "line 3: the label is empty"),
            (&["0", "1", "7", "1"], "line 4: the labels of the file are \"0\", \"1\", \"7\""),
        ] {
            let error = Labels::new(&[], &rows(labels), Path::new("a.tsv")).err().expect(expected);
            assert!(error.to_string().contains(expected), "{expected}: {error}");
            // Who names the classes knows them.
            let given: Vec<_> = distinct(&rows(labels)).into_iter().cloned().collect();
            assert_eq!(
                Labels::new(&given, &rows(labels), Path::new("a.tsv")).unwrap().names(),
                given
            );
        }
        for labels in
            [&["0.0", "1.0", "0.5"][..], &["nan", "inf"], &["1-star", "2-star"], &["1", "0"]]
        {
            Labels::new(&[], &rows(labels), Path::new("a.tsv")).unwrap();
        }
    }

    #[test]
    fn names_that_look_alike_are_doubted() {
        let doubts = |names: &[&str]| {
            Labels::of(names.iter().map(|name| (*name).to_owned()).collect()).doubts().join("\n")
        };
        assert_eq!(doubts(&["bad", "good", "goods"]) + &doubts(&["0.0", "1.0"]), "");
        assert!(doubts(&["0.5", "1.0"]).contains("each is a class of its own and no value"));
        let found = doubts(&["NEG ", "Pos", "neg", "pos"]);
        assert!(
            found.contains("\"NEG \", \"neg\" differ only in capital letters or blanks"),
            "{found}"
        );
        assert!(found.contains("\"Pos\", \"pos\" differ only"), "{found}");
        assert!(found.contains("belong to the name of a class: \"NEG \""), "{found}");
    }
}
