//! Files that the user names for what commands write: nothing is replaced that could be somebody's
//! data.

use std::fs;

use super::{DIGITS, file, lockstep, text};

#[test]
fn no_command_replaces_a_file_unless_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let [svg, png, parameters] = ["rates.svg", "rates.png", "params.safetensors"]
        .map(|name| file(dir.path(), name, b"<svg>mine</svg>"));
    let target = ["--target", "gpu:h100:1x8"];
    let plot = |command: &'static str, more: &[&'static str], path: &std::path::Path| {
        let args = [&[command, DIGITS], more, &["--plot"]].concat();
        args.into_iter().map(str::to_owned).chain([text(path).to_owned()]).collect::<Vec<_>>()
    };
    let draw = ["plot", text(dir.path()), "--to", text(&svg)].map(str::to_owned);
    let predict =
        ["predict", text(dir.path()), DIGITS, "--to", text(&parameters)].map(str::to_owned);
    for (args, path) in [
        (plot("schedule", &[], &svg), &svg),
        (plot("schedule", &[], &png), &png),
        (plot("plan", &target, &svg), &svg),
        (plot("preflight", &target, &svg), &svg),
        (draw.to_vec(), &svg),
        (predict.to_vec(), &parameters),
    ] {
        let done = lockstep(&args);
        assert_eq!(done.code, Some(1), "{args:?}: {}", done.stderr);
        assert!(
            done.stderr.contains("exists; choose another name, or replace it with --overwrite")
        );
        assert_eq!(fs::read(path).unwrap(), b"<svg>mine</svg>", "{args:?}");
    }
    let dump = dir.path().join("dump");
    fs::create_dir(&dump).unwrap();
    let program = file(&dump, "step.mlir", b"mine");
    let done = lockstep(&[&["compile", DIGITS][..], &target, &["--dump", text(&dump)]].concat());
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    assert!(done.stderr.contains("has files of these names: step.mlir"), "{}", done.stderr);
    assert_eq!(fs::read(program).unwrap(), b"mine");
    // What was drawn here is drawn again.
    for path in [&svg, &png] {
        let draw = plot("schedule", &[], path);
        lockstep(&[&draw[..], &["--overwrite".to_owned()]].concat()).succeeded();
        lockstep(&draw).succeeded();
    }
    // Without a file there is nothing to replace.
    assert_eq!(lockstep(&["schedule", DIGITS, "--overwrite"]).code, Some(2));
}
