//! `lockstep recipes`: the table of published recipes.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use super::{print_line, print_lines};
use crate::config::{near_names, shorten};
use crate::recipe::published::{self, PublishedRecipe};

/// Lists all recipes, or writes one as a configuration, scaled to a batch.
pub fn run(name: Option<&str>, batch: Option<u32>, json: bool) -> Result<ExitCode> {
    let Some(name) = name else {
        if json {
            print_line(&serde_json::to_string(published::recipes())?)?;
        } else {
            print_lines(published::recipes().iter().map(PublishedRecipe::describe))?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let recipe = find(name)?;
    let text = match batch {
        Some(batch) => recipe.scaled(batch as usize).context("the recipe is not TOML")?,
        None => recipe.config.clone(),
    };
    print_line(text.trim_end())?;
    Ok(ExitCode::SUCCESS)
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
