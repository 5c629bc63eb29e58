//! `schedule --check` agrees with what `train` accepts: generated configurations, checked without
//! data and devices, and some of them trained on the CPU plugin.

use std::path::Path;
use std::process::Command;

use lockstep::config::{self, Config};
use lockstep::recipe::{Finding, REFUSED, Severity};
use lockstep::train::{self, Job, Options, check_config};
use lockstep::{cli, data};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use rayon::prelude::*;

/// Values that fit each other often, but not always.
#[derive(Clone, Debug)]
struct Case {
    model: usize,
    batch: (bool, usize),
    num_microbatches: usize,
    mesh: (usize, usize, usize),
    length: (&'static str, u64),
    schedule: usize,
    norm_group: usize,
    pattern: usize,
    image: usize,
}

const MLP: &str = "name = \"mlp\"\nhidden = [8]";
const GPT: &str =
    "name = \"gpt\"\nnum_layers = 1\nwidth = 8\nnum_heads = 2\ncontext = 8\nvocabulary = 16";
const RESNET: &str = "name = \"resnet\"";

const SCHEDULES: [&str; 9] = [
    "name = \"constant\"\npeak = 0.01",
    "name = \"cosine\"\npeak = 0.01\nwarmup_steps = 1\nfloor_at = \"last_step\"",
    "name = \"linear\"\nbase_lr = 0.01\nbase_batch = 4\nwarmup_steps = 1\nwarmup_from = \"base\"",
    "name = \"linear\"\npeak = 0.01\nwarmup_steps = 3",
    "name = \"wsd\"\npeak = 0.01\ndecay_steps = 2",
    "name = \"wsd\"\npeak = 0.01\ndecay_examples = 3",
    "name = \"step\"\npeak = 0.01\nboundary_epochs = [0.5, 0.6]",
    "name = \"polynomial\"\npeak = 0.01\nwarmup_epochs = 0.5\ndecay_from = \"start\"",
    "name = \"cosine\"\npeak = 0.01\nwarmup_steps = 2\ntotal_steps = 1",
];

const PATTERNS: [&str; 3] =
    ["", "weight_decay_exclude = [\"*.bias\"]", "weight_decay_exclude = [\"none.such\"]"];

impl Case {
    fn text(&self) -> String {
        let Self { model, batch, num_microbatches, mesh, length, schedule, norm_group, .. } = self;
        let (model, data) = match model {
            0 => (MLP.to_owned(), "source = \"synthetic\"\nfeatures = 4\nclasses = 3".to_owned()),
            1 => (
                GPT.to_owned(),
                "source = \"synthetic_tokens\"\ncontext = 8\nvocab_size = 16".to_owned(),
            ),
            2 => (
                GPT.to_owned(),
                "source = \"synthetic_tokens\"\ncontext = 9\nvocab_size = 16".to_owned(),
            ),
            _ => (
                format!("{RESNET}\nbatch_norm_group = {norm_group}"),
                format!("source = \"synthetic\"\nimage = [{}, 8, 8]", self.image),
            ),
        };
        let batch = match batch {
            (true, size) => format!("batch_per_replica = {size}"),
            (false, size) => format!("global_batch = {size}"),
        };
        let (data_size, fsdp, zero) = mesh;
        let zero = if *fsdp > 1 { format!("[parallel]\nzero = {zero}\n") } else { String::new() };
        format!(
            "[model]\n{model}\n[data]\n{data}\nnum_examples = 24\n[train]\n{batch}\n{} = {}\n\
             num_microbatches = {num_microbatches}\n[optimizer]\nname = \"adamw\"\n{}\n\
             [schedule]\n{}\n[mesh]\ndata = {data_size}\nfsdp = {fsdp}\n{zero}",
            length.0, length.1, PATTERNS[self.pattern], SCHEDULES[*schedule],
        )
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let batch = (any::<bool>(), select(vec![1, 2, 4, 6, 8, 12, 32]));
    let mesh = (select(vec![1, 1, 2, 3, 4]), select(vec![1, 1, 2]), 1..4usize);
    let length =
        select(vec![("steps", 1), ("steps", 2), ("epochs", 1), ("examples", 8), ("examples", 3)]);
    let model = select(vec![0, 0, 0, 1, 1, 2, 3, 3]);
    let schedule = select(vec![0, 0, 0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8]);
    let rest =
        (select(vec![1, 2, 4, 8, 3]), select(vec![0, 0, 0, 1, 1, 2]), select(vec![3, 3, 3, 1]));
    (model, batch, select(vec![1, 1, 1, 2]), mesh, length, schedule, rest).prop_map(
        |(model, batch, num_microbatches, mesh, length, schedule, (norm_group, pattern, image))| {
            Case {
                model,
                batch,
                num_microbatches,
                mesh,
                length,
                schedule,
                norm_group,
                pattern,
                image,
            }
        },
    )
}

/// The first of a fixed sequence of cases that can be read: reading refuses batches that do not
/// divide over a fixed mesh.
fn sequence(num_cases: usize) -> Vec<(String, Config)> {
    let mut runner = TestRunner::deterministic();
    let texts = std::iter::repeat_with(|| cases().new_tree(&mut runner).unwrap().current().text());
    let parsed = texts.filter_map(|text| Some((parse(&text).ok()?, text)));
    parsed.take(num_cases).map(|(config, text)| (text, config)).collect()
}

fn parse(text: &str) -> Result<Config, config::Error> {
    Config::parse(text, Path::new("/runs/case.toml"), &[])
}

#[test]
fn a_check_has_an_error_if_train_refuses() {
    const NUM_CASES: usize = 240;
    let cases = sequence(NUM_CASES);
    let is_refused = |(text, config): &(String, Config)| {
        let refused = check_config(config, config.data.num_examples()).err();
        let report = cli::findings(config);
        let errors: Vec<_> = report.iter().flatten().filter(is_error).collect();
        match &refused {
            // Said once, in the words of `train`.
            Some(error) => {
                let reason = error.to_string();
                let num_said = errors.iter().filter(|finding| finding.reason == reason).count();
                // Without a report there is another reason to refuse it, and only that is shown.
                assert!(report.is_err() || num_said == 1, "{reason}\n{report:?}\n{text}");
            }
            None => {
                let invented = errors.iter().any(|finding| finding.rule == REFUSED.name);
                assert!(report.is_ok() && !invented, "{report:?}\n{text}");
            }
        }
        refused.is_some()
    };
    let num_refused = cases.par_iter().filter(|case| is_refused(case)).count();
    let share = num_refused as f64 / NUM_CASES as f64;
    assert!((0.2..0.8).contains(&share), "{num_refused} of {NUM_CASES} are refused");
}

fn is_error(finding: &&Finding) -> bool {
    finding.severity == Severity::Error
}

/// The exit code is 1 with an error and without a report, and 0 otherwise.
#[test]
fn the_command_fails_if_there_is_an_error_or_no_report() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("case.toml");
    let cases = sequence(240);
    let report = |config: &Config| cli::findings(config).ok();
    let has_errors = |findings: &Vec<Finding>| findings.iter().any(|finding| is_error(&finding));
    let kinds: [&dyn Fn(&Config) -> bool; 3] = [
        &|config| report(config).is_some_and(|findings| !has_errors(&findings)),
        &|config| report(config).is_some_and(|findings| has_errors(&findings)),
        &|config| report(config).is_none(),
    ];
    for (kind, is_of_kind) in kinds.iter().enumerate() {
        let (text, config) = cases.iter().find(|(_, config)| is_of_kind(config)).unwrap();
        std::fs::write(&path, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
        let output = command.args(["schedule", "--check", "--json"]).arg(&path).output().unwrap();
        assert_eq!(output.status.code(), Some(i32::from(kind > 0)), "{text}");
        let shown: Option<serde_json::Value> = serde_json::from_slice(&output.stdout).ok();
        let expected = report(config).map(|findings| serde_json::to_value(findings).unwrap());
        assert_eq!(shown.map(|report| report["findings"].clone()), expected, "{text}");
        assert_eq!(output.stderr.is_empty(), kind < 2, "{text}");
    }
}

#[test]
fn train_accepts_what_is_accepted_without_devices() {
    const NUM_CASES: usize = 24;
    let mut counts = [0, 0];
    for (text, config) in sequence(10 * NUM_CASES) {
        let refused = check_config(&config, config.data.num_examples()).err();
        // Compiling convolutions takes too long here; refused ones are not compiled.
        let is_slow = refused.is_none() && config.model.name() == "resnet";
        let count = &mut counts[usize::from(refused.is_some())];
        if is_slow || *count == NUM_CASES / 2 {
            continue;
        }
        *count += 1;
        let trained = trained(&config);
        match (&refused, &trained) {
            (Some(expected), Err(error)) => assert_eq!(*error, expected.to_string(), "{text}"),
            (None, Ok(())) => {}
            _ => panic!("without devices: {refused:?}; train: {trained:?}\n{text}"),
        }
    }
    assert_eq!(counts, [NUM_CASES / 2; 2]);
}

fn trained(config: &Config) -> Result<(), String> {
    let splits = data::open(config).map_err(|error| error.to_string())?;
    let model = config.model.build(splits.train.num_outputs());
    train::check_example(&*model, config, &splits).map_err(|error| error.to_string())?;
    let job = Job { config, model: &*model, splits: &splits };
    let outcome = train::train(&job, &Options::default()).and_then(|outcome| outcome.success());
    outcome.map(drop).map_err(|error| error.to_string())
}

#[test]
fn a_mesh_of_any_size_is_accepted_for_some_number_of_devices() {
    let auto = |batch: usize, group: usize| {
        format!(
            "[model]\n{RESNET}\nbatch_norm_group = {group}\n[data]\nsource = \"cifar10\"\n\
             path = \"none\"\n[train]\nglobal_batch = {batch}\nsteps = 1\n[optimizer]\n\
             name = \"sgd\"\n[schedule]\n{}\n[mesh]\ndata = \"auto\"",
            SCHEDULES[0]
        )
    };
    assert!(check_config(&parse(&auto(64, 8)).unwrap(), None).is_ok());
    let error = check_config(&parse(&auto(64, 5)).unwrap(), None).unwrap_err().to_string();
    assert!(error.contains("groups of 5 examples cannot be made"), "{error}");
}
