//! Published steps against predicted ones. The share of the peak that matmuls reach is fitted to
//! them here, and the tables in `docs/cost-model.md` are computed.
//!
//! A step of many equal blocks is extrapolated from steps of a few, which
//! `extrapolated_steps_are_the_whole_steps` compares with the whole.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use hlo::MatmulCost;
use lockstep::config::Config;
use lockstep::data;
use lockstep::pjrt::Platform;
use lockstep::step;
use lockstep::targets::cost::{
    DeviceLayout, NamedNetwork, STEP_VARIATION, Timeline, Work, num_varying, waiting_secs,
};
use lockstep::targets::{CHIPS, Calibration, Chip, Family, Target};
use lockstep::train::Run;
use models::MAX_SIZE;
use rayon::prelude::*;

use super::published::{Axes, Fused, Model, Published, all};

/// The parts of a step.
struct Traced {
    work: Work,
    timeline: Timeline,
    global_batch: usize,
}

/// The step with this many blocks.
fn trace(published: &Published, num_layers: usize) -> Traced {
    let num_examples = 2 * published.batch * published.num_devices;
    let (model, data) = match published.model {
        // What was measured computed all logits at once.
        Model::Gpt { width, num_heads, context, vocabulary, .. } => (
            format!(
                "name = \"gpt\"\nnum_layers = {num_layers}\nwidth = {width}\n\
                 num_heads = {num_heads}\ncontext = {context}\nvocabulary = {vocabulary}\n\
                 remat = {}\nscan_layers = false\nloss_chunk_rows = {MAX_SIZE}",
                published.remat
            ),
            format!(
                "source = \"synthetic_tokens\"\nvocab_size = {vocabulary}\ncontext = {context}\n\
                 num_examples = {num_examples}"
            ),
        ),
        Model::ResNet50 => (
            format!(
                "name = \"resnet\"\npreset = \"resnet50\"\nbatch_norm_group = {}",
                published.batch
            ),
            format!(
                "source = \"synthetic\"\nimage = [3, 224, 224]\nclasses = 1000\n\
                 num_examples = {num_examples}"
            ),
        ),
    };
    let optimizer = match published.model {
        Model::Gpt { .. } => "name = \"adamw\"",
        Model::ResNet50 => "name = \"sgd\"\nmomentum = 0.9",
    };
    let mesh = match (published.axes, published.zero) {
        (None, 0) => "data = \"auto\"".to_owned(),
        (None, stage) => format!("data = 1\nfsdp = \"auto\"\n[parallel]\nzero = {stage}"),
        (Some(Axes { fsdp, tensor, pipeline, num_chunks }), stage) => {
            let zero = if fsdp > 1 { format!("zero = {stage}\n") } else { String::new() };
            let chunks = match pipeline {
                1 => String::new(),
                _ => format!("pipeline_chunks = {num_chunks}"),
            };
            format!(
                "data = \"auto\"\nfsdp = {fsdp}\ntensor = {tensor}\npipeline = {pipeline}\n\
                 [parallel]\n{zero}{chunks}"
            )
        }
    };
    let kernels = if published.attention == Fused { "all" } else { "auto" };
    let text = format!(
        "[model]\n{model}\n[data]\n{data}\n[train]\nsteps = 1000\nprecision = \"bf16\"\n\
         batch_per_replica = {}\nnum_microbatches = {}\n[optimizer]\n{optimizer}\n[schedule]\n\
         name = \"cosine\"\npeak = 2e-4\nwarmup_steps = 50\n[compile]\nkernels = \"{kernels}\"\n\
         [device]\nbackend = \"cuda\"\n[mesh]\n{mesh}\n",
        published.batch, published.num_microbatches
    );
    let config = Config::parse(&text, Path::new("/published.toml"), &[]).unwrap();
    let splits = data::open(&config).unwrap();
    let model = config.model.build(splits.train.num_outputs());
    let mesh = config.mesh.on_devices(published.num_devices).unwrap();
    // With cuDNN's attention for all chips, where it is to be fused.
    let run = Run::new(&config, &splits, mesh, Platform::Cuda).unwrap();
    let graph = step::trace_step(&run.spec(&*model).declare().unwrap()).unwrap();
    Traced {
        work: Work::of(&graph, 2),
        timeline: Timeline::of(&graph),
        global_batch: run.batch.global_batch(),
    }
}

/// Blocks of the steps from which one with more is extrapolated.
const FEW: [usize; 2] = [1, 2];

/// A published step, traced.
struct Step {
    published: Published,
    /// With each number of blocks; a single one if it is the whole step.
    parts: Vec<(usize, Traced)>,
}

impl Step {
    fn new(published: Published) -> Self {
        let has_stages = published.axes.is_some_and(|axes| axes.pipeline > 1);
        let parts = match published.model {
            // The blocks of a chunk are in a loop, however many.
            Model::Gpt { num_layers, .. } if has_stages => {
                vec![(num_layers, trace(&published, num_layers))]
            }
            Model::Gpt { .. } => FEW.map(|blocks| (blocks, trace(&published, blocks))).into(),
            Model::ResNet50 => vec![(0, trace(&published, 0))],
        };
        Self { published, parts }
    }

    /// Extrapolates what is the same for each block.
    fn extrapolated(&self, of: impl Fn(&Traced) -> f64) -> f64 {
        match (&self.parts[..], self.published.model) {
            ([(few, first), (more, second)], Model::Gpt { num_layers, .. }) => {
                let (first, second) = (of(first), of(second));
                let each = (second - first) / (more - few) as f64;
                first + (num_layers - few) as f64 * each
            }
            ([(_, whole), ..], _) => of(whole),
            ([], _) => unreachable!("a step has parts"),
        }
    }

    fn layout(&self, target: &Target) -> DeviceLayout {
        let layout = DeviceLayout::of(target);
        match self.published.network {
            Some(network) => layout.with_network(network.parse::<NamedNetwork>().unwrap().wire()),
            None => layout,
        }
    }

    /// Seconds of the step as `lockstep plan` predicts it, if matmuls reach this share of the peak.
    fn predicted_secs(&self, matmul_share: f64) -> f64 {
        let target: Target = self.published.target.parse().unwrap();
        let calibration = Calibration { matmul_share, ..target.chip.calibration };
        let chip = Chip { calibration, ..target.chip.clone() };
        let layout = self.layout(&target);
        let num_varying = num_varying(&target, self.published.num_devices);
        self.extrapolated(|step| {
            let time = step.timeline.step(&step.work, &chip, &layout);
            time.total_secs() + waiting_secs(time.compute_secs, STEP_VARIATION, num_varying)
        })
    }

    /// Seconds by a simpler roofline: the longer of the times for the FLOPs and for the bytes of
    /// all matmuls, at 0.7 of a GPU's peak or 0.8 of a TPU's, and the slowest of all devices.
    fn secs_of_sums(&self) -> f64 {
        let target: Target = self.published.target.parse().unwrap();
        let matmul_share = if matches!(target.chip.family, Family::Tpu(_)) { 0.8 } else { 0.7 };
        let calibration = Calibration { matmul_share, ..target.chip.calibration };
        let (chip, layout) = (Chip { calibration, ..target.chip.clone() }, self.layout(&target));
        self.extrapolated(|step| {
            let time = step.timeline.step(&sums(&step.work), &chip, &layout);
            let num_devices = self.published.num_devices;
            time.total_secs() + waiting_secs(time.compute_secs, STEP_VARIATION, num_devices)
        })
    }

    fn published_secs(&self) -> f64 {
        let examples = self.parts[0].1.global_batch as f64 / self.published.num_devices as f64;
        examples * self.published.model.items_per_example() / self.published.per_second
    }

    /// How far the throughput of a step of this time is off, relative to the published one.
    fn error(&self, secs: f64) -> f64 {
        self.published_secs() / secs - 1.0
    }

    /// The published fraction of the peak.
    fn mfu(&self) -> f64 {
        self.published.per_second * self.published.model.flops_per_item()
            / self.published.chip().bf16_flops_per_sec
    }
}

/// The same work with one matmul that has the FLOPs and the bytes of all.
fn sums(work: &Work) -> Work {
    let all = MatmulCost {
        flops: work.matmul_flops() as u64,
        bytes: work.matmul_bytes() as u64,
        epilogue_bytes: 0,
        result_bytes: 0,
        element_bytes: work.element_bytes,
        is_call: false,
        count: 1,
    };
    // To start a matmul takes as long as two other kernels.
    let started = work.matmuls.iter().map(|matmul| matmul.count).sum::<u64>() - 1;
    let num_other_kernels = work.num_other_kernels + 2.0 * started as f64;
    Work { matmuls: vec![all], num_other_kernels, ..work.clone() }
}

/// The steps of a group of chips, and the errors of models with one parameter.
struct Comparison {
    steps: Vec<Step>,
    /// The fit of the roofline, with a share of the peak.
    roofline: Fit,
    /// The fit of the same fraction of the peak for every step.
    constant: Fit,
}

/// A parameter with the least mean absolute error, of the steps that are not held out.
struct Fit {
    best: f64,
    /// The error of each step, with the best parameter for all.
    errors: Vec<f64>,
    /// The error of each step, with the best parameter for the others.
    left_out: Vec<f64>,
}

impl Fit {
    /// `errors[i]` are those of all steps with `parameters[i]`, which is fitted to some of them.
    fn of(parameters: &[f64], errors: &[Vec<f64>], is_fitted: &[bool]) -> Self {
        let best = |without: Option<usize>| -> usize {
            let sum = |errors: &Vec<f64>| -> f64 {
                let kept = errors.iter().enumerate();
                let kept = kept.filter(|(at, _)| is_fitted[*at] && Some(*at) != without);
                kept.map(|(_, error)| error.abs()).sum()
            };
            let sums: Vec<_> = errors.iter().map(sum).collect();
            (0..sums.len()).min_by(|a, b| sums[*a].total_cmp(&sums[*b])).unwrap()
        };
        let left_out = (0..is_fitted.len()).map(|step| errors[best(Some(step))][step]).collect();
        let of_all = best(None);
        Self { best: parameters[of_all], errors: errors[of_all].clone(), left_out }
    }
}

impl Comparison {
    fn of(steps: Vec<Step>) -> Self {
        let is_fitted: Vec<_> = steps.iter().map(|step| !step.published.is_held_out).collect();
        let shares: Vec<_> = (30..=100).map(|percent| f64::from(percent) / 100.0).collect();
        let errors_of = |share: &f64| -> Vec<f64> {
            steps.iter().map(|step| step.error(step.predicted_secs(*share))).collect()
        };
        let errors: Vec<_> = shares.par_iter().map(errors_of).collect();
        let roofline = Fit::of(&shares, &errors, &is_fitted);
        let fractions: Vec<_> = (50..=900).map(|tenth| f64::from(tenth) / 1000.0).collect();
        let errors_of = |fraction: &f64| -> Vec<f64> {
            steps.iter().map(|step| fraction / step.mfu() - 1.0).collect()
        };
        let errors: Vec<_> = fractions.iter().map(errors_of).collect();
        let constant = Fit::of(&fractions, &errors, &is_fitted);
        Self { steps, roofline, constant }
    }

    /// The mean absolute error in percent of the steps to which the parameter is fitted, or of
    /// those that are held out, and their number.
    fn mean(&self, errors: &[f64], held_out: bool) -> (f64, usize) {
        let chosen = self.steps.iter().zip(errors);
        let chosen = chosen.filter(|(step, _)| step.published.is_held_out == held_out);
        let chosen: Vec<_> = chosen.map(|(_, error)| 100.0 * error.abs()).collect();
        (chosen.iter().sum::<f64>() / chosen.len() as f64, chosen.len())
    }
}

/// By group of chips.
static COMPARISONS: LazyLock<BTreeMap<&'static str, Comparison>> = LazyLock::new(|| {
    let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let steps: Vec<_> = all().into_par_iter().map(Step::new).collect();
    for step in steps {
        groups.entry(step.published.group()).or_default().push(step);
    }
    groups.into_iter().map(|(group, steps)| (group, Comparison::of(steps))).collect()
});

/// The page should hold this table.
fn check_page(table: &str) {
    let docs = include_str!("../../docs/cost-model.md");
    assert!(docs.contains(table), "docs/cost-model.md should hold:\n{table}");
}

#[test]
fn the_shares_of_chips_are_those_of_published_steps() {
    let mut table = "| chip | steps | share of the peak | error | left out | held out | constant \
                     MFU | error | left out | held out \
                     |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
        .to_owned();
    for (group, comparison) in &*COMPARISONS {
        let errors = |fit: &Fit| {
            let held_out = match comparison.mean(&fit.errors, true) {
                (_, 0) => String::new(),
                (error, num_steps) => format!("{error:.1} % of {num_steps}"),
            };
            let [error, left_out] =
                [&fit.errors, &fit.left_out].map(|errors| comparison.mean(errors, false).0);
            format!("{error:.1} % | {left_out:.1} % | {held_out}")
        };
        let (roofline, constant) = (&comparison.roofline, &comparison.constant);
        table += &format!(
            "| {group} | {} | {:.2} | {} | {:.1} % | {} |\n",
            comparison.mean(&roofline.errors, false).1,
            roofline.best,
            errors(roofline),
            100.0 * constant.best,
            errors(constant),
        );
    }
    check_page(&table);
    for (group, comparison) in &*COMPARISONS {
        let [roofline, constant] = [&comparison.roofline, &comparison.constant]
            .map(|fit| comparison.mean(&fit.left_out, false).0);
        let num_fitted = comparison.mean(&comparison.roofline.errors, false).1;
        let found = (comparison.roofline.best, num_fitted, roofline.round());
        for chip in CHIPS.iter().filter(|chip| chip.name.split('-').next() == Some(group)) {
            let Calibration { matmul_share, num_steps, error, .. } = chip.calibration;
            if num_steps > 0 {
                assert_eq!((matmul_share, num_steps, (100.0 * error).round()), found, "{group}");
            }
        }
        assert!(roofline <= 15.0, "{group}: {roofline}");
        assert_eq!(constant < roofline, CLOSER_BY_MFU.contains(group), "{group}");
    }
}

/// Chips with published steps of so similar models that one fraction of the peak is closer, as
/// `docs/cost-model.md` says.
const CLOSER_BY_MFU: [&str; 2] = ["v5p", "v6e"];

#[test]
fn the_page_has_every_published_step() {
    let mut table =
        "| step | target | published/s | MFU | predicted | left out | by sums | constant MFU |\n\
         |---|---|---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
    for comparison in COMPARISONS.values() {
        for (at, step) in comparison.steps.iter().enumerate() {
            let published = &step.published;
            table += &format!(
                "| {}{} | {} | {:.0} | {:.1} % | {:+.1} % | {:+.1} % | {:+.1} % | {:+.1} % |\n",
                published.label(),
                if published.is_held_out { " (held out)" } else { "" },
                published.target,
                published.per_second,
                100.0 * step.mfu(),
                100.0 * comparison.roofline.errors[at],
                100.0 * comparison.roofline.left_out[at],
                100.0 * step.error(step.secs_of_sums()),
                100.0 * comparison.constant.errors[at],
            );
        }
    }
    check_page(&table);
}

/// The loss of speed from the smallest published size of a model on a chip to larger ones.
#[test]
fn the_page_has_the_scaling_of_published_steps() {
    let mut table =
        "| steps | from | to | published | predicted | error | error of perfect scaling |\n\
         |---|---|---|---:|---:|---:|---:|\n"
            .to_owned();
    for comparison in COMPARISONS.values() {
        let rate =
            |step: &Step| step.published_secs() / step.predicted_secs(comparison.roofline.best);
        for larger in &comparison.steps {
            let is_smaller = |step: &&Step| {
                let (one, other) = (&step.published, &larger.published);
                (&one.what, one.model, one.remat, one.chip().name)
                    == (&other.what, other.model, other.remat, other.chip().name)
                    && one.num_devices < other.num_devices
            };
            let smaller = comparison.steps.iter().filter(is_smaller);
            let Some(smaller) = smaller.min_by_key(|step| step.published.num_devices) else {
                continue;
            };
            let published = larger.published.per_second / smaller.published.per_second;
            let predicted = published * rate(larger) / rate(smaller);
            table += &format!(
                "| {} | {} | {} | {:.1} % | {:.1} % | {:.1} % | {:.1} % |\n",
                larger.published.what,
                on(&smaller.published),
                on(&larger.published),
                100.0 * published,
                100.0 * predicted,
                100.0 * (predicted / published - 1.0).abs(),
                100.0 * (1.0 / published - 1.0).abs(),
            );
        }
    }
    check_page(&table);
}

/// Pairs of which no step was fitted, and by which no constant was chosen: closer than perfect
/// scaling and within 15 %, except for those that are named.
#[test]
fn scaling_that_was_held_out_is_closer_than_perfect_scaling() {
    let held_out = ["torchtitan, Llama 3.1 8B, compiled", "MaxText, 128B", "Megatron-LM, GPT-3"];
    for what in held_out {
        let all = COMPARISONS.values().flat_map(|comparison| {
            let share = comparison.roofline.best;
            comparison.steps.iter().map(move |step| (step, share))
        });
        let pair: Vec<_> = all.filter(|(step, _)| step.published.what.starts_with(what)).collect();
        let [(smaller, share), (larger, _)] = pair[..] else { panic!("{what}") };
        assert!(smaller.published.is_held_out && larger.published.is_held_out);
        let published = larger.published.per_second / smaller.published.per_second;
        let rate = |step: &Step| step.published.num_devices as f64 * step.predicted_secs(share);
        let examples = |step: &Step| step.parts[0].1.global_batch as f64;
        let predicted = examples(larger) / rate(larger) / (examples(smaller) / rate(smaller));
        let error = (predicted / published - 1.0).abs();
        let null_error = (1.0 / published - 1.0).abs();
        assert!(error < null_error && error <= 0.15, "{what}: {predicted} {published}");
    }
}

/// `8 of gpu:a100:1x8`.
fn on(published: &Published) -> String {
    let target: Target = published.target.parse().unwrap();
    if target.num_devices() == published.num_devices {
        published.target.to_owned()
    } else {
        format!("{} of {}", published.num_devices, published.target)
    }
}

/// Chips without published steps say so, and have the share of another.
#[test]
fn chips_without_published_steps_have_the_share_of_a_similar_one() {
    for chip in CHIPS {
        let Calibration { matmul_share, num_steps, error, .. } = chip.calibration;
        assert!((0.3..1.0).contains(&matmul_share), "{}", chip.name);
        assert_eq!(num_steps == 0, error == 0.0, "{}", chip.name);
        let others = CHIPS.iter().filter(|other| other.calibration.num_steps > 0);
        assert!(
            others.map(|other| other.calibration.matmul_share).any(|share| share == matmul_share)
        );
    }
}

#[test]
fn extrapolated_steps_are_the_whole_steps() {
    for (group, what) in [("a100", "llm-foundry, MPT 125M"), ("v5p", "MaxText, 32B")] {
        let steps = &COMPARISONS[group].steps;
        let step = steps.iter().find(|step| step.published.what == what).unwrap();
        let Model::Gpt { num_layers, .. } = step.published.model else { panic!("{what}") };
        let published = all().into_iter().find(|one| one.label() == step.published.label());
        let published = published.unwrap();
        let parts = vec![(num_layers, trace(&published, num_layers))];
        let whole = Step { published, parts };
        let share = step.published.chip().calibration.matmul_share;
        let ratio = step.predicted_secs(share) / whole.predicted_secs(share);
        assert!((ratio - 1.0).abs() < 0.01, "{what}: {ratio}");
    }
}
