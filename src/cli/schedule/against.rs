//! `lockstep schedule --against NAME`: a recipe beside a published one.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use super::{Examples, check};
use crate::cli::{print_line, print_lines, recipes};
use crate::config::Config;
use crate::recipe::{Comparison, compare};

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
    let line = |row: &Comparison| {
        let mark = if row.ours == row.published { ' ' } else { '*' };
        format!("{mark} {:<28} {:>16} {:>16}", row.what, row.ours, row.published)
    };
    let mut lines = vec![format!("  {:<28} {:>16} {:>16}", "", "this recipe", "published")];
    lines.extend(rows.iter().map(line));
    lines.push(format!("{name}: {} ({}, {})", published.model, published.source, published.link));
    print_lines(lines.into_iter())?;
    Ok(ExitCode::SUCCESS)
}
