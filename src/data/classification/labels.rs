//! The names of classes, and which class a label is.

use std::collections::{BTreeSet, HashMap};
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
    /// The `given` names; without any, those in the last cell of the training `rows`: numbers in their order, which
    /// must be 0, 1, 2 and so on, or else names in alphabetical order.
    ///
    /// # Errors
    /// Labels that are not so, or fewer than two classes.
    pub(super) fn new(given: &[String], rows: &[TextRow], path: &Path) -> Result<Self, Error> {
        let problem = |problem| Error::Table { path: path.to_owned(), problem };
        if !given.is_empty() {
            return Ok(Self::of(given.to_vec()));
        }
        let found: BTreeSet<_> = rows.iter().filter_map(|row| row.cells.last()).collect();
        if found.len() < 2 {
            let text = format!("all rows have the same label, {}", listed(found));
            return Err(problem(text + "; name the classes in data.labels, or check data.label"));
        }
        if found.len() == rows.len() && rows.len() > MAX_LISTED {
            let text =
                format!("each of its {} rows has another label, {}", rows.len(), listed(found));
            return Err(problem(text + "; correct data.label, or name the classes in data.labels"));
        }
        let numbers: Option<BTreeSet<_>> = found.iter().map(|label| number(label)).collect();
        let Some(numbers) = numbers else {
            return Ok(Self::of(found.into_iter().cloned().collect()));
        };
        let is_counted = numbers.iter().copied().eq(0..numbers.len());
        if !is_counted {
            return Err(problem(format!(
                "its labels are {}, but whole numbers must be 0, 1, 2 and so on without a gap; \
                 list the labels in data.labels, in the order of the classes",
                listed(found)
            )));
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
}

/// A whole number from 0 on, written in the usual way.
fn number(label: &str) -> Option<usize> {
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
