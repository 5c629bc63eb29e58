//! What a person at a terminal sees.

use std::process::{Command, Stdio};

use super::{BINARY, DIGITS, install_plugin, lockstep, text, train_args};

/// Runs its arguments on a terminal of their own, and passes on what they write there.
const ON_A_TERMINAL: &str = "
import os, pty, sys
sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))
";

/// What the arguments write on a terminal of this many columns, and how they ended.
fn on_a_terminal(columns: u16, args: &[String], env: &[(&str, &str)]) -> (String, bool) {
    let sized = format!("stty rows {ROWS} cols {columns}; exec \"$0\" \"$@\"");
    let mut command = Command::new("python3");
    command.args(["-c", ON_A_TERMINAL, "sh", "-c", &sized]).args(args);
    command.env("TERM", "xterm").env_remove("NO_COLOR").envs(env.iter().copied());
    let output = command.stdin(Stdio::null()).output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.success())
}

const ROWS: u16 = 24;
const CLEAR: &str = "\u{1b}[J";

/// What stood on the terminal whenever something had been drawn, the last one in the end.
fn screens(seen: &str, columns: u16) -> Vec<Vec<String>> {
    let mut terminal = vt100::Parser::new(ROWS.try_into().unwrap(), columns.try_into().unwrap(), 0);
    let mut screens = vec![];
    // All lines of a block are cleared before it is drawn anew: just before, it is whole.
    for (number, drawn) in seen.split(CLEAR).enumerate() {
        if number > 0 {
            terminal.process(CLEAR.as_bytes());
        }
        terminal.process(drawn.as_bytes());
        screens.push(terminal.screen().rows(0, columns).collect());
    }
    screens
}

/// A run that takes about a second, and its arguments.
fn run(more: &[&str]) -> Vec<String> {
    let sets = [
        "train.epochs=60",
        "train.steps_per_launch=22",
        "train.check_lockstep_every=220",
        "mesh.data=2",
    ];
    [BINARY.to_owned()].into_iter().chain(train_args(&sets, more)).collect()
}

#[test]
fn the_block_leaves_a_line_and_the_result_is_shown_once() {
    install_plugin();
    let dir = tempfile::tempdir().unwrap();
    for (columns, colors) in [(40, true), (80, false), (120, true)] {
        let out = dir.path().join(columns.to_string());
        let args = run(&["--out", text(&out), "--set", "checkpoint.every_steps=220"]);
        let env = [("NO_COLOR", "1")];
        let (seen, is_done) = on_a_terminal(columns, &args, if colors { &[] } else { &env });
        assert!(is_done, "{seen}");
        assert_eq!(seen.contains("\u{1b}[36m"), colors, "{seen}");
        let screens = screens(&seen, columns);
        let blocks: Vec<_> =
            screens.iter().filter(|rows| rows.iter().any(|row| row.contains("lr "))).collect();
        let has = |text: &str| blocks.iter().any(|rows| rows.iter().any(|row| row.contains(text)));
        for part in ["█", "/1320", "loss ", "▁", "examples/s", "lr ", "proved ", "checkpoint "]
        {
            assert!(has(part), "{columns}: {part} is missing: {blocks:#?}");
        }
        for row in blocks.iter().flat_map(|rows| rows.iter()).filter(|row| row.contains("lr ")) {
            assert!(row.trim_end().chars().count() < usize::from(columns), "{row}");
        }
        // The block is gone, and each line about the end is there once.
        let last = screens.last().unwrap().join("");
        assert!(!last.contains(['█', '▁']) && !last.contains("proved"), "{columns}: {last}");
        for line in ["evaluation after 1320 steps: ", " accuracy 0.", "step 1320/1320 loss "] {
            assert_eq!(last.matches(line).count(), 1, "{columns}: {line}: {last}");
        }

        // Measured over launches: this takes no machine less than 20 microseconds a step.
        let (_, step) = last.split_once("step 1320/1320 loss ").unwrap();
        let words: Vec<_> = step.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "examples/s").unwrap();
        let rate: f64 = words[at - 1].parse().unwrap();
        assert!(rate < 3e6, "{step}");
    }
}

#[test]
fn the_block_follows_the_size_of_the_terminal() {
    install_plugin();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    // A second after the first steps.
    let resizing = format!(
        "(until [ -s {}/metrics.jsonl ]; do sleep 0.1; done; sleep 1; stty -F /dev/tty cols 50) & \
         exec \"$0\" \"$@\"",
        out.display()
    );
    let mut args = ["sh".to_owned(), "-c".to_owned(), resizing].to_vec();
    args.extend(run(&["--set", "train.epochs=400", "--out", text(&out)]));
    let (seen, is_done) = on_a_terminal(100, &args, &[]);
    assert!(is_done, "{seen}");
    let drawn = console::strip_ansi_codes(&seen).into_owned();
    let is_bar = |line: &&str| line.contains(['█', '░']) && line.contains(" left  ");
    let bars: Vec<_> = drawn.split(['\r', '\n']).filter(is_bar).collect();
    let (first, last) = (bars.first().unwrap(), bars.last().unwrap());
    let columns = |line: &str| line.chars().count();
    assert!(columns(first) > 50 && columns(last) < 50, "{first}\n{last}");
    // All rows that the wider block takes on the narrower terminal are removed.
    let ups = seen.split(CLEAR).filter_map(|part| part.rsplit_once("\u{1b}[")?.1.strip_suffix('A'));
    let ups: Vec<u16> = ups.map(|rows| rows.parse().unwrap()).collect();
    // By more than the block has lines, once, or twice if another line came first; by those again
    // and again.
    let most = *ups.iter().max().unwrap();
    let num = ups.iter().filter(|rows| **rows == most).count();
    assert!(num <= 2 && ups.len() > 8, "{ups:?}");
}

#[test]
fn a_supervisor_shows_the_block_of_the_first_process_below_the_lines_of_all() {
    install_plugin();
    let launch = |supervisor: &[&str], train: &[&str]| {
        let launch = ["launch", "--num-processes", "2", "--"].map(str::to_owned);
        let supervisor = supervisor.iter().map(ToString::to_string);
        let mut args = run(&["--set", "train.epochs=30", "--set", "train.steps_per_launch=6"]);
        args.splice(1..1, supervisor.chain(launch));
        args.extend(train.iter().map(ToString::to_string));
        args
    };
    for (columns, colors) in [(40, true), (100, false)] {
        let env = [("NO_COLOR", "1")];
        let env = if colors { &[][..] } else { &env };
        let (seen, is_done) = on_a_terminal(columns, &launch(&[], &["-v"]), env);
        assert!(is_done, "{seen}");
        assert_eq!(seen.contains("\u{1b}[36m"), colors, "{seen}");
        let screens = screens(&seen, columns);
        let blocks: Vec<_> =
            screens.iter().filter(|rows| rows.iter().any(|row| row.contains("lr "))).collect();
        let has = |text: &str| blocks.iter().any(|rows| rows.iter().any(|row| row.contains(text)));
        for part in ["█", "/660", "loss ", "▁", "examples/s", "proved ", "process 1  others wait"]
        {
            assert!(has(part), "{columns}: {part} is missing: {blocks:#?}");
        }
        for row in blocks.iter().flat_map(|rows| rows.iter()).filter(|row| row.contains("lr ")) {
            assert!(row.trim_end().chars().count() < usize::from(columns), "{row}");
        }
        let last = screens.last().unwrap().join("");
        assert!(!last.contains(['█', '▁']) && !last.contains("proved"), "{columns}: {last}");
        for line in ["[0] evaluation after 660 steps: ", "[0] step 660/660 loss "] {
            assert_eq!(last.matches(line).count(), 1, "{columns}: {line}: {last}");
        }
        // Each line of a process begins one: nothing of the block, or of its message, is in it.
        let lines = console::strip_ansi_codes(&seen).into_owned();
        for start in ["[0] ", "[1] "] {
            let mut own = lines.split(['\r', '\n']).filter(|line| line.contains(start));
            assert!(own.clone().count() > 3, "{lines}");
            assert!(own.all(|line| line.starts_with(start)), "{lines}");
        }
        assert!(!seen.contains('\u{1e}'), "{seen}");
    }
    // Where the supervisor, or the process, writes lines, there is no block.
    for args in [launch(&["--progress", "plain"], &[]), launch(&[], &["--progress", "plain"])] {
        let (seen, is_done) = on_a_terminal(80, &args, &[]);
        assert!(is_done && !seen.contains(['\u{1b}', '\u{1e}']), "{seen}");
        assert!(seen.contains("\n[0] step 660/660 loss "), "{seen}");
    }
}

#[test]
fn the_form_of_progress_can_be_chosen() {
    install_plugin();
    // Rates differ from run to run.
    let steady = |seen: &str| -> Vec<String> {
        let lines = seen.lines().map(|line| line.trim_end_matches('\r'));
        let steps = lines.filter(|line| !line.contains("so far)"));
        let without_rate = |line: &str| match line.split_once(" examples/s") {
            Some((line, _)) => line.rsplit_once("  ").unwrap().0.to_owned(),
            None => line.to_owned(),
        };
        steps.map(without_rate).collect()
    };
    let args = |form: &[&str]| run(&[&["--set", "train.epochs=4"][..], form].concat());
    let elsewhere = lockstep(&args(&[])[1..]).succeeded();
    assert!(elsewhere.stdout.starts_with("evaluation: accuracy "), "{}", elsewhere.stdout);
    let lines = steady(&elsewhere.stderr);
    let is_step = |line: &&String| line.starts_with("step ");
    assert!(lines.iter().any(|line| line.starts_with("step 22/88 loss ")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.starts_with("step 88/88 loss ")), "{lines:#?}");
    assert!(!elsewhere.stderr.contains(['\u{1b}', '\r', '█']), "{}", elsewhere.stderr);
    // The same in bytes, on a terminal too.
    let (plain, is_done) = on_a_terminal(80, &args(&["--progress", "plain"]), &[]);
    assert!(is_done && !plain.contains('\u{1b}'), "{plain}");
    assert_eq!(steady(&plain), lines);
    // A terminal on which nothing can be drawn anew.
    let (dumb, is_done) = on_a_terminal(80, &args(&[]), &[("TERM", "dumb")]);
    assert!(is_done && !dumb.contains('\u{1b}'), "{dumb}");
    assert_eq!(steady(&dumb), lines);

    let none = lockstep(&args(&["--progress", "none"])[1..]).succeeded();
    let without: Vec<_> = lines.iter().filter(|line| !is_step(line)).cloned().collect();
    assert!(!without.is_empty());
    assert_eq!(steady(&none.stderr), without);

    let (rich, is_done) = on_a_terminal(80, &args(&["--progress", "rich"]), &[]);
    assert!(is_done && rich.contains('█'), "{rich}");
    for (more, expected) in [
        (&[][..], "--progress rich needs stderr to be a terminal"),
        (&["--log-json"], "--progress rich cannot be used with --log-json"),
        (&["-q"], "--progress rich cannot be used with --quiet"),
    ] {
        let refused = lockstep(&args(&[&["--progress", "rich"], more].concat())[1..]);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    }
}

#[test]
fn schedules_and_curves_fit_forty_columns() {
    install_plugin();
    let show = |args: &[String]| {
        let (seen, is_done) = on_a_terminal(40, &[&[BINARY.to_owned()], args].concat(), &[]);
        assert!(is_done, "{args:?}: {seen}");
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
    show(&train_args(&["train.epochs=4", "mesh.data=1"], &["--out", out]));
    for runs in [&[out][..], &[out, out]] {
        let args: Vec<_> = ["plot"].iter().chain(runs).map(ToString::to_string).collect();
        let seen = console::strip_ansi_codes(&show(&args)).into_owned();
        assert!((39..=40).contains(&longest(&seen)), "{seen}");
    }
}
