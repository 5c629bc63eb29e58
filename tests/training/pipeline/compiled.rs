//! Stages as XLA computes them on its CPU backend, against one replica that has all blocks: curves,
//! evaluations, models and their files.

use hlo::LeafSpec;
use lockstep::state;
use lockstep::train::params_file;

use crate::stacked::{Trained, assert_alike, bytes_of_file, train};

const NUM_STEPS: u64 = 20;

/// 4 blocks: 2 for each of 2 stages, or one for each chunk.
const SIZES: [&str; 5] = [
    "model.num_layers=4",
    "model.width=16",
    "model.context=8",
    "data.context=8",
    "train.num_microbatches=4",
];
const ONE: &[&str] = &["mesh.data=1"];
/// With tensor parallelism, and so with sequence parallelism.
const DATA: &[&str] = &["mesh.data=2", "mesh.tensor=2", "mesh.pipeline=2"];
const FSDP: &[&str] = &["mesh.data=1", "mesh.fsdp=2", "mesh.tensor=2", "mesh.pipeline=2"];
const CHUNKS: &[&str] =
    &["mesh.data=1", "mesh.pipeline=2", "parallel.pipeline_chunks=2", "model.remat=true"];
const DEEP: &[&str] = &["mesh.data=1", "mesh.pipeline=4"];
const GPIPE: &[&str] = &[
    "mesh.data=1",
    "mesh.pipeline=2",
    "parallel.pipeline_schedule=gpipe",
    "model.scan_layers=true",
];

/// Clipping, running means, rates that depend on the block, and patterns that match single blocks.
const ADAMW: &[&str] = &[
    "optimizer.clip_grad_norm=1.0",
    "optimizer.ema_decay=0.9",
    "optimizer.layer_decay=0.8",
    "optimizer.lr_factors={ 'blocks.1.*' = 2, 'norm.*' = 5 }",
    "optimizer.weight_decay=0.1",
];
/// Norms of each block's parameters, some of which have none or are not trained.
const LAMB: &[&str] = &[
    "optimizer.name=lamb",
    "schedule.peak=3e-2",
    "optimizer.weight_decay=0.1",
    "optimizer.weight_decays={ 'blocks.2.mlp.*' = 0.3, 'position.*' = 0 }",
    "optimizer.trust_exclude=['blocks.3.mlp.*', '*norm?.*']",
    "optimizer.freeze=['blocks.0.attn.*', 'blocks.*.norm1.*']",
];

fn check(what: &str, sets: &[&str], tolerance: f64, meshes: &[&[&str]]) -> Vec<Trained> {
    let sets = [&SIZES, sets].concat();
    let one = train(NUM_STEPS, &[&sets, ONE].concat());
    let (first, last) = (one.curve[0], one.curve[2 * NUM_STEPS as usize - 2]);
    assert!(last < first * 0.99, "{what}: {:?}", one.curve);
    let on_mesh = |mesh: &&[&str]| {
        let what = format!("{what} on {mesh:?}");
        let other = train(NUM_STEPS, &[&sets, *mesh].concat());
        assert_eq!(bytes_of_file(&other.initial), bytes_of_file(&one.initial), "{what}");
        assert_alike(&what, &one, &other, tolerance);
        // Where a stack is trained in part, its optimizer state is whole.
        let has_equal_state = !sets.iter().any(|set| set.contains("freeze"));
        check_state(&what, &one, &other, has_equal_state);
        other
    };
    let others: Vec<_> = meshes.iter().map(on_mesh).collect();
    [one].into_iter().chain(others).collect()
}

/// Each stage holds its own blocks and nothing of the others.
fn check_state(what: &str, one: &Trained, other: &Trained, has_equal_state: bool) {
    let state = other.trainer.state();
    let bytes = |of: &Trained| -> usize {
        of.trainer.state().specs().values().map(LeafSpec::num_bytes).sum()
    };
    assert_eq!(bytes(other) == bytes(one), has_equal_state, "{what}");
    assert_eq!(other.trainer.num_params(), one.trainer.num_params(), "{what}");
    let piece =
        |leaf: &LeafSpec| leaf.num_bytes() / state.mesh().group_size(leaf.sharding.varying());
    let held: usize = state.leaves().map(|leaf| leaf.num_bytes()).sum();
    assert_eq!(held, state.specs().values().map(piece).sum::<usize>(), "{what}");
    let num_stages = state.mesh().size(hlo::Axis::Pipeline);
    let of_blocks = state.specs().iter().filter(|(path, _)| path.contains("blocks."));
    let mut num_of_blocks = 0;
    for (path, leaf) in of_blocks {
        num_of_blocks += 1;
        let (dims, cut) = (leaf.stack_sizes(), leaf.sharding.dims());
        assert_eq!((dims[1], cut[1]), (num_stages, hlo::Axis::Pipeline.into()), "{what}: {path}");
    }
    assert!(num_of_blocks >= 16, "{what}");
}

#[test]
fn clipped_adamw_with_rates_by_block_trains_alike() {
    check("adamw", ADAMW, 1e-10, &[DATA, CHUNKS]);
}

#[test]
fn lamb_with_patterns_of_single_blocks_trains_alike() {
    let all: &[&[&str]] = &[FSDP, GPIPE, DEEP];
    let meshes = if std::env::var_os("LOCKSTEP_FULL").is_some() { all } else { &all[..1] };
    for trained in check("lamb", LAMB, 1e-10, meshes) {
        let model = trained.trainer.model().unwrap();
        let kept = |path: &str| model[path] == trained.initial[path];
        assert!(kept("blocks.0.attn.query.weight") && kept("blocks.3.norm1.bias"));
        assert!(!kept("blocks.1.attn.query.weight") && !kept("blocks.0.mlp.up.weight"));
    }
}

/// 8 blocks on 4 stages. The file of the run initializes a model without stages, and the other way
/// round: it has the names and dims of single layers.
#[test]
fn files_do_not_depend_on_stages() {
    const MESH: &[&str] = &["mesh.data=1", "mesh.pipeline=4", "parallel.pipeline_chunks=2"];
    let sets = [&["model.num_layers=8", "optimizer.ema_decay=0.9"], &ADAMW[2..]].concat();
    let mut trained = check("8 blocks", &sets, 1e-10, &[MESH]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other.safetensors");
    let [one, staged] = &mut trained[..] else { unreachable!() };
    let header = |file: &[u8]| {
        let size = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        String::from_utf8(file[8..][..size].to_vec()).unwrap()
    };
    let files = [&*one, &*staged].map(|of| bytes_of_file(&of.trainer.model().unwrap()));
    assert_eq!(header(&files[0]), header(&files[1]));
    assert!(header(&files[0]).contains("\"blocks.7.mlp.up.weight\""));
    for (of, file) in [(one, &files[1]), (staged, &files[0])] {
        std::fs::write(&path, file).unwrap();
        let read = params_file::open(&path, &of.trainer.model_specs()).unwrap();
        of.trainer.set_model(&read).unwrap();
        of.trainer.prove_lockstep().unwrap();
        assert!(bytes_of_file(&of.trainer.model().unwrap()) == *file);
    }
    let [one, staged] = [&trained[0], &trained[1]].map(|of| of.trainer.model().unwrap());
    assert_ne!(state::fingerprint(&one), state::fingerprint(&staged));
}

#[test]
fn f32_trains_alike() {
    check("f32", &["train.precision=f32"], 1e-4, &[DATA]);
}

/// Activations are rounded as on one replica, but where stages divide the rows of the head, its
/// products are of other sizes. Not with Adam, which would make steps of full size of rounding
/// errors.
#[test]
fn bf16_trains_alike() {
    let sgd = [
        "train.precision=bf16",
        "optimizer.name=sgd",
        "optimizer.momentum=0.9",
        "schedule.peak=0.1",
    ];
    check("bf16", &sgd, 5e-3, &[DEEP, CHUNKS]);
}
