//! `plot`: the curves of runs, in every form and of whatever a run has left.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use tempfile::TempDir;

use super::{file, lockstep, metrics, text, train_args};

/// A run of 44 steps with two evaluations, made once for all tests.
fn run() -> &'static Path {
    static RUN: OnceLock<TempDir> = OnceLock::new();
    let dir = RUN.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let sets = ["train.epochs=2", "train.eval_every=22", "mesh.data=1"];
        let out = dir.path().join("digits");
        lockstep(&train_args(&sets, &["--out", text(&out)])).succeeded();
        dir
    });
    Box::leak(dir.path().join("digits").into_boxed_path())
}

fn pixels(png: &[u8]) -> Vec<u8> {
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    reader.next_frame(&mut pixels).unwrap();
    pixels
}

#[test]
fn a_run_is_drawn_in_three_forms() {
    let dir = tempfile::tempdir().unwrap();
    let shown = lockstep(&["plot", text(run())]).succeeded().stdout;
    assert!(shown.starts_with("digits\n44 steps, last loss "), "{shown}");
    let quantities = ["loss", "accuracy", "top5 accuracy", "learning rate"];
    for quantity in quantities {
        assert!(shown.lines().any(|line| line == quantity), "{quantity}: {shown}");
    }
    // Two evaluations of three quantities, and the sample before their name.
    assert_eq!(shown.matches('\u{25CF}').count(), 7, "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    assert!(!shown.contains('\u{1b}'), "colors without a terminal: {shown}");

    let [svg, png] = ["a.svg", "a.png"].map(|name| dir.path().join(name));
    for path in [&svg, &png] {
        let draw = ["plot", text(run()), "--smooth", "--log", "--x", "time", "--to", text(path)];
        assert_eq!(lockstep(&draw).succeeded().stdout.trim_end(), text(path));
        // A second time it is somebody's.
        let again = lockstep(&draw);
        assert_eq!((again.code, again.stdout.as_str()), (Some(1), ""));
        assert!(again.stderr.contains("or replace it with --overwrite"), "{}", again.stderr);
        lockstep(&[&draw[..], &["--overwrite"]].concat()).succeeded();
    }
    let svg = fs::read_to_string(svg).unwrap();
    for label in quantities.iter().chain(&["training, smoothed by 0.9", "time (s)"]) {
        assert!(svg.contains(&format!(">{label}</text>")), "{label}: {svg}");
    }
    assert_eq!(svg.matches("<circle").count(), 7, "{svg}");
    let curve = [0, 114, 178];
    let pixels = pixels(&fs::read(png).unwrap());
    assert!(pixels.chunks(3).filter(|pixel| *pixel == curve).count() > 1000, "no curve");
}

/// A run that was killed, one that was continued, one whose losses were not finite, one of a single
/// step: each is drawn with the others.
#[test]
fn whatever_a_run_has_left_is_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let whole = fs::read_to_string(run().join("metrics.jsonl")).unwrap();
    let lines: Vec<_> = whole.split_inclusive('\n').collect();
    let torn = format!("{}{}", lines[..30].concat(), &lines[30][..20]);
    let again = [&lines[..30], &lines[25..]].concat().concat();
    let loss = metrics(run())[3]["loss"].to_string();
    let gap = whole.replace(&format!("\"loss\":{loss},"), "\"loss\":null,");
    assert_ne!(gap, whole);
    let runs = [
        ("torn", torn, "30 steps"),
        ("again", again, "44 steps"),
        ("gap", gap, "44 steps"),
        ("one", lines[0].to_owned(), "1 step,"),
    ];
    let mut args = vec!["plot".to_owned(), text(run()).to_owned()];
    for (name, contents, steps) in &runs {
        fs::create_dir(dir.path().join(name)).unwrap();
        let path = file(&dir.path().join(name), "metrics.jsonl", contents.as_bytes());
        let alone = lockstep(&["plot", text(&path)]).succeeded();
        assert!(alone.stdout.starts_with(&format!("{name}\n{steps}")), "{}", alone.stdout);
        assert_eq!(alone.stdout.contains("1 loss not finite"), *name == "gap", "{}", alone.stdout);
        assert_eq!(alone.stderr, "");
        args.push(text(path.parent().unwrap()).to_owned());
    }
    let shown = lockstep(&args).succeeded().stdout;
    for entry in ["a digits: 44 steps", "b torn: 30 steps", "e one: 1 step"] {
        assert!(shown.contains(entry), "{entry}: {shown}");
    }
    let svg = dir.path().join("all.svg");
    args.extend(["--x", "examples", "--to", text(&svg)].map(str::to_owned));
    lockstep(&args).succeeded();
    assert!(fs::read_to_string(svg).unwrap().contains(">torn: 30 steps, "));
}

#[test]
fn what_cannot_be_drawn_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str, contents: &[u8]| text(&file(dir.path(), name, contents)).to_owned();
    let nowhere = text(&dir.path().join("nowhere")).to_owned();
    let cases = [
        (text(dir.path()).to_owned(), "is not the directory of a run: it has no metrics.jsonl"),
        (nowhere, "cannot read"),
        (at("empty.jsonl", b""), "has no step yet"),
        (at("words.txt", b"hello world"), "line 1: this is no line of a metrics.jsonl"),
        (at("bytes", &[0, 159, 146, 150, 10, 255]), "line 1: this is no line"),
        (at("other.jsonl", b"{\"a\": 1}\n"), "it has no field `step`"),
    ];
    for (path, fragment) in cases {
        // One good run does not hide a bad one.
        let done = lockstep(&["plot", text(run()), &path]);
        assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""), "{path}: {}", done.stderr);
        assert!(done.stderr.contains(fragment), "{fragment:?} is not in {}", done.stderr);
        assert!(done.stderr.starts_with("error: "), "{}", done.stderr);
    }
    let pdf = lockstep(&["plot", text(run()), "--to", "a.pdf"]);
    assert_eq!(pdf.code, Some(1));
    assert!(pdf.stderr.contains("end its name in .svg or .png"), "{}", pdf.stderr);
    for wrong in [
        &["plot"][..],
        &["plot", "a", "--smooth=1"],
        &["plot", "a", "--smooth=NaN"],
        &["plot", "a", "--x", "epoch"],
        &["plot", "a", "--overwrite"],
    ] {
        assert_eq!(lockstep(wrong).code, Some(2), "{wrong:?}");
    }
}
