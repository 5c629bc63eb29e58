//! `lockstep plot`: what runs have recorded, as a picture or on the terminal.

mod curves;
mod run;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use super::args::PlotArgs;
use super::output::never;
use super::{picture, print_line, print_lines};
use crate::figure;
use crate::observe::stdout_columns;
use curves::figure_of;
use run::RecordedRun;
pub(super) use run::{names, printable};

/// Columns where there is no terminal to fit.
const COLUMNS: usize = 80;
/// Fewest columns: narrower lines would be wrapped by the terminal anyway.
const MIN_COLUMNS: usize = 40;

/// Runs the command.
pub fn run(args: &PlotArgs) -> Result<ExitCode> {
    let file = args.to.as_deref();
    let file =
        file.map(|path| picture::new_file("--to", path, args.overwrite, never)).transpose()?;
    let names = names(&args.runs);
    let read = |(path, name): (&PathBuf, String)| RecordedRun::read(path, name);
    let runs = args.runs.iter().zip(names).map(read).collect::<Result<Vec<_>>>()?;
    let figure = figure_of(&runs, args)?;
    match file {
        Some(file) => {
            picture::save(file, &figure)?;
            print_line(&file.path.display().to_string())?;
        }
        None => {
            let columns = stdout_columns().unwrap_or(COLUMNS).max(MIN_COLUMNS);
            print_lines(figure::text(&figure, columns).into_iter())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
