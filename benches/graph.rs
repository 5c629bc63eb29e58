//! Time to trace, differentiate and write down the steps of GPT-2 124M and ResNet-50: the part of a start
//! that is Rust.
//!
//! ```text
//! cargo bench --bench graph
//! ```

// The macro at the end makes a public function without documentation.
#![allow(missing_docs)]

use std::path::Path;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use hlo::lower;
use lockstep::config::Config;
use lockstep::data;
use lockstep::pjrt::Platform;
use lockstep::step;
use lockstep::train::{Run, step_graph};

/// Name, the example that has its sizes, and a batch for 8 replicas.
const CASES: [(&str, &str, &str); 2] = [
    ("gpt2-124m", "gpt2-124m.toml", "train.batch_per_replica=8"),
    ("resnet50", "resnet50-imagenet.toml", "train.global_batch=256"),
];
fn graphs(criterion: &mut Criterion) {
    for (name, file, batch) in CASES {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(file);
        let sets = ["mesh.data=8".to_owned(), batch.to_owned()];
        let config = Config::load(&path, &sets).expect("an example");
        let splits = data::open(&config.data, 0).expect("computed data");
        let model = config.model.build(splits.train.num_classes());
        let run = Run::new(&config, &splits, 8, Platform::Cpu).expect("a batch for 8 replicas");
        let spec = run.spec(&*model);
        let formulation = run.compile.formulation;
        let step = step_graph(&spec, formulation).expect("an example traces");
        let mut group = criterion.benchmark_group(name);
        group.sample_size(10).warm_up_time(Duration::from_secs(1));
        group.bench_function("trace the loss", |bench| bench.iter(|| step::trace_loss(&spec)));
        group.bench_function("with its gradient", |bench| bench.iter(|| step::trace_grad(&spec)));
        group.bench_function("the step, formulated", |bench| {
            bench.iter(|| step_graph(&spec, formulation));
        });
        group.bench_function("lower the step", |bench| bench.iter(|| lower(&step, "step")));
        group.finish();
    }
}

criterion_group!(benches, graphs);
criterion_main!(benches);
