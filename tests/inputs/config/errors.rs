//! Messages about what is wrong.

use std::path::Path;

use lockstep::config::{Config, Error};

use super::{GOOD, parse};

/// Replacements of a part of GOOD, and fragments of the message.
#[test]
fn bad_files_say_what_to_change() {
    const NO_TRAIN: &str = "[train]\nglobal_batch = 64\nsteps = 500\n";
    let cases: &[(&str, &str, &[&str])] = &[
        ("[train]", "[trian]", &["/runs/good.toml:8: trian: unknown", "\"train\"?", "compile"]),
        ("steps = 500", "stepz = 500", &["train.stepz: unknown key", "\"steps\"?", "global_batch"]),
        ("floor", "flor", &["schedule.flor", "did you mean \"floor\"?"]),
        ("\"cosine\"", "\"constant\"", &["schedule.floor: unknown key", "warmup_steps"]),
        ("beta1", "momentum", &["optimizer.momentum: unknown key", "beta2"]),
        ("hidden", "hiden", &["model.hiden", "\"hidden\"?"]),
        ("name = \"mlp\"", "", &["model.name: missing", "\"mlp\""]),
        ("\"mlp\"", "\"mpl\"", &["model.name: found \"mpl\", did you mean \"mlp\"?"]),
        ("\"adamw\"", "3", &["optimizer.name: found integer `3`", "\"sgd\", \"adam\", \"adamw\""]),
        ("\"digits\"", "\"digit\"", &["data.source", "\"digits\"?", "\"synthetic\""]),
        ("path = \"data/digits.csv.gz\"", "", &["data.path: missing"]),
        ("path = \"data/digits.csv.gz\"", "path = 1", &["data.path: found integer `1`", "path"]),
        (NO_TRAIN, "", &["train.global_batch: missing", "train.batch_per_replica"]),
        ("steps = 500", "", &["train.steps: missing", "train.epochs"]),
        ("steps = 500", "steps = 5\nepochs = 2", &["train.epochs", "combined with train.steps"]),
        ("peak = 6e-4", "peak = 1.0\nbase_lr = 0.1", &["schedule.base_lr", "schedule.peak"]),
        ("peak = 6e-4", "base_lr = 0.1", &["schedule.base_batch: missing"]),
        ("peak = 6e-4", "base_batch = 2", &["schedule.base_lr: missing"]),
        ("peak = 6e-4", "", &["schedule.peak: missing", "schedule.base_lr"]),
        ("peak = 6e-4", "peak = -1.0", &["schedule.peak: found -1", "above 0"]),
        ("peak = 6e-4", "peak = nan", &["schedule.peak: found nan"]),
        ("floor = 0.1", "floor = 1.5", &["schedule.floor: found 1.5", "0 to 1"]),
        (
            "warmup_steps = 100",
            "warmup_factor = 0.5",
            &["schedule.warmup_steps: missing", "asks for a warm-up"],
        ),
        ("steps = 500", "steps = \"x\"", &["train.steps: found string \"x\"", "a whole number"]),
        (
            "steps = 500",
            "steps = -5",
            &["/runs/good.toml:10: train.steps: found -5", "from 1 to 100000000"],
        ),
        ("steps = 500", "steps = 0", &["train.steps: found 0; allowed: a whole number from 1"]),
        (
            "steps = 500",
            "steps = 1.5",
            &["train.steps: found floating point `1.5`; allowed: a whole number from 1"],
        ),
        ("global_batch = 64", "global_batch = 0", &["train.global_batch: found 0"]),
        ("global_batch = 64", "global_batch = 66", &["train.global_batch", "64 or 68"]),
        ("[32, 16]", "[32, 0]", &["model.hidden: found 0; allowed: a whole number, 1 or more"]),
        ("[32, 16]", "7", &["model.hidden: found integer `7`; allowed: a list"]),
        ("[32, 16]", "[\"a\"]", &["model.hidden: found string \"a\"", "whole number"]),
        ("hidden", "dropout = 1.0\nhidden", &["model.dropout: found 1", "0 to below 1"]),
        ("hidden", "layer_norm = 1\nhidden", &["model.layer_norm", "true or false"]),
        (
            "steps = 500",
            "steps = 500\nprecision = \"f16\"",
            &["train.precision", "\"f32\", \"bf16\", \"f64\""],
        ),
        (
            "steps = 500",
            "steps = 5\non_nonfinite = \"stopp\"",
            &["train.on_nonfinite", "\"stop\"?"],
        ),
        (
            "steps = 500",
            "steps = 5\non_nonfinite = 1",
            &["train.on_nonfinite", "\"stop\", \"skip\""],
        ),
        ("steps = 500", "steps = 5\nnum_microbatches = 0", &["train.num_microbatches: found 0"]),
        ("steps = 500", "steps = 5\nsteps_per_launch = 0", &["train.steps_per_launch: found 0"]),
        (
            "steps = 500",
            "steps = 99\nsteps_per_launch = 60",
            &["at most 50", "check_lockstep_every"],
        ),
        ("beta1 = 0.8", "beta1 = 1.0", &["optimizer.beta1: found 1", "below 1"]),
        ("beta1 = 0.8", "epsilon = 0", &["optimizer.epsilon: found 0", "above 0"]),
        ("weight_decay = 0.1", "weight_decay = inf", &["optimizer.weight_decay: found inf"]),
        ("data = 4", "data = \"all\"", &["mesh.data: found string \"all\"", "\"auto\""]),
        (
            "data = 4",
            "data = 0",
            &["mesh.data: found 0; allowed: \"auto\" or a whole number from 1 to"],
        ),
        ("data = 4", "data = 1.5", &["mesh.data: found", "\"auto\" or a whole number from 1 to"]),
        ("data = 4", "tensor = 0", &["mesh.tensor: found 0; allowed: a whole number from 1 to"]),
        (
            "data = 4",
            "pipeline = 0",
            &["mesh.pipeline: found 0; allowed: a whole number from 1 to 131072"],
        ),
        ("data = 4", "sequence = 2", &["mesh.sequence: unknown key", "known here: data"]),
        ("[mesh]\n", "[[mesh]]\n", &["mesh: found a list; allowed: a section, [mesh]"]),
        ("[model]", "mesh = 4\n[model]", &["/runs/good.toml:21: not valid TOML", "duplicate key"]),
        (
            "steps = 500",
            "epochs = 1.5",
            &["train.epochs: found", "; allowed: a whole number, 1 or more"],
        ),
        ("peak = 6e-4", "peak = 1e400", &["/runs/good.toml:17: not valid TOML"]),
        (
            "\"cosine\"",
            "\"step\"",
            &["schedule.floor: unknown key", "schedule.boundaries: missing"],
        ),
    ];
    for (good, bad, expected) in cases {
        assert!(GOOD.contains(good), "{good}");
        let error = parse(&GOOD.replacen(good, bad, 1), &[]).expect_err(bad).to_string();
        for fragment in *expected {
            assert!(error.contains(fragment), "{bad:?}: {fragment:?} is not in: {error}");
        }
    }
}

#[test]
fn bad_set_arguments_say_what_to_change() {
    let cases: &[(&[&str], &[&str])] = &[
        (&["train.stepz=5"], &["--set train.stepz=5: train.stepz: unknown", "\"steps\"?"]),
        (&["trian.steps=5"], &["--set trian.steps=5: trian: unknown", "\"train\"?"]),
        (&["train.seed=9223372036854775808"], &["the number is larger than 64 bits"]),
        (
            &["schedule.peak=1e400"],
            &["--set schedule.peak=1e400: the number is larger than 64 bits"],
        ),
        (&["schedule.peak=-1_0e4_00"], &["the number is larger than 64 bits"]),
        (&["train.eval_every=-1"], &["train.eval_every: found -1", "number, 0 or more"]),
        (&["train.lr=5"], &["train.lr: unknown key, did you mean \"schedule.peak\"?"]),
        (&["train.batch_size=5"], &["did you mean \"train.global_batch\"?"]),
        (&["schedule.epochs=5"], &["did you mean \"train.epochs\"?"]),
        (&["mesh.name=a"], &["mesh.name: unknown key; known"]),
        (&["train.steps"], &["--set train.steps: ", "section.key=value"]),
        (&["steps=5"], &["--set steps=5", "section.key=value"]),
        (&["train..steps=5"], &["section.key=value"]),
        (&["model.hidden=[1,"], &["not valid TOML"]),
        (&["train.steps.a=5"], &["--set train.steps.a=5: train.steps is not a table"]),
        (&["a.b.c.d=5"], &["--set a.b.c.d=5: write it as section.key=value"]),
        (&["train.steps=many"], &["--set train.steps=many: train.steps: found string \"many\""]),
        (&["mesh.data=3"], &["train.global_batch", "63 or 66"]),
        (&["mesh.data=2", "mesh.fsdp=3"], &["train.global_batch", "6 replicas", "60 or 66"]),
        (&["mesh.data=4", "mesh.fsdp=32769"], &["mesh.fsdp: found 32769", "at most 32768"]),
        (
            &["parallel.zero=3"],
            &[
                "--set parallel.zero=3: parallel.zero: stage 3 shards the state",
                "but mesh.fsdp = 1; set mesh.fsdp to 2 or more",
                "or leave out parallel.zero",
            ],
        ),
        (&["parallel.zero=1"], &["parallel.zero: stage 1 shards the state", "mesh.fsdp = 1"]),
        (
            &["parallel.zero=4", "mesh.fsdp=2"],
            &["parallel.zero: found 4; allowed: a whole number from 1 to 3"],
        ),
        (
            &["parallel.scatter_line=3", "mesh.fsdp=4"],
            &["parallel.scatter_line: 3 replicas of a line do not divide mesh.fsdp = 4"],
        ),
        (&["parallel.scatter_line=4"], &["do not divide mesh.fsdp = 1", "set a divisor"]),
        (&["parallel.scatter_line=-4"], &["scatter_line"]),
        (
            &["parallel.host_collectives=true", "device.backend=tpu"],
            &["parallel.host_collectives: only the backend \"cpu\" has them", "leave out"],
        ),
        (
            &["parallel.host_collectives=1"],
            &["parallel.host_collectives: found", "allowed: \"auto\", true or false"],
        ),
        (&["parallel.zero=0"], &["found 0; allowed: a whole number from 1 to 3"]),
        (&["parallel.zero=true"], &["found boolean `true`; allowed: a whole number from 1 to 3"]),
        (&["parallel.zero=auto"], &["found string \"auto\"; allowed: a whole number from 1 to 3"]),
        (&["parallel.zero=2.5"], &["floating point `2.5`; allowed: a whole number from 1 to 3"]),
        (
            &["device.backend=gpu"],
            &["device.backend", "\"gpu\" is not a backend, did you mean \"cuda\"?"],
        ),
        (&["device.options.a=true"], &["device.options.a", "the cpu backend has no options"]),
        (
            &["device.backend=cuda", "device.options.memory_fraction=1.5"],
            &["device.options.memory_fraction: found 1.5", "above 0, to 1"],
        ),
        (
            &["device.backend=cuda", "device.options.preallocate=1"],
            &["device.options.preallocate: found 1", "true or false"],
        ),
        (
            &["device.backend=cuda", "device.options.visible_devices=[0, 0]"],
            &["device.options.visible_devices: found [0, 0]", "each once"],
        ),
        (
            &["device.backend=cuda", "device.options.visible_devices=0"],
            &["device.options.visible_devices: found 0", "such as [0, 1]"],
        ),
        (
            &["device.backend=/a/plugin.so", "device.options.num_nodes=2"],
            &["device.options.num_nodes", "a run is one process"],
        ),
        (&["device.backend=tpu", "device.options.a=[1.5]"], &["device.options", "an option is"]),
        (&["compile.overrides.a=[1]"], &["compile.overrides.a", "XLA option"]),
        (
            &["optimizer.name=sgd", "optimizer.momentum=1"],
            &["momentum=1: optimizer.momentum: found 1"],
        ),
        (
            &["optimizer.name=sgd", "optimizer.momentum=0", "optimizer.nesterov=true"],
            &["optimizer.nesterov: found true"],
        ),
        (&["schedule.name=step", "schedule.boundaries=[5, 5]"], &["schedule.boundaries", "rising"]),
        (&["schedule.name=step", "schedule.factor=0"], &["schedule.factor: found 0"]),
        (&["schedule.name=step", "schedule.boundaries=[]"], &["schedule.boundaries: missing"]),
        (&["schedule.warmup_epochs=-1"], &["schedule.warmup_epochs: found -1"]),
        (&["schedule.warmup=constant"], &["schedule.warmup_factor: missing"]),
        (&["schedule.warmup_factor=2"], &["schedule.warmup_factor: found 2", "0 to 1"]),
        (&["schedule.warmup=cubic"], &["schedule.warmup: found", "\"linear\", \"constant\""]),
        (&["schedule.scaling=sqr"], &["schedule.scaling: found \"sqr\"", "\"sqrt\"?"]),
        (&["schedule.total_steps=0"], &["schedule.total_steps: found 0", "1 or more"]),
        (&["schedule.name=polynomial", "schedule.power=0"], &["schedule.power: found 0"]),
        (&["schedule.name=wsd"], &["schedule.decay_steps: missing", "schedule.decay_epochs"]),
        (
            &["schedule.name=wsd", "schedule.decay_epochs=nan"],
            &["schedule.decay_epochs: found nan"],
        ),
        (&["schedule.name=piecewise"], &["schedule.boundaries: missing"]),
        (
            &["schedule.name=piecewise", "schedule.boundary_epochs=[2, 1]"],
            &["schedule.boundary_epochs: found [2.0, 1.0]", "rising order"],
        ),
        (
            &["schedule.name=piecewise", "schedule.boundaries=[1]", "schedule.factors=[1, 2]"],
            &["schedule.factors: found 2 factors for 1 boundary"],
        ),
        (
            &["schedule.name=piecewise", "schedule.boundaries=[1]", "schedule.factors=[-1]"],
            &["schedule.factors: found [-1.0]"],
        ),
        (&["optimizer.ema_decay=1"], &["optimizer.ema_decay: found 1", "below 1"]),
        (&["optimizer.clip_grad_norm=0"], &["optimizer.clip_grad_norm: found 0", "above 0"]),
        (&["schedule.peak=3e39"], &["schedule.peak: found 3e39", "to 3.4e38, which f32 holds"]),
        (&["schedule.peak=1e-46"], &["schedule.peak: found 1e-46", "above 0, from 1.2e-38"]),
        (
            &["schedule.base_lr=1e39", "schedule.base_batch=8", "train.precision=f64"],
            &["schedule.base_lr: found 1e39", "f32"],
        ),
        (&["optimizer.epsilon=1e-46"], &["--set optimizer.epsilon=1e-46", "above 0, from 1.2e-38"]),
        (
            &["optimizer.name=adam", "optimizer.epsilon=1e39", "train.precision=bf16"],
            &["optimizer.epsilon: found 1e39", "to 3.4e38, which f32 holds"],
        ),
        (
            &["optimizer.epsilon=1e-310", "train.precision=f64"],
            &["optimizer.epsilon: found 1e-310", "from 2.2e-308", "f64"],
        ),
        (&["optimizer.weight_decay=1e39"], &["optimizer.weight_decay: found 1e39", "from 0 to"]),
        (&["optimizer.clip_grad_norm=1e39"], &["optimizer.clip_grad_norm: found 1e39", "f32"]),
        (&["optimizer.clip_grad_norm=1e-39"], &["optimizer.clip_grad_norm: found 1e-39", "f32"]),
        (
            &["optimizer.name=lars", "optimizer.trust_coefficient=1e-40"],
            &["optimizer.trust_coefficient: found 1e-40", "f32"],
        ),
        (
            &["optimizer.weight_decay_exclude=['[a']"],
            &["optimizer.weight_decay_exclude: not a pattern"],
        ),
        (
            &["optimizer.name=lars", "optimizer.beta1=0.9", "optimizer.trust_coefficient=0"],
            &["optimizer.beta1: unknown key"],
        ),
        (
            &["optimizer.name=lars", "optimizer.trust_coefficient=0"],
            &["optimizer.trust_coefficient: found 0"],
        ),
        (&["optimizer.trust_exclude=[]"], &["optimizer.trust_exclude: unknown key"]),
        (&["model.label_smoothing=1"], &["model.label_smoothing: found 1", "below 1"]),
        (&["train.examples=0"], &["train.examples: found 0", "1 or more"]),
        (&["data.num_examples=0"], &["data.num_examples: found 0", "from 1"]),
        (&["data.source=synthetic", "data.classes=1"], &["data.classes: found 1", "from 2"]),
        (
            &["data.source=synthetic", "data.image=[3, 0]"],
            &["data.image: found 0", "a whole number from 1"],
        ),
        (
            &["model.name=resnet", "model.batch_norm_group=0"],
            &["model.batch_norm_group: found 0", "1 or more"],
        ),
        (
            &["model.name=resnet", "model.preset=resnet21"],
            &["model.preset: found", "resnet21", "\"resnet20\""],
        ),
        (&["data.source=synthetic", "data.features=0"], &["data.features: found 0"]),
        (&["data.source=cifar10", "data.augment=1"], &["data.augment", "true or false"]),
        (
            &["data.source=image_folder", "data.eval_resize=128"],
            &["data.eval_resize: found 128", "from 224"],
        ),
        (
            &["data.source=image_folder", "data.on_broken=ignore"],
            &["data.on_broken: found \"ignore\"", "\"stop\", \"skip\""],
        ),
        (&["data.source=idx", "data.classes=257"], &["data.classes: found 257", "1 to 256"]),
        (
            &["data.source=synthetic", "data.image=[1024, 1025]"],
            &["data.image: found [1024, 1025]", "whose product is from 1"],
        ),
        (&["data.source=tokens"], &["/runs/good.toml:5: data.vocab_size: missing"]),
        (&["data.source=tokens", "data.vocab_size=65537"], &["data.vocab_size", "1 to 65536"]),
        (
            &["data.source=tokens", "data.vocab_size=9", "data.dtype=u8"],
            &["data.dtype", "\"u16\", \"u32\""],
        ),
        (&["data.source=text", "data.context=0"], &["data.context: found 0", "from 1"]),
        (
            &["data.source=text", "data.eval_fraction=1"],
            &["data.eval_fraction: found 1", "below 1"],
        ),
        (&["data.source=text", "data.extensions=rs"], &["data.extensions: found string", "a list"]),
    ];
    for (sets, expected) in cases {
        let error = parse(GOOD, sets).expect_err(&format!("{sets:?}")).to_string();
        for fragment in *expected {
            assert!(error.contains(fragment), "{sets:?}: {fragment:?} is not in: {error}");
        }
    }
}

#[test]
fn all_errors_are_reported_at_once_in_order_with_their_locations() {
    let text = r#"
[model]
name = "mlp"
hidden = "wide"
dropot = 0.1
[data]
source = "tokens"
eval_fraction = 2
[trian]
a = 1
[train]
global_batch = 66
steps = -1
num_microbatches = 0
precision = "f16"
[optimizer]
name = "adamw"
epsilon = 1e-46
beta1 = 1
weight_decay = "much"
[schedule]
name = "cosin"
peek = 1
"#;
    let sets = ["train.steps", "mesh.data=3", "train.stepz=1", "mesh.data=1.5"];
    let error = parse(text, &sets).unwrap_err().to_string();
    let expected = [
        "16 errors in the configuration:",
        "  /runs/good.toml:4: model.hidden: found string \"wide\"; allowed: a list",
        "  /runs/good.toml:5: model.dropot: unknown key, did you mean \"dropout\"?",
        "  /runs/good.toml:6: data.path: missing",
        "  /runs/good.toml:6: data.vocab_size: missing; allowed: a whole number from 1",
        "  /runs/good.toml:8: data.eval_fraction: found 2",
        "  /runs/good.toml:9: trian: unknown key, did you mean \"train\"?",
        "  /runs/good.toml:13: train.steps: found -1; allowed: a whole number from 1 to 100000000",
        "  /runs/good.toml:14: train.num_microbatches: found 0",
        "  /runs/good.toml:15: train.precision: found \"f16\"",
        "  /runs/good.toml:19: optimizer.beta1: found 1",
        "  /runs/good.toml:20: optimizer.weight_decay: found string \"much\"; allowed: a number",
        "  /runs/good.toml:22: schedule.name: found \"cosin\", did you mean \"cosine\"?",
        "  /runs/good.toml:23: schedule.peek: unknown key, did you mean \"peak\"?",
        "  --set train.steps: write it as section.key=value",
        "  --set train.stepz=1: train.stepz: unknown key, did you mean \"steps\"?",
        "  --set mesh.data=1.5: mesh.data: found floating point `1.5`",
    ];
    let lines: Vec<_> = error.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{error}");
    // The optimizer's constants cannot be checked against an unknown precision.
    assert!(!error.contains("epsilon"), "{error}");
    for (line, expected) in lines[1..].iter().zip(&expected[1..]) {
        assert!(line.starts_with(expected), "{expected}: {error}");
    }
    assert_eq!(lines[0], format!("{} errors in the configuration:", expected.len() - 1));
}

#[test]
fn consequences_of_another_error_are_not_reported() {
    let cases: &[(&[&str], usize)] = &[
        (&["train.epochs=many"], 1),
        (&["train.batch_per_replica=0", "mesh.data=7"], 1),
        (&["mesh.data=0"], 1),
        (&["parallel.zero=4"], 1),
        (&["parallel.zero=3", "mesh.fsdp=0"], 1),
        (&["schedule.base_lr=x"], 1),
        (&["schedule.warmup_epochs=x", "schedule.warmup=constant"], 1),
        (&["schedule.name=wsd", "schedule.decay_steps=0"], 1),
        (&["schedule.name=piecewise", "schedule.boundaries=3", "schedule.factors=[1]"], 1),
        (&["optimizer.name=sgd", "optimizer.momentum=x", "optimizer.nesterov=true"], 1),
        (&["device.backend=gpu", "device.options.memory_fraction=7"], 1),
        (&["data.source=synthetic_tokens", "data.vocab_siz=7"], 1),
        (&["data.source=image_folder", "data.image_size=0", "data.eval_resize=1"], 1),
        (&["train.check_lockstep_every=x", "train.steps_per_launch=60"], 1),
    ];
    for (sets, expected) in cases {
        let error = parse(GOOD, sets).unwrap_err();
        let Error::Invalid(complaints) = &error else { panic!("{error}") };
        assert_eq!(complaints.len(), *expected, "{error}");
    }
}

#[test]
fn messages_stay_short_for_long_quotes() {
    let long = "x".repeat(200_000);
    let texts = [
        format!("{long} = 1\n{GOOD}"),
        GOOD.replace("steps = 500", &format!("{long} = 500")),
        GOOD.replace("\"mlp\"", &format!("\"{long}\"")),
        GOOD.replace("500", &format!("\"{long}\"")),
        GOOD.replace("peak = 6e-4", &long),
        GOOD.replace("[32, 16]", &format!("[{}]", "1, ".repeat(60_000))),
        GOOD.replace("\"cosine\"", &format!("\"step\"\nboundaries = [{}]", "1, ".repeat(60_000))),
    ];
    for text in texts {
        let message = parse(&text, &[]).unwrap_err().to_string();
        assert!(message.len() < 1500, "{} bytes: {}", message.len(), &message[..400]);
    }
    for key in ["device.backend", "train.steps", "model.name", "schedule.lr", "compile.overrides"] {
        let message = parse(GOOD, &[&format!("{key}={long}")]).unwrap_err().to_string();
        assert!(message.len() < 1500, "{} bytes: {}", message.len(), &message[..400]);
    }
    let many: String = (0..1000).map(|index| format!("unknown_{index} = 1\n")).collect();
    let message = parse(&format!("{GOOD}{many}"), &[]).unwrap_err().to_string();
    assert!(message.starts_with("1000 errors") && message.ends_with("and 980 more"), "{message}");
}

#[test]
fn counts_have_limits_far_beyond_any_run() {
    let boundaries = format!("schedule.boundaries={:?}", (0..1001).collect::<Vec<_>>());
    let cases: &[(&[&str], &str)] = &[
        (&[&format!("model.hidden={:?}", [1; 1025])], "found 1025 of them; allowed: at most 1024"),
        (&["model.name=gpt", "model.num_layers=1025"], "from 1 to 1024"),
        (
            &["model.name=gpt", "model.loss_chunk_rows=0"],
            "model.loss_chunk_rows: found 0; allowed: a whole number from 1 to 1048576",
        ),
        (&["train.steps=100000001"], "from 1 to 100000000"),
        (&["train.num_microbatches=65537"], "from 1 to 65536"),
        (&["train.microbatch=65537"], "from 1 to 65536"),
        (
            &["train.global_batch=16777216", "train.microbatch=16"],
            "1048576 microbatches of train.microbatch = 16, and 65536 is the most; set \
             train.microbatch to 256 or more",
        ),
        (&["train.steps_per_launch=65537"], "from 1 to 65536"),
        (&["train.global_batch=16777217"], "from 1 to 16777216"),
        (&["mesh.data=131073"], "\"auto\" or a whole number from 1 to 131072"),
        (&["schedule.name=step", &boundaries], "found 1001 of them; allowed: at most 1000"),
    ];
    for (sets, expected) in cases {
        let error = parse(GOOD, sets).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn deep_nesting_is_one_error() {
    let deep = |open: &str, close: &str| open.repeat(50_000) + &close.repeat(50_000);
    for text in [
        format!("a = {}", deep("[", "")),
        format!("a = {}", deep("[", "]")),
        format!("a = {}", deep("[\n", "")),
        format!("a = {}", deep("{ b = ", "}")),
        format!("{}b = 1", "a.".repeat(50_000)),
        format!("[{}b]\nc = 1", "a.".repeat(50_000)),
    ] {
        let error = parse(&text, &[]).unwrap_err().to_string();
        let expected = "not valid TOML: lists or tables are nested too deeply";
        assert!(error.ends_with(expected) && !error.contains("errors"), "{error}");
    }
    let error =
        parse(GOOD, &[&format!("model.hidden={}", deep("[", "]"))]).unwrap_err().to_string();
    assert!(error.contains("the value is not valid TOML") && error.len() < 1000, "{error}");
    // Equal errors are listed once.
    let error = parse("a = [[[[", &[]).unwrap_err().to_string();
    assert_eq!(error.matches("unclosed array").count(), 1, "{error}");
}

#[test]
fn unreadable_and_broken_files_are_named() {
    let load = |path: &Path| Config::load(path, &[]).unwrap_err().to_string();
    let error = load(Path::new("/no/such.toml"));
    assert!(error.contains("/no/such.toml"), "{error}");
    let error = load(Path::new("/dev/zero"));
    assert!(error.contains("/dev/zero: it is a device, not a regular file"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, contents: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, contents).unwrap();
        path
    };
    let error = load(&file("large.toml", &vec![b'\n'; (1 << 20) + 1]));
    assert!(error.contains("large.toml: it has more than 1048576 bytes"), "{error}");
    let error = load(&file("binary.toml", b"[model]\nname = \"\xff\"\n"));
    assert!(error.contains("binary.toml: line 2 is not UTF-8"), "{error}");
    let error = parse("[train\n", &[]).unwrap_err().to_string();
    assert!(error.contains("/runs/good.toml:1: not valid TOML"), "{error}");
    // Deep nesting must not overflow the stack.
    let deep = format!("a = {}", "[".repeat(100_000));
    assert!(parse(&deep, &[]).unwrap_err().to_string().contains("not valid TOML"));
    let dotted = format!("{GOOD}{}a = 1", "a.".repeat(100_000));
    parse(&dotted, &[]).unwrap_err();
}
