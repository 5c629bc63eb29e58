//! What is read from a file, written to one, and left at its default.

use std::path::Path;

use lockstep::config::{
    AutoOr, Backend, BatchSize, Config, DataConfig, Length, ModelConfig, OnNonfinite, Peak,
    PrecisionConfig, Span, UpdateRule, Warmup, known_keys,
};

use super::{GOOD, good, model_section, parse};

#[test]
fn a_preset_sets_the_keys_that_are_not_set() {
    let gpt = |more: &[&str]| {
        let text = GOOD.replace(&model_section(), "[model]\nname = \"gpt\"\n");
        Config::parse(
            &text,
            Path::new("/runs/good.toml"),
            &more.iter().map(|set| set.to_string()).collect::<Vec<_>>(),
        )
    };
    let read = |more: &[&str]| match gpt(more).unwrap().model {
        ModelConfig::Gpt(gpt) => gpt.model(),
        other => panic!("{other:?}"),
    };
    assert_eq!((read(&[]).width, read(&[]).vocabulary), (128, 256));
    let large = read(&["model.preset=gpt2-774m", "model.num_layers=2", "model.scan_layers=true"]);
    assert_eq!((large.num_layers, large.width, large.scan_layers), (2, 1280, true));
    let error = gpt(&["model.num_heads=3"]).unwrap_err().to_string();
    assert!(error.contains("divides the width, 128"), "{error}");
    let error = gpt(&["model.preset=gpt2-124"]).unwrap_err().to_string();
    assert!(error.contains("gpt2-124m"), "{error}");
}

#[test]
fn values_and_defaults_are_read() {
    let config = good(&[]);
    let ModelConfig::Mlp(mlp) = &config.model else { panic!("another model") };
    assert_eq!(
        (mlp.hidden.as_slice(), mlp.dropout, mlp.layer_norm),
        ([32, 16].as_slice(), 0.0, true)
    );
    assert_eq!(config.train.batch, BatchSize::Global(64));
    assert_eq!(config.train.length, Length::Steps(500));
    assert_eq!((config.train.seed, config.train.eval_every), (0, 0));
    assert_eq!(
        (config.train.num_microbatches, config.train.check_lockstep_every),
        (AutoOr::Auto, 50)
    );
    assert_eq!(config.train.on_nonfinite, OnNonfinite::Stop);
    assert_eq!(config.train.precision, PrecisionConfig::F32);
    let UpdateRule::AdamW(adamw) = &config.optimizer.rule else { panic!("{:?}", config.optimizer) };
    assert_eq!((adamw.beta1, adamw.beta2, adamw.weight_decay), (0.8, 0.999, 0.1));
    assert_eq!(config.schedule.peak, Peak::Rate(6e-4));
    assert_eq!(config.schedule.warmup, Warmup::linear(Span::Steps(100)));
    assert_eq!(config.mesh.data, AutoOr::Value(4));
    assert_eq!(config.parallel.bucket_bytes, AutoOr::Auto);
    assert_eq!(config.device.backend, Backend::Cpu);
    assert!(config.compile.cache && config.compile.overrides.is_empty());
    assert_eq!(config.split_batch(4).unwrap().microbatch(), 16);
}

#[test]
fn options_have_the_types_of_the_plugin() {
    let sets = [
        "device.backend=cuda",
        "device.options.memory_fraction=1",
        "device.options.preallocate=false",
        "device.options.allocator=bfc",
        "device.options.visible_devices=[1, 0]",
        "device.options.collective_memory_size=1048576",
    ];
    let device = good(&sets).device;
    // An integer is also valid as a fraction.
    assert_eq!(device.memory_fraction(), Some(1.0));
    let told: Vec<_> = device.options.iter().map(|(name, o)| format!("{name}={o}")).collect();
    let expected = [
        "allocator=\"bfc\"",
        "collective_memory_size=1048576",
        "memory_fraction=1.0",
        "preallocate=false",
        "visible_devices=[1, 0]",
    ];
    assert_eq!(told, expected);
    assert_eq!(good(&[]).device.memory_fraction(), None);
    // Options that this program sets itself may be given where the plugin invents the other hosts.
    let mock = ["backend=cuda", "options.enable_mock_nccl=true", "options.num_nodes=8"];
    assert_eq!(
        good(&mock.map(|set| format!("device.{set}")).each_ref().map(|s| &**s))
            .device
            .options
            .len(),
        2
    );
}

#[test]
fn paths_are_relative_to_the_file() {
    let DataConfig::Digits(digits) = good(&[]).data else { panic!("digits") };
    assert_eq!(digits.path, Path::new("/runs/data/digits.csv.gz"));
    let text = GOOD.replace("data/digits", "/a/b") + "[device]\nbackend = \"plugins/p.so\"";
    let config = parse(&text, &[]).unwrap();
    let DataConfig::Digits(digits) = &config.data else { panic!("digits") };
    assert_eq!(digits.path, Path::new("/a/b.csv.gz"));
    assert_eq!(config.device.backend, Backend::Path("/runs/plugins/p.so".into()));
}

#[test]
fn paths_on_the_command_line_are_relative_to_the_working_directory() {
    let here = std::env::current_dir().unwrap();
    let config = good(&["data.path=some/b.gz", "device.backend=./p.so"]);
    let DataConfig::Digits(digits) = &config.data else { panic!("digits") };
    assert_eq!(digits.path, here.join("some/b.gz"));
    assert_eq!(config.device.backend, Backend::Path(here.join("p.so")));
    // Each path separately.
    let tokens = GOOD.replace("\"digits\"", "\"tokens\"\nvocab_size = 9\neval_path = \"b\"");
    let DataConfig::Tokens(config) = parse(&tokens, &["data.path=a"]).unwrap().data else {
        panic!("tokens")
    };
    assert_eq!((config.path, config.eval_path), (here.join("a"), Some("/runs/b".into())));
    let DataConfig::Tokens(config) = parse(&tokens, &["data.eval_path=../a"]).unwrap().data else {
        panic!("tokens")
    };
    assert_eq!(config.path, Path::new("/runs/data/digits.csv.gz"));
    assert_eq!(config.eval_path, Some(here.join("../a")));
}

#[test]
fn a_tilde_is_the_home_directory_in_files_and_arguments() {
    let home = Path::new(&std::env::var_os("HOME").expect("tests have a home")).to_owned();
    let in_file = GOOD.replace("data/digits", "~/data/digits");
    for config in [parse(&in_file, &[]), parse(GOOD, &["data.path=~/data/digits.csv.gz"])] {
        let DataConfig::Digits(digits) = config.unwrap().data else { panic!("digits") };
        assert_eq!(digits.path, home.join("data/digits.csv.gz"));
    }
    assert_eq!(good(&["device.backend=~/p.so"]).device.backend, Backend::Path(home.join("p.so")));
}

#[test]
fn text_has_defaults() {
    let DataConfig::Text(text) = good(&["data.source=text", "data.path=src"]).data else {
        panic!("text")
    };
    assert_eq!((text.path.ends_with("src"), text.context), (true, 256));
    assert!(text.extensions.is_empty() && text.eval_fraction == 0.1);
}

#[test]
fn synthetic_tokens_need_a_vocabulary() {
    let synthetic = ["data.source=synthetic_tokens", "data.vocab_size=300"];
    let DataConfig::SyntheticTokens(tokens) = good(&synthetic).data else {
        panic!("another source")
    };
    assert_eq!((tokens.num_examples, tokens.vocab_size, tokens.context), (4096, 300, 1024));
    let error = parse(GOOD, &synthetic[..1]).unwrap_err().to_string();
    assert!(error.contains("data.vocab_size"), "{error}");
    let error = parse(GOOD, &[synthetic[0], "data.vocab_size=0"]).unwrap_err().to_string();
    assert!(error.contains("a whole number from 1"), "{error}");
}

#[test]
fn tokens_are_held_out_in_only_one_way() {
    let tokens = ["data.source=tokens", "data.vocab_size=70000", "data.dtype=u32"];
    let DataConfig::Tokens(config) = good(&tokens).data else { panic!("tokens") };
    assert_eq!((config.eval_fraction(), config.context), (0.1, 1024));
    let eval_path = [&tokens[..], &["data.eval_path=/runs/b.bin"]].concat();
    let DataConfig::Tokens(config) = good(&eval_path).data else { panic!("tokens") };
    assert_eq!(config.eval_path.as_deref(), Some(Path::new("/runs/b.bin")));
    let text = GOOD.replace("\"digits\"", "\"tokens\"\nvocab_size = 9\neval_path = \"b\"");
    let with_both = text.replace("eval_path", "eval_fraction = 0.5\neval_path");
    let message = parse(&with_both, &[]).unwrap_err().to_string();
    assert!(message.contains("cannot be combined with data.eval_path"), "{message}");
    let DataConfig::Tokens(config) = parse(&text, &["data.eval_fraction=0.5"]).unwrap().data else {
        panic!("tokens")
    };
    assert_eq!((config.eval_path, config.eval_fraction), (None, Some(0.5)));
}

#[test]
fn a_written_configuration_reads_back_equal() {
    let variants: [&[&str]; 26] = [
        &["parallel.host_collectives=true"],
        &["mesh.fsdp=4", "parallel.zero=3"],
        &["mesh.fsdp=16", "parallel.scatter_line=4"],
        &["mesh.fsdp=auto", "parallel.scatter_line=3"],
        &["mesh.fsdp=auto", "parallel.bucket_bytes=0"],
        &["optimizer.name=lars", "optimizer.trust_exclude=['*.bias']", "optimizer.ema_decay=0.99"],
        &["optimizer.name=lamb", "optimizer.weight_decay_exclude=[]", "model.label_smoothing=0.1"],
        &["optimizer.name=adam", "optimizer.clip_grad_norm=1", "train.num_microbatches=2"],
        &[],
        &["train.epochs=3", "optimizer.name=sgd", "schedule.base_lr=0.1", "schedule.base_batch=32"],
        &["data.source=synthetic", "mesh.data=auto", "device.backend=/p.so"],
        &["schedule.name=step", "schedule.boundary_epochs=[30, 60.5]", "train.examples=90000"],
        &["schedule.name=polynomial", "schedule.power=3", "schedule.total_epochs=2.5"],
        &["schedule.name=inverse_sqrt", "schedule.warmup=constant", "schedule.warmup_factor=0.1"],
        &["schedule.name=wsd", "schedule.decay_examples=6400", "schedule.decay_shape=sqrt"],
        &[
            "schedule.name=piecewise",
            "schedule.boundaries=[0, 10]",
            "schedule.factors=[1, 0.5]",
            "schedule.interpolation=constant",
        ],
        &[
            "schedule.base_lr=0.1",
            "schedule.base_batch=32",
            "schedule.scaling=sqrt",
            "data.num_examples=1437",
            "schedule.warmup_examples=640",
        ],
        &["data.source=text", "data.path=a", "data.extensions=['rs']", "data.context=64"],
        &["data.source=tokens", "data.vocab_size=70000", "data.dtype=u32", "data.eval_path=b"],
        &["data.source=tokens", "data.vocab_size=256", "data.eval_fraction=0.5"],
        &["data.source=cifar10", "data.augment=false"],
        &["data.source=image_folder", "data.eval_path=v", "data.on_broken=skip"],
        &["data.source=idx", "data.flat=true", "data.classes=47"],
        &["data.source=synthetic", "data.image=[3, 32, 32]", "model.name=resnet"],
        &["model.name=resnet", "model.preset=resnet50", "model.zero_init_last_scale=true"],
        &["compile.overrides.a=1", "compile.overrides.b=0.5", "schedule.warmup_epochs=2"],
    ];
    for sets in variants {
        let config = good(sets);
        let text = config.to_toml().unwrap();
        let again = Config::parse(&text, Path::new("/elsewhere/config.toml"), &[]);
        assert_eq!(again.unwrap_or_else(|error| panic!("{error}\n{text}")), config);
    }
}

#[test]
fn the_examples_are_valid_and_read_back_equal() {
    let mut num_read = 0;
    for dir in ["examples", "benches"] {
        for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(dir)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                let config = Config::load(&path, &[]).unwrap_or_else(|error| panic!("{error}"));
                let text = config.to_toml().unwrap();
                let again = Config::parse(&text, Path::new("/elsewhere/config.toml"), &[]);
                assert_eq!(again.unwrap_or_else(|error| panic!("{error}\n{text}")), config);
                assert_eq!(config.to_toml().unwrap(), text);
                num_read += 1;
            }
        }
    }
    assert!(num_read > 3);
}

#[test]
fn values_derived_from_other_keys_are_written() {
    let text = |sets: &[&str]| good(sets).to_toml().unwrap();
    let gpt = GOOD.replace(&model_section(), "[model]\nname = \"gpt\"\npreset = \"gpt2-124m\"\n");
    let gpt = parse(&gpt, &["model.num_layers=3"]).unwrap().to_toml().unwrap();
    for line in ["num_layers = 3", "width = 768", "num_heads = 12", "vocabulary = 50257"] {
        assert!(gpt.contains(&format!("\n{line}\n")), "{line}: {gpt}");
    }
    let images = text(&["data.source=image_folder", "data.image_size=56"]);
    assert!(
        images.contains("\neval_fraction = 0.1\nimage_size = 56\neval_resize = 64\n"),
        "{images}"
    );
    // Keys that are not set are listed in comments, unless another key replaces them.
    let steps = text(&[]);
    assert!(
        steps.contains("\n# clip_grad_norm is not set: gradients are not clipped\n"),
        "{steps}"
    );
    assert!(steps.contains("\n# total_steps is not set: the end of the run\n"), "{steps}");
    assert!(steps.contains("\nepsilon = 1e-8\n"), "{steps}");
    let epochs = text(&["schedule.total_epochs=2", "optimizer.clip_grad_norm=1"]);
    assert!(!epochs.contains("total_steps") && !epochs.contains("# clip"), "{epochs}");
}

#[test]
fn the_page_of_all_keys_matches_the_program() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap_or_default();
    let command = "write it again: lockstep config --reference > docs/configuration.md";
    assert!(page == lockstep::config::reference(), "docs/configuration.md is stale; {command}");
}

#[test]
fn every_written_key_is_known() {
    let known = known_keys();
    let table: toml::Table = toml::from_str(&good(&[]).to_toml().unwrap()).unwrap();
    for (section, values) in &table {
        for key in values.as_table().unwrap().keys() {
            assert!(known.contains(&format!("{section}.{key}")), "{section}.{key}");
        }
    }
    for key in
        ["train.batch_per_replica", "optimizer.nesterov", "schedule.boundaries", "data.source"]
    {
        assert!(known.iter().any(|known| known == key), "{key}");
    }
}
