//! `schedule`: what it prints is what `train` does, and it needs neither plugin nor data.

use std::fs;

use super::{EXAMPLES, keys, lockstep, lockstep_with, set, text, train_args};

fn schedule(sets: &[&str], more: &[&str]) -> Vec<String> {
    let mut args = train_args(sets, more);
    args[0] = "schedule".to_owned();
    args
}

/// The rows of a CSV after its header.
fn rows(csv: &str) -> Vec<Vec<&str>> {
    csv.lines().skip(1).map(|line| line.split(',').collect()).collect()
}

#[test]
fn what_is_printed_is_what_is_trained_with() {
    let shapes: [&[&str]; 3] = [
        &["schedule.name=wsd", "schedule.decay_epochs=1", "schedule.warmup_examples=640"],
        &["schedule.name=polynomial", "schedule.base_lr=3e-3", "schedule.base_batch=48"],
        &[
            "schedule.name=piecewise",
            "schedule.boundary_epochs=[1, 1.5]",
            "schedule.factors=[1,0.3]",
        ],
    ];
    for shape in shapes {
        let sets = [shape, &["train.epochs=2", "mesh.data=2"]].concat();
        let csv = lockstep(&schedule(&sets, &["--csv"])).succeeded().stdout;
        assert_eq!(csv.lines().next(), Some("step,lr"));
        let dir = tempfile::tempdir().unwrap();
        lockstep(&train_args(&sets, &["--out", text(dir.path())])).succeeded();
        let recorded = fs::read_to_string(dir.path().join("metrics.jsonl")).unwrap();
        let rows = rows(&csv);
        assert_eq!((rows.len(), recorded.lines().count()), (44, 44));
        for (row, line) in rows.iter().zip(recorded.lines()) {
            let [step, lr] = row[..] else { panic!("{row:?}") };
            // Digit for digit.
            assert!(line.contains(&format!("\"step\":{step},")), "{line}");
            assert!(line.contains(&format!("\"lr\":{lr},")), "{lr} is not in {line}");
        }
    }
}

#[test]
fn neither_plugin_nor_data_are_needed() {
    let nothing = tempfile::tempdir().unwrap();
    let env = [("LOCKSTEP_CACHE", nothing.path()), ("LOCKSTEP_PYTHON", nothing.path())];
    let config = format!("{EXAMPLES}/cifar-resnet20.toml");
    let known = ["schedule", &config, "--set", "data.num_examples=50000", "--json"];
    let figures = lockstep_with(&known, &env).succeeded().json();
    let [one] = &figures.as_array().unwrap()[..] else { panic!("{figures}") };
    let expected = [
        "num_batch_shards",
        "global_batch",
        "total_steps",
        "steps_per_epoch",
        "warmup_steps",
        "peak",
        "lr",
    ];
    assert_eq!(keys(one), set(&expected));
    assert_eq!((&one["total_steps"], &one["steps_per_epoch"]), (&62400.into(), &390.into()));
    assert_eq!(one["lr"].as_array().unwrap().len(), 62400);

    // Steps need no epochs; epochs need a number, and the message has the reason why there is none.
    let steps =
        ["schedule", &config, "--set", "train.steps=50", "--set", "schedule.warmup_steps=5"];
    lockstep_with(&steps, &env).succeeded();
    let unknown = lockstep_with(&["schedule", &config], &env);
    assert_eq!((unknown.code, unknown.stdout.as_str()), (Some(1), ""));
    for fragment in
        ["error: train.epochs counts in epochs", "set data.num_examples", "data_batch_1"]
    {
        assert!(unknown.stderr.contains(fragment), "{}", unknown.stderr);
    }
    assert_eq!(fs::read_dir(nothing.path()).unwrap().count(), 0, "nothing was fetched");
}

#[test]
fn replicas_stand_side_by_side_where_they_make_the_batch() {
    let sets = ["train.batch_per_replica=8", "schedule.base_lr=0.1", "schedule.base_batch=64"];
    let args = ["--replicas", "8,64", "--csv", "--set", "schedule.warmup_epochs=3"];
    let csv = lockstep(&schedule(&sets, &args)).succeeded().stdout;
    assert_eq!(csv.lines().next(), Some("step,lr_8,lr_64"));
    let rows = rows(&csv);
    // 22 steps of 64 and 2 of 512 an epoch.
    assert_eq!(rows.len(), 660);
    let highest = |column: usize| {
        let rates = rows.iter().filter_map(|row| row[column].parse::<f64>().ok());
        (rates.clone().count(), rates.fold(0.0, f64::max))
    };
    assert_eq!((highest(1), highest(2)), ((660, 0.1), (60, 0.8)));
    assert_eq!(rows[60], ["60", rows[60][1], ""]);
}

#[test]
fn pictures_are_drawn_without_anything_of_the_system() {
    let dir = tempfile::tempdir().unwrap();
    let draw = |name: &str| {
        let path = dir.path().join(name);
        let sets = ["train.batch_per_replica=8"];
        let args = ["--replicas", "2,8", "--plot", text(&path)];
        lockstep(&schedule(&sets, &args)).succeeded();
        fs::read(path).unwrap()
    };
    let svg = String::from_utf8(draw("rates.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    assert!(svg.matches("<polyline").count() > 2, "axes and two curves");
    let labels =
        ["Learning rate of digits.toml", "learning rate", "8 replicas: peak ", "2 replicas"];
    for label in labels {
        assert!(svg.contains(label), "{label}");
    }
    let png = draw("rates.PNG");
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    reader.next_frame(&mut pixels).unwrap();
    for curve in [[0, 114, 178], [213, 94, 0]] {
        assert!(pixels.chunks(3).filter(|pixel| *pixel == curve).count() > 500, "no {curve:?}");
    }
    assert!(pixels.chunks(3).filter(|pixel| *pixel == [30; 3]).count() > 500, "no labels");
}

/// Small rates have short labels, and equal curves say so.
#[test]
fn ticks_are_short_and_equal_curves_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rates.svg");
    let sets = ["train.batch_per_replica=8", "train.steps=50", "schedule.peak=6e-4"];
    let args = ["--replicas", "2,8", "--plot", text(&path)];
    lockstep(&schedule(&sets, &args)).succeeded();
    let svg = fs::read_to_string(path).unwrap();
    for tick in ["0", "1e-4", "6e-4", "10", "40", "49"] {
        assert!(svg.contains(&format!(">{tick}</text>")), "no tick {tick}: {svg}");
    }
    assert!(svg.contains("(same as 2 replicas)"), "{svg}");
}

#[test]
fn the_table_has_the_ends_and_the_boundaries() {
    let sets = ["schedule.name=step", "schedule.boundary_epochs=[10]", "schedule.peak=0.4"];
    let table = lockstep(&schedule(&sets, &[])).succeeded().stdout;
    let rate = |step: &str| {
        let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let row = rows.find(|row| row.len() == 3 && row[0] == step);
        row.unwrap_or_else(|| panic!("no step {step} in {table}"))[2].to_owned()
    };
    assert_eq!([rate("21"), rate("219"), rate("220"), rate("659")], ["0.4", "0.4", "0.04", "0.04"]);
    assert!(table.contains("660 steps of 64 examples, 22 steps per epoch"), "{table}");
    assert!(table.contains('\u{28C0}') || table.contains('\u{2809}'), "a plot: {table}");
}

#[test]
fn what_cannot_be_shown_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("no/such/rates.svg");
    let cases: &[(&[&str], &[&str], &str)] = &[
        (&[], &["--replicas", "8"], "set train.batch_per_replica"),
        (
            &["train.batch_per_replica=4096"],
            &["--replicas", "2"],
            "with 2 replicas: the global batch",
        ),
        (&["schedule.warmup_steps=700"], &[], "warm-up of 700 steps is longer than the run of 660"),
        (&["schedule.warmup_epochs=0.01"], &[], "set schedule.warmup = \"none\""),
        (&["schedule.peak=-1"], &[], "schedule.peak: found -1"),
        (&["data.num_examples=32"], &[], "larger than the 32 training examples"),
        (&[], &["--plot", "rates.pdf"], "end its name in .svg or .png"),
        (&[], &["--plot", text(&nowhere)], "cannot write"),
    ];
    for (sets, more, fragment) in cases {
        let done = lockstep(&schedule(sets, more));
        assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""), "{sets:?}: {}", done.stderr);
        assert!(done.stderr.contains(fragment), "{fragment:?} is not in {}", done.stderr);
        assert_eq!(done.stderr.lines().filter(|line| line.starts_with("error: ")).count(), 1);
    }
    for more in [["--csv", "--json"], ["--replicas", "0"]] {
        assert_eq!(lockstep(&schedule(&[], &more)).code, Some(2), "{more:?}");
    }
    // The number that is planned with must be that of the data, or epochs would be others.
    let done = lockstep(&train_args(&["data.num_examples=1000"], &[]));
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("the data have 1437 training examples"), "{}", done.stderr);
    let done =
        lockstep(&train_args(&["data.num_examples=1437", "train.epochs=2"], &[])).succeeded();
    assert!(done.stderr.contains("22 steps per epoch, 44 in total"), "{}", done.stderr);
}
