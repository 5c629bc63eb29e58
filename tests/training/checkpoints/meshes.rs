//! Runs that are continued on other meshes, with other stages of ZeRO, and with blocks stored in
//! other ways.

use lockstep::train::Resume;

use super::{GPT, NUMBERS, numbers, run};

/// Saved on one mesh, ZeRO stage and storage of blocks, continued on another: the same run up to
/// rounding.
#[test]
fn a_run_continues_on_any_mesh() {
    const ONE: &[&str] = &["mesh.data=1"];
    const DATA: &[&str] = &["mesh.data=4"];
    const HYBRID_1: &[&str] = &["mesh.data=2", "mesh.fsdp=2"];
    const HYBRID_3: &[&str] = &["mesh.data=2", "mesh.fsdp=2", "parallel.zero=3"];
    const SHARDED_2: &[&str] = &["mesh.fsdp=4", "parallel.zero=2", "train.num_microbatches=2"];
    const SCANNED: &[&str] = &["mesh.data=2", "model.scan_layers=true", "model.remat=true"];
    const SCANNED_3: &[&str] = &["mesh.fsdp=8", "parallel.zero=3", "model.scan_layers=true"];
    const TENSOR: &[&str] = &["mesh.data=2", "mesh.tensor=2"];
    const TENSOR_3: &[&str] =
        &["mesh.fsdp=2", "mesh.tensor=2", "parallel.zero=3", "model.scan_layers=true"];
    let chains = [
        [ONE, HYBRID_3, DATA],
        [SCANNED_3, TENSOR, SCANNED],
        [HYBRID_1, SCANNED_3, SHARDED_2],
        [TENSOR_3, SCANNED, HYBRID_1],
    ];
    // 2 replicas along `tensor` do not divide the vocabulary.
    continue_alike(&["model.vocabulary=33"], ONE, &chains);
}

/// The same with microbatches of a fixed size, on numbers of replicas that do not divide them: 8 on
/// 4, on 3 and on 5, and on 1 or 6 in shards.
#[test]
fn a_run_continues_on_any_number_of_replicas() {
    const FOUR: &[&str] = &["mesh.data=4"];
    const THREE: &[&str] = &["mesh.data=3"];
    const FIVE: &[&str] = &["mesh.data=5"];
    const SIX: &[&str] = &["mesh.data=3", "mesh.fsdp=2", "parallel.zero=2"];
    continue_alike(
        &["train.microbatch=2"],
        &["mesh.data=1"],
        &[[FOUR, THREE, FIVE], [SIX, FOUR, THREE]],
    );
}

/// The same with the blocks in stages, of one chunk or two.
#[test]
fn a_run_continues_on_any_stages() {
    const ONE: &[&str] = &["mesh.data=1"];
    const TWO: &[&str] = &["mesh.data=1", "mesh.pipeline=2", "train.num_microbatches=4"];
    const FOUR: &[&str] = &[
        "mesh.data=1",
        "mesh.pipeline=4",
        "parallel.pipeline_chunks=2",
        "train.num_microbatches=4",
    ];
    const DATA: &[&str] = &[
        "mesh.data=2",
        "mesh.pipeline=2",
        "parallel.pipeline_schedule=gpipe",
        "train.num_microbatches=2",
        "model.scan_layers=true",
    ];
    const FSDP: &[&str] = &[
        "mesh.data=1",
        "mesh.fsdp=2",
        "mesh.pipeline=2",
        "parallel.pipeline_chunks=2",
        "train.num_microbatches=2",
        "model.remat=true",
    ];
    const SCANNED: &[&str] = &["mesh.data=2", "mesh.tensor=2", "model.scan_layers=true"];
    let all = [[TWO, FOUR, ONE], [ONE, DATA, SCANNED], [SCANNED, FSDP, TWO]];
    // One chain to stages with chunks and back.
    let chains = if std::env::var_os("LOCKSTEP_FULL").is_some() { &all[..] } else { &all[..1] };
    continue_alike(&["model.num_layers=8", "model.width=8"], ONE, chains);
}

/// Each chain is a run that is continued twice, on other meshes.
fn continue_alike(sets: &[&str], one: &[&str], chains: &[[&[&str]; 3]]) {
    let dir = tempfile::tempdir().unwrap();
    let (whole, _) = run(GPT, &[sets, one].concat(), &dir.path().join("whole"), Resume::Never);
    for (index, chain) in chains.iter().enumerate() {
        let out = dir.path().join(index.to_string());
        let mut lines = vec![];
        for (mesh, steps) in chain.iter().zip(["4", "8", "12"]) {
            let resume = if steps == "4" { Resume::Never } else { Resume::Newest };
            let steps = format!("train.steps={steps}");
            lines = run(GPT, &[sets, *mesh, &[&*steps]].concat(), &out, resume).0;
        }
        for (line, expected) in lines.iter().zip(&whole) {
            for (name, (found, expected)) in
                NUMBERS.iter().zip(numbers(line).into_iter().zip(numbers(expected)))
            {
                let (Some(found), Some(expected)) = (found, expected) else {
                    assert_eq!(found, expected, "{chain:?}: {name}");
                    continue;
                };
                let difference = (found - expected).abs() / expected.abs().max(1e-6);
                assert!(difference < 1e-10, "{chain:?}: {name} is {found}, not {expected}");
            }
        }
        assert_eq!(lines.len(), whole.len());
    }
}
