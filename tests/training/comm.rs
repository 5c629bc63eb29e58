//! What a way to sum gradients keeps from step to step: leaves of the state under `comm.`.

use std::sync::Arc;

use hlo::{Axis, AxisSet, DType, LeafSpec, Mesh, OnOtherMesh, Reduction, Sharding, Tensor};
use lockstep::checkpoint::{self, Checkpoint, CheckpointDir, HostLeaf, HostPiece, LocalDisk};
use lockstep::config::Config;
use lockstep::data::{self, Splits, TrainBatches};
use lockstep::parallel::{ParallelPlan, Synchronize};
use lockstep::pjrt::Platform;
use lockstep::train::{Run, Trainer};

use super::checkpoints::record;
use super::support::client;

const MLP: &str = r#"
model = { name = "mlp", hidden = [8] }
data = { source = "synthetic", num_examples = 64 }
train = { global_batch = 16, steps = 8, on_nonfinite = "skip" }
optimizer = { name = "adamw" }
schedule = { name = "constant", peak = 0.01 }
"#;

/// Sends gradients in bf16, and keeps on each replica what the rounding has lost.
#[derive(Debug)]
struct Rounded;

impl Synchronize for Rounded {
    fn comm(&self, param: &LeafSpec, plan: &ParallelPlan) -> Vec<(&'static str, LeafSpec)> {
        let dims = [&[plan.mesh.size(Axis::Data)], &param.dims[..]].concat();
        let leaf =
            LeafSpec::new(param.dtype, &dims, Sharding::leading(dims.len(), Axis::Data.into()));
        vec![("lost", LeafSpec { on_other_mesh: OnOtherMesh::SumThenSplit, ..leaf })]
    }

    fn sum<'g>(
        &self,
        local: Tensor<'g>,
        axes: AxisSet,
        comm: &[Tensor<'g>],
    ) -> (Tensor<'g>, Vec<Tensor<'g>>) {
        let lost = comm[0];
        let wanted = local + lost.reshape(&local.shape());
        let sent = wanted.convert(DType::Bf16).convert(wanted.dtype());
        let lost = (wanted - sent).reshape(&lost.shape());
        (sent.all_reduce(Reduction::Sum, axes), vec![lost])
    }
}

/// Scanned blocks, so leaves are stacked.
const GPT: &str = r#"
model = { name = "gpt", num_layers = 2, width = 32, num_heads = 2, context = 8, vocabulary = 32, scan_layers = true }
data = { source = "synthetic_tokens", vocab_size = 32, context = 8 }
train = { global_batch = 16, steps = 8, on_nonfinite = "skip" }
optimizer = { name = "adamw" }
schedule = { name = "constant", peak = 0.01 }
parallel = { compression = "power_sgd" }
compile = { overrides = { xla_backend_optimization_level = 0 } }
"#;

struct Training {
    trainer: Trainer,
    batches: TrainBatches,
}

impl Training {
    /// With the sums of the configuration, or others.
    fn on(text: &str, num_replicas: usize, sums: Option<Arc<dyn Synchronize>>) -> Self {
        let config = Config::parse(text, "a.toml".as_ref(), &[]).unwrap();
        let splits: Splits = data::open(&config).unwrap();
        let mesh = Mesh::data(num_replicas);
        let mut run = Run::new(&config, &splits, mesh, Platform::Cpu).unwrap();
        run.synchronize = sums.unwrap_or(run.synchronize);
        let model = config.model.build(splits.train.num_outputs());
        let trainer = Trainer::new(client(), &run, &*model, 0).unwrap();
        let batches = TrainBatches::new(splits.train, 0, 16, num_replicas).unwrap();
        Self { trainer, batches }
    }

    fn step(&mut self, rate: f64) {
        let batch = self.batches.get(self.trainer.steps_taken()).unwrap();
        let batch = self.trainer.batch_sender().send(batch).unwrap();
        let pending = self.trainer.step(batch, rate).unwrap();
        self.trainer.finish(pending).unwrap();
    }

    /// The whole value of each leaf under `comm.` of a kind.
    fn comm(&self, kind: &str) -> Vec<(String, Vec<f64>)> {
        let state = self.trainer.state();
        let prefix = format!("comm.{kind}");
        let paths = state.specs().paths().filter(|path| path.starts_with(&prefix));
        let value = |path: &str| state.gather(path).unwrap().wait().unwrap().to_f64();
        paths.map(|path| (path.to_owned(), value(path))).collect()
    }

    /// The sums over the replicas.
    fn sums(&self, kind: &str) -> Vec<f64> {
        let sums_of = |(path, values): &(String, Vec<f64>)| {
            let spec = &self.trainer.state().specs()[&**path];
            let row = spec.row();
            let size = row.dims[1..].iter().product::<usize>();
            let rows = values.chunks(row.num_elements());
            let sum = |row: &[f64], i: usize| row.iter().skip(i).step_by(size).sum::<f64>();
            rows.flat_map(|row| (0..size).map(|i| sum(row, i)).collect::<Vec<_>>()).collect()
        };
        self.comm(kind).iter().flat_map(|leaf| -> Vec<f64> { sums_of(leaf) }).collect()
    }

    fn leaves(&self) -> Vec<HostLeaf> {
        let state = self.trainer.state();
        let leaf = |(path, spec): (&str, &LeafSpec)| {
            let pieces = state.pieces(path).unwrap().wait().unwrap();
            let pieces = pieces.into_iter().map(|(start, values)| HostPiece { start, values });
            HostLeaf { path: path.to_owned(), spec: spec.clone(), pieces: pieces.collect() }
        };
        state.specs().iter().map(leaf).collect()
    }
}

fn check(text: &str, kind: &str, num_leaves: usize, sums: Option<Arc<dyn Synchronize>>) {
    let on = |num_replicas| Training::on(text, num_replicas, sums.clone());
    let mut training = on(2);
    (0..3).for_each(|_| training.step(0.01));
    let before = training.comm("");
    assert_eq!(before.len(), num_leaves);
    assert!(
        before.iter().all(|(_, values)| values.iter().any(|value| *value != 0.0)),
        "{before:?}"
    );

    training.step(f64::INFINITY);
    assert_eq!(training.comm(""), before, "the update was skipped");
    training.step(0.01);
    assert_ne!(training.comm(""), before);

    let dir = tempfile::tempdir().unwrap();
    checkpoint::save(&LocalDisk, dir.path(), &training.leaves(), record(5)).unwrap();
    let saved: Checkpoint = CheckpointDir::open(dir.path()).unwrap();
    let sums = training.sums(kind);
    for num_replicas in [1, 2, 4] {
        let mut other = on(num_replicas);
        other.trainer.restore(&saved).unwrap();
        if num_replicas == 2 {
            assert_eq!(other.comm(""), training.comm(""), "bit for bit");
        }
        let restored = other.sums(kind);
        assert_eq!(restored.len(), sums.len());
        let largest = sums.iter().fold(0.0f64, |most, sum| most.max(sum.abs()));
        for (restored, sum) in restored.iter().zip(&sums) {
            assert!((restored - sum).abs() <= 1e-6 * largest, "{num_replicas}: {restored} {sum}");
        }
        other.step(0.01);
    }
}

#[test]
fn a_skipped_update_leaves_it_and_another_mesh_keeps_its_sum() {
    check(MLP, "lost", 6, Some(Arc::new(Rounded)));
}

/// The embeddings of tokens, and six matrices of the blocks, each with a basis.
#[test]
fn rows_of_stacked_blocks_are_kept_alike() {
    check(GPT, "residual", 14, None);
}
