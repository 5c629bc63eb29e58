//! `lockstep plugin`.

use std::process::ExitCode;

use anyhow::Result;

use super::args::PluginCommand;
use super::print_line;
use crate::pjrt::{self, InstallOptions};

pub fn run(command: &PluginCommand) -> Result<ExitCode> {
    let options = InstallOptions::from_env()?;
    match command {
        PluginCommand::List { json } => {
            let listed = pjrt::list(&options);
            if *json {
                let plugin = |listed: &pjrt::Listed| {
                    let found = listed.found.as_ref();
                    serde_json::json!({
                        "name": listed.name,
                        "pinned_version": listed.version,
                        "installed_version": found.and_then(|found| found.version.clone()),
                        "path": found.map(|found| found.path.display().to_string()),
                    })
                };
                let plugins: Vec<_> = listed.iter().map(plugin).collect();
                print_line(&serde_json::to_string(&plugins)?)?;
            } else {
                for listed in listed {
                    let place = listed.found.map_or(
                        format!("not installed; lockstep plugin install {}", listed.name),
                        |found| found.path.display().to_string(),
                    );
                    print_line(&format!("{:5} {:8} {place}", listed.name, listed.version))?;
                }
            }
        }
        PluginCommand::Install { name } => {
            let found = pjrt::install(name, &options)?;
            print_line(&format!("{} is installed at {}", found.name, found.path.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
