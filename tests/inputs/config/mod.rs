//! Valid configurations, and invalid ones with their messages: `values` has what is read, written
//! and left at its default, `changes` what `--set` and `--unset` do, `errors` the messages.

mod changes;
mod errors;
mod values;

use std::path::Path;

use lockstep::config::{Config, Error};

const GOOD: &str = r#"
[model]
name = "mlp"
hidden = [32, 16]
[data]
source = "digits"
path = "data/digits.csv.gz"
[train]
global_batch = 64
steps = 500
[optimizer]
name = "adamw"
beta1 = 0.8
weight_decay = 0.1
[schedule]
name = "cosine"
peak = 6e-4
warmup_steps = 100
floor = 0.1
[mesh]
data = 4
"#;

fn parse(text: &str, sets: &[&str]) -> Result<Config, Error> {
    let sets: Vec<_> = sets.iter().map(|set| set.to_string()).collect();
    Config::parse(text, Path::new("/runs/good.toml"), &sets)
}

fn good(sets: &[&str]) -> Config {
    parse(GOOD, sets).unwrap_or_else(|error| panic!("{sets:?}: {error}"))
}

/// The `[model]` section of [`GOOD`].
fn model_section() -> String {
    let (_, after) = GOOD.split_once("[model]").unwrap();
    let section = after.split("\n[").next().unwrap();
    format!("[model]{section}\n")
}
