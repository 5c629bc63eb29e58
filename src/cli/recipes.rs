//! `lockstep recipes`: the table of published recipes.

use std::process::ExitCode;
use std::{array, iter, slice};

use anyhow::{Context, Result, bail};
use rayon::prelude::*;

use super::args::TableForm;
use super::{findings, print_line, print_lines};
use crate::config::{near_names, shorten};
use crate::recipe::Finding;
use crate::recipe::published::{self, PublishedRecipe};

/// Lists all recipes.
pub fn list(json: bool) -> Result<ExitCode> {
    if json {
        print_line(&serde_json::to_string(published::recipes())?)?;
    } else {
        print_lines(published::recipes().iter().map(PublishedRecipe::describe))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes one as a configuration, scaled to a batch if there is one.
pub fn write(name: &str, batch: Option<u32>) -> Result<ExitCode> {
    let recipe = find(name)?;
    let text = match batch {
        Some(batch) => recipe.scaled(batch as usize).context("the recipe is not TOML")?,
        None => recipe.text(),
    };
    print_line(text.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

const HEADINGS: [&str; 8] =
    ["recipe", "model", "batch", "optimizer", "peak rate", "warm-up", "findings", "source"];

/// Prints all, or one, with what `schedule --check` finds in them.
pub fn table(name: Option<&str>, form: TableForm) -> Result<ExitCode> {
    let recipes = match name {
        Some(name) => slice::from_ref(find(name)?),
        None => published::recipes(),
    };
    let rows: Result<Vec<_>> = recipes.par_iter().map(|recipe| row(recipe, form)).collect();
    let rows = rows?;
    if let TableForm::Markdown = form {
        let line = |cells: &[String; 8]| format!("| {} |", cells.join(" | "));
        let headings = line(&HEADINGS.map(str::to_owned));
        let lines = [headings, "|---".repeat(HEADINGS.len()) + "|"];
        print_lines(lines.into_iter().chain(rows.iter().map(line)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = iter::once(HEADINGS.map(str::to_owned)).chain(rows).collect::<Vec<_>>();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; 8] = array::from_fn(|column| width(column).unwrap_or(0));
    let line = |row: &[String; 8]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    print_lines(rows.iter().map(line))?;
    Ok(ExitCode::SUCCESS)
}

fn row(recipe: &PublishedRecipe, form: TableForm) -> Result<[String; 8]> {
    let config = recipe.changed(&[]).with_context(|| recipe.name.clone())?;
    let describe = |finding: &Finding| format!("{} {}", finding.severity, finding.rule);
    let findings: Vec<_> = findings(&config)?.iter().map(describe).collect();
    let source = match form {
        TableForm::Text => recipe.source.clone(),
        TableForm::Markdown => format!("[{}]({})", recipe.source, recipe.link),
    };
    Ok([
        recipe.name.clone(),
        recipe.model.clone(),
        recipe.batch.to_string(),
        recipe.optimizer.clone(),
        recipe.peak.to_string(),
        format!("{} of {} steps", recipe.warmup_steps, recipe.steps),
        if findings.is_empty() { "none".to_owned() } else { findings.join(", ") },
        source,
    ])
}

/// Near names that are suggested.
const MAX_NEAR: usize = 6;

/// The recipe with this name.
///
/// # Errors
/// Another name, with those that are near.
pub fn find(name: &str) -> Result<&'static PublishedRecipe> {
    if let Some(recipe) = published::find(name) {
        return Ok(recipe);
    }
    let names = published::recipes().iter().map(|recipe| recipe.name.as_str());
    let near = near_names(name, names);
    let near = &near[..near.len().min(MAX_NEAR)];
    let meant = match near {
        [] => String::new(),
        [one] => format!(", did you mean {one}?"),
        [others @ .., last] => format!(", did you mean {} or {last}?", others.join(", ")),
    };
    bail!("there is no published recipe {:?}{meant}; `lockstep recipes` lists them", shorten(name))
}
