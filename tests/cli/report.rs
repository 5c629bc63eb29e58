//! `report`: a page about runs that opens from the disk, and the same as JSON; `compare`.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::restarted::restarted;
use super::{DIGITS, EXAMPLES, file, lockstep, metrics, summary, text, train_args};

/// Two runs of 44 steps with two evaluations each, made once for all tests: `four` on four
/// replicas with proofs, `one` on one, with a checkpoint after every step.
pub fn runs() -> [PathBuf; 2] {
    static RUNS: OnceLock<TempDir> = OnceLock::new();
    let dir = RUNS.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        for (name, sets) in [
            ("four", ["mesh.data=4", "train.check_lockstep_every=11"]),
            ("one", ["mesh.data=1", "checkpoint.every_steps=1"]),
        ] {
            let sets = [&["train.epochs=2", "train.eval_every=22"][..], &sets].concat();
            lockstep(&train_args(&sets, &["--out", text(&dir.path().join(name))])).succeeded();
        }
        dir
    });
    ["four", "one"].map(|name| dir.path().join(name))
}

/// The page of these runs, and what `--json` says of them.
fn report(dirs: &[&Path]) -> (String, Value) {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("page.html");
    let mut args = vec!["report", "--json", "--to", text(&to)];
    args.extend(dirs.iter().map(|dir| text(dir)));
    let json = lockstep(&args).succeeded().json();
    (fs::read_to_string(to).unwrap(), json)
}

/// What the page's script reads.
fn data(page: &str) -> Value {
    let (_, data) = page.split_once("id=\"data\">").unwrap();
    let (data, _) = data.split_once("</script>").unwrap();
    serde_json::from_str(data).unwrap()
}

/// Checks that the page is one, and asks for nothing from anywhere.
fn check_page(page: &str) {
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    for attribute in ["href=\"", "src=\"", "action=\"", "url("] {
        for (_, rest) in
            page.match_indices(attribute).map(|(at, found)| page.split_at(at + found.len()))
        {
            assert!(
                rest.starts_with('#'),
                "{attribute}{}",
                rest.chars().take(60).collect::<String>()
            );
        }
    }
    // The names of XML's vocabularies are no addresses.
    let addresses = page.replace("http://www.w3.org/2000/svg", "");
    for part in ["http://", "https://", "@import", "fetch(", "XMLHttpRequest", "<link", "<img"] {
        assert!(!addresses.contains(part), "{part}");
    }
    assert!(page.contains("Content-Security-Policy\" content=\"default-src 'none';"));
    assert_eq!(page.matches("<script").count(), 2, "data and program");
    let opened = page.matches("<figure ").count();
    assert_eq!(opened, page.matches("</figure>").count());
}

#[test]
fn the_page_has_the_numbers_of_the_run() {
    let [four, _] = runs();
    let (page, json) = report(&[&four]);
    check_page(&page);
    let (lines, summary) = (metrics(&four), summary(&four));
    let number = |value: &Value| format!("{:.4}", value.as_f64().unwrap());
    for field in ["final_loss", "eval_loss", "eval_accuracy"] {
        let row = format!("{field}</th><td class=\"number\">{}</td>", number(&summary[field]));
        assert!(page.contains(&row), "{row}");
    }
    // Without a script: pictures with curves, tables, words.
    assert!(page.matches("<svg viewBox=").count() >= 4);
    assert!(page.matches("<path class=").count() >= 4);
    for part in [
        "mlp (86,026 parameters) on digits (",
        "with adamw in batches of 64 on 4 replicas in 1 process",
        "The run is done: 44 of 44 steps.",
        "The training loss fell from ",
        "The replicas are in lockstep: ",
        &format!("in lockstep: {} proofs found the same bits", summary["num_proofs"]),
        "No update was skipped.",
        "Where the time went",
        "not recorded: one process",
        "check_lockstep_every = 11",
        summary["params_fingerprint"].as_str().unwrap(),
        // Gradients, and metrics that are summed beside them.
        "all_reduce of f32 over {data}</th><td class=\"number\">",
    ] {
        assert!(page.contains(part), "{part}");
    }

    // Two for each weight and example in the forward pass, twice that backward, but for the input.
    let (weights, of_input) = (64 * 256 + 256 * 256 + 256 * 10, 64 * 256);
    let program = &summary["program"];
    assert_eq!(program["flops"], 16 * (6 * weights - 2 * of_input));
    let sent = &program["collectives"][0]["bytes"];
    assert!(sent.as_u64().unwrap() >= 4 * 86_026, "{program}");

    // Each example is in the row of its class, and most in the column of the same.
    let counts: Vec<Vec<u64>> =
        serde_json::from_value(summary["confusion"]["counts"].clone()).unwrap();
    let total: u64 = counts.iter().flatten().sum();
    let right: u64 = (0..10).map(|class| counts[class][class]).sum();
    assert_eq!((counts.len(), &summary["confusion"]["step"]), (10, &43.into()));
    let accuracy = summary["eval_accuracy"].as_f64().unwrap();
    assert!((right as f64 / total as f64 - accuracy).abs() < 1e-9, "{right} of {total}");
    let (_, matrix) = page.split_once("<table class=\"matrix\">").unwrap();
    let (matrix, _) = matrix.split_once("</table>").unwrap();
    let cells = matrix.split("</td>").filter_map(|cell| cell.rsplit_once('>')?.1.parse().ok());
    assert_eq!(cells.collect::<Vec<u64>>(), counts.concat());
    assert_eq!(matrix.matches(" right\">").count(), 10);

    // The program alone has some MB, and this host no more than TBs.
    let peak = summary["peak_process_bytes"].as_u64().unwrap();
    assert!((1 << 24..1 << 44).contains(&peak), "{peak}");
    assert!(page.contains("most bytes of the host, by the first process</th>"));

    let level = &data(&page)["runs"][0]["curves"]["steps"][0];
    assert_eq!(level, &json["runs"][0]["curves"]["steps"][0]);
    assert_eq!(level["rows_per_point"], 1);
    for (field, values) in level["series"].as_object().unwrap() {
        let recorded: Vec<_> = lines.iter().map(|line| line[field].as_f64()).collect();
        let shown: Vec<_> = values.as_array().unwrap().iter().map(Value::as_f64).collect();
        assert_eq!(shown, recorded, "{field}");
    }
    for field in ["loss", "lr", "grad_norm", "step_ms", "data_wait_ms"] {
        assert!(level["series"].get(field).is_some(), "{field}");
    }
    let evals = &json["runs"][0]["curves"]["evals"][0];
    assert_eq!(evals["step"], serde_json::json!([21, 43]));
    assert_eq!(evals["series"]["eval_loss"][1], lines[43]["eval_loss"]);
    assert_eq!(json["runs"][0]["summary"], summary);
    assert_eq!(json["runs"][0]["notes"], serde_json::json!([]));

    // The parts of the time are all of it.
    let goodput = &json["runs"][0]["goodput"];
    let parts = goodput["parts"].as_array().unwrap();
    let sum: f64 = parts.iter().filter_map(|part| part["secs"].as_f64()).sum();
    let (total, wall) = (goodput["total_secs"].as_f64().unwrap(), summary["wall_secs"].as_f64());
    assert!((sum - total).abs() < 1e-9 && (total / wall.unwrap() - 1.0).abs() < 0.01, "{goodput}");
}

#[test]
fn runs_are_compared() {
    let [four, one] = runs();
    let (page, json) = report(&[&four, &one]);
    check_page(&page);
    let keys = json["config_differences"].as_array().unwrap().iter();
    let keys: Vec<_> = keys.map(|difference| difference["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["checkpoint.every_steps", "mesh.data", "train.check_lockstep_every"]);
    assert!(page.contains("mesh.data</th><td class=\"number\">4</td><td class=\"number\">1</td>"));
    // Both runs are in the picture of the loss: raw, smoothed, evaluations.
    let (_, loss) = page.split_once("<figure data-chart=\"loss\"").unwrap();
    let (loss, _) = loss.split_once("</figure>").unwrap();
    for class in ["raw c0", "line c0", "dot c0", "raw c1", "line c1", "dot c1"] {
        assert!(loss.contains(&format!("class=\"{class}\"")), "{class}");
    }
    assert_eq!(page.matches("data-run=").count(), 2, "a button for each");
    assert_eq!(data(&page)["runs"].as_array().unwrap().len(), 2);
}

/// Names, hosts, reasons and settings are data, whoever chose them.
#[test]
fn what_was_recorded_is_never_markup() {
    let [four, _] = runs();
    let dir = tempfile::tempdir().unwrap();
    let hostile = "<script>alert(1)<".to_owned() + "script>\"'><img src=x onerror=alert(2)>";
    let run = dir.path().join(&hostile);
    fs::create_dir(&run).unwrap();
    let end = "</script><script>alert(3)</script><!--";
    let mut changed = summary(&four);
    changed["status"] = "failed".into();
    changed["reason"] = format!("{hostile}{end}").into();
    changed["device"] = format!("{end}\u{202E}").into();
    changed["failed_generations"] = serde_json::json!([
        {"generation": 1, "processes": [0], "reason": end, "step": 3}
    ]);
    changed["confusion"] = serde_json::json!({
        "step": u64::MAX, "classes": [end, hostile], "counts": [[u64::MAX, 0], [0, 0]]
    });
    file(&run, "summary.json", changed.to_string().as_bytes());
    let layers = serde_json::json!({"step": 3, "layers": {end: {"update_ratio": 0.5}}});
    file(&run, "layers.jsonl", format!("{layers}\n").as_bytes());
    let times = "{\"step\":18446744073709551615,\"num_steps\":5,\"own_ms\":[1e308,-1e308,0]}\n";
    file(&run, "processes.jsonl", times.as_bytes());
    let config = format!("[data]\nsource = '''{hostile}'''\n[model]\n'{end}' = 1\nname = 'a&b'\n");
    file(&run, "config.resolved.toml", config.as_bytes());
    let mut lines = String::new();
    for line in metrics(&four) {
        let mut line = line;
        line[format!("eval_{end}")] = 0.5.into();
        line[&hostile] = 1.5.into();
        line["slow_processes"] = serde_json::json!([
            {"process_index": 1, "host": end, "factor": 2.0, "since_step": 1, "machine": hostile}
        ]);
        writeln!(lines, "{line}").unwrap();
    }
    file(&run, "metrics.jsonl", lines.as_bytes());
    let (page, json) = report(&[&run]);
    let rest = page.replace("<script type=\"application/json\" id=\"data\">", "");
    assert_eq!(rest.matches("<script").count(), 1);
    assert_eq!(rest.matches("</script").count(), 2);
    for part in ["<img", "<!--", "alert(1)<", "\u{202E}"] {
        assert!(!rest.contains(part), "{part}");
    }
    assert!(page.contains("&lt;/script&gt;&lt;script&gt;alert(3)"));
    assert!(page.contains("Its machine told: "));
    for part in ["<th scope=\"row\">&lt;script&gt;alert(1)&lt;", "<title>&lt;/script&gt;&lt;script"]
    {
        assert!(page.contains(part), "{part}");
    }
    let fields = &data(&page)["runs"][0]["curves"]["steps"][0]["series"];
    assert_eq!(fields[&hostile][0], 1.5);
    assert_eq!(json["runs"][0]["name"].as_str(), Some(&*hostile));
}

/// What a killed run has left is a page, and says what is missing.
#[test]
fn damage_is_said_and_not_fatal() {
    let [four, _] = runs();
    let dir = tempfile::tempdir().unwrap();
    let whole = fs::read_to_string(four.join("metrics.jsonl")).unwrap();
    let lines: Vec<_> = whole.split_inclusive('\n').collect();
    let damaged = [&lines[..5].concat(), "rubbish\n", &lines[7..20].concat(), &lines[20][..30]];
    file(dir.path(), "metrics.jsonl", damaged.concat().as_bytes());
    file(dir.path(), "summary.json", b"{\"status\": ");
    let (page, json) = report(&[dir.path()]);
    check_page(&page);
    for note in [
        "summary.json is damaged",
        "config.resolved.toml is missing",
        "line 6 is not JSON",
        "2 steps are missing",
        "has no end",
        "The outcome is not recorded.",
    ] {
        assert!(page.contains(note), "{note}");
    }
    assert_eq!(json["runs"][0]["num_recorded_steps"], 18);
    assert!(json["runs"][0]["goodput"]["share"].is_null());
    // Before the first step there is a summary only.
    fs::remove_file(dir.path().join("metrics.jsonl")).unwrap();
    fs::copy(four.join("summary.json"), dir.path().join("summary.json")).unwrap();
    let (page, _) = report(&[dir.path()]);
    check_page(&page);
    assert!(page.contains("metrics.jsonl is missing"));
}

/// The page of a million steps, what `--json` says of them, and how long that took: made once for
/// all tests.
pub fn long_page() -> &'static (String, Value, Duration) {
    static LONG: OnceLock<(String, Value, Duration)> = OnceLock::new();
    LONG.get_or_init(|| {
        let [four, _] = runs();
        let dir = tempfile::tempdir().unwrap();
        for name in ["summary.json", "config.resolved.toml"] {
            fs::copy(four.join(name), dir.path().join(name)).unwrap();
        }
        const NUM_STEPS: usize = 1_000_000;
        let mut lines = String::with_capacity(300 * NUM_STEPS);
        for step in 0..NUM_STEPS {
            let loss = match step {
                123_456 => 77.25,
                step => 3.0 / (1.0 + step as f64 * 1e-4) + (step % 17) as f64 * 0.001_234_567_891,
            };
            let time = 1_795_772_242.123 + step as f64 * 0.25;
            let examples = step * 64;
            write!(lines, "{{\"step\":{step},\"time\":{time},\"examples\":{examples},").unwrap();
            // Short numbers, of which reading takes less time.
            write!(lines, "\"lr\":0.0002,\"loss\":{loss},\"grad_norm\":1.5,\"num_skipped\":0")
                .unwrap();
            lines +=
                ",\"step_ms\":33.5,\"launch_delay_ms\":0.0,\"host_ms\":1.5,\"data_wait_ms\":0.25";
            lines += if step % 1000 == 999 { ",\"eval_loss\":1.23456789}\n" } else { "}\n" };
        }
        file(dir.path(), "metrics.jsonl", lines.as_bytes());
        let begun = Instant::now();
        let (page, json) = report(&[dir.path()]);
        (page, json, begun.elapsed())
    })
}

/// Every outlier is there.
#[test]
fn a_long_run_is_a_small_page() {
    let (page, json, took) = long_page();
    println!("{} bytes in {took:?}", page.len());
    assert!(page.len() < 5_000_000, "{} bytes", page.len());
    let levels = json["runs"][0]["curves"]["steps"].as_array().unwrap();
    assert!(levels.len() > 1);
    for level in levels {
        let most = level["series"]["loss"]["max"].as_array().unwrap();
        assert!(most.contains(&77.25.into()));
    }
    assert!(page.contains("The training loss went up to 77.2500 in step 123456"));
    assert!(page.contains("num_skipped</th><td class=\"number\">0</td>"));
}

/// Four runs as a newcomer may have them: the page names the cause, and what to change.
#[test]
fn the_page_of_a_bad_run_leads_to_the_cause() {
    let dir = tempfile::tempdir().unwrap();
    let (rate, saves, input) =
        (dir.path().join("rate"), dir.path().join("saves"), dir.path().join("input"));
    let config = fs::read_to_string(DIGITS).unwrap();
    let (before, rest) = config.split_once("[optimizer]").unwrap();
    let (_, after) = rest.split_once("[schedule]").unwrap();
    let config = format!("{before}[optimizer]\nname = \"sgd\"\nmomentum = 0.9\n[schedule]{after}");
    let config = config.replace("data/", &format!("{EXAMPLES}/data/"));
    let config = file(dir.path(), "sgd.toml", config.as_bytes());
    // A peak of 0.1 trains it.
    let sets = ["schedule.peak=3.0", "train.epochs=5"].map(|set| ["--set", set]).concat();
    lockstep(&[&["train", text(&config), "--out", text(&rate)][..], &sets].concat()).succeeded();
    let sets = ["checkpoint.every_steps=1", "train.epochs=4"];
    lockstep(&train_args(&sets, &["--out", text(&saves)])).succeeded();
    // A disk that is slow: as the loop would record it.
    let [four, _] = runs();
    fs::create_dir(&input).unwrap();
    for name in ["summary.json", "config.resolved.toml"] {
        fs::copy(four.join(name), input.join(name)).unwrap();
    }
    let mut lines = String::new();
    for mut line in metrics(&four) {
        let step_ms = line["step_ms"].as_f64().unwrap();
        (line["step_ms"], line["data_wait_ms"]) = ((step_ms + 50.0).into(), 50.0.into());
        line["launch_delay_ms"] = 50.0.into();
        writeln!(lines, "{line}").unwrap();
    }
    file(&input, "metrics.jsonl", lines.as_bytes());
    for (run, kind, words) in [
        (&*rate, "bad", &["The training loss went up to ", "Lower the peak of the rate"][..]),
        (&saves, "warning", &["most come before a checkpoint. Save less often"]),
        (&input, "warning", &["The devices wait for data in ", "the input does not keep up"]),
        (&restarted().0, "bad", &["Process 1 on ", "All others wait for it"]),
    ] {
        let (_, json) = report(&[run]);
        let verdicts = json["runs"][0]["verdicts"].as_array().unwrap();
        let is_it = |verdict: &&Value| {
            let text = verdict["text"].as_str().unwrap();
            verdict["kind"] == kind && words.iter().all(|words| text.contains(words))
        };
        assert_eq!(verdicts.iter().filter(is_it).count(), 1, "{words:?}: {verdicts:#?}");
        // No sentence calls well what is not.
        let calm = ["No wait takes a large part", "The training loss fell"];
        let calm = if run == rate { calm[1] } else { calm[0] };
        assert!(!json["runs"][0]["verdicts"].to_string().contains(calm), "{verdicts:#?}");
    }
}

#[test]
fn the_map_of_processes_shows_which_was_slow_and_when() {
    let (run, _) = restarted();
    let (page, json) = report(&[&run]);
    let text = fs::read_to_string(run.join("processes.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // Where the state of each attempt came from: nowhere, then the newer of two places.
    let (_, starts) = page.split_once(">state from</th>").unwrap();
    let (starts, _) = starts.split_once("</table>").unwrap();
    let rows: Vec<_> = starts.split("<tr>").skip(1).collect();
    let [second, first] = rows[..] else { panic!("{starts}") };
    let from = match summary(&run)["generation_starts"][1]["state_from"].as_str().unwrap() {
        "memory" => "memory of supervisors",
        "checkpoint" => "checkpoint",
        other => panic!("{other}"),
    };
    assert!(second.contains(">failure<") && second.contains(&format!(">{from}<")), "{second}");
    assert!(first.contains(">none: start of the run<"), "{first}");
    // Each step is in one line, also those that were taken again.
    let mut next = 0;
    for line in &lines {
        let num_steps = line["num_steps"].as_u64().unwrap();
        next += num_steps;
        assert_eq!(line["step"], next - 1, "{line}");
    }
    assert_eq!(next, metrics(&run).len() as u64);
    // Of very many lines several in a row are one.
    let shown = json["runs"][0]["process_times"].as_array().unwrap();
    let steps = shown.iter().map(|times| times["num_steps"].as_u64().unwrap());
    assert_eq!((steps.sum::<u64>(), &shown.last().unwrap()["step"]), (next, &(next - 1).into()));
    // The second was stopped again and again.
    let own = |line: &Value, process: usize| line["own_ms"][process].as_f64().unwrap();
    assert!(lines.iter().any(|line| own(line, 1) > 2.0 * own(line, 0)), "{text}");
    let (_, map) = page.split_once("<figure class=\"still\">").unwrap();
    let (map, _) = map.split_once("</figure>").unwrap();
    let [first, second] = &map.split("<g>").skip(1).collect::<Vec<_>>()[..] else {
        panic!("{map}")
    };
    let cells = |row: &str| row.matches('M').count();
    assert_eq!((cells(first), cells(second)), (shown.len(), shown.len()));
    assert!(second.contains("heat h7"), "{second}");
    assert!(page.contains("process 1</th><td class=\"number\">"), "the table");
}

/// Against a calculation from the events of a run with a restart, and against a clock beside it.
#[test]
fn the_goodput_of_a_run_with_a_kill_is_that_of_its_events() {
    let (run, took) = restarted();
    let (_, json) = report(&[&run]);
    let goodput = &json["runs"][0]["goodput"];
    let (lines, summary) = (metrics(&run), summary(&run));
    let number = |value: &Value| value.as_f64().unwrap();
    let [first, second] = &summary["generation_starts"].as_array().unwrap()[..] else {
        panic!("{summary}")
    };
    let resumed = second["step"].as_u64().unwrap() as usize;
    assert!(resumed > 0 && lines.len() > resumed);
    // The job began before the first launch ended, and ended with its last process.
    let phases = [
        "agree_secs",
        "join_secs",
        "plugin_secs",
        "programs_secs",
        "state_secs",
        "first_step_secs",
    ];
    let first_start: f64 = phases.iter().map(|phase| number(&first[phase])).sum();
    let begun = number(&lines[0]["time"]) - first_start;
    let last_process = number(&lines[resumed]["time"]) - number(&summary["first_step_secs"]);
    let total = last_process + number(&summary["wall_secs"]) - begun;
    // What is computed after the first launch of each attempt, and is no wait for anything.
    let useful = lines.iter().enumerate().filter(|(step, _)| ![0, resumed].contains(step));
    let useful = useful.map(|(_, line)| {
        number(&line["step_ms"])
            - number(&line["launch_delay_ms"])
            - line["collective_wait_ms"].as_f64().unwrap_or(0.0)
    });
    let share = useful.sum::<f64>() / 1e3 / total;
    let shown = number(&goodput["share"]);
    assert!((shown / share - 1.0).abs() < 0.01, "{shown} of {goodput}, and {share} of {total} s");
    let shown = number(&goodput["total_secs"]);
    assert!((shown / total - 1.0).abs() < 0.01, "{shown} and {total} s");
    // The supervisor starts and ends around that.
    let around = took.as_secs_f64() - total;
    assert!((0.0..1.5).contains(&around), "{took:?} and {total} s");
}

#[test]
fn what_is_no_run_is_refused_and_no_file_is_lost() {
    let [four, _] = runs();
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    let data = file(dir.path(), "data.csv", b"1,2\n");
    for (path, fragment) in [
        (
            dir.path(),
            "is not the directory of a run: it has neither metrics.jsonl nor summary.json",
        ),
        (&*dir.path().join("nowhere"), "there is no "),
        (&*data, "is not a directory; name the directory that `lockstep train --out` wrote"),
    ] {
        // One good run does not hide a bad one.
        let done = lockstep(&["report", text(&four), text(path), "--to", text(&page)]);
        assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""), "{}", done.stderr);
        assert!(done.stderr.contains(fragment), "{fragment:?} is not in {}", done.stderr);
        assert!(!page.exists());
    }
    let write = ["report", text(&four), "--to", text(&page)];
    assert_eq!(lockstep(&write).succeeded().stdout.trim_end(), text(&page));
    // An earlier page is replaced, and nothing else.
    lockstep(&write).succeeded();
    let refused = lockstep(&["report", text(&four), "--to", text(&data)]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("exists; choose another name"), "{}", refused.stderr);
    assert_eq!(fs::read(&data).unwrap(), b"1,2\n");
    lockstep(&["report", text(&four), "--to", text(&data), "--overwrite"]).succeeded();
    assert_eq!(lockstep(&["report"]).code, Some(2));
}

#[test]
fn compare_names_the_first_step_that_differs() {
    let [four, one] = runs();
    let dir = tempfile::tempdir().unwrap();
    let changed = dir.path().join("changed");
    fs::create_dir(&changed).unwrap();
    for name in ["summary.json", "config.resolved.toml"] {
        fs::copy(four.join(name), changed.join(name)).unwrap();
    }
    let lines = fs::read_to_string(four.join("metrics.jsonl")).unwrap();
    // Times differ in every run, and are not compared.
    let lines = lines.replace("\"step_ms\":", "\"step_ms\":1");
    file(&changed, "metrics.jsonl", lines.as_bytes());
    let same = lockstep(&["compare", text(&four), text(&changed)]).succeeded().stdout;
    for line in
        ["configuration: the same", "the same bits in 44 common steps", "parameters: the same"]
    {
        assert!(same.contains(line), "{line}: {same}");
    }
    let loss = format!("\"loss\":{},", metrics(&four)[30]["loss"]);
    file(&changed, "metrics.jsonl", lines.replace(&loss, "\"loss\":0.5,").as_bytes());
    let done = lockstep(&["compare", text(&four), text(&changed), "--json"]);
    assert_eq!((done.code, &done.json()["are_same"]), (Some(1), &false.into()));
    let first = &done.json()["first_difference"];
    assert_eq!((&first["step"], &first["field"]), (&30.into(), &"loss".into()));
    assert_eq!(first["values"][1], 0.5);
    let done = lockstep(&["compare", text(&four), text(&one)]);
    assert_eq!(done.code, Some(1));
    assert!(done.stdout.contains("mesh.data  4 | 1\n"), "{}", done.stdout);
    assert!(
        lockstep(&["compare", text(&four), text(dir.path())])
            .stderr
            .contains("is not the directory")
    );
}
