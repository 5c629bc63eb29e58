//! Predictions for links that were measured.

use std::path::Path;

use anyhow::{Result, bail};

use super::args::ConfigArgs;
use crate::config::ParallelConfig;
use crate::targets::cost::NamedNetwork;
use crate::train::read_fabric;

/// The configuration with the file of `--fabric`, if there is one.
///
/// # Errors
/// A file that is none, or has no links between processes.
pub fn with_fabric(config: &ConfigArgs, fabric: Option<&Path>) -> Result<ConfigArgs> {
    let Some(path) = fabric else { return Ok(config.clone()) };
    if read_fabric(path)?.network_wire().is_none() {
        bail!(
            "--fabric {}: it was measured in one process, so it has no links between processes; \
             measure with `lockstep bench --collectives --processes N --to FILE`, or on several \
             hosts",
            path.display()
        );
    }
    Ok(config.with(format!("parallel.fabric={}", path.display())))
}

/// The network of a configuration's fabric file, if that has one.
///
/// # Errors
/// A file that is none.
pub fn measured_network(parallel: &ParallelConfig) -> Result<Option<NamedNetwork>> {
    let Some(path) = &parallel.fabric else { return Ok(None) };
    Ok(read_fabric(path)?.network_wire().map(NamedNetwork::measured))
}
