//! What a person at a terminal sees.

use std::process::{Command, Stdio};

use super::{BINARY, DIGITS, install_plugin, train_args};

/// Runs its arguments on a terminal of their own, and passes on what they write there.
const ON_A_TERMINAL: &str = "
import os, pty, sys
sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))
";

/// A line of a terminal as it looks in the end: what was written last from its beginning on.
fn as_seen(line: &str) -> &str {
    let line = line.trim_end_matches('\r');
    let from = line.rfind("\u{1b}[2K").map_or(0, |at| at + "\u{1b}[2K".len());
    let line = &line[from..];
    line.rsplit('\r').next().unwrap_or(line)
}

#[test]
fn the_bar_leaves_a_line_and_the_result_is_shown_once() {
    install_plugin();
    let sets = [
        "train.epochs=60",
        "train.steps_per_launch=22",
        "train.check_lockstep_every=0",
        "mesh.data=2",
    ];
    let mut command = Command::new("python3");
    command.args(["-c", ON_A_TERMINAL, BINARY]).args(train_args(&sets, &[]));
    command.env("TERM", "xterm").stdin(Stdio::null());
    let output = command.output().unwrap();
    let seen = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{seen}");
    assert!(seen.contains('█'), "there is no bar: {seen}");
    let lines: Vec<_> = seen.trim_end().lines().map(as_seen).collect();
    let [.., step, evaluation] = &lines[..] else { panic!("{seen}") };
    let evaluation_and_step = [*evaluation, *step];
    assert!(
        evaluation_and_step.iter().any(|line| line.starts_with("evaluation after 1320 steps: ")),
        "{lines:#?}"
    );
    let accuracies = lines.iter().filter(|line| line.contains("accuracy 0."));
    assert_eq!(accuracies.count(), 1, "{lines:#?}");
    let step = evaluation_and_step.iter().find(|line| line.starts_with("step 1320/1320 loss "));
    let step = step.unwrap_or_else(|| panic!("{lines:#?}"));

    // Measured over launches: this takes no machine less than 20 microseconds a step.
    let words: Vec<_> = step.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "examples/s").unwrap();
    let rate: f64 = words[at - 1].parse().unwrap();
    assert!(rate < 3e6, "{step}");
}

#[test]
fn bars_and_schedules_fit_forty_columns() {
    install_plugin();
    let narrow = "stty rows 24 cols 40; exec \"$0\" \"$@\"";
    let show = |args: &[String]| {
        let mut command = Command::new("python3");
        command.args(["-c", ON_A_TERMINAL, "sh", "-c", narrow, BINARY]).args(args);
        let output = command.env("TERM", "xterm").stdin(Stdio::null()).output().unwrap();
        let seen = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{args:?}: {seen}");
        seen
    };
    let longest =
        |seen: &str| seen.lines().map(|line| line.trim_end().chars().count()).max().unwrap();
    for more in [
        &[][..],
        &["--replicas", "1,4,16", "--set", "train.batch_per_replica=16"],
        &["--check"],
        &["--against", "lamb-bert-large-1024"],
    ] {
        let args: Vec<_> =
            ["schedule", DIGITS].iter().chain(more).map(ToString::to_string).collect();
        let seen = show(&args);
        assert!(longest(&seen) <= 40, "{more:?}: {seen}");
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("a-run-with-a-name-of-more-than-forty-characters");
    let out = out.to_str().unwrap();
    let seen = show(&train_args(&["train.epochs=4", "mesh.data=1"], &["--out", out]));
    for runs in [&[out][..], &[out, out]] {
        let args: Vec<_> = ["plot"].iter().chain(runs).map(ToString::to_string).collect();
        let seen = console::strip_ansi_codes(&show(&args)).into_owned();
        assert!((39..=40).contains(&longest(&seen)), "{seen}");
    }
    let drawn = seen.split(['\r', '\n']).map(|line| line.replace("\u{1b}[2K", ""));
    let bars: Vec<_> = drawn.filter(|line| line.contains('█')).collect();
    assert!(!bars.is_empty(), "{seen}");
    assert!(longest(&bars.join("\n")) < 40, "{bars:#?}");
}
