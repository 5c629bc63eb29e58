//! Checkpoints: a run that is continued is the run that was not interrupted, on any mesh; and no
//! failure while saving, and no damage afterwards, goes unnoticed. `meshes` has runs that are
//! continued on other meshes, `resumed` what a continued run must not differ in.

mod meshes;
mod resumed;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hlo::{Axis, AxisSet, LeafSpec, Literal, Sharding, Tree};
use lockstep::checkpoint::{
    self, Checkpoint, CheckpointDir, CheckpointSource, Disk, HostLeaf, HostPiece, LocalDisk,
    LocalSource, RunRecord, SourceFile,
};
use lockstep::config::Config;
use lockstep::data;
use lockstep::train::{self, Job, Options, Resume};
use serde_json::Value;

const GPT: &str = r#"
[model]
name = "gpt"
num_layers = 2
width = 16
num_heads = 2
context = 8
vocabulary = 32
dropout = 0.1
[data]
source = "synthetic_tokens"
vocab_size = 32
context = 8
num_examples = 80
[train]
global_batch = 16
steps = 12
eval_every = 4
precision = "f64"
[optimizer]
name = "adamw"
clip_grad_norm = 1.0
ema_decay = 0.9
[schedule]
name = "cosine"
peak = 3e-3
total_steps = 12
[compile.overrides]
xla_backend_optimization_level = 0
"#;

/// Fields of `metrics.jsonl` that are not times.
const NUMBERS: [&str; 7] = ["step", "loss", "lr", "grad_norm", "num_skipped", "epoch", "eval_loss"];

/// Runs `text` with these `--set` arguments. Returns the lines of the metrics and the summary.
fn run(text: &str, sets: &[&str], out: &Path, resume: Resume) -> (Vec<Value>, Value) {
    try_run(text, sets, out, resume).unwrap()
}

fn try_run(
    text: &str,
    sets: &[&str],
    out: &Path,
    resume: Resume,
) -> Result<(Vec<Value>, Value), train::Error> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/a.toml");
    let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
    let config = Config::parse(text, &path, &sets).unwrap();
    let splits = data::open(&config)?;
    let model = config.model.build(splits.train.num_outputs());
    let job = Job { config: &config, model: &*model, splits: &splits };
    let options = Options { out: Some(out.to_owned()), resume, ..Options::default() };
    train::train(&job, &options)?.success()?;
    let lines = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let summary = fs::read_to_string(out.join("summary.json")).unwrap();
    Ok((lines, serde_json::from_str(&summary).unwrap()))
}

fn numbers(line: &Value) -> Vec<Option<f64>> {
    NUMBERS.iter().map(|name| line.get(name).and_then(Value::as_f64)).collect()
}

/// Stopped after each of these numbers of steps, and continued on the same mesh: the same bits.
/// With a running mean, dropout, microbatches, several steps per launch, bf16.
#[test]
fn a_continued_run_is_the_same_bit_for_bit() {
    for sets in [
        &["mesh.data=2", "optimizer.name=lamb", "train.num_microbatches=2"][..],
        &["mesh.data=2", "mesh.fsdp=2", "parallel.zero=3", "model.scan_layers=true"],
        &["train.precision=bf16", "train.steps_per_launch=4", "train.check_lockstep_every=0"],
        &["mesh.data=2", "mesh.pipeline=2", "train.num_microbatches=4"],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (whole, end) = run(GPT, sets, &dir.path().join("whole"), Resume::Never);
        assert_eq!(whole.len(), 12);
        let out = dir.path().join("stopped");
        for (steps, resume) in [
            ("3", Resume::Never),
            ("4", Resume::Newest),
            ("9", Resume::Newest),
            ("12", Resume::Newest),
        ] {
            let steps = format!("train.steps={steps}");
            run(GPT, &[sets, &[&steps]].concat(), &out, resume);
        }
        let (lines, stopped) = run(GPT, sets, &out, Resume::Newest);
        let lines: Vec<_> = lines.iter().map(numbers).collect();
        let mut expected: Vec<_> = whole.iter().map(numbers).collect();
        // A run that ends is evaluated.
        for ended in [2, 8] {
            assert!(expected[ended][6].is_none());
            expected[ended][6] = lines[ended][6];
        }
        assert_eq!(lines, expected, "{sets:?}");
        for field in ["params_fingerprint", "final_loss", "eval_loss", "eval_step", "steps"] {
            assert_eq!(stopped[field], end[field], "{sets:?}: {field}");
        }
        let [a, b] = [dir.path().join("whole"), out].map(|out| {
            let newest = CheckpointDir::open(out.join("checkpoints")).unwrap();
            newest.specs().paths().map(|path| newest.leaf(path).unwrap()).collect::<Vec<_>>()
        });
        assert!(a == b, "{sets:?}: the whole state");
    }
}

/// Two leaves in pieces, and one whole.
fn leaves(step: u64) -> Vec<HostLeaf> {
    let sharding = Sharding::new(&[AxisSet::EMPTY, Axis::Fsdp.into()]);
    let cut = LeafSpec::new(hlo::DType::F32, &[3, 4], sharding);
    let value = |index: u64| (step * 100 + index) as f32;
    let piece = |start: usize| HostPiece {
        start: vec![0, start],
        values: Literal::from_slice(&[3, 2], &[0, 1, 4, 5, 8, 9].map(|i| value(i + start as u64))),
    };
    let whole = |path: &str, values: Literal| HostLeaf {
        path: path.to_owned(),
        spec: LeafSpec::replicated(values.dtype(), values.dims()),
        pieces: vec![HostPiece { start: vec![0; values.dims().len()], values }],
    };
    vec![
        whole("step", Literal::scalar(step as u32)),
        HostLeaf { path: "params.w".to_owned(), spec: cut, pieces: vec![piece(0), piece(2)] },
        whole(
            "opt_state.m",
            Literal::from_slice(&[5], &[0.5f64, f64::NAN, -0.0, 1e300, step as f64]),
        ),
    ]
}

/// The bytes of every leaf, by path.
fn values(checkpoint: &Checkpoint) -> Result<BTreeMap<String, Vec<u8>>, checkpoint::Error> {
    let read = |path: &str| Ok((path.to_owned(), checkpoint.leaf(path)?.bytes().to_vec()));
    checkpoint.specs().paths().map(read).collect()
}

pub fn record(step: u64) -> RunRecord {
    RunRecord { step, config: "[model]".to_owned(), saved_at: 0.1 + 0.2, ..RunRecord::default() }
}

#[test]
fn what_is_read_is_what_was_saved() {
    let dir = tempfile::tempdir().unwrap();
    let path = checkpoint::save(&LocalDisk, dir.path(), &leaves(7), record(7)).unwrap();
    assert_eq!(path, dir.path().join("step_00000007"));
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(*checkpoint.run(), record(7));
    checkpoint.verify().unwrap();
    let expected: Vec<f32> = (0..12).map(|i| 700.0 + i as f32).collect();
    assert_eq!(checkpoint.leaf("params.w").unwrap().as_slice::<f32>(), expected);
    let specs = leaves(7).into_iter().map(|leaf| (leaf.path, leaf.spec)).collect::<Vec<_>>();
    assert!(
        checkpoint.specs().iter().map(|(path, spec)| (path.to_owned(), spec.clone())).eq(specs)
    );
    // Any program that reads safetensors can read the values.
    let bytes = fs::read(path.join("shard_00000.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut names = file.names();
    names.sort_unstable();
    assert_eq!(names, ["opt_state.m", "params.w[0:3,0:2]", "params.w[0:3,2:4]", "step"]);
    assert_eq!(file.tensor("params.w[0:3,2:4]").unwrap().shape(), [3, 2]);
}

/// A local checkpoint that counts the bytes that are read.
#[derive(Debug)]
struct CountingSource {
    files: LocalSource,
    num_read: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct CountingFile {
    file: Box<dyn SourceFile>,
    num_read: Arc<AtomicUsize>,
}

impl CheckpointSource for CountingSource {
    fn open(&self, name: &str) -> io::Result<Box<dyn SourceFile>> {
        let file = self.files.open(name)?;
        Ok(Box::new(CountingFile { file, num_read: self.num_read.clone() }))
    }
}

impl SourceFile for CountingFile {
    fn num_bytes(&self) -> u64 {
        self.file.num_bytes()
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.num_read.fetch_add(bytes.len(), Ordering::Relaxed);
        self.file.read_exact_at(bytes, offset)
    }
}

/// Leaves of several blocks of 1 MiB, in pieces of rows and of columns, as a stack and as rows.
fn large_leaves() -> Vec<HostLeaf> {
    let values = |dims: &[usize], first: usize| {
        let values: Vec<u32> = (first..).take(dims.iter().product()).map(|i| i as u32).collect();
        Literal::from_slice(dims, &values)
    };
    let leaf = |path: &str, spec: LeafSpec, first: usize, piece: [usize; 3]| {
        let whole = values(&spec.dims, first);
        let counts: Vec<_> = spec.dims.iter().zip(piece).map(|(dim, size)| dim / size).collect();
        let start = |index: usize| {
            let at =
                [index / (counts[1] * counts[2]), index / counts[2] % counts[1], index % counts[2]];
            (0..3).map(|dim| at[dim] * piece[dim]).collect::<Vec<_>>()
        };
        let pieces = (0..counts.iter().product()).map(start);
        let pieces = pieces.map(|start| HostPiece { values: whole.slice(&start, &piece), start });
        HostLeaf { path: path.to_owned(), pieces: pieces.collect(), spec }
    };
    let spec = |dims: &[usize]| LeafSpec::replicated(hlo::DType::U32, dims);
    let row = |index: usize| {
        leaf(&format!("b.{index}.w"), spec(&[1, 8, 1 << 15]), index << 18, [1, 8, 1 << 14])
    };
    vec![
        leaf("rows", spec(&[16, 2, 1 << 17]), 5, [4, 2, 1 << 17]),
        leaf("columns", spec(&[1, 16, 1 << 16]), 7, [1, 16, 1 << 14]),
        leaf("a.*.w", spec(&[8, 1 << 15]).stacked(&[4]), 0, [2, 8, 1 << 15]),
        row(0),
        row(1),
        row(2),
        row(3),
    ]
}

/// The path, its declaration, the start and the dims of a rectangle, its first value, and the bytes
/// that are read.
type Read<'a> = (&'a str, LeafSpec, &'a [usize], &'a [usize], usize, usize);

#[test]
fn only_the_blocks_that_are_needed_are_read() {
    const MIB: usize = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let leaves = large_leaves();
    let path = checkpoint::save(&LocalDisk, dir.path(), &leaves, record(3)).unwrap();
    let num_read = Arc::<AtomicUsize>::default();
    let source = CountingSource { files: LocalSource::new(&path), num_read: num_read.clone() };
    let checkpoint = Checkpoint::from_source(&path, &source).unwrap();
    let spec = |dims: &[usize]| LeafSpec::replicated(hlo::DType::U32, dims);
    let stack = spec(&[1, 8, 1 << 15]).stacked(&[4]);
    let row = spec(&[8, 1 << 15]);
    // A row of `rows` is 1 MiB.
    let cases: [Read<'_>; 10] = [
        ("rows", spec(&[16, 2, 1 << 17]), &[0, 0, 0], &[8, 2, 1 << 17], 5, 8 * MIB),
        ("rows", spec(&[16, 2, 1 << 17]), &[5, 1, 7], &[1, 1, 2], 5 + (11 << 17) + 7, MIB),
        ("rows", spec(&[16, 2, 1 << 17]), &[3, 0, 0], &[2, 2, 8], 5 + (6 << 17), 2 * MIB),
        ("columns", spec(&[1, 16, 1 << 16]), &[0, 0, 0], &[1, 16, 1 << 15], 7, 2 * MIB),
        ("columns", spec(&[1, 16, 1 << 16]), &[0, 2, 1 << 14], &[1, 5, 9], 7 + (9 << 14), MIB),
        (
            "a.*.w",
            spec(&[8, 1 << 15]).stacked(&[4]),
            &[1, 0, 0],
            &[2, 8, 1 << 15],
            1 << 18,
            2 * MIB,
        ),
        ("a.3.w", row, &[2, 0], &[4, 1 << 15], (3 << 18) + (2 << 15), MIB),
        ("b.*.w", stack.clone(), &[0, 0, 0, 0], &[4, 1, 8, 1 << 15], 0, 4 * MIB),
        ("b.*.w", stack, &[2, 0, 1, 3], &[2, 1, 2, 5], (2 << 18) + (1 << 15) + 3, MIB),
        ("b.1.w", spec(&[1, 8, 1 << 15]), &[0, 0, 0], &[1, 8, 1 << 14], 1 << 18, MIB / 2),
    ];
    for (path, spec, start, dims, first, num_bytes) in cases {
        let before = num_read.load(Ordering::Relaxed);
        let found = checkpoint.read(path, &spec, start, dims).unwrap();
        assert_eq!(
            num_read.load(Ordering::Relaxed) - before,
            num_bytes,
            "{path} {start:?} {dims:?}"
        );
        // Elements count up through each leaf.
        let count = found.num_elements();
        let strides = (0..dims.len()).map(|dim| spec.dims[dim + 1..].iter().product::<usize>());
        let strides: Vec<_> = strides.collect();
        let value = |mut index: usize| {
            let mut value = first;
            for dim in (0..dims.len()).rev() {
                value += index % dims[dim] * strides[dim];
                index /= dims[dim];
            }
            value as u32
        };
        let expected: Vec<_> = (0..count).map(value).collect();
        assert!(found.as_slice::<u32>() == expected, "{path} {start:?} {dims:?}");
    }
    let specs = leaves.iter().map(|leaf| (leaf.path.clone(), leaf.spec.clone()));
    checkpoint.check_fits(&specs.collect()).unwrap();
    let misfit = |path: &str, spec: &LeafSpec, start: &[usize], dims: &[usize]| {
        checkpoint.read(path, spec, start, dims).unwrap_err().to_string()
    };
    let rows = spec(&[16, 2, 1 << 17]);
    let outside = misfit("rows", &rows, &[15, 0, 0], &[2, 2, 1]);
    assert!(outside.contains("are not in `rows`, which is u32[16, 2, 131072]"), "{outside}");
    assert!(misfit("rows", &rows, &[0, 0], &[1, 1]).contains("are not in `rows`"));
    assert!(misfit("row", &rows, &[0; 3], &[1; 3]).contains("it has no leaf `row`"));
    let other = misfit("rows", &spec(&[4]), &[0], &[1]);
    assert!(
        other.contains("`rows` is u32[16, 2, 131072] there, but u32[4] in this run"),
        "{other}"
    );
}

/// Checkpoints of earlier versions have queries, keys and values in one leaf.
#[test]
fn parts_of_a_fused_leaf_are_read_as_leaves() {
    let dir = tempfile::tempdir().unwrap();
    let spec = |dims: &[usize]| LeafSpec::replicated(hlo::DType::F32, dims);
    let stored = [
        ("params.a.*.qkv.weight", spec(&[6, 4]).stacked(&[2])),
        ("opt_state.mu.a.*.qkv.bias", spec(&[6]).stacked(&[2])),
        ("params.b.qkv.weight", spec(&[6, 4])),
    ];
    let numbers = |spec: &LeafSpec| {
        let numbers: Vec<_> = (0..spec.num_elements()).map(|i| i as f32).collect();
        Literal::from_slice(&spec.dims, &numbers)
    };
    let leaves = stored.each_ref().map(|(path, spec)| HostLeaf {
        path: (*path).to_owned(),
        spec: spec.clone(),
        pieces: vec![HostPiece { start: vec![0; spec.dims.len()], values: numbers(spec) }],
    });
    let path = checkpoint::save(&LocalDisk, dir.path(), &leaves, record(3)).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let part = |path: &str, part: &str| path.replace("qkv", part);
    let declared = |spec: &LeafSpec| {
        let mut spec = spec.clone();
        spec.dims[spec.num_stacked] = 2;
        spec
    };
    let parts = ["query", "key", "value"];
    let all =
        stored.iter().flat_map(|(path, spec)| parts.map(|name| (part(path, name), declared(spec))));
    let all: Tree<_> = all.collect();
    checkpoint.check_fits(&all).unwrap();
    let read = |path: &str, start: &[usize], dims: &[usize]| {
        checkpoint.read(path, &all[path], start, dims).unwrap().to_f64()
    };
    assert_eq!(read("params.a.*.key.weight", &[1, 0, 2], &[1, 2, 1]), [34.0, 38.0]);
    assert_eq!(read("params.a.*.query.weight", &[0, 1, 0], &[2, 1, 2]), [4.0, 5.0, 28.0, 29.0]);
    assert_eq!(read("opt_state.mu.a.*.value.bias", &[0, 0], &[2, 2]), [4.0, 5.0, 10.0, 11.0]);
    assert_eq!(read("params.b.value.weight", &[1, 3], &[1, 1]), [23.0]);
    // A row of a stack, and the leaf as it was saved.
    let row = checkpoint.read("params.a.1.value.weight", &spec(&[2, 4]), &[0, 0], &[1, 4]);
    assert_eq!(row.unwrap().to_f64(), [40.0, 41.0, 42.0, 43.0]);
    assert_eq!(checkpoint.leaf("params.b.qkv.weight").unwrap(), numbers(&spec(&[6, 4])));
    let without = all.iter().filter(|(path, _)| !path.starts_with("params.b"));
    let without = without.map(|(path, spec)| (path.to_owned(), spec.clone())).collect();
    let error = checkpoint.check_fits(&without).unwrap_err().to_string();
    assert!(error.contains("`params.b.qkv.weight`, which this run does not have"), "{error}");
    let other = checkpoint.read("params.b.key.weight", &spec(&[3, 4]), &[0, 0], &[1, 1]);
    let error = other.unwrap_err().to_string();
    assert!(error.contains("`params.b.key.weight` is f32[2, 4] there"), "{error}");
}

/// A bit that was flipped is named by whoever reads its block, and nobody else.
#[test]
fn damage_in_a_block_that_is_read_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = checkpoint::save(&LocalDisk, dir.path(), &large_leaves(), record(3)).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let piece = &checkpoint.manifest().leaves[0].pieces[1];
    // In row 6.
    let place = piece.offset + (2 << 20) + 12345;
    let name = path.join("shard_00000.safetensors");
    let mut bytes = fs::read(&name).unwrap();
    bytes[place as usize] ^= 1;
    fs::write(&name, bytes).unwrap();
    let spec = checkpoint.specs()["rows"].clone();
    let read = |row: usize, num_rows: usize| {
        checkpoint.read("rows", &spec, &[row, 0, 0], &[num_rows, 2, 1 << 17])
    };
    for (row, num_rows) in [(0, 6), (7, 9)] {
        read(row, num_rows).unwrap();
    }
    let errors = [read(6, 1), read(0, 16), read(5, 3)].map(|read| read.unwrap_err().to_string());
    let verified = checkpoint.verify().unwrap_err().to_string();
    for error in errors.into_iter().chain([verified]) {
        let expected =
            "step_00000003 is damaged: `rows` in shard_00000.safetensors has other bytes";
        assert!(error.contains(expected), "{error}");
    }
}

/// Every operation of a save fails in turn, alone or with all that follow, as in a crash; so does
/// every write that is cut short, and a disk that is full after some bytes.
#[test]
fn no_failure_while_saving_costs_the_checkpoint_before() {
    let mut num_saved = 0;
    let num_operations = {
        let disk = FaultyDisk::new(usize::MAX, Fault::Once);
        let dir = tempfile::tempdir().unwrap();
        checkpoint::save(&disk, dir.path(), &leaves(2), record(2)).unwrap();
        disk.num_done.load(Ordering::Relaxed)
    };
    assert!(num_operations > 10, "{num_operations}");
    // The same step again replaces the old one with more operations.
    for (step, fault) in [
        (2, Fault::Once),
        (2, Fault::Crash),
        (2, Fault::ShortWrite),
        (1, Fault::Once),
        (1, Fault::Crash),
    ] {
        for failing in 0..num_operations + 4 {
            let dir = tempfile::tempdir().unwrap();
            checkpoint::save(&LocalDisk, dir.path(), &leaves(1), record(1)).unwrap();
            let disk = FaultyDisk::new(failing, fault);
            let mut again = record(step);
            again.seed = 9;
            let saved = checkpoint::save(&disk, dir.path(), &leaves(step), again);
            num_saved += usize::from(saved.is_ok());
            let claimed = CheckpointDir::claim(dir.path()).unwrap();
            let found = CheckpointDir::list(claimed.location()).unwrap();
            let what = format!(
                "{fault:?} at operation {failing} of saving step {step}: {saved:?}, {found:?}"
            );
            let newest = Checkpoint::open(&found.last().expect(&what).location).expect(&what);
            newest.verify().expect(&what);
            let expected = if saved.is_ok() { step } else { newest.run().step };
            assert_eq!(newest.run().step, expected, "{what}");
            assert_eq!(newest.run().seed == 9, saved.is_ok() || newest.run().seed == 9, "{what}");
            let names = fs::read_dir(dir.path()).unwrap();
            let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
            assert!(
                names.iter().all(|name| name.to_str().unwrap().starts_with("step_")),
                "{names:?}"
            );
        }
    }
    assert!(num_saved > 10, "{num_saved}");
}

/// One flipped bit, and a file that ends early, anywhere: found, or without effect.
/// `LOCKSTEP_NUM_DAMAGES` says how many.
#[test]
fn damage_is_found_or_harmless() {
    let dir = tempfile::tempdir().unwrap();
    let path = checkpoint::save(&LocalDisk, dir.path(), &leaves(3), record(3)).unwrap();
    let expected = values(&Checkpoint::open(&path).unwrap()).unwrap();
    let names = ["manifest.json", "shard_00000.safetensors"].map(|name| path.join(name));
    let originals = names.each_ref().map(|name| fs::read(name).unwrap());
    let (mut num_found, mut state) = (0, 0x9e37_79b9_7f4a_7c15_u64);
    let mut random = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let num_rounds =
        std::env::var("LOCKSTEP_NUM_DAMAGES").map_or(600, |text| text.parse().unwrap());
    for round in 0..num_rounds {
        let file = round % 2;
        let mut bytes = originals[file].clone();
        match round % 6 {
            0 | 1 => bytes.truncate(random(bytes.len())),
            _ => {
                let place = random(bytes.len());
                bytes[place] ^= 1 << random(8);
            }
        }
        fs::write(&names[file], bytes).unwrap();
        let read = Checkpoint::open(&path).and_then(|checkpoint| {
            checkpoint.verify()?;
            Ok((checkpoint.run().clone(), values(&checkpoint)?))
        });
        match read {
            Ok(read) => assert_eq!(read, (record(3), expected.clone()), "round {round}"),
            Err(error) => {
                num_found += 1;
                assert!(error.to_string().contains("step_00000003"), "{error}");
            }
        }
        fs::write(&names[file], &originals[file]).unwrap();
    }
    assert!(num_found > num_rounds * 98 / 100, "{num_found} of {num_rounds}");
}

#[test]
fn what_is_no_checkpoint_of_this_program_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let message = |path: &Path| Checkpoint::open(path).unwrap_err().to_string();
    assert!(message(&dir.path().join("gone")).contains("no such directory"));
    assert!(message(dir.path()).contains("it has no manifest.json"));
    let path = checkpoint::save(&LocalDisk, dir.path(), &leaves(3), record(3)).unwrap();
    let manifest = path.join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("\"version\": 1", "\"version\": 2")).unwrap();
    assert!(message(&path).contains("format version 2, but this program reads versions up to 1"));
    fs::write(&manifest, "{}").unwrap();
    assert!(message(&path).contains("of another format"));
    fs::write(&manifest, &text).unwrap();
    fs::remove_file(path.join("shard_00000.safetensors")).unwrap();
    assert!(message(&path).contains("shard_00000.safetensors cannot be opened"));
    // The newest one is never passed over.
    checkpoint::save(&LocalDisk, dir.path(), &leaves(2), record(2)).unwrap();
    assert!(CheckpointDir::open(dir.path()).unwrap_err().to_string().contains("step_00000003"));
    let _held = CheckpointDir::claim(dir.path()).unwrap();
    let error = CheckpointDir::claim(dir.path()).unwrap_err().to_string();
    assert!(error.contains("another process writes checkpoints"), "{error}");
}

#[test]
fn the_newest_are_kept_and_some_for_good() {
    let dir = tempfile::tempdir().unwrap();
    for step in 1..=10 {
        checkpoint::save(&LocalDisk, dir.path(), &leaves(step), record(step)).unwrap();
    }
    let claimed = CheckpointDir::claim(dir.path()).unwrap();
    claimed.retain(2, |step| step.is_multiple_of(4)).unwrap();
    let left = CheckpointDir::list(dir.path()).unwrap();
    assert_eq!(left.iter().map(|found| found.step).collect::<Vec<_>>(), [4, 8, 9, 10]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4);
}

/// The fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// One operation.
    Once,
    /// One operation, and all after it.
    Crash,
    /// A write takes half of its bytes, and the next one fails.
    ShortWrite,
}

/// A disk on which operation `failing` fails, counted from 0.
struct FaultyDisk {
    failing: usize,
    fault: Fault,
    num_done: Arc<AtomicUsize>,
}

struct FaultyFile {
    file: File,
    failing: usize,
    fault: Fault,
    num_done: Arc<AtomicUsize>,
}

fn check(failing: usize, fault: Fault, num_done: &AtomicUsize) -> io::Result<()> {
    let index = num_done.fetch_add(1, Ordering::Relaxed);
    let fails = index == failing || fault == Fault::Crash && index > failing;
    if fails { Err(io::Error::other("the disk fails")) } else { Ok(()) }
}

impl FaultyDisk {
    fn new(failing: usize, fault: Fault) -> Self {
        Self { failing, fault, num_done: Arc::default() }
    }

    fn check(&self) -> io::Result<()> {
        check(self.failing, self.fault, &self.num_done)
    }
}

impl Write for FaultyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let checked = check(self.failing, self.fault, &self.num_done);
        match (checked, self.fault) {
            (Ok(()), _) => self.file.write(bytes),
            (Err(_), Fault::ShortWrite) if bytes.len() > 1 => {
                self.failing += 1;
                self.file.write(&bytes[..bytes.len() / 2])
            }
            (Err(error), _) => Err(error),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Disk for FaultyDisk {
    type File = FaultyFile;

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.check()?;
        LocalDisk.create_dir(path)
    }

    fn create(&self, path: &Path) -> io::Result<FaultyFile> {
        self.check()?;
        let Self { failing, fault, ref num_done } = *self;
        Ok(FaultyFile { file: LocalDisk.create(path)?, failing, fault, num_done: num_done.clone() })
    }

    fn sync(&self, file: &FaultyFile) -> io::Result<()> {
        self.check()?;
        LocalDisk.sync(&file.file)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.check()?;
        LocalDisk.sync_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check()?;
        LocalDisk.rename(from, to)
    }

    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()> {
        self.check()?;
        LocalDisk.exchange(a, b)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.check()?;
        LocalDisk.remove_dir_all(path)
    }
}
