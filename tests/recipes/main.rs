//! `schedule --check`: each rule with a case that it finds and one just beside it that it does not, advice that can be
//! followed, and how many of the published and faulty recipes in this folder are judged right.

mod advice;
mod commands;
mod measured;
mod report;
mod rules;

use std::path::{Path, PathBuf};

use hlo::{AxisSet, DType, Mesh, TensorType, Tree, row_specs, trace};
use lockstep::config::Config;
use lockstep::recipe::{Finding, Recipe, Severity, check};
use lockstep::train::mesh_on_host;
use models::{Batch, Precision, Scope};

/// A configuration with what a [`Recipe`] borrows.
struct Loaded {
    config: Config,
    ranks: Tree<usize>,
}

impl Loaded {
    fn new(path: &Path, sets: &[String]) -> Self {
        Self::of(Config::load(path, sets).unwrap_or_else(|error| panic!("{sets:?}: {error}")))
    }

    fn of(config: Config) -> Self {
        let ranks = ranks(&config);
        Self { config, ranks }
    }

    fn recipe(&self) -> Recipe<'_> {
        self.resolve().unwrap()
    }

    fn resolve(&self) -> Result<Recipe<'_>, lockstep::recipe::Error> {
        let num_replicas = mesh_on_host(&self.config).num_replicas();
        Recipe::new(&self.config, num_replicas, self.config.data.num_examples(), &self.ranks)
    }

    fn findings(&self) -> Vec<Finding> {
        check(&self.recipe())
    }
}

/// The rank of each parameter, from the model's own example.
fn ranks(config: &Config) -> Tree<usize> {
    let mut ranks = Tree::new();
    let model = config.model.build(10);
    trace(Mesh::SINGLE, |t| {
        let scope = Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY);
        let fields = config.model.example().into_iter().map(|(name, ty)| {
            let ty = TensorType::new(ty.dtype, &[&[2], &ty.dims[..]].concat());
            (name.to_owned(), t.input(format!("batch.{name}"), ty))
        });
        let fields = fields.collect();
        model.loss(&scope, &Batch { fields, weight: t.full(DType::F32, &[2], 1.0) });
        let parameters = row_specs(&scope.parameters().map(|_, parameter| parameter.leaf()));
        ranks = parameters.map(|_, parameter| parameter.dims.len());
    })
    .unwrap();
    ranks
}

/// A shipped example, or a published recipe of `build/good`.
fn file(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    match name.ends_with(".toml") {
        true => root.join("examples").join(name),
        false => root.join(format!("tests/recipes/build/good/{name}.toml")),
    }
}

fn owned(sets: &[&str]) -> Vec<String> {
    sets.iter().map(|set| set.to_string()).collect()
}

/// What a rule finds above notes.
fn is_flagged(finding: &Finding) -> bool {
    finding.severity < Severity::Note
}
