//! What goes wrong with stages is found and named, and all of them act alike.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use hlo::Tensor;
use lockstep::train::{Error, Outcome};
use models::layers::linear;
use models::loss::cross_entropy;
use models::{Batch, Embedded, Initializer, Loss, Model, Pipelined, Scope, Stack};

use crate::faults::{self, Bad, Examples, STEP, bad_splits};
use crate::stacked;

/// A classifier of residual blocks.
struct Residual;

const WIDTH: usize = 8;
const WEIGHTS: Initializer = Initializer::Normal { std: 0.3 };

impl Pipelined for Residual {
    fn stack(&self) -> Stack {
        Stack { num_blocks: 4, scan: false, remat: false }
    }

    fn embed<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Embedded<'g> {
        let x = linear(&scope.at("embed"), batch.field("x"), WIDTH, WEIGHTS);
        Embedded { x, given: vec![], tied: vec![], num_positions: 1 }
    }

    fn block<'g>(
        &self,
        scope: &Scope<'g>,
        x: Tensor<'g>,
        _given: &[Tensor<'g>],
        _num_positions: usize,
    ) -> Tensor<'g> {
        x + linear(&scope.at("linear"), x, WIDTH, WEIGHTS).tanh()
    }

    fn head<'g>(&self, scope: &Scope<'g>, last: &Embedded<'g>, batch: &Batch<'g>) -> Loss<'g> {
        let logits = linear(&scope.at("head"), last.x, 4, WEIGHTS);
        cross_entropy(logits, batch.field("y"), batch.weight)
    }
}

impl Model for Residual {
    fn loss<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
        self.run(scope, batch)
    }

    fn pipelined(&self) -> Option<&dyn Pipelined> {
        Some(self)
    }
}

/// 8 replicas: 2 stages of the 4 shards of a batch, in microbatches of one example. The section
/// `[model]` tells the number of blocks.
const SETS: [&str; 8] = [
    "model.name=gpt",
    "model.num_layers=4",
    "model.num_heads=2",
    "mesh.pipeline=2",
    "train.num_microbatches=4",
    "optimizer.name=adamw",
    "optimizer.clip_grad_norm=1.0",
    "train.check_lockstep_every=1",
];

fn train(more: &[&str], bad: Option<Bad>, out: &Path) -> Result<Outcome, Error> {
    let splits = match bad {
        Some(bad) => bad_splits(bad).0,
        None => Examples::splits(None),
    };
    faults::train(&[&SETS, more].concat(), &Residual, &splits, out)
}

/// One microbatch of one shard has a NaN. No stage takes the step: those that did would have other
/// counters and moments, which the proof of lockstep would find after it.
#[test]
fn a_nan_in_one_microbatch_stops_or_skips_the_step_on_all_stages() {
    let dir = tempfile::tempdir().unwrap();
    for schedule in ["1f1b", "gpipe"] {
        let schedule = format!("parallel.pipeline_schedule={schedule}");
        let error = train(&[&schedule], Some(Bad::NotANumber), dir.path()).unwrap_err();
        // Both stages of the shard with index 2.
        let expected = format!("step {STEP}: the loss is not finite on replicas 2, 6; ");
        assert!(error.to_string().starts_with(&expected), "{expected}: {error}");
        // As if the run had ended before that step.
        let stopped = fs::read(dir.path().join("params.safetensors")).unwrap();
        train(&[&schedule, &format!("train.steps={STEP}")], None, dir.path()).unwrap();
        assert!(fs::read(dir.path().join("params.safetensors")).unwrap() == stopped);

        let skip = [&*schedule, "train.on_nonfinite=skip"];
        let outcome = train(&skip, Some(Bad::NotANumber), dir.path()).unwrap();
        assert_eq!(outcome.summary.num_skipped, 1);
        assert!(outcome.summary.final_loss.is_some_and(f64::is_finite), "{:?}", outcome.summary);
    }
}

/// In a leaf that all replicas hold alike, and in the rows of one stage.
#[test]
fn a_flipped_bit_is_found_and_named() {
    let sets = [
        "model.num_layers=4",
        "model.width=16",
        "mesh.data=2",
        "mesh.pipeline=2",
        "train.num_microbatches=4",
    ];
    let mut trainer = stacked::train(2, &sets).trainer;
    let specs = trainer.state().specs();
    let of_block = "params.blocks.*.attn.out.weight";
    assert_eq!(specs[of_block].dims, [1, 2, 2, 16, 16]);
    // Stage 1 is replicas 2 and 3.
    for (path, replica, expected) in [
        ("params.embed.weight", 2, "2"),
        ("opt_state.first_moment.norm.bias", 1, "1"),
        (of_block, 3, "{2} against {3}"),
        ("opt_state.second_moment.blocks.*.mlp.up.bias", 0, "{0} against {1}"),
    ] {
        let leaf = trainer.state().get(path).unwrap();
        let before: Vec<_> = (0..4).map(|replica| Arc::new(leaf.read(replica).unwrap())).collect();
        let mut changed = before.clone();
        let mut value = (*before[replica]).clone();
        *value.bytes_mut().last_mut().unwrap() ^= 4;
        changed[replica] = Arc::new(value);
        trainer.state_mut().replace(path, &changed).unwrap();
        match trainer.prove_lockstep().unwrap_err() {
            Error::LockstepLost { leaf, replicas, .. } => {
                assert_eq!((&*leaf, &*replicas), (path, expected));
            }
            other => panic!("{other}"),
        }
        trainer.state_mut().replace(path, &before).unwrap();
        trainer.prove_lockstep().unwrap();
    }
}
