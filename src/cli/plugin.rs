//! `lockstep plugin`.

use std::process::ExitCode;

use anyhow::Result;
use hlo::counted;

use super::args::PluginCommand;
use super::{print_line, print_lines};
use crate::observe::say;
use crate::pjrt::{self, InstallError, InstallOptions, Listed, Verified};

pub fn run(command: &PluginCommand) -> Result<ExitCode> {
    let options = InstallOptions::from_env()?;
    match command {
        PluginCommand::List { json } => list(&options, *json)?,
        PluginCommand::Install { name } => {
            let found = pjrt::install(name, &options, say)?;
            print_line(&format!("{} is installed at {}", found.name, found.path.display()))?;
        }
        PluginCommand::Verify { name, json } => return verify(&options, name.as_deref(), *json),
        PluginCommand::Remove { name } => {
            for dir in pjrt::remove(name, &options)? {
                print_line(&format!("{name} is removed from {}", dir.display()))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(options: &InstallOptions, json: bool) -> Result<()> {
    let listed = pjrt::list(options);
    if json {
        let plugin = |listed: &Listed| {
            let found = listed.found.as_ref();
            serde_json::json!({
                "name": listed.name,
                "pinned_version": listed.version,
                "installed_version": found.and_then(|found| found.version.clone()),
                "path": found.map(|found| found.path.display().to_string()),
                "damage": listed.damage,
            })
        };
        let plugins: Vec<_> = listed.iter().map(plugin).collect();
        return print_line(&serde_json::to_string(&plugins)?);
    }
    print_lines(listed.iter().map(|Listed { name, version, found, damage }| {
        let place = match (found, damage) {
            (None, _) => format!("not installed; lockstep plugin install {name}"),
            (_, Some(damage)) => format!("damaged: {damage}; lockstep plugin install {name}"),
            (Some(found), None) => found.path.display().to_string(),
        };
        format!("{name:5} {version:8} {place}")
    }))
}

fn verify(options: &InstallOptions, name: Option<&str>, json: bool) -> Result<ExitCode> {
    let names = match name {
        Some(name) => vec![name],
        None => pjrt::installed_names(options),
    };
    let mut rows = vec![];
    let mut is_damaged = false;
    for name in names {
        let (verified, damage) = match pjrt::verify(name, options) {
            Ok(verified) => (Some(verified), None),
            Err(error @ InstallError::Damaged { .. }) => (None, Some(error.to_string())),
            Err(other) => return Err(other.into()),
        };
        is_damaged |= damage.is_some();
        match (&verified, &damage) {
            _ if json => rows.push(serde_json::json!({
                "name": name,
                "num_files": verified.as_ref().map(|verified| verified.num_files),
                "num_bytes": verified.as_ref().map(|verified| verified.num_bytes),
                "was_recorded": verified.as_ref().map(|verified| verified.was_recorded),
                "damage": damage,
            })),
            (Some(verified), _) => print_line(&in_words(verified))?,
            (None, damage) => say(&format!("error: {}", damage.as_deref().unwrap_or_default())),
        }
    }
    if json {
        print_line(&serde_json::to_string(&rows)?)?;
    }
    Ok(if is_damaged { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn in_words(verified: &Verified) -> String {
    let Verified { found, num_files, num_bytes, was_recorded } = verified;
    let (name, path, megabytes) = (&found.name, found.path.display(), *num_bytes as f64 / 1e6);
    let files = counted(*num_files, "file");
    if *was_recorded {
        return format!("{name} is as it was installed: {files}, {megabytes:.1} MB, {path}");
    }
    format!(
        "{name} was installed by an older version of this program, which kept no record: nothing \
         is cut off, and its {files}, {megabytes:.1} MB, are recorded now as they are; to be sure \
         of them, remove the plugin and install it again: {path}"
    )
}
