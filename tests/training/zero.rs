//! ZeRO's stages, counted in the program: bytes on the wire, and what is gathered where.

use std::path::Path;

use hlo::{Axis, Communication, Graph, Op, communication};
use lockstep::config::Config;
use lockstep::data::{self, Splits};
use lockstep::lowering::Lowering;
use lockstep::pjrt::Platform;
use lockstep::step;
use lockstep::targets::{gathered_bytes, unordered_collectives};
use lockstep::train::{Run, mesh_on_host, open_devices};

const GPT: &str = r#"
[model]
name = "gpt"
num_layers = 12
width = 32
num_heads = 4
context = 16
vocabulary = 64
[data]
source = "synthetic_tokens"
vocab_size = 64
context = 16
[train]
global_batch = 64
steps = 100
[optimizer]
name = "adamw"
[schedule]
name = "constant"
peak = 3e-3
[mesh]
data = 2
fsdp = 4
"#;

fn loaded(sets: &[String]) -> (Config, Splits) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/a.toml");
    let config = Config::parse(GPT, &path, sets).unwrap();
    let splits = data::open(&config).unwrap();
    (config, splits)
}

/// The graph of the step, and the elements of the parameters that are sharded.
fn step_graph(sets: &[String]) -> (Graph, u64) {
    let (config, splits) = loaded(sets);
    let model = config.model.build(splits.train.num_outputs());
    let run = Run::new(&config, &splits, mesh_on_host(&config), Platform::Cpu).unwrap();
    let declared = run.spec(&*model).declare().unwrap();
    let params = declared.leaves().subtree("params");
    let is_cut = |leaf: &&hlo::LeafSpec| !leaf.sharding.varying().is_empty();
    let sharded = params.values().filter(is_cut).map(|leaf| leaf.num_elements() as u64).sum();
    (step::trace_step(&declared).unwrap(), sharded)
}

/// The step that XLA's CPU backend compiles, and its number of replicas. The collectives of a
/// program are ordered around loops only if `in_order`.
fn compiled(sets: &[String], in_order: bool) -> (Vec<u8>, usize) {
    let (config, splits) = loaded(sets);
    let model = config.model.build(splits.train.num_outputs());
    let (client, mesh) = open_devices(&config, |_| ()).unwrap();
    let run = Run::new(&config, &splits, mesh, client.platform()).unwrap();
    let graph = step::trace_step(&run.spec(&*model).declare().unwrap()).unwrap();
    let lowering = Lowering { order_collectives: in_order, ..run.lowering };
    let program = lowering.lower(graph, "step").program;
    let executable = client.compile(&program, &run.compile.options).unwrap();
    let (_, optimized) = executable.optimized_program().unwrap();
    (optimized, mesh.num_replicas())
}

fn sets(sets: &[(&str, &str)]) -> Vec<String> {
    sets.iter().map(|(key, value)| format!("{key}={value}")).collect()
}

/// Bytes of the whole tensors of a kind of collective over `fsdp`, over all executions.
fn whole_bytes(collectives: &[Communication], kind: &str) -> u64 {
    let of_kind = |c: &&Communication| c.kind == kind && c.groups == Axis::Fsdp.into();
    collectives.iter().filter(of_kind).map(|c| c.whole_bytes * c.count).sum()
}

/// With P parameters and M microbatches, stage 1 gathers P and scatters P, stage 2 gathers P and
/// scatters M P, stage 3 gathers 2 M P and scatters M P; on the wire, each is (F-1)/F of that.
/// Gathers are in the compute dtype, scatters in f32. Over `data`, one shard of each is all_reduced
/// per step.
#[test]
fn bytes_on_the_wire_are_those_of_the_papers() {
    for (precision, gather_bytes) in [("f32", 4), ("bf16", 2)] {
        for (how, num_microbatches) in
            [("unrolled", 1), ("unrolled", 4), ("remat", 4), ("scan", 1), ("scan and remat", 4)]
        {
            for (stage, gathers, scatters) in [
                ("1", 1, 1),
                ("2", 1, num_microbatches),
                ("3", 2 * num_microbatches, num_microbatches),
            ] {
                let what = format!("stage {stage}, {precision}, {how}, {num_microbatches}");
                let (scan, remat) = (how.contains("scan"), how.contains("remat"));
                let (graph, elements) = step_graph(&sets(&[
                    ("parallel.zero", stage),
                    ("train.precision", precision),
                    ("train.num_microbatches", &num_microbatches.to_string()),
                    ("model.scan_layers", &scan.to_string()),
                    ("model.remat", &remat.to_string()),
                ]));
                let found = communication(&graph);
                let gathered = whole_bytes(&found, "all_gather");
                assert_eq!(gathered, gathers * elements * gather_bytes, "{what}");
                let scattered = whole_bytes(&found, "reduce_scatter");
                assert_eq!(scattered, scatters * elements * 4, "{what}");
                let on_wire = found.iter().filter(|c| c.groups == Axis::Fsdp.into());
                let on_wire = on_wire.filter(|c| c.kind != "all_reduce");
                let on_wire: u64 = on_wire.map(Communication::total_bytes_on_wire).sum();
                assert_eq!(on_wire, (gathered + scattered) / 4 * 3, "{what}");
                let shards = found.iter().filter(|c| c.groups == Axis::Data.into());
                let shards: u64 = shards.map(|c| c.whole_bytes * c.count).sum();
                assert_eq!(shards, elements, "{what}: a quarter of each gradient, 4 bytes each");
            }
        }
    }
}

/// The loop over microbatches adds up whole gradients in stage 1 only.
#[test]
fn stage_2_and_3_accumulate_shards() {
    for (stage, is_whole) in [("1", true), ("2", false), ("3", false)] {
        let (graph, _) =
            step_graph(&sets(&[("parallel.zero", stage), ("train.num_microbatches", "4")]));
        let bodies = graph.nodes().iter().filter_map(|node| match &node.op {
            Op::While { regions, .. } => Some(&regions.body),
            _ => None,
        });
        let [body] = bodies.collect::<Vec<_>>()[..] else { panic!("one loop over microbatches") };
        let changed = body.inputs().iter().zip(body.outputs());
        let changed = changed.filter(|(input, output)| input.value != output.value);
        let sums: Vec<_> = changed.map(|(input, _)| &body.ty(input.value).dims[..]).collect();
        // The first matrix of a feed-forward layer, and the shard of the one for queries.
        let has = |dims: &[usize]| sums.contains(&dims);
        assert_eq!((has(&[128, 32]), has(&[8, 32])), (is_whole, !is_whole), "{stage}: {sums:?}");
    }
}

/// In the compiled step of a 12-layer GPT, at most two blocks and the embedding are whole at once:
/// one block if they run in a loop. Stage 1 holds everything whole.
#[test]
fn two_blocks_are_whole_at_once_in_the_compiled_step() {
    let (width, vocabulary) = (32u64, 64);
    // Queries, keys and values; their sum's matrix; the two of the feed-forward layer. In f32.
    let block = 4 * width * (3 + 1 + 4 + 4) * width;
    let embedding = 4 * vocabulary * width;
    let of = |stage: &str, scan: &str, remat: &str| {
        let sets = [("parallel.zero", stage), ("model.scan_layers", scan), ("model.remat", remat)];
        let (optimized, num_replicas) = compiled(&self::sets(&sets), true);
        let found = gathered_bytes(&optimized, num_replicas).unwrap();
        println!("stage {stage}, scan {scan}, remat {remat}: {found} bytes, a block has {block}");
        found
    };
    let is_full = std::env::var_os("LOCKSTEP_FULL").is_some();
    assert!(!is_full || of("1", "false", "false") >= 12 * block + embedding);
    for remat in if is_full { &["true", "false"][..] } else { &["true"] } {
        assert!((block..=2 * block + embedding).contains(&of("3", "false", remat)));
        assert!((block / 3..=block + embedding).contains(&of("3", "true", remat)));
    }
}

/// No collective of the compiled step can overtake a loop with collectives inside on one replica
/// and not on another.
#[test]
fn collectives_keep_their_order_around_loops() {
    let unordered = |stage: &str, blocks: [bool; 2], num_microbatches: &str, in_order| {
        let [scan, remat] = blocks.map(|on| on.to_string());
        let sets = sets(&[
            ("parallel.zero", stage),
            ("train.num_microbatches", num_microbatches),
            ("model.num_layers", "3"),
            ("model.scan_layers", &scan),
            ("model.remat", &remat),
            ("compile.overrides.xla_backend_optimization_level", "0"),
        ]);
        unordered_collectives(&compiled(&sets, in_order).0).unwrap()
    };
    let scans = [[true, false], [true, true]];
    let all = [[false, false], [false, true], scans[0], scans[1]];
    // Of the full set: each stage with every kind of loop. Graphs with any loops are in the
    // property test of `hlo/src/rewrites/order.rs`.
    let is_full = std::env::var_os("LOCKSTEP_FULL").is_some();
    let stages = if is_full { &["1", "2", "3"][..] } else { &["3"] };
    let with_microbatches = if is_full { &all[..] } else { &all[1..3] };
    for stage in stages {
        // Without microbatches, only scans are loops.
        for (blocks, num_microbatches) in [(&scans[..], "1"), (with_microbatches, "2")] {
            for blocks in blocks {
                let found = unordered(stage, *blocks, num_microbatches, true);
                assert!(found.is_empty(), "{stage}, {blocks:?}, {num_microbatches}: {found:?}");
            }
        }
    }
    // As traced, the gathers of parameters outside the blocks do not wait for the loop over the
    // blocks.
    assert!(!unordered("3", scans[0], "1", false).is_empty());
}
