//! Allocations of a training step on the host: as many for a model with many leaves as for one with
//! few.

use std::alloc::System;
use std::ops::Range;
use std::path::Path;

use lockstep::config::Config;
use lockstep::data::{self, TrainBatches};
use lockstep::train::{Run, Trainer, open_devices};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const MLP: &str = r#"
model = { name = "mlp" }
data = { source = "synthetic", image = [1, 4, 4] }
train = { global_batch = 8, steps = 100 }
optimizer = { name = "adamw" }
schedule = { name = "constant", peak = 1e-3 }
"#;

const STEPS: u64 = 20;

/// Leaves of the state, and allocations and allocated bytes of [`STEPS`] steps: the transfer of the
/// batch, the launch, the results.
fn allocations(hidden: &str, replicas: usize) -> (usize, usize, usize) {
    let sets = [format!("model.hidden={hidden}"), format!("mesh.data={replicas}")];
    let config = Config::parse(MLP, Path::new("/runs/test.toml"), &sets).unwrap();
    let (client, mesh) = open_devices(&config, |line| eprintln!("{line}")).unwrap();
    let splits = data::open(&config).unwrap();
    let model = config.model.build(splits.train.num_outputs());
    let run = Run::new(&config, &splits, mesh, client.platform()).unwrap();
    let mut trainer = Trainer::new(&client, &run, &*model, config.train.seed).unwrap();
    let (batch, shards) = (run.batch.global_batch(), run.batch.num_batch_shards());
    let batches = TrainBatches::new(splits.train, config.train.seed, batch, shards).unwrap();
    let steps = |trainer: &mut Trainer, steps: Range<u64>| {
        let batches: Vec<_> = steps.map(|step| batches.launch(step..step + 1).unwrap()).collect();
        let region = Region::new(ALLOCATOR);
        for batch in batches {
            let batch = trainer.batch_sender().send(batch).unwrap();
            let pending = trainer.launch(batch, vec![1e-3]).unwrap();
            assert!(trainer.finish(pending).unwrap()[0].is_finite());
        }
        region.change()
    };
    // Buffers that are kept grow to their sizes, and the programs of evaluation and proof are
    // compiled.
    steps(&mut trainer, 0..STEPS);
    trainer.prove_lockstep().unwrap();
    trainer.evaluate(&splits.eval, &run).unwrap();
    let change = steps(&mut trainer, STEPS..2 * STEPS);
    (
        trainer.state().leaves().len(),
        change.allocations + change.reallocations,
        change.bytes_allocated,
    )
}

#[test]
fn a_step_allocates_as_often_for_many_leaves_as_for_few() {
    for replicas in [1, 4] {
        let (few_leaves, few, few_bytes) = allocations("[8]", replicas);
        let (many_leaves, many, many_bytes) = allocations(&format!("{:?}", [8; 40]), replicas);
        println!(
            "{replicas} replicas, {STEPS} steps: {few_leaves} leaves {few} allocations, \
             {few_bytes} bytes; {many_leaves} leaves {many}, {many_bytes}"
        );
        assert!(many_leaves > 10 * few_leaves);
        // Lists have one entry for each leaf, of a few words.
        assert!(many <= few + few / 10, "{few} and {many} allocations");
        let per_leaf =
            many_bytes.saturating_sub(few_bytes) / (many_leaves - few_leaves) / STEPS as usize;
        assert!(per_leaf < 200 * replicas, "{per_leaf} bytes per leaf and step");
    }
}
