//! Whatever hosts come, leave and are killed, at random: a run is the training that nothing has
//! disturbed. Its parameters differ by the rounding of sums only, each example of an epoch counts
//! once, and with the same numbers of hosts for the same steps the bits are the same.
//!
//! The first five events of a run lead through 4, 3, 2, 3, 4 and 5 hosts; which host it is, whether
//! it is killed or leaves, and when, is drawn, and so are all events after them, of which some come
//! while the job is still busy with the one before. `any_model_on_any_mesh` takes from its
//! environment `LOCKSTEP_MODEL` (all), `LOCKSTEP_NUM_EVENTS` (10), `LOCKSTEP_SEED`, and
//! `LOCKSTEP_CHECKPOINT_EVERY` (0 for no `[checkpoint]` section).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use lockstep::data::{Sampler, npy_file};
use serde_json::Value;

use super::elastic::{Job, TOLERANCE, assert_whole, difference, parameters};
use super::{CARGO_DIR, Random, last_step, metrics, run, summary, text, train, turn};

/// A model on a mesh that some hosts have together.
struct Case {
    name: &'static str,
    /// Sections of the configuration without `[mesh]`.
    config: &'static str,
    max_hosts: usize,
    /// Replicas of all hosts along `data`.
    data: usize,
    /// Other axes, and what goes with them.
    sets: &'static [&'static str],
    /// A copy of the other axes has the replicas of so many hosts.
    hosts_of_copy: usize,
}

/// The batch of each is `T` microbatches. On `R` batch shards each runs `ceil(T / R)`, so that of
/// `T = 4` on 3 shards the last one has surplus ones only, and of `T = 8` on 6 the last two.
const CASES: [Case; 7] = [
    Case { name: "counted", config: COUNTED, max_hosts: 5, data: 5, sets: &[], hosts_of_copy: 1 },
    Case { name: "digits", config: DIGITS, max_hosts: 5, data: 5, sets: &[], hosts_of_copy: 1 },
    Case { name: "gpt", config: GPT, max_hosts: 5, data: 5, sets: &[], hosts_of_copy: 1 },
    Case { name: "resnet20", config: RESNET, max_hosts: 5, data: 5, sets: &[], hosts_of_copy: 1 },
    // Each process has the two pieces of one copy.
    Case {
        name: "gpt-fsdp",
        config: GPT,
        max_hosts: 5,
        data: 5,
        sets: &["mesh.fsdp=2", "train.microbatch=1"],
        hosts_of_copy: 1,
    },
    // Two processes have one copy together; without its other half a host waits.
    Case {
        name: "gpt-tensor",
        config: GPT,
        max_hosts: 6,
        data: 3,
        sets: &["mesh.tensor=2"],
        hosts_of_copy: 2,
    },
    Case {
        name: "gpt-fsdp-tensor",
        config: GPT,
        max_hosts: 6,
        data: 3,
        sets: &["mesh.fsdp=2", "mesh.tensor=2"],
        hosts_of_copy: 2,
    },
];

/// Example `i` is row `i` of a unit matrix, and its value is 1. A linear model without a bias then
/// has a weight for each example, which only that example changes: in a step with learning rate `l`
/// and a batch of `B` what the weight lacks of 1 is multiplied with `1 - 2 l / B`. Each step has
/// another rate, so a weight shows in which steps its example took part, and how often.
const COUNTED: &str = r#"
[model]
name = "mlp"
hidden = []
[data]
source = "arrays"
path = "examples"
standardize = false
eval_x = "eval_x"
eval_y = "eval_y"
[train]
global_batch = 32
microbatch = 8
[optimizer]
name = "sgd"
momentum = 0.0
freeze = ["head.bias"]
[schedule]
name = "linear"
peak = 0.02
total_steps = 1000000
"#;
const NUM_COUNTED: usize = 960;
const COUNTED_BATCH: usize = 32;

const DIGITS: &str = r#"
[model]
name = "mlp"
hidden = [64, 64]
dropout = 0.1
[data]
source = "digits"
path = "CARGO_DIR/examples/data/digits.csv.gz"
[train]
global_batch = 64
microbatch = 16
[optimizer]
name = "adamw"
[schedule]
name = "inverse_sqrt"
peak = 1e-2
warmup_steps = 1
"#;

/// Biases of keys have gradients that are rounding errors and nothing else, of which Adam with a
/// smaller epsilon would make steps.
const GPT: &str = r#"
[model]
name = "gpt"
num_layers = 2
width = 32
num_heads = 4
context = 16
dropout = 0.1
[data]
source = "text"
path = "CARGO_DIR/examples"
extensions = ["rs", "toml"]
context = 16
[train]
global_batch = 8
microbatch = 2
[optimizer]
name = "adamw"
epsilon = 1e-5
[schedule]
name = "linear"
peak = 1e-3
floor = 0.1
total_steps = 5000
"#;

const RESNET: &str = r#"
[model]
name = "resnet"
preset = "resnet20"
batch_norm_group = 4
[data]
source = "synthetic"
image = [3, 8, 8]
num_examples = 256
[train]
global_batch = 16
microbatch = 4
[optimizer]
name = "sgd"
momentum = 0.9
[schedule]
name = "inverse_sqrt"
peak = 0.05
warmup_steps = 1
"#;

impl Case {
    fn of(name: &str) -> &'static Self {
        CASES.iter().find(|case| case.name == name).unwrap()
    }

    /// Writes the configuration, and the examples that are counted.
    fn write(&self, dir: &Path) {
        let config = self.config.replace("CARGO_DIR", CARGO_DIR);
        fs::write(dir.join("model.toml"), config).unwrap();
        if self.name == "counted" {
            write_counted(dir);
        }
    }

    /// `train` with the replicas that so many hosts have.
    fn args(&self, dir: &Path, num_hosts: usize, sets: &[&str], more: &[&str]) -> Vec<String> {
        let data = format!("mesh.data={}", self.data * num_hosts / self.max_hosts);
        let precise = ["train.precision=f64", "train.eval_every=1000000", &data];
        let sets = [&precise, self.sets, sets].concat();
        train(text(&dir.join("model.toml")), &sets, more)
    }

    /// Of so many hosts, those that take part.
    fn active(&self, num_hosts: usize) -> usize {
        num_hosts - num_hosts % self.hosts_of_copy
    }
}

fn write_counted(dir: &Path) {
    let examples = dir.join("examples");
    fs::create_dir(&examples).unwrap();
    let rows = |number: usize| {
        let mut rows = vec![0f32; number * NUM_COUNTED];
        (0..number).for_each(|row| rows[row * NUM_COUNTED + row] = 1.0);
        npy_file(&[number, NUM_COUNTED], &rows)
    };
    for (x, y, number) in [("x.npy", "y.npy", NUM_COUNTED), ("eval_x.npy", "eval_y.npy", 2)] {
        fs::write(examples.join(x), rows(number)).unwrap();
        fs::write(examples.join(y), npy_file(&[number], &vec![1.0; number])).unwrap();
    }
}

/// Checks that each example of each epoch took part in one step, the one that the order of the data
/// says, with weight 1: by the parameters. The run has whole epochs.
fn assert_each_counts_once(case: &Case, dir: &Path, out: &Path) {
    let sampler = Sampler::new(0, NUM_COUNTED as u64, COUNTED_BATCH);
    let lines = metrics(out);
    let num_epochs = sampler.epoch(lines.len() as u64);
    assert_eq!(num_epochs * sampler.batches_per_epoch(), lines.len() as u64);
    let mut seen = vec![[0u32; NUM_COUNTED]; num_epochs as usize];
    let (mut expected, mut last) = ([0f64; NUM_COUNTED], 0.0);
    for (step, line) in (0..).zip(&lines) {
        // Programs take the rate as an f32.
        let rate = f64::from(line["lr"].as_f64().unwrap() as f32);
        let part = (-2.0 * rate / COUNTED_BATCH as f64).ln_1p();
        assert!((part - last).abs() > 5.0 * RESOLUTION, "steps {step} and before look alike");
        last = part;
        for id in sampler.batch(step) {
            seen[sampler.epoch(step) as usize][id as usize] += 1;
            expected[id as usize] += part;
        }
    }
    assert!(seen.as_flattened().iter().all(|times| *times == 1));
    // A step that changes nothing.
    let begun = dir.join("begun");
    let sets = ["train.steps=1", "schedule.peak=1e-30"];
    run(dir, &case.args(dir, case.max_hosts, &sets, &["--out", text(&begun)])).succeeded();
    let [weights, begun] = [out, &begun].map(|out| parameters(out)["head.weight"].clone());
    for (id, expected) in expected.into_iter().enumerate() {
        let found = (-weights[id]).ln_1p() - (-begun[id]).ln_1p();
        assert!((found - expected).abs() < RESOLUTION, "example {id}: {found}, {expected}");
    }
    println!("each of {NUM_COUNTED} examples counts once in each of {num_epochs} epochs");
}

/// Of logarithms of what weights lack, after some hundreds of epochs.
const RESOLUTION: f64 = 2e-10;

/// A generation: the step before which it began, and its hosts.
type Begun = (u64, usize);

/// What an event run came to.
struct Disturbed {
    out: PathBuf,
    generations: Vec<Begun>,
}

/// Events of a job.
struct Events<'a> {
    case: &'a Case,
    job: Job,
    random: Random,
    start: Instant,
    number: usize,
}

impl Events<'_> {
    /// The next one, and whether it makes another generation.
    fn next(&mut self, is_second: bool) -> bool {
        let number = self.job.hosts.len();
        let comes = match self.number {
            0 | 1 => false,
            2..5 => true,
            _ => number < 3 || number < self.case.max_hosts && self.random.below(2) == 0,
        };
        self.number += 1;
        // Where another event is on its way, a host that has just come may not have arrived.
        let kind = self.random.below(2);
        let index = self.random.below(number - usize::from(is_second));
        let takes_part = !self.job.hosts[index].workers().is_empty();
        let event = match (comes, kind) {
            (true, _) => "come",
            (_, 1) if !is_second || number > 3 => "leave",
            _ => "kill",
        };
        match event {
            "come" => self.job.come(),
            "leave" => self.job.leave(index),
            _ => self.job.kill(index),
        }
        let [before, now] = [number, self.job.hosts.len()].map(|hosts| self.case.active(hosts));
        let idle = if comes || takes_part { "" } else { " of one that waits" };
        let (secs, together) =
            (self.start.elapsed().as_secs_f64(), if is_second { "+" } else { "" });
        println!("{:4}. {secs:7.1} s: {together}{event}{idle}, {now} hosts train", self.number);
        // Whoever waits is missed by nobody.
        if comes { now != before } else { takes_part }
    }
}

/// A job of four hosts with so many events, which is then asked to stop. It saves checkpoints after
/// `every` so many steps; without, its state is in memory only.
fn disturbed(
    case: &Case,
    dir: &Path,
    num_events: usize,
    seed: u64,
    every: Option<u64>,
) -> Disturbed {
    println!("{}, seed {seed}, checkpoints: {every:?}", case.name);
    let every = every.map(|steps| format!("checkpoint.every_steps={steps}"));
    let sets: Vec<_> = ["train.steps=1000000"].into_iter().chain(every.as_deref()).collect();
    let args = case.args(dir, case.max_hosts, &sets, &[]);
    let mut job = Job::start(dir, case.max_hosts, 0, &args);
    (0..4).for_each(|_| job.come());
    job.until_generation(1, case.active(4), 20);
    let random = Random { seed, count: 0 };
    let mut events = Events { case, job, random, start: Instant::now(), number: 0 };
    while events.number < num_events {
        let generation = events.job.generation();
        let mut is_other = events.next(false);
        let may_be_two = case.hosts_of_copy == 1 && (5..num_events).contains(&events.number);
        if may_be_two && events.random.below(4) == 0 {
            thread::sleep(Duration::from_millis(events.random.below(2000) as u64));
            is_other |= events.next(true);
        }
        let (hosts, steps) = (events.job.hosts.len(), 5 + events.random.below(60) as u64);
        events.job.until_generation(generation + u64::from(is_other), case.active(hosts), steps);
    }
    let out = events.job.out.clone();
    events.job.stop();
    let starts = summary(&out)["generation_starts"].as_array().unwrap().clone();
    let from = |start: &Value| start["state_from"].as_str().unwrap().to_owned();
    let mut sources = BTreeMap::<_, usize>::new();
    starts.iter().for_each(|start| *sources.entry(from(start)).or_default() += 1);
    println!("{} generations, their state from {sources:?}", starts.len());
    let begun = |start: &Value| {
        (start["step"].as_u64().unwrap(), start["num_hosts"].as_u64().unwrap() as usize)
    };
    Disturbed { out, generations: starts.iter().map(begun).collect() }
}

/// What generations did that were not undone: steps taken again are those of the last one that took
/// them.
fn lasting(generations: &[Begun]) -> Vec<Begun> {
    let mut lasting: Vec<Begun> = vec![];
    for begun in generations {
        while lasting.pop_if(|before| before.0 >= begun.0).is_some() {}
        lasting.push(*begun);
    }
    lasting
}

/// Trains up to a step on the replicas of so many hosts, in one process that adds as several do.
fn train_until(case: &Case, dir: &Path, out: &Path, num_hosts: usize, steps: u64) {
    let steps = format!("train.steps={steps}");
    let sets = [&*steps, "parallel.host_collectives=true"];
    let args = case.args(dir, num_hosts, &sets, &["--resume", "--out", text(out)]);
    run(dir, &args).succeeded();
}

/// Events at random, and everything that must hold after them.
fn check(name: &str, num_events: usize, seed: u64, every: Option<u64>) {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let (case, dir) = (Case::of(name), dir.path());
    case.write(dir);
    let Disturbed { out, generations } = disturbed(case, dir, num_events, seed, every);
    // The rest of an epoch, on the fewest replicas.
    let taken = last_step(&out).unwrap() + 1;
    let steps = (taken + 10).next_multiple_of(30);
    let least = case.max_hosts / case.data;
    train_until(case, dir, &out, least, steps);
    assert_whole(&out, steps);
    if name == "counted" {
        assert_each_counts_once(case, dir, &out);
    }

    let whole = dir.join("whole");
    train_until(case, dir, &whole, least, steps);
    let differ = difference(&whole, &out);
    println!("{steps} steps: parameters differ by {differ:.1e}");
    assert!(differ < TOLERANCE, "{differ}");
    let losses = |out: &Path| -> Vec<_> {
        metrics(out).iter().map(|line| line["loss"].as_f64().unwrap()).collect()
    };
    let (expected, found) = (losses(&whole), losses(&out));
    let pairs = expected.iter().zip(&found);
    let differ = pairs.map(|(a, b)| (a - b).abs()).fold(0f64, f64::max);
    let (first, last) = (found[0], found[found.len() - 1]);
    println!("losses of steps, from {first:.4} to {last:.4}, differ by {differ:.1e}");
    assert!(differ < 1e-9, "{differ}");

    // The same numbers of hosts again, for the same steps.
    let again = dir.join("again");
    let lasting = lasting(&generations);
    let ends = lasting.iter().skip(1).map(|begun| begun.0).chain([taken]);
    for ((begun, num_hosts), end) in lasting.iter().zip(ends) {
        assert!(*begun < end, "{lasting:?}");
        train_until(case, dir, &again, *num_hosts, end);
    }
    train_until(case, dir, &again, least, steps);
    let [a, b] = [&out, &again].map(|out| fs::read(out.join("params.safetensors")).unwrap());
    assert!(a == b, "other bits: {generations:?}");
    let [a, b] = [&out, &again].map(|out| summary(out)["params_fingerprint"].clone());
    assert_eq!(a, b);
    println!("{} generations again: the same bits", lasting.len());
}

#[test]
fn digits_go_on_without_checkpoints() {
    check("digits", 5, 1, None);
}

#[test]
fn each_example_of_an_epoch_counts_once() {
    check("counted", 5, 2, Some(40));
}

/// Checkpoints for every second model.
#[test]
#[ignore = "minutes; of the full set"]
fn any_model_on_any_mesh() {
    let variable = |name| std::env::var(name).ok();
    let number = |name| variable(name).map(|it| it.parse::<u64>().unwrap());
    let chosen = variable("LOCKSTEP_MODEL");
    let is_chosen = |name| chosen.as_ref().is_none_or(|chosen| chosen == name);
    let mut num_checked = 0;
    for (place, case) in (0..).zip(&CASES).filter(|(_, case)| is_chosen(case.name)) {
        let num_events = number("LOCKSTEP_NUM_EVENTS").unwrap_or(10) as usize;
        let seed = number("LOCKSTEP_SEED").unwrap_or(place);
        let every = number("LOCKSTEP_CHECKPOINT_EVERY").unwrap_or(place % 2 * 20);
        let every = Some(every).filter(|steps| *steps > 0);
        check(case.name, num_events, seed, every);
        num_checked += 1;
    }
    assert!(num_checked > 0, "no such model: {chosen:?}");
}
