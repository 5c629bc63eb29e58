//! `schedule --check`: each rule with a case that it finds and one just beside it that it does not,
//! advice that can be followed, and how many published and faulty recipes are judged right. The
//! faulty ones are changes to published ones. `acceptance`: the check agrees with what `train`
//! accepts.

mod acceptance;
mod advice;
mod commands;
mod measured;
mod page;
mod report;
mod rules;
mod sets;

use std::path::{Path, PathBuf};

use hlo::Tree;
use lockstep::cli::parameter_ranks;
use lockstep::config::Config;
use lockstep::recipe::published::find;
use lockstep::recipe::{Finding, Recipe, Severity, check};
use lockstep::train::mesh_on_host;

/// A configuration with what a [`Recipe`] borrows.
struct Loaded {
    config: Config,
    ranks: Tree<usize>,
}

impl Loaded {
    /// A shipped example, or a published recipe.
    fn new(name: &str, sets: &[String]) -> Self {
        let config = match name.ends_with(".toml") {
            true => Config::load(&example(name), sets),
            false => find(name).unwrap_or_else(|| panic!("no recipe {name}")).changed(sets),
        };
        Self::of(config.unwrap_or_else(|error| panic!("{name} {sets:?}: {error}")))
    }

    fn of(config: Config) -> Self {
        let ranks = parameter_ranks(&config).unwrap();
        Self { config, ranks }
    }

    fn recipe(&self) -> Recipe<'_> {
        self.resolve().unwrap()
    }

    fn resolve(&self) -> Result<Recipe<'_>, lockstep::recipe::Error> {
        let num_batch_shards = mesh_on_host(&self.config).num_batch_shards();
        Recipe::new(&self.config, num_batch_shards, self.config.data.num_examples(), &self.ranks)
    }

    fn findings(&self) -> Vec<Finding> {
        check(&self.recipe())
    }
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

fn owned(sets: &[&str]) -> Vec<String> {
    sets.iter().map(|set| set.to_string()).collect()
}

/// What a rule finds above notes.
fn is_flagged(finding: &Finding) -> bool {
    finding.severity < Severity::Note
}
