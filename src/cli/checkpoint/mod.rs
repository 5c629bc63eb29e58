//! `lockstep checkpoint`.

mod export;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use hlo::{Literal, counted};
use serde_json::json;

use super::args::CheckpointCommand;
use super::{print_line, print_lines};
use crate::checkpoint::{
    Checkpoint, CheckpointDir, Error, Location, RunRecord, SplitRecord, StoredCheckpoint,
};
use crate::config::MeshConfig;
use crate::observe::{human_bytes, say};
use crate::train::{checkpoint_place, newest_checkpoint};

pub fn run(command: &CheckpointCommand) -> Result<ExitCode> {
    match command {
        CheckpointCommand::List { dir, json } => list(dir, *json)?,
        CheckpointCommand::Inspect { dir, json } => inspect(&newest_checkpoint(dir)?, *json)?,
        CheckpointCommand::Verify { dir } => return verify(dir),
        CheckpointCommand::Diff { a, b } => {
            return diff(&newest_checkpoint(a)?, &newest_checkpoint(b)?);
        }
        CheckpointCommand::Export(args) => export::run(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The checkpoints in a directory or of a run, or the one that it is; and what has lost its
/// manifest, or never had one.
fn stored(dir: &Path) -> Result<(Vec<StoredCheckpoint>, Vec<StoredCheckpoint>)> {
    let place = checkpoint_place(dir);
    let (found, incomplete) = (CheckpointDir::list(&place)?, CheckpointDir::incomplete(&place)?);
    if !found.is_empty() || !incomplete.is_empty() {
        return Ok((found, incomplete));
    }
    let step = Checkpoint::open(&place)?.run().step;
    Ok((vec![StoredCheckpoint { step, location: place }], vec![]))
}

/// The error of a checkpoint without a manifest; `None` in an object store, where saves in progress
/// have none.
fn damage(incomplete: &StoredCheckpoint) -> Option<Error> {
    let path = incomplete.location.clone();
    matches!(path, Location::Path(_)).then_some(Error::Incomplete { path })
}

/// The message about a checkpoint without a manifest that is not known to be damaged.
const UNFINISHED: &str = "has no manifest.json: its save has not finished";

fn num_bytes(checkpoint: &Checkpoint) -> u64 {
    checkpoint.manifest().files.iter().map(|file| file.num_bytes).sum()
}

fn list(dir: &Path, json: bool) -> Result<()> {
    let mut rows = vec![];
    let (found, incomplete) = stored(dir)?;
    for stored in found {
        let (checkpoint, damage) = match stored.open() {
            Ok(checkpoint) => (Some(checkpoint), None),
            // The checkpoint has been removed since: a run keeps the newest only.
            Err(Error::NotACheckpoint { .. }) => continue,
            Err(
                error @ (Error::Damaged { .. } | Error::Incomplete { .. } | Error::Version { .. }),
            ) => (None, Some(error.to_string())),
            Err(other) => return Err(other.into()),
        };
        rows.push((stored, checkpoint, damage));
    }
    let best_of = rows.last().and_then(|(_, checkpoint, _)| checkpoint.as_ref());
    let best =
        best_of.and_then(|newest: &Checkpoint| newest.run().progress["best_eval"]["step"].as_u64());
    for stored in incomplete {
        let damage = damage(&stored).map_or(UNFINISHED.to_owned(), |damage| damage.to_string());
        rows.push((stored, None, Some(damage)));
    }
    rows.sort_by_key(|(stored, ..)| stored.step);
    let is_best = |stored: &StoredCheckpoint| best.is_some_and(|best| best + 1 == stored.step);
    if json {
        let row = |(stored, checkpoint, damage): &(_, Option<Checkpoint>, _)| {
            let stored: &StoredCheckpoint = stored;
            json!({
                "step": stored.step,
                "path": stored.location.to_string(),
                "num_bytes": checkpoint.as_ref().map(num_bytes),
                "saved_at": checkpoint.as_ref().map(|checkpoint| checkpoint.run().saved_at),
                "is_best": is_best(stored),
                "damage": damage,
            })
        };
        return print_line(&serde_json::to_string(&rows.iter().map(row).collect::<Vec<_>>())?);
    }
    print_lines(rows.iter().map(|(stored, checkpoint, damage)| {
        let what = match (checkpoint, damage) {
            (Some(checkpoint), _) => human_bytes(num_bytes(checkpoint)),
            (None, damage) => damage.clone().unwrap_or_default(),
        };
        let best = if is_best(stored) { "  (best evaluation)" } else { "" };
        format!("{:>9}  {}  {what}{best}", stored.step, stored.location)
    }))
}

fn inspect(checkpoint: &Checkpoint, json: bool) -> Result<()> {
    if json {
        return print_line(&serde_json::to_string(checkpoint.manifest())?);
    }
    let run = checkpoint.run();
    // Older checkpoints also name the axes that cannot be set.
    let can_be_set = |axis: &str| MeshConfig::AXES.iter().any(|known| known.name() == axis);
    let mesh = run.mesh.iter().filter(|(axis, _)| can_be_set(axis));
    let mesh: Vec<_> = mesh.map(|(axis, size)| format!("{axis} {size}")).collect();
    let head = [
        format!("{}: {}", checkpoint.location(), human_bytes(num_bytes(checkpoint))),
        format!(
            "after {}; batch {} of epoch {} is next",
            counted(run.step, "step"),
            run.position.batch,
            run.position.epoch
        ),
        format!("global batch {}, seed {}", run.global_batch, run.seed),
        format!("data: {}", data_of(run)),
        format!(
            "mesh: {}; {} in {}",
            mesh.join(", "),
            counted(run.num_replicas, "replica"),
            counted(run.num_processes, "process")
        ),
        format!("backend {} ({}), lockstep {}", run.backend, run.device, run.lockstep),
    ];
    let leaves = checkpoint.manifest().leaves.iter().zip(checkpoint.specs().values());
    let leaf = |(record, spec): (&crate::checkpoint::LeafRecord, _)| {
        let pieces = match record.pieces.len() {
            1 => String::new(),
            many => format!("  in {many} pieces"),
        };
        format!("{}  {spec}{pieces}", record.path)
    };
    let config = std::iter::once(format!("\n{}", run.config.trim_end()));
    print_lines(head.into_iter().chain(leaves.map(leaf)).chain(config))
}

/// The data of a run, in words.
fn data_of(run: &RunRecord) -> String {
    let Some(data) = &run.data else { return "not recorded".to_owned() };
    let part = |part: &SplitRecord| match &part.fingerprint {
        Some(fingerprint) => format!("{} (fingerprint {fingerprint})", part.num_examples),
        None => part.num_examples.to_string(),
    };
    format!("training examples {}, evaluation examples {}", part(&data.train), part(&data.eval))
}

/// Checks one checkpoint, or all in a directory. The exit code is 1 if one is damaged.
fn verify(dir: &Path) -> Result<ExitCode> {
    let mut is_damaged = false;
    let (found, incomplete) = stored(dir)?;
    for stored in &incomplete {
        match damage(stored) {
            None => print_line(&format!("{} {UNFINISHED}", stored.location))?,
            Some(damage) => {
                is_damaged = true;
                say(&format!("error: {damage}"));
            }
        }
    }
    for stored in found {
        let read = stored.open().and_then(|checkpoint| {
            checkpoint.verify()?;
            Ok(human_bytes(num_bytes(&checkpoint)))
        });
        match read {
            Ok(bytes) => print_line(&format!("{} is intact: {bytes}", stored.location))?,
            Err(Error::NotACheckpoint { .. }) => {}
            Err(error) => {
                is_damaged = true;
                say(&format!("error: {error}"));
            }
        }
    }
    Ok(ExitCode::from(u8::from(is_damaged)))
}

/// Compares two checkpoints leaf by leaf. The exit code is 1 if they differ.
fn diff(a: &Checkpoint, b: &Checkpoint) -> Result<ExitCode> {
    let mut lines = vec![];
    for (path, spec) in a.specs().iter() {
        match b.specs().get(path) {
            None => lines.push(format!("{path}: only in {}", a.location())),
            Some(other) if (other.dtype, &other.dims) != (spec.dtype, &spec.dims) => {
                let (spec, other) = (spec.global_type(), other.global_type());
                lines.push(format!("{path}: {spec} and {other}"));
            }
            Some(_) => lines.extend(difference(path, &a.leaf(path)?, &b.leaf(path)?)),
        }
    }
    let only_there = b.specs().paths().filter(|path| a.specs().get(path).is_none());
    lines.extend(only_there.map(|path| format!("{path}: only in {}", b.location())));
    let (is_equal, num_leaves) = (lines.is_empty(), a.specs().len());
    if is_equal {
        lines.push(format!("all {num_leaves} leaves are equal bit for bit"));
    }
    print_lines(lines.into_iter())?;
    Ok(ExitCode::from(u8::from(!is_equal)))
}

/// How two leaves of the same type differ.
fn difference(path: &str, a: &Literal, b: &Literal) -> Option<String> {
    if a.bytes() == b.bytes() {
        return None;
    }
    let (a, b) = (a.to_f64(), b.to_f64());
    let differing = a.iter().zip(&b).filter(|(a, b)| a.to_bits() != b.to_bits());
    let differences = differing.clone().map(|(a, b)| (a - b).abs());
    let largest =
        differences.fold(0.0, |largest: f64, x| if x.is_nan() { x } else { largest.max(x) });
    Some(format!(
        "{path}: {} of {} elements differ, by {largest:e} at most",
        differing.count(),
        a.len()
    ))
}
