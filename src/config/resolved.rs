//! A configuration as text, with every key, also those that were omitted.

use std::path::Path;

use toml::{Table, Value};

use super::key::{Fallback, KeyInfo, literal};
use super::keys::SectionInfo;
use super::{Config, DataConfig, SECTIONS};

const HEADER: &str = "\
# Every key with its value; comments name the keys that are not set, and what holds then. Paths are absolute.
";

impl Config {
    /// Writes out values that follow from other keys: the sizes of a preset, and what is held out
    /// or scaled by default. So what is read is what [`Self::to_toml`] writes.
    pub(super) fn write_out(&mut self) {
        self.model.resolve();
        if let DataConfig::Classification(texts) = &mut self.data
            && texts.tokenizer.is_none()
        {
            // The folder of the parameters has the tokenizer that they were trained with.
            texts.tokenizer = self.model.folder().map(Path::to_owned);
        }
        match &mut self.data {
            DataConfig::Tokens(tokens) if tokens.eval_path.is_none() => {
                tokens.eval_fraction = Some(tokens.eval_fraction());
            }
            DataConfig::Table(table) if table.eval_path.is_none() => {
                table.eval_fraction = Some(table.eval_fraction());
            }
            DataConfig::Arrays(arrays) if arrays.eval_path.is_none() && arrays.eval_x.is_none() => {
                arrays.eval_fraction = Some(arrays.eval_fraction());
            }
            DataConfig::Classification(texts) if texts.eval_path.is_none() => {
                texts.eval_fraction = Some(texts.eval_fraction());
            }
            DataConfig::ImageFolder(images) => {
                images.eval_resize = Some(images.eval_resize());
                if images.eval_path.is_none() {
                    images.eval_fraction = Some(images.eval_fraction());
                }
            }
            _ => {}
        }
    }

    /// The resolved configuration as TOML: every key with its value, defaults written out, and keys
    /// that are not set as comments that say what holds then. Read again, it is the same
    /// configuration.
    ///
    /// Paths are absolute, so the text can be kept anywhere on this machine, for example with the
    /// results of a run. On another machine, or if the data have moved, set the paths again.
    ///
    /// # Errors
    /// If a path is not Unicode, or a number does not fit into TOML's 64-bit signed integers.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        let mut file = Table::try_from(self)?;
        if let Some(data) = file.get_mut("data").and_then(Value::as_table_mut) {
            data.extend(Table::try_from(&self.late)?);
        }
        let sections = SECTIONS.iter().filter_map(|section| {
            let table = file.get(section.name)?.as_table()?;
            Some(format!("\n[{}]\n{}", section.name, lines(section, table)))
        });
        Ok(sections.fold(HEADER.to_owned(), |text, section| text + &section))
    }
}

fn lines(section: &SectionInfo, table: &Table) -> String {
    let named = |key: &str| table.get(key).map(|value| format!("{key} = {}\n", literal(value)));
    let tag = section.tag.map(|tag| tag.name);
    let choice = tag.and_then(|tag| table.get(tag)).and_then(Value::as_str).unwrap_or_default();
    let choice = section.choices().iter().find(|known| **known == choice);
    let line = |key: &KeyInfo| match (named(key.name), &key.fallback) {
        (Some(line), _) => Some(line),
        (None, Fallback::Absent(text)) if !is_said_otherwise(section, key.name, table) => {
            Some(format!("# {} is not set: {}\n", key.name, text.replace('`', "")))
        }
        (None, _) => None,
    };
    let keys = choice.map_or(&[][..], |choice| section.keys(choice));
    tag.and_then(named).into_iter().chain(keys.iter().filter_map(line)).collect()
}

/// Is the other key of an exclusive pair set?
fn is_said_otherwise(section: &SectionInfo, name: &str, table: &Table) -> bool {
    let has = |side: &[&str]| side.iter().any(|key| table.contains_key(*key));
    section.exclusive.iter().any(|(left, right)| {
        (left.contains(&name) && has(right)) || (right.contains(&name) && has(left))
    })
}
