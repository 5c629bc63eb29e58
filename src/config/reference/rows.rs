//! The table: a row for each key. A key that means something else with another choice has a row for each.

use std::ops::Bound::{Excluded, Included, Unbounded};

use models::{MAX_LAYERS, MAX_SIZE};

use super::Fallback::{self, Absent, Depends, Required, Value};
use super::KeyRow;
use super::Kind::{self, AutoOrInteger, Bool, Integer, Number, OneOf, Other};
use crate::config::sections::MAX_REPLICAS;
use crate::config::{DataConfig, MAX_BATCH, MAX_ROUNDS, MAX_STEPS, ModelConfig, Shape, UpdateRule};

/// The page's top.
pub(super) const INTRODUCTION: &str = "\
# The configuration

Written by `lockstep config --reference`; a test holds this page against the program.

A configuration is a TOML file. `--set section.key=value` changes a key from the command line, and may be given several times.
Relative paths in a file are relative to that file, those in `--set` and `--backend` to the current directory; a leading `~/` is the home
directory. Unknown keys are errors.

`lockstep config CONFIG` prints the resolved configuration: every key with its value, and as comments the keys that are not set. Its
paths are absolute, so a copy means the same wherever it is kept on the machine. Read again, it is the same configuration. Values that
follow from other keys are written out in it, such as the sizes of a GPT: there another `model.preset` changes none of them.
";

/// What a section is about.
pub(super) fn about(section: &str) -> &'static str {
    let row = SECTIONS.iter().find(|(name, _)| *name == section);
    row.map_or("", |(_, about)| about)
}

/// The sections, in words.
pub(super) const SECTIONS: [(&str, &str); 9] = [
    ("model", "The architecture, picked by `name`."),
    ("data", "Where the examples come from, picked by `source`."),
    (
        "train",
        "The batch, the length of the run, and what watches over it. One of the two keys for the batch and one of the three for \
         the length must be set.",
    ),
    ("optimizer", "The update rule, picked by `name`, and what is done around it."),
    (
        "schedule",
        "The learning rate over the run. `name` picks what it does after the warm-up. Each length may be given in steps, epochs or \
         examples. `peak`, or `base_lr` with `base_batch`, must be set.",
    ),
    ("mesh", "How many replicas there are along each axis."),
    ("parallel", "How the step is spread over the replicas."),
    ("device", "What the program runs on."),
    ("compile", "What is asked of XLA."),
];

const MODEL: Group = Group("model", &[]);
const MLP: Group = Group("model", &["mlp"]);
const RESNET: Group = Group("model", &["resnet"]);
const GPT: Group = Group("model", &["gpt"]);
const DATA: Group = Group("data", &[]);
const DIGITS: Group = Group("data", &["digits"]);
const CIFAR10: Group = Group("data", &["cifar10"]);
const IDX: Group = Group("data", &["idx"]);
const IMAGE_FOLDER: Group = Group("data", &["image_folder"]);
const TEXT: Group = Group("data", &["text"]);
const TOKENS: Group = Group("data", &["tokens"]);
const SYNTHETIC: Group = Group("data", &["synthetic"]);
const SYNTHETIC_TOKENS: Group = Group("data", &["synthetic_tokens"]);
const COMPUTED: Group = Group("data", &["synthetic", "synthetic_tokens"]);
const READ: Group = Group("data", &["digits", "cifar10", "idx", "image_folder", "text", "tokens"]);
const TRAIN: Group = Group("train", &[]);
const OPTIMIZER: Group = Group("optimizer", &[]);
const MOMENTUM: Group = Group("optimizer", &["sgd", "lars"]);
const SGD: Group = Group("optimizer", &["sgd"]);
const LARS: Group = Group("optimizer", &["lars"]);
const ADAMS: Group = Group("optimizer", &["adam", "adamw", "lamb"]);
const ADAM: Group = Group("optimizer", &["adam", "adamw"]);
const COUPLED: Group = Group("optimizer", &["sgd", "adam", "lars"]);
const ADAMW: Group = Group("optimizer", &["adamw"]);
const LAMB: Group = Group("optimizer", &["lamb"]);
const TRUST: Group = Group("optimizer", &["lars", "lamb"]);
const SCHEDULE: Group = Group("schedule", &[]);
const POLYNOMIAL: Group = Group("schedule", &["polynomial"]);
const FALLS: Group = Group("schedule", &["cosine", "linear", "polynomial", "wsd"]);
const STEP: Group = Group("schedule", &["step"]);
const PLACES: Group = Group("schedule", &["step", "piecewise"]);
const WSD: Group = Group("schedule", &["wsd"]);
const PIECEWISE: Group = Group("schedule", &["piecewise"]);
const MESH: Group = Group("mesh", &[]);
const PARALLEL: Group = Group("parallel", &[]);
const DEVICE: Group = Group("device", &[]);
const COMPILE: Group = Group("compile", &[]);

const COUNT: Kind = Integer(1, None);
const ANY_COUNT: Kind = Integer(0, None);
const BATCH: Kind = Integer(1, Some(MAX_BATCH as i64));
const ROUNDS: Kind = Integer(1, Some(MAX_ROUNDS as i64));
const MODEL_SIZE: Kind = Integer(1, Some(MAX_SIZE as i64));
const CONTEXT: Kind = Integer(1, Some(1 << 24));
const NUM_EXAMPLES: Kind = Integer(1, Some(u32::MAX as i64));
/// 0 to below 1.
const SHARE: Kind = Number(Included(0.0), Excluded(1.0));
/// 0 to 1.
const FRACTION: Kind = Number(Included(0.0), Included(1.0));
const FROM_0: Kind = Number(Included(0.0), Unbounded);
const ABOVE_0: Kind = Number(Excluded(0.0), Unbounded);
const HELD_OUT: Kind = Number(Excluded(0.0), Excluded(1.0));
/// What f32 holds above 0.
const POSITIVE_F32: Kind = Number(Included(f32::MIN_POSITIVE as f64), Included(f32::MAX as f64));
const DECAY: Kind = Number(Included(0.0), Included(f32::MAX as f64));
const PATH: Kind = Other("path");
const FILE_NAME: Kind = Other("file name");
const PATTERNS: Kind = Other("list of patterns");
const PLACES_IN_STEPS: Kind = Other("list of 1 to 1000 whole numbers from 0 on, rising");
const PLACES_IN_EPOCHS: Kind = Other("list of 1 to 1000 numbers from 0 on, rising");

/// Every key, section by section, in the order in which they are shown.
#[rustfmt::skip]
pub(super) const KEYS: &[KeyRow] = &[
    MODEL.key("name", OneOf(ModelConfig::NAMES), "", Required, "The architecture."),
    MLP.key("hidden", Other("list of up to 1024 whole numbers, each 1 or more"), "features", Value("[256, 256]"), "Features of each hidden layer, in order. An empty list is a linear classifier."),
    MLP.key("dropout", SHARE, "", Value("0.0"), "Probability with which a hidden feature is dropped in training."),
    MLP.key("layer_norm", Bool, "", Value("true"), "Is each hidden layer normalised before its activation?"),
    MLP.key("label_smoothing", SHARE, "share of a label", Value("0.0"), "What is spread evenly over all classes in training. Evaluation counts labels as they are."),
    RESNET.key("preset", OneOf(&["resnet20", "resnet56", "resnet50"]), "", Value("\"resnet20\""), "The network: 20 or 56 layers for images of 32x32, 50 (v1.5) for images of 224x224."),
    RESNET.key("batch_norm_group", COUNT, "examples", Value("32"), "Examples that batch norm normalises together."),
    RESNET.key("zero_init_last_scale", Bool, "", Value("false"), "Does the last norm of each block start with scale 0, so that the block starts as its shortcut?"),
    RESNET.key("label_smoothing", SHARE, "share of a label", Value("0.0"), "What is spread evenly over all classes in training. Evaluation counts labels as they are."),
    GPT.key("preset", OneOf(&["gpt-bytes", "gpt2-124m", "gpt2-355m", "gpt2-774m", "gpt2-1558m"]), "", Value("\"gpt-bytes\""), "Sizes, where they are not given."),
    GPT.key("num_layers", Integer(1, Some(MAX_LAYERS as i64)), "blocks", Depends("the preset's"), "Blocks."),
    GPT.key("width", MODEL_SIZE, "features", Depends("the preset's"), "Width of the residual stream."),
    GPT.key("num_heads", MODEL_SIZE, "heads", Depends("the preset's"), "Heads of attention. They divide the width."),
    GPT.key("context", MODEL_SIZE, "tokens", Depends("the preset's"), "Positions that the model knows. An example may have fewer."),
    GPT.key("vocabulary", MODEL_SIZE, "tokens", Depends("the preset's"), "Number of different tokens."),
    GPT.key("dropout", SHARE, "", Value("0.0"), "Probability of dropout in training: of the embeddings, of the weights of attention, and of what each half of a block adds."),
    GPT.key("scan_layers", Bool, "", Value("false"), "Are the blocks a loop in the program? It compiles faster; gradients in a loop cannot be reduced while it runs."),
    GPT.key("remat", Bool, "", Value("false"), "Does the backward pass compute each block again instead of keeping its values?"),

    DATA.key("source", OneOf(DataConfig::NAMES), "", Required, "Where the examples come from."),
    DIGITS.key("path", PATH, "", Required, "The `.csv.gz` file."),
    CIFAR10.key("path", PATH, "", Required, "The folder with `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`."),
    CIFAR10.key("augment", Bool, "", Value("true"), "Are training images cropped and mirrored at random?"),
    IDX.key("path", PATH, "", Required, "The folder with the four files. Each may be gzipped, with `.gz` at the end of its name."),
    IDX.key("train_images", FILE_NAME, "", Value("\"train-images-idx3-ubyte\""), "Images for training."),
    IDX.key("train_labels", FILE_NAME, "", Value("\"train-labels-idx1-ubyte\""), "Labels for training."),
    IDX.key("eval_images", FILE_NAME, "", Value("\"t10k-images-idx3-ubyte\""), "Images for evaluation."),
    IDX.key("eval_labels", FILE_NAME, "", Value("\"t10k-labels-idx1-ubyte\""), "Labels for evaluation."),
    IDX.key("classes", Integer(1, Some(256)), "classes", Value("10"), "Labels are below it."),
    IDX.key("flat", Bool, "", Value("false"), "Is an image a row of pixels, as an MLP takes it?"),
    IMAGE_FOLDER.key("path", PATH, "", Required, "The folder with a folder of JPEG and PNG images for each class."),
    IMAGE_FOLDER.key("eval_path", PATH, "", Depends("none: `eval_fraction` is held out"), "The same for evaluation."),
    IMAGE_FOLDER.key("eval_fraction", HELD_OUT, "share of a class", Value("0.1"), "What is held out of each class for evaluation, at its end, if there is no `eval_path`."),
    IMAGE_FOLDER.key("image_size", Integer(1, Some(1 << 13)), "pixels", Value("224"), "Rows and columns of an example."),
    IMAGE_FOLDER.key("eval_resize", Other("whole number, `image_size` to 16384"), "pixels", Depends("8/7 of `image_size`"), "The shorter side that an image is scaled to for evaluation, before the centre is taken."),
    IMAGE_FOLDER.key("augment", Bool, "", Value("true"), "Are training images cropped and mirrored at random?"),
    IMAGE_FOLDER.key("on_broken", OneOf(&["stop", "skip"]), "", Value("\"stop\""), "What to do about a file that cannot be decoded. With `\"skip\"` the next example takes its place, and the run reports which they were."),
    TEXT.key("path", PATH, "", Required, "A file, or a folder with all below it. Each byte is a token."),
    TEXT.key("extensions", Other("list of strings"), "", Value("[]"), "Of a folder only the files that end so, such as `[\"rs\", \"md\"]`. An empty list takes all."),
    TEXT.key("context", CONTEXT, "tokens", Value("256"), "Tokens that a prediction sees at most. An example is one more."),
    TEXT.key("eval_fraction", HELD_OUT, "share of the text", Value("0.1"), "What is held out for evaluation, at the end."),
    TOKENS.key("path", PATH, "", Required, "The file: little-endian numbers and nothing else."),
    TOKENS.key("eval_path", PATH, "", Depends("none: `eval_fraction` is held out"), "The file for evaluation."),
    TOKENS.key("eval_fraction", HELD_OUT, "share of the tokens", Value("0.1"), "What is held out for evaluation, at the end, if there is no `eval_path`."),
    TOKENS.key("dtype", OneOf(&["u16", "u32"]), "", Value("\"u16\""), "How a token is stored: in two bytes or in four."),
    TOKENS.key("vocab_size", Integer(1, Some(1 << 16)), "tokens", Required, "Number of different tokens. With `dtype = \"u32\"` it may be up to 2147483647."),
    TOKENS.key("context", CONTEXT, "tokens", Value("1024"), "Tokens that a prediction sees at most. An example is one more."),
    SYNTHETIC.key("features", Integer(1, Some(1 << 20)), "numbers", Value("64"), "Length of an example."),
    SYNTHETIC.key("image", Other("list of whole numbers with a product from 1 to 1048576"), "", Value("[]"), "Dims of an example, such as `[3, 32, 32]`. An empty list makes it a row of `features`."),
    SYNTHETIC.key("classes", Integer(2, Some(1 << 20)), "classes", Value("10"), "Labels are below it."),
    SYNTHETIC_TOKENS.key("vocab_size", Integer(1, Some(i32::MAX as i64)), "tokens", Required, "Number of different tokens."),
    SYNTHETIC_TOKENS.key("context", CONTEXT, "tokens", Value("1024"), "Tokens that a prediction sees at most. An example is one more."),
    COMPUTED.key("num_examples", NUM_EXAMPLES, "examples", Value("4096"), "Training examples. A fifth as many others, but at least one, are for evaluation."),
    READ.key("num_examples", NUM_EXAMPLES, "examples", Absent("counted in the data"), "Training examples, for where the data are not at hand. Where they are, it must be right."),

    TRAIN.key("global_batch", BATCH, "examples", Required, "Examples per step, over all replicas and microbatches."),
    TRAIN.key("batch_per_replica", BATCH, "examples", Depends("instead of `global_batch`"), "Examples per step on each replica: the global batch grows with the replicas."),
    TRAIN.key("steps", Integer(1, Some(MAX_STEPS as i64)), "steps", Required, "Length of the run."),
    TRAIN.key("epochs", COUNT, "epochs", Depends("instead of `steps`"), "Length of the run. What remains of an epoch after its last whole batch is left out."),
    TRAIN.key("examples", COUNT, "examples", Depends("instead of `steps`"), "Length of the run. A batch that would go beyond is left out."),
    TRAIN.key("seed", ANY_COUNT, "", Value("0"), "What every random choice follows from: initial parameters, order of data, dropout."),
    TRAIN.key("eval_every", ANY_COUNT, "steps", Value("0"), "Steps between evaluations. 0 evaluates at the end only."),
    TRAIN.key("num_microbatches", ROUNDS, "microbatches", Value("1"), "Microbatches on each replica, whose gradients are summed before the reduction."),
    TRAIN.key("steps_per_launch", ROUNDS, "steps", Value("1"), "Steps that go to the devices in one launch: at most `eval_every` and `check_lockstep_every`, where these are not 0."),
    TRAIN.key("check_lockstep_every", ANY_COUNT, "steps", Value("50"), "Steps between proofs that all replicas hold the same state. 0 is never."),
    TRAIN.key("on_nonfinite", OneOf(&["stop", "skip"]), "", Value("\"stop\""), "What to do about a loss, a gradient or a next state that is not finite: stop the run, or leave the update out."),
    TRAIN.key("precision", OneOf(&["f32", "bf16", "f64"]), "", Value("\"f32\""), "The dtypes of parameters and arithmetic. With `\"bf16\"` parameters, optimizer state, norms, softmax, loss and all sums stay f32. `\"f64\"` is slow, for checking results against each other."),

    OPTIMIZER.key("name", OneOf(UpdateRule::NAMES), "", Required, "The update rule."),
    MOMENTUM.key("momentum", SHARE, "", Value("0.9"), "What is kept of the running sum of gradients at each step."),
    MOMENTUM.key("nesterov", Bool, "", Value("false"), "Does the update look one step ahead along the momentum? `momentum` must then be above 0."),
    SGD.key("momentum_correction", Bool, "", Value("true"), "Does a changed rate hold for the whole momentum, as in PyTorch? With `false` old rates stay in it."),
    LARS.key("momentum_correction", Bool, "", Value("false"), "Does a changed rate hold for the whole momentum? With `false`, as in the paper, old rates stay in it."),
    ADAMS.key("beta1", SHARE, "", Value("0.9"), "What is kept of the running mean of gradients at each step."),
    ADAMS.key("beta2", SHARE, "", Value("0.999"), "What is kept of the running mean of squared gradients at each step."),
    ADAM.key("epsilon", POSITIVE_F32, "", Value("1e-8"), "Added to the root of the mean square. With `train.precision = \"f64\"` the range is that of f64."),
    LAMB.key("epsilon", POSITIVE_F32, "", Value("1e-6"), "Added to the root of the mean square. With `train.precision = \"f64\"` the range is that of f64."),
    COUPLED.key("weight_decay", DECAY, "", Value("0.0"), "The parameter times this is added to its gradient."),
    ADAMW.key("weight_decay", DECAY, "share per unit of rate", Value("0.01"), "What each step takes away of a parameter."),
    LAMB.key("weight_decay", DECAY, "", Value("0.01"), "The parameter times this is added to its update, before that is scaled."),
    LARS.key("trust_coefficient", POSITIVE_F32, "", Value("0.001"), "How far an update may move a parameter, relative to its norm."),
    TRUST.key("trust_exclude", PATTERNS, "", Absent("parameters of rank below 2, which are biases and the scales of norms"), "Parameters whose rate is not adapted, by their paths, such as `[\"*.bias\", \"*norm*\"]`. An empty list adapts all."),
    OPTIMIZER.key("weight_decay_exclude", PATTERNS, "", Absent("parameters of rank below 2, which are biases and the scales of norms"), "Parameters that are not decayed, by their paths, such as `[\"*.bias\", \"*norm*\"]`. An empty list decays all."),
    OPTIMIZER.key("clip_grad_norm", POSITIVE_F32, "", Absent("gradients are not clipped"), "The norm that the whole gradient is scaled down to where it is above. With `train.precision = \"f64\"` the range is that of f64."),
    OPTIMIZER.key("ema_decay", SHARE, "", Absent("no running mean is kept"), "What is kept, at each step, of a running mean of the parameters. It is what is evaluated and saved."),

    SCHEDULE.key("name", OneOf(Shape::NAMES), "", Required, "What the rate does after the warm-up."),
    SCHEDULE.key("peak", POSITIVE_F32, "", Required, "The highest rate."),
    SCHEDULE.key("base_lr", POSITIVE_F32, "", Depends("instead of `peak`"), "The rate at a global batch of `base_batch`, from which the peak follows."),
    SCHEDULE.key("base_batch", COUNT, "examples", Depends("must be set with `base_lr`"), "The global batch that `base_lr` was found at."),
    SCHEDULE.key("scaling", OneOf(&["linear", "sqrt", "none"]), "", Depends("`\"linear\"`, with `base_lr`"), "How the peak follows from the global batch: in proportion, by the square root, or not at all."),
    SCHEDULE.key("warmup_steps", ANY_COUNT, "steps", Absent("no warm-up"), "Length of the warm-up. 0 is none."),
    SCHEDULE.key("warmup_epochs", FROM_0, "epochs", Depends("instead of `warmup_steps`"), "The same in epochs."),
    SCHEDULE.key("warmup_examples", ANY_COUNT, "examples", Depends("instead of `warmup_steps`"), "The same in examples."),
    SCHEDULE.key("warmup", OneOf(&["linear", "constant", "none"]), "", Depends("`\"linear\"`, where there is a length"), "What the rate does in the warm-up: rises along a line, or stays. `\"none\"` switches that of a file off."),
    SCHEDULE.key("warmup_factor", FRACTION, "fraction of the peak", Depends("0 if it rises; must be set if it stays"), "Where a linear warm-up starts, or where a constant one stays."),
    POLYNOMIAL.key("power", ABOVE_0, "", Value("2.0"), "The power. 1 is a line."),
    STEP.key("factor", ABOVE_0, "", Value("0.1"), "What the rate is multiplied by at each boundary."),
    WSD.key("decay_steps", COUNT, "steps", Required, "Length of the fall at the end; or set one of the next two."),
    WSD.key("decay_epochs", ABOVE_0, "epochs", Depends("instead of `decay_steps`"), "The same in epochs."),
    WSD.key("decay_examples", COUNT, "examples", Depends("instead of `decay_steps`"), "The same in examples."),
    WSD.key("decay_shape", OneOf(&["linear", "cosine", "sqrt"]), "", Value("\"linear\""), "Along what it falls: a line, half a cosine, or one less the root of what has passed."),
    FALLS.key("floor", FRACTION, "fraction of the peak", Value("0.0"), "Where the fall ends."),
    FALLS.key("total_steps", COUNT, "steps", Absent("the end of the run"), "The step at which the fall ends, counted from the start of the run."),
    FALLS.key("total_epochs", ABOVE_0, "epochs", Depends("instead of `total_steps`"), "The same in epochs."),
    FALLS.key("total_examples", COUNT, "examples", Depends("instead of `total_steps`"), "The same in examples."),
    PLACES.key("boundaries", PLACES_IN_STEPS, "steps", Required, "Where the rate falls, or where it is given, counted from the start of the run; or set one of the next two."),
    PLACES.key("boundary_epochs", PLACES_IN_EPOCHS, "epochs", Depends("instead of `boundaries`"), "The same in epochs."),
    PLACES.key("boundary_examples", PLACES_IN_STEPS, "examples", Depends("instead of `boundaries`"), "The same in examples."),
    PIECEWISE.key("factors", Other("list of numbers, 0 or more, one for each boundary"), "fraction of the peak", Required, "The rate at each of the boundaries."),
    PIECEWISE.key("interpolation", OneOf(&["linear", "constant"]), "", Value("\"linear\""), "What the rate does between them: goes along a line, or stays."),

    MESH.key("data", AutoOrInteger(1, Some(MAX_REPLICAS)), "replicas", Value("\"auto\""), "Replicas that hold the parameters whole and cut the batch. `\"auto\"` takes all devices."),
    PARALLEL.key("bucket_bytes", AutoOrInteger(0, None), "bytes", Value("\"auto\""), "Gradients that one collective reduces together. 0 reduces each by itself, `\"auto\"` is what is best on the backend."),
    DEVICE.key("backend", Other("`\"cpu\"`, `\"cuda\"`, `\"tpu\"`, or the path of a plugin, with a `/` in it"), "", Value("\"cpu\""), "The PJRT plugin."),
    DEVICE.key("options", Other("table of options"), "", Value("{}"), "The plugin's own options, as it takes them when it opens its devices: `true`, `false`, numbers, strings or lists of whole numbers. The `cpu` backend has none. See [GPU](gpu.md) and [TPU](tpu.md)."),
    COMPILE.key("overrides", Other("table of XLA options"), "", Value("{}"), "XLA's options by name: `true`, `false`, numbers or strings."),
    COMPILE.key("cache", Bool, "", Value("true"), "Are compiled programs kept on disk and found again?"),
];

/// A section, and the values of its tag with which a key is there; none of them means all.
struct Group(&'static str, &'static [&'static str]);

impl Group {
    const fn key(
        &self,
        name: &'static str,
        kind: Kind,
        unit: &'static str,
        fallback: Fallback,
        meaning: &'static str,
    ) -> KeyRow {
        KeyRow { section: self.0, name, choices: self.1, kind, unit, fallback, meaning }
    }
}
