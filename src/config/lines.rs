//! The TOML of a configuration, with the line numbers of its keys.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Table;
use toml::de::{DeTable, DeValue, Deserializer};

/// The line number of each key, and the syntax errors.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Lines from 1, by `section` and `section.key`.
    lines: BTreeMap<String, usize>,
    /// Syntax errors, with the line if it is known.
    pub errors: Vec<(Option<usize>, String)>,
}

impl Lines {
    /// The line of a key, or of the section that it belongs to.
    pub fn line_of(&self, key: &str) -> Option<usize> {
        let mut key = key;
        loop {
            if let Some(line) = self.lines.get(key) {
                return Some(*line);
            }
            (key, _) = key.rsplit_once('.')?;
        }
    }
}

/// The tables of a text; none if it is not TOML.
pub(super) fn parse(text: &str) -> (Option<Table>, Lines) {
    let starts: Vec<_> = text.match_indices('\n').map(|(end, _)| end + 1).collect();
    let line_at = |offset: usize| starts.partition_point(|start| *start <= offset) + 1;
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut lines = Lines::default();
    let describe = |error: &toml::de::Error| {
        (error.span().map(|span| line_at(span.start)), error.message().to_owned())
    };
    for error in errors.iter().map(describe) {
        if !lines.errors.contains(&error) {
            lines.errors.push(error);
        }
    }
    say_once_how_deep(&mut lines.errors);
    if !lines.errors.is_empty() {
        return (None, lines);
    }
    for (section, value) in table.get_ref() {
        lines.lines.insert(section.get_ref().to_string(), line_at(section.span().start));
        let DeValue::Table(keys) = value.get_ref() else { continue };
        for (key, value) in keys {
            let path = format!("{}.{}", section.get_ref(), key.get_ref());
            let DeValue::Table(options) = value.get_ref() else {
                lines.lines.insert(path, line_at(key.span().start));
                continue;
            };
            for option in options.keys() {
                let path = format!("{path}.{}", option.get_ref());
                lines.lines.insert(path, line_at(option.span().start));
            }
            lines.lines.insert(path, line_at(key.span().start));
        }
    }
    match Table::deserialize(Deserializer::from(table)) {
        Ok(table) => (Some(table), lines),
        Err(error) => {
            lines.errors.push(describe(&error));
            say_once_how_deep(&mut lines.errors);
            (None, lines)
        }
    }
}

/// Replaces all errors of a text that is nested too deeply by one: the others follow from it.
fn say_once_how_deep(errors: &mut Vec<(Option<usize>, String)>) {
    // The parser's words, in both of its passes.
    let is_depth = |message: &str| message.contains("recurs");
    if let Some(at) = errors.iter().position(|(_, message)| is_depth(message)) {
        let line = errors[at].0;
        *errors = vec![(line, "lists or tables are nested too deeply".to_owned())];
    }
}
