//! `lockstep man`: manual pages, made of the same table as the help.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_mangen::Man;

use super::args::Args;
use super::output::OutputFile;
use super::print_line;

/// Writes a page for each command into a folder.
pub fn run(dir: &Path, overwrite: bool) -> Result<ExitCode> {
    let made = || format!("cannot write into {}; name a folder", dir.display());
    fs::create_dir_all(dir).with_context(made)?;
    let mut command = Args::command().disable_help_subcommand(true);
    command.build();
    let mut pages = vec![];
    add_pages(&command, &mut pages)?;
    let paths: Vec<_> = pages.iter().map(|(name, _)| dir.join(name)).collect();
    let files = paths.iter().map(|path| OutputFile { option: "DIR", path, overwrite, is_own });
    let files: Vec<_> = files.collect();
    // All or nothing.
    files.iter().try_for_each(OutputFile::check)?;
    for (file, (_, page)) in files.iter().zip(&pages) {
        file.write(page)?;
    }
    let (num_pages, dir) = (pages.len(), dir.display());
    print_line(&format!("{num_pages} pages in {dir}; `man -l {dir}/lockstep.1` shows the first"))?;
    Ok(ExitCode::SUCCESS)
}

/// Is this the beginning of a page that was written here?
fn is_own(head: &[u8]) -> bool {
    memchr::memmem::find(head, b".TH lockstep").is_some()
}

/// The page of a command, and those of its own commands, without the ones that the program gives
/// itself.
fn add_pages(command: &clap::Command, pages: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let mut page = vec![];
    let program = format!("lockstep {}", env!("CARGO_PKG_VERSION"));
    Man::new(command.clone()).source(program).manual("Lockstep").render(&mut page)?;
    pages.push((format!("{name}.1"), page));
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.into_iter().try_for_each(|command| add_pages(command, pages))
}
