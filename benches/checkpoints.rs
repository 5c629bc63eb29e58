//! Saving and restoring a checkpoint of a GPT's AdamW state in f32: parameters and two moments, 1.5
//! GB for GPT-2 124M. `peers/checkpoint_peers.py` measures other programs with the same leaves,
//! alternately. See `README.md`.
//!
//! ```text
//! cargo bench --bench checkpoints -- --preset gpt2-124m --dir PATH
//! ```
//! prints one line of JSON, in milliseconds: `memcpy` (into memory that was written before), `copy`
//! (into fresh memory, leaf by leaf: what the training loop waits for), `save`, `verify`, `restore`
//! (each leaf read and checked).

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use hlo::{AxisSet, DType, LeafSpec, Literal, Mesh, TensorType, Tree, trace};
use lockstep::checkpoint::{self, Checkpoint, HostLeaf, HostPiece, LocalDisk, RunRecord};
use lockstep::cli::allocator;
use mimalloc::MiMalloc;
use models::gpt::{GptConfig, GptPreset};
use models::{Batch, Model, Precision, Scope};
use serde_json::json;

/// As of the program.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> Result<(), Box<dyn Error>> {
    allocator::tune();
    let (mut preset, mut dir) = ("gpt2-124m".to_owned(), PathBuf::from("."));
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--preset" => preset = arguments.next().ok_or("a name must follow")?,
            "--dir" => dir = arguments.next().ok_or("a path must follow")?.into(),
            "--bench" => {}
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    let leaves = state(serde_json::from_value(json!(preset))?)?;
    let num_bytes: usize = leaves.iter().map(|leaf| leaf.pieces[0].values.num_bytes()).sum();

    let mut buffer: Vec<Literal> = values(&leaves).cloned().collect();
    let memcpy_ms = millis(|| {
        for (to, from) in buffer.iter_mut().zip(values(&leaves)) {
            to.bytes_mut().copy_from_slice(from.bytes());
        }
        Ok(())
    })?;
    drop(buffer);
    let mut copies = vec![];
    let copy_ms = millis(|| {
        copies.extend(values(&leaves).cloned());
        Ok(())
    })?;
    drop(copies);

    let dir = tempfile::tempdir_in(dir)?;
    let run = RunRecord { step: 1, ..RunRecord::default() };
    let mut path = PathBuf::new();
    let save_ms = millis(|| {
        path = checkpoint::save(&LocalDisk, dir.path(), &leaves, run)?;
        Ok(())
    })?;
    let verify_ms = millis(|| Ok(Checkpoint::open(&path)?.verify()?))?;
    let mut restored = vec![];
    let restore_ms = millis(|| {
        let checkpoint = Checkpoint::open(&path)?;
        for leaf in &leaves {
            restored.push(checkpoint.leaf(&leaf.path)?);
        }
        Ok(())
    })?;
    if !values(&leaves).eq(&restored) {
        return Err("what was restored is not what was saved".into());
    }
    println!(
        "{}",
        json!({
            "num_bytes": num_bytes, "memcpy_ms": memcpy_ms, "copy_ms": copy_ms, "save_ms": save_ms,
            "verify_ms": verify_ms, "restore_ms": restore_ms,
        })
    );
    Ok(())
}

fn values(leaves: &[HostLeaf]) -> impl Iterator<Item = &Literal> {
    leaves.iter().map(|leaf| &leaf.pieces[0].values)
}

fn millis(run: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let started = Instant::now();
    run()?;
    Ok(started.elapsed().as_secs_f64() * 1e3)
}

/// Parameters and both moments of each, with values that no file system can compress away.
fn state(preset: GptPreset) -> Result<Vec<HostLeaf>, hlo::Error> {
    let model = GptConfig::preset(preset).model();
    let mut params = Tree::new();
    trace(Mesh::SINGLE, |t| {
        let scope = Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY);
        let ids =
            |name: &str| (name.to_owned(), t.input(name, TensorType::new(DType::I32, &[1, 1])));
        let fields = ["x", "y"].iter().map(|name| ids(name)).collect();
        model.loss(&scope, &Batch { fields, weight: t.full(DType::F32, &[1], 1.0) });
        params = scope.parameters().map(|_, p| LeafSpec::replicated(DType::F32, &p.dims));
    })?;
    let mut random = 1u32;
    let mut leaf = |kind: &str, path: &str, spec: &LeafSpec| {
        let mut values = Literal::zeros(DType::F32, &spec.dims);
        for value in values.as_mut_slice::<f32>() {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *value = f32::from_bits(0x3f80_0000 | (random >> 9)) - 1.5;
        }
        let start = vec![0; spec.dims.len()];
        let pieces = vec![HostPiece { start, values }];
        HostLeaf { path: format!("{kind}.{path}"), spec: spec.clone(), pieces }
    };
    let kinds = ["params", "opt_state.mean", "opt_state.variance"];
    let all =
        kinds.iter().flat_map(|kind| params.iter().map(move |(path, spec)| (kind, path, spec)));
    Ok(all.map(|(kind, path, spec)| leaf(kind, path, spec)).collect())
}
