//! What is refused: in words that say what to change, with exit code 1 (2 for wrong usage), and
//! without touching what an earlier run left, which they were told to replace.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use super::{
    DIGITS, RUN_FILES, file, lockstep, lockstep_with, metrics, names, summary, text, train_args,
};

/// Runs it with `--out` a directory that holds an earlier run, which it is told to replace.
#[track_caller]
fn refused(mut args: Vec<String>, env: &[(&str, &Path)], fragments: &[&str]) -> String {
    let out = tempfile::tempdir().unwrap();
    for name in RUN_FILES {
        file(out.path(), name, b"of an earlier run");
    }
    args.extend(["--overwrite", "--out", text(out.path())].map(str::to_owned));
    let done = lockstep_with(&args, env);
    assert_eq!(done.code, Some(1), "{args:?}: {}", done.stderr);
    assert_eq!(done.stdout, "", "{args:?}");
    let errors = done.stderr.lines().filter(|line| line.starts_with("error: ")).count();
    assert_eq!(errors, 1, "{args:?}: {}", done.stderr);
    for fragment in fragments.iter().chain(&["error: "]) {
        assert!(done.stderr.contains(fragment), "{args:?}: {fragment:?} is not in {}", done.stderr);
    }
    assert!(!done.stderr.contains("panicked"), "{args:?}: {}", done.stderr);
    for name in RUN_FILES {
        assert_eq!(fs::read(out.path().join(name)).unwrap(), b"of an earlier run", "{args:?}");
    }
    assert_eq!(names(out.path()), RUN_FILES, "{args:?}");
    done.stderr
}

#[test]
fn keys_and_values() {
    let cases: &[(&[&str], &[&str])] = &[
        (&["train.stepz=5"], &["train.stepz: unknown key, did you mean \"steps\"?"]),
        (&["train.lr=0.1"], &["did you mean \"schedule.peak\"?"]),
        (
            &["train.global_batch=66"],
            &["train.global_batch: 66 does not divide", "4 replicas", "64 or 68"],
        ),
        (&["train.global_batch=2000"], &["1437 training examples", "at most 1437"]),
        (&["mesh.data=1000", "train.batch_per_replica=1"], &["1000 replicas", "`cpu` has 256"]),
        (
            &["mesh.data=20", "mesh.fsdp=20", "train.batch_per_replica=1"],
            &["400 replicas", "`cpu` has 256", "mesh.data x mesh.fsdp"],
        ),
        (&["parallel.zero=2"], &["parallel.zero: stage 2", "mesh.fsdp = 1", "set mesh.fsdp"]),
        (&["parallel.zero=4", "mesh.fsdp=2"], &["parallel.zero: found 4", "from 1 to 3"]),
        (&["train.steps=0"], &["train.steps: found 0", "from 1 to"]),
        (
            &["mesh.data=1", "model.hidden=[1048576000]"],
            &[
                "the step needs at least 902.34 GiB of memory for its state, but this host",
                "a smaller model",
            ],
        ),
        (&["train.steps=1"], &["warm-up of 22 steps is longer than the run of 1"]),
        (
            &["optimizer.weight_decay_exclude=['*.bais']"],
            &[
                "optimizer.weight_decay_exclude: the pattern \"*.bais\" matches no parameter",
                "bias`",
            ],
        ),
        (&["schedule.warmup_epochs=0.01"], &["there would be no warm-up"]),
        (&["schedule.peak=-1"], &["schedule.peak: found -1", "above 0"]),
        (&["schedule.peak=3e39"], &["schedule.peak: found 3e39", "to 3.4e38, which f32 holds"]),
        (
            &["schedule.base_lr=3e38", "schedule.base_batch=1"],
            &["the peak learning rate is 1.92e40; set schedule.base_lr"],
        ),
        (&["optimizer.epsilon=1e-46"], &["optimizer.epsilon: found 1e-46", "from 1.2e-38"]),
        (&["model.hidden=[1000000000, 1000000000]"], &["the model does not trace", "2^40"]),
        (
            &["schedule.name=step", "schedule.boundaries=[5]", "schedule.factor=1e300"],
            &["the learning rate of step 22 is 2e297", "lower schedule.peak or schedule.factor"],
        ),
        (&["data.path=nowhere.gz"], &["cannot read the data file", "nowhere.gz", "data.path"]),
        (
            &[
                "data.source=tokens",
                "data.vocab_size=9",
                "data.path=tests/reference/gpt2_hf/model.safetensors",
                "data.eval_path=no.bin",
            ],
            &["/no.bin: ", "; set data.eval_path"],
        ),
        (
            &["model.name=resnet", "data.source=synthetic", "data.image=[64, 64]"],
            &[
                "data.image: an example is f32[64, 64]",
                "takes images, f32[channels, height, width]",
            ],
        ),
        (
            &["model.name=resnet"],
            &["data.source: an example is f32[64]", "model.name = \"resnet\" takes images"],
        ),
        (
            &["model.name=gpt", "data.source=synthetic_tokens", "data.vocab_size=9"],
            &["data.context: an example is i32[1024]", "at most 128, which is model.context"],
        ),
        (
            &[
                "model.name=gpt",
                "data.source=synthetic_tokens",
                "data.vocab_size=300",
                "data.context=8",
            ],
            &["data.vocab_size: an example is", "at most 256 tokens, which is model.vocabulary"],
        ),
        (
            &["compile.overrides.xla_nonsense=1"],
            &["does not accept compile.overrides.xla_nonsense: "],
        ),
        (
            &["compile.overrides.xla_cpu_enable_fast_math=[1]", "train.steps=x"],
            &["2 errors in", "--set train.steps=x: train.steps: found string \"x\""],
        ),
        (
            &["train.global_batch=26", "train.microbatch=4", "mesh.data=auto"],
            &[
                "train.global_batch: 26 is not a multiple of train.microbatch = 4; the nearest that \
               would be: 24 or 28; or set train.microbatch to 2",
            ],
        ),
        (
            &["train.microbatch=4", "train.num_microbatches=2"],
            &[
                "train.num_microbatches: found 2; allowed: \"auto\" beside train.microbatch = 4, or \
               leave one of them out",
            ],
        ),
        (&["train.microbatch=0"], &["train.microbatch: found 0; allowed: a whole number from 1"]),
        (&["data.path=."], &["cannot read the data file", "is a directory", "data.path"]),
        (&["device.backend=gpu"], &["\"gpu\" is not a backend, did you mean \"cuda\"?"]),
        (&["device.backend=./nowhere.so"], &["cannot read the plugin", "nowhere.so"]),
        (&["device.backend=./examples/digits.toml"], &["is not a PJRT plugin"]),
    ];
    for (sets, fragments) in cases {
        refused(train_args(sets, &[]), &[], fragments);
    }
}

#[test]
fn meshes_with_stages() {
    let gpt = [
        "model.name=gpt",
        "model.num_layers=6",
        "model.width=8",
        "model.num_heads=2",
        "data.source=synthetic_tokens",
        "data.vocab_size=9",
        "data.context=8",
        "train.global_batch=48",
        "mesh.data=1",
    ];
    let cases: &[(&[&str], &[&str])] = &[
        (
            &["mesh.pipeline=4"],
            &["mesh.pipeline = 4: the stages do not divide the 6 blocks of the model; with \
                 mesh.pipeline = 3 or 6 or model.num_layers = 4 or 8 they do"],
        ),
        (
            &["mesh.pipeline=2", "parallel.pipeline_chunks=2"],
            &["mesh.pipeline = 2: the stages of parallel.pipeline_chunks = 2 chunks do not \
                 divide the 6 blocks of the model; with mesh.pipeline = 3 or model.num_layers = 4 \
                 or 8 they do"],
        ),
        (
            &["mesh.pipeline=12"],
            &["the 6 blocks", "with mesh.pipeline = 6 or model.num_layers = 12 they do"],
        ),
        (
            &["mesh.pipeline=2", "parallel.pipeline_chunks=3", "train.num_microbatches=3"],
            &["mesh.pipeline = 2: with parallel.pipeline_chunks = 3 the stages take \
                 microbatches by 2, which does not divide 3; set train.num_microbatches to a \
                 multiple of 2, or parallel.pipeline_chunks to 1"],
        ),
        (
            &["mesh.pipeline=2", "parallel.pipeline_chunks=3", "train.microbatch=16"],
            &["microbatches by 2, which does not divide 3; set train.microbatch to 12 or 24, or \
               parallel.pipeline_chunks to 1"],
        ),
        (
            &["mesh.pipeline=2", "train.num_microbatches=5"],
            &["train.global_batch: 48 does not divide over 5 microbatches on 1 replica; the \
                 nearest that would: 45 or 50"],
        ),
        (
            &["mesh.pipeline=2", "mesh.fsdp=2", "parallel.zero=3"],
            &["--set parallel.zero=3: parallel.zero: stage 3 gathers parameters at each use, \
                 but with mesh.pipeline = 2 passes of several microbatches overlap, which use \
                 them all the time; set it to 1"],
        ),
        (
            &["mesh.pipeline=2", "train.steps_per_launch=4"],
            &["--set train.steps_per_launch=4: train.steps_per_launch: a step of \
                 mesh.pipeline = 2 stages runs many microbatches and is launched by itself; set \
                 it to 1"],
        ),
        (
            &["parallel.pipeline_chunks=2", "parallel.pipeline_schedule=gpipe"],
            &[
                "2 errors in",
                "parallel.pipeline_chunks: there are no stages: mesh.pipeline = 1; set \
                 mesh.pipeline to 2 or more, or leave out parallel.pipeline_chunks (--unset \
                 parallel.pipeline_chunks)",
                "parallel.pipeline_schedule: there are no stages",
            ],
        ),
        (
            &["mesh.pipeline=2", "parallel.pipeline_chunks=0"],
            &["parallel.pipeline_chunks: found 0", "from 1 to"],
        ),
        (
            &["mesh.pipeline=2", "parallel.pipeline_schedule=1f2b"],
            &["parallel.pipeline_schedule: found \"1f2b\"", "1f1b", "gpipe"],
        ),
        (&["mesh.pipeline=0"], &["mesh.pipeline: found 0", "from 1 to"]),
        (
            &["mesh.pipeline=300", "model.num_layers=300"],
            &["the mesh asks for 300 replicas, but the backend `cpu` has 256 devices; make \
                 mesh.data x mesh.fsdp x mesh.pipeline 256 or less"],
        ),
    ];
    for (sets, fragments) in cases {
        refused(train_args(&[&gpt, *sets].concat(), &[]), &[], fragments);
    }
    for (sets, name) in [
        (&[][..], "mlp"),
        (&["model.name=resnet", "data.source=synthetic", "data.image=[3, 8, 8]"], "resnet"),
    ] {
        let expected = format!(
            "mesh.pipeline = 2: model.name = {name:?} is not made of equal blocks, which stages \
             divide; use mesh.data and mesh.fsdp"
        );
        let sets = [sets, &["mesh.pipeline=2"]].concat();
        refused(train_args(&sets, &[]), &[], &[&expected]);
    }
}

#[test]
fn configuration_files() {
    let dir = tempfile::tempdir().unwrap();
    let good = fs::read_to_string(DIGITS).unwrap();
    let data = Path::new(DIGITS).with_file_name("data");
    let good = good.replace("data/", &format!("{}/", text(&data)));
    let cases: [(&str, &[u8], &[&str]); 4] = [
        ("empty.toml", b"", &["empty.toml: model.name: missing; allowed: \"mlp\""]),
        ("binary.toml", b"\xff\xfe[\0m\0", &["cannot read the configuration", "UTF-8"]),
        ("broken.toml", b"[model\n", &["broken.toml:1: not valid TOML: "]),
        (
            "typo.toml",
            &good.replace("[schedule]", "[scedule]").into_bytes(),
            &["scedule: unknown key, did you mean \"schedule\"?"],
        ),
    ];
    for (name, contents, fragments) in cases {
        let path = file(dir.path(), name, contents);
        refused(vec!["train".to_owned(), text(&path).to_owned()], &[], fragments);
    }
    let nowhere = dir.path().join("nowhere.toml");
    for (path, reason) in [(dir.path(), "is a directory"), (&nowhere, "(os error 2)")] {
        let fragments = ["cannot read the configuration", text(path), reason];
        let said = refused(vec!["train".to_owned(), text(path).to_owned()], &[], &fragments);
        assert_eq!(said.matches(reason).count(), 1, "{said}");
    }

    // As editors on Windows leave them, they are fine.
    for contents in [good.replace('\n', "\r\n"), format!("\u{feff}{good}")] {
        let path = file(dir.path(), "windows.toml", contents.as_bytes());
        lockstep(&["hlo", text(&path)]).succeeded();
    }
}

#[test]
fn data_files() {
    let dir = tempfile::tempdir().unwrap();
    let shipped = fs::read(Path::new(DIGITS).with_file_name("data/digits.csv.gz")).unwrap();
    let truncated = file(dir.path(), "truncated.gz", &shipped[..shipped.len() / 2]);
    let mut rows = String::new();
    GzDecoder::new(&shipped[..]).read_to_string(&mut rows).unwrap();
    let mut lines: Vec<_> = rows.lines().map(str::to_owned).collect();
    let (pixels, _) = lines[2].rsplit_once(',').unwrap();
    lines[2] = format!("{pixels},10");
    let mut encoder = GzEncoder::new(vec![], Compression::fast());
    encoder.write_all(lines.join("\n").as_bytes()).unwrap();
    let mislabelled = file(dir.path(), "mislabelled.gz", &encoder.finish().unwrap());

    let cases: [(&Path, &[&str]); 2] = [
        (&truncated, &["truncated.gz is not a whole gzip file", "download it again"]),
        (&mislabelled, &["mislabelled.gz line 3: found label \"10\"", "0 to 9"]),
    ];
    for (path, fragments) in cases {
        refused(train_args(&[&format!("data.path={}", text(path))], &[]), &[], fragments);
    }
}

/// Neither a device nor a pipe, which would give bytes for ever or none, is read as a file.
#[test]
fn files_that_are_none() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    for (path, fragment) in [
        (Path::new("/dev/zero"), "/dev/zero: it is a device, not a regular file"),
        (&pipe, "pipe: it is a pipe, not a regular file"),
    ] {
        let set = format!("data.path={}", text(path));
        for source in ["digits", "text", "tokens"] {
            let mut sets = vec![format!("data.source={source}"), set.clone()];
            sets.extend((source == "tokens").then(|| "data.vocab_size=9".to_owned()));
            let sets: Vec<_> = sets.iter().map(String::as_str).collect();
            refused(train_args(&sets, &[]), &[], &[fragment, "data.path"]);
        }
        let images = format!("data.train_images={}", text(path));
        refused(train_args(&["data.source=idx", &images], &[]), &[], &[fragment]);
        refused(vec!["train".to_owned(), text(path).to_owned()], &[], &[fragment]);
        let init = ["--init", text(path)];
        refused(train_args(&[], &init), &[], &["cannot read the parameters", fragment]);
    }
    let folder = dir.path().join("cifar");
    fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink("/dev/zero", folder.join("data_batch_1.bin")).unwrap();
    let cifar = format!("data.path={}", text(&folder));
    let sets = ["model.name=resnet", "data.source=cifar10", &cifar];
    refused(train_args(&sets, &[]), &[], &["data_batch_1.bin: it is a device"]);
}

#[test]
fn images_that_announce_more_than_memory_holds_are_broken_ones() {
    let dir = tempfile::tempdir().unwrap();
    let class = dir.path().join("class");
    fs::create_dir(&class).unwrap();
    let mut bytes = vec![];
    let mut encoder = png::Encoder::new(&mut bytes, 100_000, 100_000);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().unwrap();
    writer.write_chunk(png::chunk::IDAT, &[0x78, 0x9c, 3, 0]).unwrap();
    drop(writer);
    for name in ["a.png", "b.png", "c.png", "d.png"] {
        file(&class, name, &bytes);
    }
    let path = format!("data.path={}", text(dir.path()));
    let sets =
        ["data.source=image_folder", "data.image_size=8", "train.global_batch=2", "train.steps=1"];
    let sets =
        [&sets[..], &["mesh.data=1", "schedule.warmup=none", "data.eval_fraction=0.4", &path]];
    let mut sets = sets.concat();
    for on_broken in ["data.on_broken=stop", "data.on_broken=skip"] {
        sets.push(on_broken);
        let done = lockstep(&train_args(&sets, &[]));
        assert_eq!(done.code, Some(1), "{}", done.stderr);
        assert!(done.stderr.contains("100000 x 100000 are more than the"), "{}", done.stderr);
    }
}

#[test]
fn what_is_quoted_is_quoted_briefly() {
    let dir = tempfile::tempdir().unwrap();
    let long = "x".repeat(100_000);
    let config = file(dir.path(), "long.toml", format!("{long} = 1").as_bytes());
    let args: [Vec<String>; 6] = [
        vec!["schedule".to_owned(), text(&config).to_owned()],
        vec!["schedule".to_owned(), long.clone()],
        vec![long.clone()],
        vec!["train".to_owned(), format!("--{long}")],
        train_args(&[&format!("data.path=/{long}")], &[]),
        train_args(&[], &["--out", &long]),
    ];
    for args in args {
        let done = lockstep(&args);
        assert!(matches!(done.code, Some(1 | 2)), "{}", done.stderr);
        assert!(done.stderr.len() < 4000, "{} bytes for {:?}", done.stderr.len(), &args[..1]);
        assert!(done.stderr.contains("xxx..."), "{}", done.stderr);
    }
}

#[test]
fn parameters_to_start_from() {
    let dir = tempfile::tempdir().unwrap();
    let small = ["model.hidden=[8]", "train.epochs=1"];
    lockstep(&train_args(&small, &["--out", text(dir.path())])).succeeded();
    let other_model = dir.path().join("params.safetensors");
    let bytes = fs::read(&other_model).unwrap();
    let damaged = file(dir.path(), "damaged", &bytes[..bytes.len() - 3]);
    let cases: [(&Path, &[&str]); 4] = [
        (&other_model, &["`blocks.0.linear.weight` is F32[8, 64]", "model's is f32[256, 64]"]),
        (&damaged, &["cannot read the parameters", "damaged"]),
        (Path::new(DIGITS), &["digits.toml: it is not a model, which is the --out"]),
        (&dir.path().join("nowhere"), &["cannot read the parameters", "nowhere"]),
    ];
    // Files hold whole parameters, whatever the mesh.
    let sharded = ["mesh.data=1", "mesh.fsdp=4", "parallel.zero=3"];
    for (path, fragments) in cases {
        for mesh in [&[][..], &sharded] {
            refused(train_args(mesh, &["--init", text(path)]), &[], fragments);
        }
    }
    let [sound @ .., _, _, _, _] = &bytes[..] else { panic!("an empty file") };
    let poisoned = file(dir.path(), "poisoned", &[sound, &f32::NAN.to_le_bytes()].concat());
    let fragments =
        ["cannot read the parameters", "poisoned: `", "` holds values that are infinite or NaN"];
    refused(train_args(&small, &["--init", text(&poisoned)]), &[], &fragments);
}

#[test]
fn an_output_directory_that_cannot_be_written_stops_the_run_before_it_starts() {
    let dir = tempfile::tempdir().unwrap();
    let occupied = file(dir.path(), "file", b"mine");
    let (below, itself) = ("Not a directory", "it is a file");
    for (out, reason) in [(occupied.join("below"), below), (occupied.clone(), itself)] {
        let done = lockstep(&train_args(&[], &["--out", text(&out)]));
        assert_eq!(done.code, Some(1), "{}", done.stderr);
        let expected = format!("error: cannot write into the output directory {}", text(&out));
        assert!(done.stderr.starts_with(&expected), "{}", done.stderr);
        assert!(done.stderr.contains(reason), "{}", done.stderr);
        assert!(done.stderr.contains("choose another with --out"), "{}", done.stderr);
    }
    assert_eq!(fs::read(&occupied).unwrap(), b"mine");
}

#[test]
fn no_plugin_and_no_network() {
    let cache = tempfile::tempdir().unwrap();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli");
    let script = tests.join("pip_offline.sh");
    let offline = [("LOCKSTEP_CACHE", cache.path()), ("LOCKSTEP_PYTHON", &script)];
    let fragments = ["No matching distribution", "pip download", "PIP_FIND_LINKS=wheels"];
    let said = refused(train_args(&[], &[]), &offline, &fragments);
    assert!(said.starts_with("fetching the CPU plugin with pip, once"), "{said}");

    let nowhere = tests.join("no_such_python");
    let no_python = [("LOCKSTEP_CACHE", cache.path()), ("LOCKSTEP_PYTHON", &nowhere)];
    refused(train_args(&[], &[]), &no_python, &["cannot start", "LOCKSTEP_PYTHON"]);
    let cuda = ["`lockstep plugin install cuda` does it"];
    refused(train_args(&["device.backend=cuda"], &[]), &offline, &cuda);

    // What is wrong with the machine is also what doctor says, and still a line of JSON.
    let doctor = lockstep_with(&["doctor", "--json"], &offline);
    assert_eq!(doctor.code, Some(1), "{}", doctor.stderr);
    let problem = &doctor.json()["plugins"][0]["problem"];
    assert!(problem.as_str().unwrap().contains("lockstep plugin install cpu"), "{problem}");
    let listed = lockstep_with(&["plugin", "list", "--json"], &offline).succeeded().json();
    assert!(listed[0]["path"].is_null(), "{listed}");
}

#[test]
fn a_loss_that_is_not_finite_stops_the_run_and_keeps_what_there_is() {
    let dir = tempfile::tempdir().unwrap();
    let sets = ["optimizer.name=sgd", "schedule.peak=1e30", "schedule.warmup=none", "mesh.data=2"];
    let done = lockstep(&train_args(&sets, &["--out", text(dir.path())]));
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    let said = "error: step 1: the loss is not finite on replicas 0, 1; the parameters are \
                unchanged by it";
    assert!(done.stderr.contains(said), "{}", done.stderr);
    assert!(done.stderr.contains("train.on_nonfinite = \"skip\""), "{}", done.stderr);
    let lines = metrics(dir.path());
    assert_eq!(lines.len(), 2);
    assert!(lines[0]["loss"].is_number() && lines[1]["loss"].is_null());
    let summary = summary(dir.path());
    assert_eq!((&summary["steps"], summary["final_loss"].is_null()), (&2.into(), true));
    assert!(dir.path().join("params.safetensors").is_file());
}

#[test]
fn wrong_usage_exits_with_2() {
    let cases: &[(&[&str], &str)] = &[
        (&[], "Usage: lockstep [OPTIONS] <COMMAND>"),
        (&["tran", DIGITS], "'train'"),
        (&["train"], "<CONFIG>"),
        (&["train", DIGITS, "--set"], "SECTION.KEY=VALUE"),
        (&["train", DIGITS, "--steps", "5"], "--set"),
        (&["train", DIGITS, "--out"], "--out <DIR>"),
        (&["train", DIGITS, "--overwrite"], "--out <DIR>"),
        (&["bench", DIGITS, "--steps", "0"], "0 is not in 1.."),
        (&["hlo", DIGITS, "--stage", "gradient"], "loss, grad, step"),
        (&["plugin", "instal", "cpu"], "'install'"),
    ];
    for (args, fragment) in cases {
        let done = lockstep(args);
        assert_eq!(done.code, Some(2), "{args:?}: {}", done.stderr);
        assert_eq!(done.stdout, "", "{args:?}");
        assert!(done.stderr.contains(fragment), "{args:?}: {}", done.stderr);
    }
    let done = lockstep(&["plugin", "install", "gpu"]);
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("known are cpu, cuda, cuda-compiler, tpu"), "{}", done.stderr);
}
