//! What `--set` and `--unset` change, and what goes together.

use std::path::Path;

use lockstep::config::{
    AutoOr, BatchSize, DataConfig, Length, ModelConfig, OnNonfinite, OptionValue, Peak,
    PrecisionConfig, Scaling, Shape, Span, UpdateRule, Warmup, WarmupKind,
};

use super::{GOOD, good, parse};

#[test]
fn set_reaches_keys_and_clears_the_other_of_a_pair() {
    let config = good(&["train.epochs=3", "train.batch_per_replica=8", "train.on_nonfinite=skip"]);
    assert_eq!(config.train.length, Length::Epochs(3));
    assert_eq!(config.train.batch, BatchSize::PerReplica(8));
    assert_eq!(config.train.on_nonfinite, OnNonfinite::Skip);

    let config = good(&["schedule.base_lr=0.1", "schedule.base_batch=256"]);
    assert_eq!(
        config.schedule.peak,
        Peak::Scaled { base_lr: 0.1, base_batch: 256, scaling: Scaling::Linear }
    );
    let config = good(&["schedule.base_lr=1", "schedule.base_batch=8", "schedule.scaling=none"]);
    assert_eq!(
        config.schedule.peak,
        Peak::Scaled { base_lr: 1.0, base_batch: 8, scaling: Scaling::None }
    );
    let config = good(&["schedule.warmup=constant", "schedule.warmup_factor=0.25"]);
    let warmup =
        Warmup { kind: WarmupKind::Constant, factor: 0.25, ..Warmup::linear(Span::Steps(100)) };
    assert_eq!(config.schedule.warmup, warmup);
    let config = good(&["train.examples=640", "schedule.warmup_examples=64"]);
    assert_eq!(config.train.length, Length::Examples(640));
    assert_eq!(config.schedule.warmup.length, Span::Examples(64));
    let config = good(&["schedule.warmup_epochs=0.5", "train.precision = f64"]);
    assert_eq!(config.schedule.warmup, Warmup::linear(Span::Epochs(0.5)));
    // For any value in the file.
    assert_eq!(good(&["schedule.warmup=none"]).schedule.warmup, Warmup::NONE);
    for none in
        ["schedule.warmup_steps=0", "schedule.warmup_epochs=0", "schedule.warmup_examples=0"]
    {
        assert_eq!(good(&[none]).schedule.warmup, Warmup::NONE);
        assert_eq!(good(&[none, "schedule.warmup=constant"]).schedule.warmup, Warmup::NONE);
    }
    assert_eq!(config.train.precision, PrecisionConfig::F64);

    // Values that f64 can represent but f32 cannot.
    good(&["train.precision=f64", "optimizer.epsilon=1e-46", "optimizer.clip_grad_norm=1e39"]);
    // A weight decay too small to have an effect is valid.
    good(&["optimizer.weight_decay=1e-46"]);

    let config = good(&["train.epochs=3", "train.steps=7", "train.steps=8", "model.hidden=[]"]);
    assert_eq!(config.train.length, Length::Steps(8));
    let ModelConfig::Mlp(mlp) = &config.model else { panic!("another model") };
    assert!(mlp.hidden.is_empty());

    let sets = ["mesh.data=auto", "compile.overrides.xla_a=true", "compile.overrides.xla_b=word"];
    let config = good(&sets);
    assert_eq!(config.mesh.on_devices(8).unwrap().num_replicas(), 8);
    assert_eq!(config.compile.overrides["xla_a"], OptionValue::Bool(true));
    assert_eq!(config.compile.overrides["xla_b"], OptionValue::Text("word".into()));
}

#[test]
fn the_stage_of_zero_is_set_only_for_sharded_state() {
    let stage = |sets: &[&str]| {
        let parallel = good(sets).parallel;
        (parallel.zero, parallel.zero_stage())
    };
    assert_eq!(stage(&[]), (None, 1));
    assert_eq!(stage(&["mesh.fsdp=4"]), (None, 1));
    for zero in 1..=3 {
        let set = format!("parallel.zero={zero}");
        assert_eq!(stage(&["mesh.fsdp=4", &set]), (Some(zero), zero));
        // `auto` may turn out to be 1.
        assert_eq!(stage(&["mesh.fsdp=auto", &set]), (Some(zero), zero));
    }
    let file = format!("{GOOD}fsdp = 4\n[parallel]\nzero = 3\n");
    assert_eq!(parse(&file, &[]).unwrap().parallel.zero, Some(3));
    let error = parse(&file, &["mesh.fsdp=1"]).unwrap_err().to_string();
    assert!(error.starts_with("/runs/good.toml:24: parallel.zero: stage 3"), "{error}");
    let text = good(&[]).to_toml().unwrap();
    assert!(text.contains("\n# zero is not set: stage 1 if mesh.fsdp is more than 1\n"), "{text}");
}

#[test]
fn context_parallelism_has_replicas_and_cuts_rows_itself() {
    for (sets, expected) in [
        (&["parallel.context=true"][..], "set mesh.tensor to 2 or more, or leave out"),
        (
            &["parallel.context=true", "mesh.tensor=2", "parallel.sequence=true"],
            "leave it out (--unset parallel.sequence)",
        ),
    ] {
        let error = parse(GOOD, sets).unwrap_err().to_string();
        assert!(error.contains(expected), "{sets:?}: {error}");
    }
    good(&["parallel.context=true", "mesh.tensor=2"]);
    good(&["parallel.context=false"]);
}

#[test]
fn local_steps_are_those_of_whole_replicas() {
    const LOCAL: &str = "sync.every=10";
    for (sets, expected) in [
        (&["sync.outer_momentum=0.5"][..], "there are no outer steps: sync.every = 1; set sync"),
        (&["sync.outer_learning_rate=1"], "leave out sync.outer_learning_rate (--unset"),
        (&[LOCAL, "mesh.data=1"], "there is nobody to meet; set mesh.data to 2 or more"),
        (&[LOCAL, "mesh.fsdp=2"], "each replica holds the whole model; set mesh.fsdp to 1"),
        (&[LOCAL, "mesh.fsdp=auto"], "set mesh.fsdp to 1"),
        (&[LOCAL, "mesh.tensor=2"], "set mesh.tensor to 1"),
        (&[LOCAL, "mesh.pipeline=2"], "set mesh.pipeline to 1"),
        (&[LOCAL, "parallel.reduce_dtype=bf16"], "no gradients are sent; leave it out (--unset p"),
        (&[LOCAL, "parallel.compression=top_k"], "leave it out (--unset parallel.compression)"),
        (&[LOCAL, "parallel.all_reduce=ring"], "leave it out (--unset parallel.all_reduce)"),
        (&[LOCAL, "parallel.fabric=links.json"], "leave it out (--unset parallel.fabric)"),
        (&[LOCAL, "optimizer.ema_decay=0.9"], "leave it out (--unset optimizer.ema_decay)"),
        (&[LOCAL, "observe.layers_every=9"], "set observe.layers_every to 0, or sync.every to 1"),
        (&[LOCAL, "observe.noise_scale_every=9"], "set observe.noise_scale_every to 0, or sync.e"),
        (&["sync.every=0"], "sync.every"),
    ] {
        let error = parse(GOOD, sets).unwrap_err().to_string();
        assert!(error.contains(expected), "{sets:?}: {error}");
    }
    good(&[LOCAL, "sync.outer_momentum=0", "mesh.data=4"]);
    good(&[LOCAL]);
}

#[test]
fn noise_is_measured_of_two_parts_of_a_batch() {
    const NOISE: &str = "observe.noise_scale_every=9";
    let one = [NOISE, "mesh.data=1"];
    let sharded = [&one[..], &["mesh.fsdp=2"]].concat();
    for (sets, expected) in [
        (
            &[][..],
            "set mesh.data to 2 or more, or train.num_microbatches to 2 or more, or observe.",
        ),
        (&["mesh.fsdp=2", "parallel.zero=2"], "or parallel.zero to 1, or observe.noise_scale_ev"),
        (&["mesh.data=2", "parallel.compression=top_k"], "leave out parallel.compression (--unset"),
    ] {
        let error = parse(GOOD, &[&one, sets].concat()).unwrap_err().to_string();
        assert!(error.contains(expected), "{sets:?}: {error}");
        assert!(error.contains("observe.noise_scale_every"), "{error}");
    }
    good(&[&one[..], &["train.num_microbatches=2"]].concat());
    good(&[&sharded[..], &["parallel.zero=1"]].concat());
    good(&[&sharded[..], &["parallel.zero=3", "train.num_microbatches=2"]].concat());
    good(&[NOISE, "mesh.data=auto"]);
    good(&[NOISE, "mesh.data=2", "mesh.fsdp=2", "parallel.zero=3"]);
}

#[test]
fn compression_is_of_one_kind_and_sends_something() {
    for (sets, expected) in [
        (&["parallel.top_k_block=8"][..], "only parallel.compression = \"top_k\" reads it"),
        (
            &["parallel.compression=top_k", "parallel.power_sgd_rank=1"],
            "only parallel.compression = \"power_sgd\" reads it",
        ),
        (
            &["parallel.compression=top_k", "parallel.reduce_dtype=int8"],
            "leave out one of the two (--unset parallel.reduce_dtype)",
        ),
        (
            &["parallel.compression=power_sgd", "mesh.data=1", "mesh.fsdp=4"],
            "nothing would be saved; set mesh.data to 2 or more",
        ),
        (
            &["parallel.gather_exact=['*norm*']", "mesh.fsdp=2"],
            "leave out parallel.gather_exact (--unset parallel.gather_exact)",
        ),
        (&["parallel.gather_dtype=int8"], "parameters are gathered over mesh.fsdp replicas, but"),
    ] {
        let error = parse(GOOD, sets).unwrap_err().to_string();
        assert!(error.contains(expected), "{sets:?}: {error}");
    }
    // One replica sends nothing, and trains as several do.
    good(&["parallel.compression=top_k", "mesh.data=1"]);
    good(&["parallel.gather_dtype=int8", "mesh.fsdp=auto"]);
}

#[test]
fn unset_takes_a_key_back() {
    let sharded = GOOD.replace("data = 4\n", "data = 4\nfsdp = 2\n[parallel]\nzero = 2\n");
    assert_eq!(parse(&sharded, &[]).unwrap().parallel.zero, Some(2));
    let refused = parse(&sharded, &["mesh.fsdp=1"]).unwrap_err().to_string();
    assert!(refused.contains("leave out parallel.zero (--unset parallel.zero)"), "{refused}");
    let whole = parse(&sharded, &["mesh.fsdp=1", "--unset parallel.zero"]).unwrap();
    assert_eq!((whole.parallel.zero, whole.mesh.fsdp), (None, AutoOr::Value(1)));

    // Later arguments count, as with --set alone.
    let beta1 = |sets: &[&str]| match good(sets).optimizer.rule {
        UpdateRule::AdamW(adamw) => adamw.beta1,
        rule => panic!("{rule:?}"),
    };
    assert_eq!((beta1(&[]), beta1(&["--unset optimizer.beta1"])), (0.8, 0.9));
    assert_eq!(beta1(&["--unset optimizer.beta1", "optimizer.beta1=0.7"]), 0.7);
    assert_eq!(beta1(&["optimizer.beta1=0.7", "--unset optimizer.beta1"]), 0.9);
    // Options in a table of a section, keys that are not known, and a section that loses its last
    // key.
    let options = ["compile.overrides.a=1", "--unset compile.overrides.a"];
    assert!(good(&options).compile.overrides.is_empty());
    let misspelled = GOOD.replace("steps = 500", "steps = 500\nstepz = 3");
    assert!(parse(&misspelled, &[]).is_err());
    assert!(parse(&misspelled, &["--unset train.stepz"]).is_ok());
    assert_eq!(good(&["--unset mesh.data"]).mesh.data, AutoOr::Auto);
    // `--unset` of a key that --set has cleared already.
    assert_eq!(good(&["train.epochs=2", "--unset train.steps"]).train.length, Length::Epochs(2));
    // A path in the file that comes back is again relative to the file.
    let text = GOOD.replace("[mesh]", "[cluster]\ntoken_file = \"token\"\n[mesh]");
    let token = |sets: &[&str]| parse(&text, sets).unwrap().cluster.token_file;
    assert_eq!(token(&[]).as_deref(), Some(Path::new("/runs/token")));
    assert_eq!(token(&["cluster.token_file=here", "--unset cluster.token_file"]), None);

    for (unset, expected) in [
        ("train.stepz", "--unset train.stepz: unknown key, did you mean \"steps\"?; known here: "),
        ("trian.steps", "--unset trian.steps: unknown key, did you mean \"train\"?"),
        ("train.epochs", "--unset train.epochs: it is not set, so that nothing can be taken back"),
        ("optimizer.beta2", "did you mean \"optimizer.beta1\"?; set in [optimizer]: "),
        ("parallel.zero", "set in [parallel]: none"),
        ("compile.overrides.b", "it is not set"),
        ("train", "write it as section.key, for example --unset parallel.zero"),
        ("train.steps=3", "write it as section.key, for example"),
        ("train.steps", "missing; allowed"),
        ("train..", "write it as section.key"),
    ] {
        let error = parse(GOOD, &[&format!("--unset {unset}")]).unwrap_err().to_string();
        assert!(error.contains(expected), "{unset}: {error}");
    }
}

#[test]
fn setting_a_choice_clears_the_keys_of_the_others() {
    let config = good(&["optimizer.momentum=0.5", "optimizer.name=sgd", "schedule.name=constant"]);
    let UpdateRule::Sgd(sgd) = &config.optimizer.rule else { panic!("{:?}", config.optimizer) };
    assert_eq!((sgd.momentum, sgd.weight_decay), (0.5, 0.1));
    assert!(matches!(config.schedule.shape, Shape::Constant(_)));
    let config = good(&["data.source=synthetic"]);
    assert!(matches!(config.data, DataConfig::Synthetic(_)));
}
