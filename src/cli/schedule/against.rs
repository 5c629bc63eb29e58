//! `lockstep schedule --against NAME`: a recipe beside a published one.

use std::iter;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use super::{Examples, check};
use crate::cli::{print_line, print_lines, recipes};
use crate::config::Config;
use crate::observe::stdout_columns;
use crate::recipe::{Comparison, compare};

/// Columns of the table; a narrower terminal has each value on a line of its own.
const WIDTH: usize = 64;

/// Prints what differs.
pub fn run(config: &Config, name: &str, json: bool) -> Result<ExitCode> {
    let published = recipes::find(name)?;
    let theirs = Config::parse(&published.config, Path::new("/published.toml"), &[])
        .context("the published recipe is not a configuration")?;
    let ranks = [config, &theirs].map(check::parameter_ranks);
    let [ours_ranks, theirs_ranks] = ranks;
    let (ours_ranks, theirs_ranks) = (ours_ranks?, theirs_ranks?);
    let ours = check::resolve(config, &Examples::of(config), &ours_ranks)?;
    let theirs = check::resolve(&theirs, &Examples::of(&theirs), &theirs_ranks)?;
    let rows = compare(&ours, &theirs);
    if json {
        print_line(&serde_json::to_string(&rows)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mark = |row: &Comparison| if row.ours == row.published { ' ' } else { '*' };
    let source = format!("{name}: {} ({}, {})", published.model, published.source, published.link);
    if let Some(columns) = stdout_columns().filter(|columns| *columns < WIDTH) {
        let values = |row: &Comparison| format!("{} (published: {})", row.ours, row.published);
        let lines = rows.iter().flat_map(|row| {
            let name = format!("{} {}", mark(row), row.what);
            iter::once(name).chain(check::wrapped_to(columns, "      ", &values(row)))
        });
        print_lines(lines.chain(check::wrapped_to(columns, "", &source)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let line = |row: &Comparison| {
        format!("{} {:<28} {:>16} {:>16}", mark(row), row.what, row.ours, row.published)
    };
    let mut lines = vec![format!("  {:<28} {:>16} {:>16}", "", "this recipe", "published")];
    lines.extend(rows.iter().map(line));
    lines.push(source);
    print_lines(lines.into_iter())?;
    Ok(ExitCode::SUCCESS)
}
