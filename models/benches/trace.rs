//! How long it takes from the model to text: GPT-2 124M, its gradient, simplified and lowered. No plugin.
//!
//! ```text
//! cargo bench -p lockstep-models --bench trace
//! ```

use std::time::{Duration, Instant};

use hlo::{
    AxisSet, DType, Graph, Mesh, TensorType, Tracer, Tree, grad, lower, passes, trace, verify,
};
use models::gpt::{Config, Gpt, Preset};
use models::{Batch, Model, Parameter, Precision, Scope};

const ROUNDS: usize = 15;

fn main() {
    for (name, scan_layers, remat) in
        [("unrolled", false, false), ("unrolled, remat", false, true), ("scanned", true, false)]
    {
        let config = Config { scan_layers, remat, ..Config::preset(Preset::Gpt2Small) };
        let model = config.model();
        let parameters = parameters(&model);
        let mut times = [(); 4].map(|()| vec![]);
        let mut size = (0, 0);
        for _ in 0..ROUNDS {
            let (graph, traced) = timed(|| gradients(&model, &parameters));
            let ((), verified) = timed(|| verify(&graph).expect("the gradient's graph is sound"));
            let (graph, simplified) = timed(|| passes::simplify(&graph));
            let (program, lowered) = timed(|| lower(&graph, "grad"));
            size = (graph.nodes().len(), program.text.lines().count());
            for (times, time) in times.iter_mut().zip([traced, verified, simplified, lowered]) {
                times.push(time);
            }
        }
        let [traced, verified, simplified, lowered] = times.map(median);
        let total = traced + verified + simplified + lowered;
        println!(
            "{name}: {total:.1} ms = trace and grad {traced:.1} + verify {verified:.1} + simplify \
             {simplified:.1} + lower {lowered:.1}; {} nodes, {} lines",
            size.0, size.1
        );
    }
}

fn parameters(model: &Gpt) -> Tree<Parameter> {
    let mut parameters = Tree::new();
    trace(Mesh::SINGLE, |t| {
        let scope = Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY);
        model.loss(&scope, &batch(t));
        parameters = scope.parameters();
    })
    .expect("GPT-2 traces");
    parameters
}

fn gradients(model: &Gpt, parameters: &Tree<Parameter>) -> Graph {
    trace(Mesh::SINGLE, |t| {
        let params = parameters.map(|path, p| t.input(path, TensorType::new(p.dtype, &p.dims)));
        let scope = Scope::bind(t, Precision::uniform(DType::F32), params.clone(), None);
        let loss = model.loss(&scope, &batch(t));
        let wrt: Vec<_> = params.values().copied().collect();
        t.output("loss", loss.sum);
        for (path, gradient) in params.paths().zip(grad(loss.sum, &wrt)) {
            t.output(format!("gradients.{path}"), gradient);
        }
    })
    .expect("GPT-2 traces")
}

/// Eight examples of 1024 tokens.
fn batch(t: &Tracer) -> Batch<'_> {
    let ids = |name: &str| t.input(name, TensorType::new(DType::I32, &[8, 1024]));
    let fields = ["x", "y"].map(|name| (name.to_owned(), ids(name)));
    Batch { fields: fields.into_iter().collect(), weight: t.full(DType::F32, &[8], 1.0) }
}

fn timed<T>(f: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = f();
    (result, start.elapsed())
}

/// In milliseconds.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e3
}
