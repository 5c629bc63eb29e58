//! `lockstep config`: the resolved configuration, or the reference of all keys.

use std::process::ExitCode;

use anyhow::{Context, Result};

use super::args::ConfigArgs;
use super::print_line;
use crate::config::{Config, reference};

/// Prints the configuration that is named, or else the reference.
pub fn run(args: Option<&ConfigArgs>) -> Result<ExitCode> {
    let text = match args {
        Some(args) => {
            let config = Config::load(&args.config, &args.sets())?;
            config.to_toml().context("cannot write the configuration as TOML")?
        }
        None => reference(),
    };
    print_line(text.trim_end())?;
    Ok(ExitCode::SUCCESS)
}
