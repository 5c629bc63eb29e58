//! `--set section.key=value` and `--unset section.key`: changes to the file's tables before they
//! are read.

use toml::{Table, Value};

use super::UNSET;
use super::error::{KeyError, Problem, nearest};
use super::keys::SectionInfo;

/// One `--set` or `--unset` argument.
pub(super) struct Override<'a> {
    /// Index of the argument, from 0.
    pub index: usize,
    /// The parts of `section.key`, or of a deeper key.
    pub path: Vec<&'a str>,
    /// `None` takes the key back.
    value: Option<Value>,
}

impl Override<'_> {
    /// `true` if it sets a key, and does not take one back.
    pub fn is_set(&self) -> bool {
        self.value.is_some()
    }
}

/// Reads `section.key=value`, or `section.key` after [`UNSET`].
pub(super) fn parse(index: usize, argument: &str) -> Result<Override<'_>, Problem> {
    let error = |problem: &str| Problem::Inconsistent(problem.to_owned());
    if let Some(key) = argument.strip_prefix(UNSET) {
        let form = "write it as section.key, for example --unset parallel.zero";
        let path = path(key).filter(|_| !key.contains('=')).ok_or_else(|| error(form))?;
        return Ok(Override { index, path, value: None });
    }
    let (key, text) =
        argument.split_once('=').ok_or_else(|| error("write it as section.key=value"))?;
    let form = "write it as section.key=value, for example train.steps=100";
    let path = path(key).ok_or_else(|| error(form))?;
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
    Ok(Override { index, path, value: Some(value) })
}

/// The parts of a key. No key is deeper than the options below `compile.overrides`.
fn path(key: &str) -> Option<Vec<&str>> {
    let path: Vec<_> = key.trim().split('.').map(str::trim).collect();
    ((2..=3).contains(&path.len()) && path.iter().all(|part| !part.is_empty())).then_some(path)
}

/// A TOML value, or a bare word as a string. `None` if it opens like a list, a table or a string
/// and does not end like one.
fn parse_value(text: &str) -> Option<Value> {
    if let Ok(mut table) = toml::from_str::<Table>(&format!("value = {text}"))
        && table.len() == 1
        && let Some(value) = table.remove("value")
    {
        return Some(value);
    }
    if text.starts_with(['[', '{', '"', '\'']) { None } else { Some(text.into()) }
}

/// Puts the values into the file's tables and takes keys back, later arguments after earlier ones.
/// Setting one side of an exclusive pair clears the other; setting a section's `name` or `source`
/// clears the keys in the file that belong to other choices only. Returns what could not be done,
/// by the argument's index.
pub(super) fn apply(
    file: &mut Table,
    overrides: &[Override<'_>],
    sections: &[SectionInfo],
) -> Vec<(usize, Problem)> {
    let written = file.clone();
    for set in overrides {
        if let (Some(section), Some(Value::String(choice))) = (tagged(set, sections), &set.value)
            && let Some(Value::Table(table)) = file.get_mut(section.name)
        {
            let of = |choice: &&'static str| section.keys(choice).iter().map(|key| key.name);
            let chosen = section.choices().iter().find(|known| **known == choice.as_str());
            let kept: Vec<_> = chosen.into_iter().flat_map(of).collect();
            let elsewhere: Vec<_> = section.choices().iter().flat_map(of).collect();
            let foreign = |key: &str| elsewhere.contains(&key) && !kept.contains(&key);
            table.retain(|key, _| !foreign(key));
        }
    }
    let mut problems = vec![];
    for set in overrides {
        let Some(value) = &set.value else {
            // If another argument has cleared the key, or taken it back, this is what was asked
            // for.
            if remove(file, &set.path).is_none() && !is_set(&written, &set.path) {
                problems.push((set.index, not_set(file, set, sections)));
            }
            continue;
        };
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
        problems.extend(insert(file, set, value).err().map(|problem| (set.index, problem)));
    }
    problems
}

/// The section with the tag that is set.
fn tagged<'a>(set: &Override<'_>, sections: &'a [SectionInfo]) -> Option<&'a SectionInfo> {
    let section = sections.iter().find(|section| section.name == set.path[0])?;
    (set.path.len() == 2 && section.tag.is_some_and(|tag| tag.name == set.path[1]))
        .then_some(section)
}

fn insert(file: &mut Table, set: &Override<'_>, value: &Value) -> Result<(), Problem> {
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
    table.insert((*last).to_owned(), value.clone());
    Ok(())
}

fn is_set(file: &Table, path: &[&str]) -> bool {
    let Some((last, outer)) = path.split_last() else { return false };
    let table = outer.iter().try_fold(file, |table, part| table.get(*part)?.as_table());
    table.is_some_and(|table| table.contains_key(*last))
}

/// Takes a key back. `None` if it is not there.
fn remove(file: &mut Table, path: &[&str]) -> Option<Value> {
    let (last, outer) = path.split_last()?;
    let table = outer.iter().try_fold(file, |table, part| match table.get_mut(*part) {
        Some(Value::Table(table)) => Some(table),
        _ => None,
    });
    table?.remove(*last)
}

/// The error of taking back a key that is not there: it names the nearest key that is, or that
/// could be.
fn not_set(file: &Table, unset: &Override<'_>, sections: &[SectionInfo]) -> Problem {
    let (name, key) = (unset.path[0], unset.path[1]);
    let Some(section) = sections.iter().find(|section| section.name == name) else {
        return KeyError::unknown(name, sections.iter().map(|s| s.name).collect()).problem;
    };
    let known = section.all_keys();
    if !known.contains(&key) {
        return KeyError::unknown(key, known).problem;
    }
    let set: Vec<_> = match file.get(name) {
        Some(Value::Table(table)) => table.keys().map(String::as_str).collect(),
        _ => vec![],
    };
    let meant = nearest(key, &set).filter(|meant| meant != key);
    let meant = meant.map(|meant| format!(", did you mean \"{name}.{meant}\"?"));
    let listed = if set.is_empty() { "none".to_owned() } else { set.join(", ") };
    Problem::Inconsistent(format!(
        "it is not set, so that nothing can be taken back{}; set in [{name}]: {listed}",
        meant.unwrap_or_default()
    ))
}
