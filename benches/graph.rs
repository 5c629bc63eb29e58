//! Time to trace, differentiate and lower the steps of GPT-2 124M and ResNet-50: the part of a
//! start that runs in Rust.
//!
//! ```text
//! cargo bench --bench graph
//! ```

// The macro at the end defines an undocumented public function.
#![allow(missing_docs)]

use std::path::Path;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use hlo::Mesh;
use lockstep::config::Config;
use lockstep::data;
use lockstep::pjrt::Platform;
use lockstep::step;
use lockstep::train::Run;

/// Name, an example configuration, and a batch for 8 replicas.
const CASES: [(&str, &str, &str); 2] = [
    ("gpt2-124m", "gpt2-124m.toml", "train.batch_per_replica=8"),
    ("resnet50", "resnet50-imagenet.toml", "train.global_batch=256"),
];
fn graphs(criterion: &mut Criterion) {
    for (name, file, batch) in CASES {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(file);
        let sets = ["mesh.data=8".to_owned(), batch.to_owned()];
        let config = Config::load(&path, &sets).expect("an example");
        let splits = data::open(&config).expect("computed data");
        let model = config.model.build(splits.train.num_outputs());
        let run = Run::new(&config, &splits, Mesh::data(8), Platform::Cpu)
            .expect("a batch for 8 replicas");
        let declared = run.spec(&*model).declare().expect("an example traces");
        let step = step::trace_step(&declared).expect("an example traces");
        let mut group = criterion.benchmark_group(name);
        group.sample_size(10).warm_up_time(Duration::from_secs(1));
        group.bench_function("declare", |bench| bench.iter(|| run.spec(&*model).declare()));
        group.bench_function("trace the loss", |bench| bench.iter(|| step::trace_loss(&declared)));
        group.bench_function("with its gradient", |bench| {
            bench.iter(|| step::trace_grad(&declared));
        });
        group.bench_function("the step", |bench| bench.iter(|| step::trace_step(&declared)));
        group.bench_function("lower the step", |bench| {
            bench.iter(|| run.lowering.lower(step.clone(), "step"));
        });
        group.finish();
    }
}

criterion_group!(benches, graphs);
criterion_main!(benches);
