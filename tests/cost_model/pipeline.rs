//! What a pipeline costs, counted in traced and compiled steps.

use std::path::Path;

use hlo::{Cost, Graph, Op, count, transfers};
use lockstep::config::Config;
use lockstep::data;
use lockstep::pjrt::{CompileOptions, OverrideValue, Platform};
use lockstep::step;
use lockstep::train::{Run, mesh_on_host};

use super::support;

const STAGES: u64 = 4;

/// A GPT of 8 blocks.
const CONFIG: &str = "[model]\nname = \"gpt\"\nnum_layers = 8\nwidth = 64\nnum_heads = 4\ncontext = 32\n\
                      vocabulary = 512\n[data]\nsource = \"synthetic_tokens\"\nvocab_size = 512\n\
                      context = 32\n[train]\nsteps = 4\nglobal_batch = 8\nprecision = \"f32\"\n\
                      [optimizer]\nname = \"adamw\"\n[schedule]\nname = \"constant\"\npeak = 1e-3\n\
                      [compile]\nkernels = \"xla\"\n";

/// The step, with its program for the CPU.
fn step(sets: &[&str]) -> (Graph, hlo::Program) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/a.toml");
    let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
    let config = Config::parse(CONFIG, &path, &sets).unwrap();
    let splits = data::open(&config).unwrap();
    let model = config.model.build(splits.train.num_outputs());
    let run = Run::new(&config, &splits, mesh_on_host(&config), Platform::Cpu).unwrap();
    let graph = step::trace_step(&run.spec(&*model).declare().unwrap()).unwrap();
    (graph.clone(), run.lowering.lower(graph, "step").program)
}

/// With this many microbatches of two examples.
fn pipelined(chunks: u64, microbatches: u64, more: &[&str]) -> (Graph, hlo::Program) {
    let sets = [
        format!("mesh.pipeline={STAGES}"),
        format!("parallel.pipeline_chunks={chunks}"),
        format!("train.num_microbatches={microbatches}"),
        format!("train.global_batch={}", 2 * microbatches),
        "mesh.data=1".to_owned(),
    ];
    let sets: Vec<_> = sets.iter().map(String::as_str).chain(more.iter().copied()).collect();
    step(&sets)
}

/// The iterations of the loops in which stages send to the next one, and of those in which they
/// send to the previous one.
fn ticks(graph: &Graph) -> [u64; 2] {
    let mut ticks = [0; 2];
    for node in graph.nodes() {
        let Op::While { regions, trip_count: Some(trips) } = &node.op else { continue };
        for (ticks, pair) in ticks.iter_mut().zip([(0, 1), (1, 0)]) {
            // The head's rows go from one stage to one.
            let sends = |op: &Op| match op {
                Op::CollectivePermute { pairs, .. } => pairs.len() > 1 && pairs.contains(&pair),
                _ => false,
            };
            if regions.body.nodes().iter().any(|node| sends(&node.op)) {
                *ticks += trips;
            }
        }
    }
    ticks
}

/// Each stage is idle in P - 1 of v M + P - 1 ticks, forward and backward, and computes all the
/// same. The head runs once a microbatch.
#[test]
fn a_step_with_stages_costs_as_much_as_one_without_and_its_idle_ticks() {
    for (chunks, microbatches) in [(1, 8), (1, 16), (2, 8)] {
        let (batch, parts) = (
            format!("train.global_batch={}", 2 * microbatches),
            format!("train.num_microbatches={microbatches}"),
        );
        let (one, _) = step(&["mesh.data=1", &batch, &parts]);
        let (graph, _) = pipelined(chunks, microbatches, &[]);
        let passes = chunks * microbatches;
        assert_eq!(ticks(&graph), [passes + STAGES - 1; 2], "v = {chunks}, M = {microbatches}");
        let [one, stage] = [&one, &graph].map(|graph| count(graph).matmul_flops());
        let idle = (STAGES - 1) as f64 / passes as f64;
        let ratio = (STAGES * stage) as f64 / one as f64;
        println!("v = {chunks}, M = {microbatches}: {ratio:.4} of {:.4}", 1.0 + idle);
        assert!(ratio <= (1.0 + idle) * 1.02, "{ratio} {idle}");
        // The head has no idle ticks.
        assert!(ratio > 1.0 + 0.6 * idle, "{ratio} {idle}");
        // Rows of the head go to each other stage and back, in each tick of the program.
        let Cost { collectives, .. } = count(&graph);
        let permutes = collectives.iter().filter(|c| c.kind == "collective_permute");
        let sent: u64 = permutes.map(|permute| permute.count).sum();
        let (busy, start) = (passes + STAGES - 1, chunks * STAGES + 1);
        let expected = 2 * busy + 2 * (STAGES - 1) * (start + busy);
        assert_eq!(sent, expected, "v = {chunks}, M = {microbatches}");
        let listed = transfers(&graph).iter().filter(|t| t.kind == "collective_permute").count();
        assert_eq!(listed as u64, expected);
    }
}

/// Temporaries of a compiled step, in bytes.
fn temporaries(order: &str, microbatches: u64) -> f64 {
    let order = format!("parallel.pipeline_schedule={order}");
    let small =
        ["model.num_layers=4", "model.width=32", "model.vocabulary=64", "data.vocab_size=64"];
    let (_, program) = pipelined(1, microbatches, &[&small[..], &[&order]].concat());
    let fast = ("xla_backend_optimization_level", OverrideValue::String("0".to_owned()));
    let overrides = [(fast.0.to_owned(), fast.1)].into();
    let options = CompileOptions { overrides, ..CompileOptions::default() };
    let executable = support::client().compile(&program, &options).unwrap();
    executable.memory().unwrap().temporary_bytes as f64
}

/// With 1F1B no more from 2 P + 1 microbatches on, and with GPipe as many as there are.
#[test]
fn microbatches_kept_do_not_grow_with_their_number_unless_all_wait() {
    let [four, eight, sixteen, many] = [4, 8, 16, 32].map(|m| temporaries("1f1b", m));
    // Of 8 all are kept, and the values of idle passes.
    assert!(four < eight && eight <= sixteen, "{four} {eight} {sixteen}");
    assert!(many < 1.01 * sixteen, "{sixteen} {many}");
    let gpipe = [8, 16, 32].map(|m| temporaries("gpipe", m));
    let growth = (gpipe[2] - gpipe[1]) / (gpipe[1] - gpipe[0]);
    assert!((1.9..2.1).contains(&growth) && gpipe[2] > 2.0 * many, "{gpipe:?} {many}");
}
