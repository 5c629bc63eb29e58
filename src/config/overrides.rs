//! `--set section.key=value`: changes to the file's tables before they are read.

use toml::{Table, Value};

use super::error::Problem;
use super::keys::SectionInfo;

/// One `--set` argument.
pub(super) struct Override<'a> {
    /// Index of the argument, from 0.
    pub index: usize,
    /// The parts of `section.key`, or of a deeper key.
    pub path: Vec<&'a str>,
    value: Value,
}

/// Reads `section.key=value`.
pub(super) fn parse(index: usize, argument: &str) -> Result<Override<'_>, Problem> {
    let error = |problem: &str| Problem::Inconsistent(problem.to_owned());
    let (path, text) =
        argument.split_once('=').ok_or_else(|| error("write it as section.key=value"))?;
    let path: Vec<_> = path.trim().split('.').map(str::trim).collect();
    // No key is deeper than the options below `compile.overrides`.
    if !(2..=3).contains(&path.len()) || path.iter().any(|part| part.is_empty()) {
        return Err(error("write it as section.key=value, for example train.steps=100"));
    }
    let text = text.trim();
    let value = parse_value(text).ok_or_else(|| error("the value is not valid TOML"))?;
    // Otherwise they would be taken for bare words.
    if value.is_str()
        && text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first))
    {
        let digits = text.trim_start_matches(['+', '-']).replace('_', "");
        if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(error("the number is larger than 64 bits with a sign can hold"));
        }
        if digits.parse().is_ok_and(f64::is_infinite) {
            return Err(error("the number is larger than 64 bits can hold, 1.8e308"));
        }
    }
    Ok(Override { index, path, value })
}

/// A TOML value, or a bare word as a string. `None` if it opens like a list, a table or a string and
/// does not end like one.
fn parse_value(text: &str) -> Option<Value> {
    if let Ok(mut table) = toml::from_str::<Table>(&format!("value = {text}"))
        && table.len() == 1
        && let Some(value) = table.remove("value")
    {
        return Some(value);
    }
    if text.starts_with(['[', '{', '"', '\'']) { None } else { Some(text.into()) }
}

/// Puts the values into the file's tables, later ones over earlier ones. Setting one side of an
/// exclusive pair clears the other; setting a section's `name` or `source` clears the keys in the file
/// that belong to other choices only. Returns what could not be put anywhere, by the argument's index.
pub(super) fn apply(
    file: &mut Table,
    overrides: &[Override<'_>],
    sections: &[SectionInfo],
) -> Vec<(usize, Problem)> {
    for set in overrides {
        if let (Some(section), Value::String(choice)) = (tagged(set, sections), &set.value)
            && let Some(Value::Table(table)) = file.get_mut(section.name)
        {
            let kept = (section.keys)(choice);
            let elsewhere: Vec<_> =
                section.choices.iter().flat_map(|choice| (section.keys)(choice)).collect();
            let foreign = |key: &str| elsewhere.contains(&key) && !kept.contains(&key);
            table.retain(|key, _| !foreign(key));
        }
    }
    let mut problems = vec![];
    for set in overrides {
        for section in sections.iter().filter(|section| section.name == set.path[0]) {
            if let Some(Value::Table(table)) = file.get_mut(section.name) {
                for (left, right) in section.exclusive {
                    let cleared = match set.path[1] {
                        key if left.contains(&key) => right,
                        key if right.contains(&key) => left,
                        _ => continue,
                    };
                    table.retain(|key, _| !cleared.contains(&key));
                }
            }
        }
        problems.extend(insert(file, set).err().map(|problem| (set.index, problem)));
    }
    problems
}

/// The section whose tag is set.
fn tagged<'a>(set: &Override<'_>, sections: &'a [SectionInfo]) -> Option<&'a SectionInfo> {
    let section = sections.iter().find(|section| section.name == set.path[0])?;
    (set.path.len() == 2 && section.tag == Some(set.path[1])).then_some(section)
}

fn insert(file: &mut Table, set: &Override<'_>) -> Result<(), Problem> {
    let mut table = file;
    let (last, outer) = match set.path.split_last() {
        Some(split) => split,
        None => return Ok(()),
    };
    for (depth, part) in outer.iter().enumerate() {
        let entry = table.entry(*part).or_insert_with(|| Value::Table(Table::new()));
        table = match entry {
            Value::Table(table) => table,
            _ => {
                let problem = format!("{} is not a table", set.path[..=depth].join("."));
                return Err(Problem::Inconsistent(problem));
            }
        };
    }
    table.insert((*last).to_owned(), set.value.clone());
    Ok(())
}
