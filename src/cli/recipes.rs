//! `lockstep recipes`: the table of published recipes.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use super::{print_line, print_lines};
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

/// The recipe with this name.
pub fn find(name: &str) -> Result<&'static PublishedRecipe> {
    match published::find(name) {
        Some(recipe) => Ok(recipe),
        None => bail!("there is no published recipe {name:?}; `lockstep recipes` lists them"),
    }
}
