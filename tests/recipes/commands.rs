//! The table of published recipes, and the commands that use it; ignoring and explaining rules.

use std::path::Path;
use std::process::{Command, Output};

use lockstep::config::{BatchSize, Config};
use lockstep::optim::schedule::peak;
use lockstep::recipe::published::{find, recipes};
use lockstep::recipe::rules;
use serde_json::Value;

use super::example;

fn lockstep(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lockstep")).args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn parse(text: &str) -> Config {
    Config::parse(text, Path::new("recipe.toml"), &[])
        .unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn every_published_recipe_is_a_configuration_and_can_be_scaled() {
    assert!(recipes().len() >= 90, "{}", recipes().len());
    for recipe in recipes() {
        let config = parse(&recipe.config);
        assert_eq!(config.train.batch, BatchSize::Global(recipe.batch), "{}", recipe.name);
        let of_config = peak(config.schedule.peak, recipe.batch);
        assert!((of_config / recipe.peak - 1.0).abs() < 1e-3, "{}: {of_config}", recipe.name);
        let scaled = parse(&recipe.scaled(2 * recipe.batch).unwrap());
        assert_eq!(scaled.train.batch, BatchSize::Global(2 * recipe.batch), "{}", recipe.name);
        let doubled = peak(scaled.schedule.peak, 2 * recipe.batch) / recipe.peak;
        let is_scaled = [2.0, 2f64.sqrt()].iter().any(|ratio| (doubled - ratio).abs() < 1e-9);
        assert!(is_scaled, "{}: {doubled}", recipe.name);
    }
    // Lengths in steps keep the number of examples.
    let gpt = find("nanogpt-gpt2-124m").unwrap().scaled(960).unwrap();
    assert!(gpt.contains("steps = 300000") && gpt.contains("warmup_steps = 1000"), "{gpt}");
}

#[test]
fn recipes_are_listed_and_written() {
    let list = lockstep(&["recipes"]);
    assert_eq!(stdout(&list).lines().count(), recipes().len());
    let list: Value = serde_json::from_slice(&lockstep(&["recipes", "--json"]).stdout).unwrap();
    assert_eq!(list[0]["name"], recipes()[0].name.as_str());
    let one = lockstep(&["recipes", "goyal-resnet50-2048-peak"]);
    parse(&stdout(&one));
    let scaled = stdout(&lockstep(&["recipes", "goyal-resnet50-2048-peak", "--batch", "8192"]));
    assert_eq!(peak(parse(&scaled).schedule.peak, 8192), 3.2);
    let unknown = lockstep(&["recipes", "nothing"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(stderr(&unknown).contains("`lockstep recipes` lists them"), "{}", stderr(&unknown));
}

#[test]
fn the_table_has_figures_and_findings() {
    let text = stdout(&lockstep(&["recipes", "convmixer-768-640-adamw", "--table"]));
    let lines: Vec<_> = text.lines().collect();
    let [headings, row] = lines[..] else { panic!("{text}") };
    let recipe = find("convmixer-768-640-adamw").unwrap();
    let warm_up = format!("{} of {} steps", recipe.warmup_steps, recipe.steps);
    for (heading, cell) in [
        ("recipe", &*recipe.name),
        ("model", &recipe.model),
        ("batch", "640"),
        ("optimizer", "adamw"),
        ("peak rate", "0.01"),
        ("warm-up", &warm_up),
        ("findings", "warning rate-unlike-published"),
        ("source", &recipe.source),
    ] {
        let at = headings.find(heading).unwrap();
        assert!(row[at..].starts_with(cell), "{heading}: {text}");
    }
    let text = stdout(&lockstep(&["recipes", "keras-mnist-convnet-128", "--table=markdown"]));
    let lines: Vec<_> = text.lines().collect();
    let columns = |line: &str| line.matches('|').count();
    assert!(lines.len() == 3 && lines.iter().all(|line| columns(line) == 9), "{text}");
    let recipe = find("keras-mnist-convnet-128").unwrap();
    assert!(lines[2].contains(&format!("| [{}]({}) |", recipe.source, recipe.link)), "{text}");
    let refused = lockstep(&["recipes", "--table", "--json"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
}

#[test]
fn names_near_an_unknown_recipe_or_rule_are_suggested() {
    let digits = example("digits.toml");
    let against = ["schedule", digits.to_str().unwrap(), "--against", "distilbert"];
    for (args, expected) in [
        (&["recipes", "bert"][..], ", did you mean bert-"),
        (&["recipes", "goyal-resnet50-2048-peek"], ", did you mean goyal-resnet50-2048-peak"),
        (&against, ", did you mean distilbert-"),
        (&["recipes", "qqqq"], "recipe \"qqqq\"; `lockstep recipes`"),
        (
            &["schedule", "--explain", "rate-too-hig"],
            ", did you mean rate-too-high?; the rules are",
        ),
    ] {
        let refused = lockstep(args);
        assert_eq!(refused.status.code(), Some(1), "{args:?}");
        assert!(stderr(&refused).contains(expected), "{args:?}: {}", stderr(&refused));
    }
}

#[test]
fn a_recipe_is_compared_with_a_published_one() {
    let images = example("resnet50-imagenet.toml");
    let against = ["schedule", images.to_str().unwrap(), "--against"];
    let rows = lockstep(&[&against[..], &["goyal-resnet50-2048-peak", "--json"]].concat());
    let rows: Value = serde_json::from_slice(&rows.stdout).unwrap();
    let row = |what: &str| rows.as_array().unwrap().iter().find(|row| row["what"] == what).unwrap();
    let batch = row("global batch");
    assert_eq!((&batch["ours"], &batch["published"]), (&"8192".into(), &"2048".into()));
    let rate = row("rate / (1 - momentum) per 256");
    assert_eq!((&rate["ours"], &rate["published"]), (&"1".into(), &"1".into()));
    let text = stdout(&lockstep(&[&against[..], &["goyal-resnet50-2048-peak"]].concat()));
    assert!(text.contains("* global batch") && text.contains("Goyal et al., 2017"), "{text}");
    assert_eq!(lockstep(&[&against[..], &["nothing"]].concat()).status.code(), Some(1));
}

#[test]
fn a_rule_can_be_ignored_with_a_reason() {
    let images = example("resnet50-imagenet.toml");
    let check = ["schedule", images.to_str().unwrap(), "--check", "--set", "schedule.peak=0.1"];
    let ignored = ["--set", "check.ignore.rate-too-low=\"a test\"", "--json"];
    let report = lockstep(&[&check[..], &ignored].concat());
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["findings"].as_array().unwrap().len(), 0, "{report:#}");
    assert_eq!(report["ignored"]["rate-too-low"], "a test");
    let unknown = lockstep(&[&check[..], &["--set", "check.ignore.rate=\"a test\""]].concat());
    assert_eq!(unknown.status.code(), Some(1));
    let error = stderr(&unknown);
    assert!(error.contains("no rule \"rate\"") && error.contains("rate-too-low"), "{error}");
    let refused = "check.ignore.refused-by-train=\"a test\"";
    let refused = lockstep(&[&check[..], &["--set", refused]].concat());
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("the run would still be refused"), "{}", stderr(&refused));
    let reasonless = lockstep(&[&check[..], &["--set", "check.ignore.rate-too-low=\"\""]].concat());
    assert!(stderr(&reasonless).contains("the reason why"), "{}", stderr(&reasonless));
}

#[test]
fn every_rule_is_explained() {
    for rule in rules() {
        let text = stdout(&lockstep(&["schedule", "--explain", rule.name]));
        assert!(text.starts_with(rule.name) && text.contains("source: "), "{text}");
    }
    // No rule, but it can be in a report.
    let text = stdout(&lockstep(&["schedule", "--explain", "refused-by-train"]));
    assert!(text.contains("cannot be left out") && !text.contains("with a reason"), "{text}");
    assert_eq!(lockstep(&["schedule", "--explain", "nothing"]).status.code(), Some(1));
    assert_eq!(lockstep(&["schedule"]).status.code(), Some(2));
}
