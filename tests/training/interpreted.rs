//! The same two steps for every model, way to run blocks, optimizer and number of microbatches, on
//! any mesh and in every stage, against one replica: in the interpreter, which computes the
//! collectives of all replicas without XLA.
//!
//! Each test covers every pair of settings. `LOCKSTEP_FULL=1` covers the whole product.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use hlo::{Graph, LeafSpec, Literal, Mesh, Tree, interpret, split_rows};
use lockstep::config::Config;
use lockstep::data::{self, TrainBatches};
use lockstep::pjrt::Platform;
use lockstep::step;
use lockstep::train::{Run, mesh_on_host};
use rayon::prelude::*;

use crate::tensor::join;

pub(crate) const NUM_STEPS: u64 = 2;
const TOLERANCE: f64 = 1e-10;

pub(crate) const MLP: &str = r#"
model = { name = "mlp", hidden = [40, 40], dropout = 0.1 }
data = { source = "synthetic", features = 32 }
"#;
pub(crate) const GPT: &str = r#"
model = { name = "gpt", num_layers = 2, width = 32, num_heads = 2, context = 8, vocabulary = 32, dropout = 0.1 }
data = { source = "synthetic_tokens", vocab_size = 32, context = 8 }
"#;
pub(crate) const RESNET: &str = r#"
model = { name = "resnet", batch_norm_group = 4 }
data = { source = "synthetic", image = [3, 4, 4], num_examples = 64 }
"#;
const REST: &str = r#"
train = { global_batch = 16, steps = 10, precision = "f64" }
optimizer = { name = "sgd" }
schedule = { name = "constant", peak = 0.01 }
compile = { kernels = "xla" }
"#;

const MODELS: [(&str, &[&str]); 5] = [
    (MLP, &[]),
    (GPT, &[]),
    (GPT, &["model.scan_layers=true"]),
    (GPT, &["model.remat=true", "model.loss_chunk_rows=24"]),
    (GPT, &["model.scan_layers=true", "model.remat=true"]),
];
pub(crate) const OPTIMIZERS: [&[&str]; 4] = [
    &["optimizer.momentum=0.9", "optimizer.weight_decay=0.01"],
    &["optimizer.name=adamw", "optimizer.clip_grad_norm=0.5", "optimizer.ema_decay=0.9"],
    &["optimizer.name=lamb"],
    &["optimizer.name=lars", "schedule.peak=1"],
];
const MICROBATCHES: [&[&str]; 2] = [&[], &["train.num_microbatches=2"]];
pub(crate) const ONE: &[&str] = &["mesh.data=1"];
const MESHES: [&[&str]; 9] = [
    &["mesh.data=4"],
    &["mesh.data=1", "mesh.fsdp=4", "parallel.zero=1"],
    &["mesh.data=1", "mesh.fsdp=4", "parallel.zero=2"],
    &["mesh.data=1", "mesh.fsdp=4", "parallel.zero=3"],
    &["mesh.data=2", "mesh.fsdp=2", "parallel.zero=1"],
    &["mesh.data=2", "mesh.fsdp=2", "parallel.zero=2"],
    &["mesh.data=2", "mesh.fsdp=2", "parallel.zero=3"],
    &["mesh.data=1", "mesh.fsdp=8", "parallel.zero=3"],
    &["mesh.data=4", "mesh.fsdp=2", "parallel.zero=2"],
];

/// 4 heads; 4 replicas do not divide the second vocabulary. Chunks of at most 24 rows are 22 of 64
/// or 128 rows, of which the last chunk lacks some.
pub(crate) const TENSOR_GPT: &str = r#"
model = { name = "gpt", num_layers = 2, width = 32, num_heads = 4, context = 8, vocabulary = 32, dropout = 0.1 }
data = { source = "synthetic_tokens", vocab_size = 30, context = 8 }
"#;
const TENSOR_MODELS: [(&str, &[&str]); 6] = [
    (MLP, &["parallel.sequence=false"]),
    (TENSOR_GPT, &[]),
    (TENSOR_GPT, &["model.vocabulary=31"]),
    (TENSOR_GPT, &["model.scan_layers=true", "model.loss_chunk_rows=24"]),
    (TENSOR_GPT, &["model.remat=true", "model.vocabulary=31", "model.loss_chunk_rows=24"]),
    (TENSOR_GPT, &["model.scan_layers=true", "model.remat=true"]),
];
const TENSOR: [&[&str]; 4] = [
    &["mesh.tensor=2"],
    &["mesh.tensor=4"],
    &["mesh.tensor=2", "parallel.sequence=false"],
    &["mesh.tensor=4", "parallel.sequence=false"],
];
const BESIDE_TENSOR: [&[&str]; 5] = [
    &["mesh.data=1"],
    &["mesh.data=2"],
    &["mesh.data=1", "mesh.fsdp=2", "parallel.zero=1"],
    &["mesh.data=1", "mesh.fsdp=2", "parallel.zero=2"],
    &["mesh.data=1", "mesh.fsdp=2", "parallel.zero=3"],
];

/// 8 blocks: 2 chunks for each of 4 stages.
pub(crate) const PIPELINE_GPT: &str = r#"
model = { name = "gpt", num_layers = 8, width = 8, num_heads = 2, context = 4, vocabulary = 12, dropout = 0.1 }
data = { source = "synthetic_tokens", vocab_size = 12, context = 4 }
"#;
const PIPELINE_MODELS: [&[&str]; 4] = [
    &[],
    &["model.remat=true"],
    &["model.scan_layers=true"],
    &["model.scan_layers=true", "model.remat=true"],
];
/// Stages, chunks of each, and the schedule.
const PIPELINE: [(usize, usize, &str); 7] = [
    (2, 1, "1f1b"),
    (4, 1, "1f1b"),
    (2, 2, "1f1b"),
    (4, 2, "1f1b"),
    (2, 4, "gpipe"),
    (2, 1, "gpipe"),
    (4, 1, "gpipe"),
];
const BESIDE_PIPELINE: [&[&str]; 5] = [
    &["mesh.data=2"],
    &["mesh.data=1", "mesh.fsdp=2"],
    &["mesh.data=1", "mesh.fsdp=2", "parallel.zero=2", "mesh.tensor=2"],
    &["mesh.data=1", "mesh.tensor=2", "parallel.sequence=false"],
    &["mesh.data=2", "mesh.tensor=2"],
];

/// Numbers of microbatches: one, a number that no stages divide, and enough that a stage uses the
/// memory of one for another. Chunks need a multiple of the stages.
fn microbatches((num_stages, num_chunks, _): (usize, usize, &str)) -> [usize; 3] {
    match num_chunks {
        1 => [1, 3, 3 * num_stages],
        _ => [1, 3, 3].map(|groups| groups * num_stages),
    }
}

/// Losses, and the model after the last step.
pub(crate) struct Trained {
    losses: Vec<f64>,
    /// Parameters and running means.
    model: Tree<Literal>,
    /// Each replica's own loss, by steps.
    pub(crate) replica_losses: Vec<Vec<f64>>,
}

/// Values on each replica, by the names of a graph's inputs and outputs.
type Values = BTreeMap<String, Vec<Literal>>;

fn run_graph(graph: &Graph, values: &Values) -> Values {
    let inputs: Vec<_> = graph.inputs().iter().map(|input| values[&*input.name].clone()).collect();
    let outputs = interpret(graph, &inputs).unwrap();
    graph.outputs().iter().map(|output| output.name.to_string()).zip(outputs).collect()
}

/// Trains as `Trainer` does, but in the interpreter.
pub(crate) fn train(model: &str, sets: &[&str]) -> Trained {
    train_on(model, sets, |_, _| ())
}

/// [`train`] with a change of the batches: of each field by name, a literal for each replica. They
/// are on time, with 1 in the field `ON_TIME`.
pub(crate) fn train_on(
    model: &str,
    sets: &[&str],
    change: impl Fn(&str, &mut Vec<Literal>),
) -> Trained {
    let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
    let text = format!("{model}{REST}");
    let config = Config::parse(&text, Path::new("/runs/a.toml"), &sets).unwrap();
    let splits = data::open(&config).unwrap();
    let model = config.model.build(splits.train.num_outputs());
    let mesh = mesh_on_host(&config);
    let run = Run::new(&config, &splits, mesh, Platform::Cpu).unwrap();
    let declared = run.spec(&*model).declare().unwrap();
    let step = step::trace_step(&declared).unwrap();
    let alike = |value: Literal| vec![value; mesh.num_replicas()];
    let seed = alike(Literal::from_slice(&[2], &[0, config.train.seed as u32]));
    let seed = BTreeMap::from([(step::SEED.to_owned(), seed)]);
    let mut values = run_graph(&step::trace_init(&declared).unwrap(), &seed);
    values.extend(seed);
    let batches = TrainBatches::split(splits.train, config.train.seed, run.batch).unwrap();
    let mut replica_losses = vec![];
    let losses = (0..NUM_STEPS).map(|index| {
        let batch = batches.get(index).unwrap();
        for (field, shards) in batch.fields.iter() {
            let shard = |replica| Literal::clone(&shards[mesh.index(replica, Mesh::BATCH_AXES)]);
            let mut of_replicas = (0..mesh.num_replicas()).map(shard).collect();
            change(field, &mut of_replicas);
            values.insert(format!("{}{field}", step::BATCH), of_replicas);
        }
        let mut on_time = alike(Literal::scalar(1u32));
        change(step::ON_TIME, &mut on_time);
        values.insert(step::ON_TIME.to_owned(), on_time);
        let rate = Literal::scalar(run.schedule.lr(index) as f32);
        values.insert(step::LEARNING_RATE.to_owned(), alike(rate));
        values.extend(run_graph(&step, &values));
        let of_replicas = values[step::REPLICA_LOSS].iter().map(|loss| loss.to_f64()[0]);
        replica_losses.push(of_replicas.collect());
        values[step::METRICS_OUTPUT][0].to_f64()[0]
    });
    let losses = losses.collect();
    let whole = |path: &str, leaf: &LeafSpec| join(leaf, &mesh, &values[path]);
    let model = [step::StateSection::Params, step::StateSection::ModelState].map(|section| {
        let specs = section.leaves(declared.leaves());
        let leaves = specs.map(|path, leaf| whole(&section.path(path), leaf));
        // Stacks of scanned blocks as the rows that files hold.
        split_rows(&specs, leaves)
    });
    let [mut model, model_state] = model;
    model.extend(model_state);
    Trained { losses, model, replica_losses }
}

pub(crate) fn check(what: &str, one: &Trained, other: &Trained) {
    let close = |a: f64, b: f64, scale: f64| (a - b).abs() < TOLERANCE * scale;
    for (a, b) in one.losses.iter().zip(&other.losses) {
        assert!(close(*a, *b, a.abs()), "{what}: losses {:?} and {:?}", one.losses, other.losses);
    }
    assert!(one.model.paths().eq(other.model.paths()), "{what}");
    for (path, a) in one.model.iter() {
        let (a, b) = (a.to_f64(), other.model[path].to_f64());
        assert_eq!(a.len(), b.len(), "{what}: `{path}`");
        let scale = a.iter().fold(1e-3, |scale: f64, x| scale.max(x.abs()));
        let is_close = a.iter().zip(&b).all(|(a, b)| close(*a, *b, 100.0 * scale));
        assert!(is_close, "{what}: `{path}` differs");
    }
}

/// Indices of settings, with `sizes` settings of each kind, such that each pair of settings of
/// different kinds occurs: greedily, the most new pairs first. With `LOCKSTEP_FULL` all
/// combinations.
pub(crate) fn combinations(sizes: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for size in sizes {
        let longer = |start: &Vec<usize>| {
            let start = start.clone();
            (0..*size).map(move |index| [&start[..], &[index]].concat())
        };
        all = all.iter().flat_map(longer).collect();
    }
    if std::env::var_os("LOCKSTEP_FULL").is_some() {
        return all;
    }
    let pairs = |row: &Vec<usize>| -> Vec<[usize; 4]> {
        let kinds = 0..row.len();
        let pairs = kinds.flat_map(|i| (i + 1..row.len()).map(move |j| (i, j)));
        pairs.map(|(i, j)| [i, row[i], j, row[j]]).collect()
    };
    let mut missing: BTreeSet<_> = all.iter().flat_map(pairs).collect();
    let mut chosen = vec![];
    while !missing.is_empty() {
        let num_new =
            |row: &&Vec<usize>| pairs(row).iter().filter(|p| missing.contains(*p)).count();
        let best = all.iter().rev().max_by_key(num_new).unwrap();
        pairs(best).iter().for_each(|pair| {
            missing.remove(pair);
        });
        chosen.push(best.clone());
    }
    chosen
}

#[test]
fn every_pair_of_settings_agrees_with_one_replica() {
    let rows = combinations(&[MODELS.len(), OPTIMIZERS.len(), MESHES.len(), MICROBATCHES.len()]);
    assert!(rows.len() >= MODELS.len() * MESHES.len(), "{rows:?}");
    // However its blocks are run, a model is the same.
    let references =
        [MLP, GPT].into_iter().flat_map(|model| (0..OPTIMIZERS.len()).map(move |o| (model, o)));
    let references: BTreeMap<_, _> = references
        .par_bridge()
        .map(|(model, optimizer)| {
            ((model, optimizer), train(model, &[ONE, OPTIMIZERS[optimizer]].concat()))
        })
        .collect();
    rows.par_iter().for_each(|row| {
        let [model, optimizer, mesh, microbatches] = row[..] else { unreachable!() };
        let (text, blocks) = MODELS[model];
        let sets =
            [blocks, OPTIMIZERS[optimizer], MESHES[mesh], MICROBATCHES[microbatches]].concat();
        check(
            &format!("{sets:?} of\n{text}"),
            &references[&(text, optimizer)],
            &train(text, &sets),
        );
    });
}

/// Layers that are cut over `tensor`.
#[test]
fn every_pair_of_settings_with_tensor_parallelism_agrees_with_one_replica() {
    let sizes = [TENSOR_MODELS.len(), OPTIMIZERS.len(), TENSOR.len(), BESIDE_TENSOR.len(), 2];
    let sets = |row: &[usize]| {
        let [_, optimizer, tensor, beside, microbatches] = row[..] else { unreachable!() };
        [OPTIMIZERS[optimizer], TENSOR[tensor], BESIDE_TENSOR[beside], MICROBATCHES[microbatches]]
            .concat()
    };
    let rows = combinations(&sizes);
    // How blocks are run changes nothing, but the vocabulary does.
    let reference = |row: &[usize]| {
        let (text, sets) = TENSOR_MODELS[row[0]];
        let vocabulary = sets.iter().find(|set| set.contains("vocabulary")).copied();
        (text, vocabulary, row[1])
    };
    let references: BTreeSet<_> = rows.iter().map(|row| reference(row)).collect();
    let references: BTreeMap<_, _> = references
        .into_par_iter()
        .map(|of @ (text, vocabulary, optimizer)| {
            let vocabulary: Vec<_> = vocabulary.into_iter().collect();
            (of, train(text, &[ONE, OPTIMIZERS[optimizer], &vocabulary].concat()))
        })
        .collect();
    rows.par_iter().for_each(|row| {
        let (text, of_model) = TENSOR_MODELS[row[0]];
        let sets = [&sets(row)[..], of_model].concat();
        check(&format!("{sets:?} of\n{text}"), &references[&reference(row)], &train(text, &sets));
    });
}

/// Blocks that are cut into stages.
#[test]
fn every_pair_of_settings_with_a_pipeline_agrees_with_one_replica() {
    const BATCH: &str = "train.global_batch=24";
    let rows = combinations(&[
        PIPELINE_MODELS.len(),
        OPTIMIZERS.len(),
        PIPELINE.len(),
        BESIDE_PIPELINE.len(),
        3,
    ]);
    let references: Vec<_> = OPTIMIZERS
        .par_iter()
        .map(|optimizer| train(PIPELINE_GPT, &[ONE, optimizer, &[BATCH]].concat()))
        .collect();
    rows.par_iter().for_each(|row| {
        let [model, optimizer, pipeline, beside, microbatches] = row[..] else { unreachable!() };
        let pipeline = PIPELINE[pipeline];
        let (num_stages, num_chunks, schedule) = pipeline;
        let mut of_pipeline = vec![
            format!("mesh.pipeline={num_stages}"),
            format!("parallel.pipeline_schedule={schedule}"),
            format!("train.num_microbatches={}", self::microbatches(pipeline)[microbatches]),
        ];
        of_pipeline
            .extend((num_chunks > 1).then(|| format!("parallel.pipeline_chunks={num_chunks}")));
        let of_pipeline: Vec<_> = of_pipeline.iter().map(String::as_str).collect();
        let sets = [
            PIPELINE_MODELS[model],
            OPTIMIZERS[optimizer],
            BESIDE_PIPELINE[beside],
            &of_pipeline,
            &[BATCH],
        ]
        .concat();
        check(&format!("{sets:?}"), &references[optimizer], &train(PIPELINE_GPT, &sets));
    });
}

/// The same, where parts of the model are not trained.
#[test]
fn frozen_parts_with_a_pipeline_agree_with_one_replica() {
    const BLOCKS: &str = "optimizer.freeze=['blocks.*']";
    const OUTER: &str = "optimizer.freeze=['embed.*', 'position.*', 'norm.*']";
    const SOME: &str = "optimizer.freeze=['blocks.*.attn.*', 'blocks.[0-3].*', 'position.*']";
    const PIPELINE: [&[&str]; 2] = [
        &["mesh.data=2", "mesh.pipeline=2", "train.num_microbatches=3"],
        &["mesh.pipeline=4", "parallel.pipeline_chunks=2", "mesh.data=1", "mesh.tensor=2"],
    ];
    [BLOCKS, OUTER, SOME].par_iter().for_each(|freeze| {
        let sets = |more: &[&'static str]| {
            let common = [freeze, "train.global_batch=24", "train.num_microbatches=4"];
            [&common, more].concat()
        };
        let one = train(PIPELINE_GPT, &sets(ONE));
        for pipeline in PIPELINE {
            let other = train(PIPELINE_GPT, &sets(pipeline));
            check(&format!("{freeze} on {pipeline:?}"), &one, &other);
        }
    });
}

/// A step without the batches of some replicas is one of the examples of the others. These are here
/// of one replica, and the reference has them on all.
#[test]
fn late_batches_count_for_nothing() {
    const LATE: &[&str] = &["data.late=skip"];
    let microbatches: [&[&str]; 3] =
        [&[], &["train.num_microbatches=2"], &["train.microbatch=4", "train.global_batch=12"]];
    let mut rows = vec![];
    for (index, mesh) in MESHES.iter().enumerate() {
        let sets = |more: &[&'static str]| [*mesh, more, &["model.dropout=0"]].concat();
        rows.extend(microbatches.map(|more| (MLP, sets(more))));
        rows.push((GPT, sets(microbatches[index % 3])));
    }
    for mesh in [MESHES[0], MESHES[6]] {
        rows.push((RESNET, [mesh, &["train.microbatch=4"]].concat()));
    }
    rows.par_iter().for_each(|(model, sets)| {
        let reference = train_on(model, sets, |field, of_replicas| {
            if field != step::ON_TIME {
                let first = of_replicas[0].clone();
                of_replicas.fill(first);
            }
        });
        let late = train_on(model, &[sets, LATE].concat(), |field, of_replicas| {
            if field == step::ON_TIME {
                of_replicas[1..].fill(Literal::scalar(0u32));
            }
        });
        check(&format!("{sets:?} of\n{model}"), &reference, &late);
        assert!(
            late.replica_losses.iter().all(|losses| losses[1..].iter().all(|loss| *loss == 0.0))
        );
    });
}

/// Groups of batch norm lie on one replica, or on two.
#[test]
fn batch_norm_agrees_with_one_replica() {
    let all = std::env::var_os("LOCKSTEP_FULL").is_some();
    let meshes: Vec<_> = if all { MESHES.to_vec() } else { vec![MESHES[0], MESHES[6]] };
    let runs: Vec<_> =
        [ONE].iter().chain(&meshes).par_bridge().map(|mesh| (*mesh, train(RESNET, mesh))).collect();
    let one = &runs.iter().find(|(mesh, _)| *mesh == ONE).unwrap().1;
    runs.iter().for_each(|(mesh, other)| check(&format!("{mesh:?}"), one, other));
}
