//! The table of published recipes: `published.toml`, compiled into the program.

use std::path::Path;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::figures::ModelKind;
use super::{Recipe, short};
use crate::config::{self, Config, Scaling};

/// A published recipe.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedRecipe {
    /// Its name, for `lockstep recipes`.
    pub name: String,
    /// The model.
    pub model: String,
    /// The family of models that it trains.
    pub family: String,
    /// The kind of model that its rates are comparable for.
    pub kind: String,
    /// Parameters of the blocks of a transformer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<f64>,
    /// Examples per step.
    pub batch: usize,
    /// The optimizer's name.
    pub optimizer: String,
    /// The highest rate.
    pub peak: f64,
    /// Steps of the warm-up.
    pub warmup_steps: u64,
    /// Steps of the run.
    pub steps: u64,
    /// Shape of the rate after the warm-up.
    pub decay: String,
    /// Weight decay.
    pub weight_decay: f64,
    /// How its papers scale the rate with the batch.
    pub scaling: Scaling,
    /// The result that its source states.
    pub result: String,
    /// Paper or repository.
    pub source: String,
    /// Where to find it.
    pub link: String,
    /// How well the source was read.
    #[serde(skip_serializing)]
    pub verified: Provenance,
    /// The set of `tests/recipes` that it belongs to.
    #[serde(default, skip_serializing)]
    pub test_set: Option<String>,
    /// Replicas that it is checked with, if not those of its configuration.
    #[serde(default, skip_serializing)]
    pub replicas: Option<usize>,
    /// The recipe as a configuration, without the lines that name the model and the source.
    #[serde(skip_serializing)]
    pub config: String,
}

/// How well the source of a recipe was read.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Provenance {
    /// In a file, a thread or a page.
    Stored,
    /// Some values are from memory; the configuration's comments name them.
    Part,
    /// The whole recipe is from memory.
    Memory,
}

#[derive(Deserialize)]
struct File {
    recipe: Vec<PublishedRecipe>,
}

static RECIPES: LazyLock<Vec<PublishedRecipe>> = LazyLock::new(|| {
    // A test reads the file, so that this is never empty.
    toml::from_str(include_str!("published.toml")).map_or(vec![], |file: File| file.recipe)
});

/// All published recipes, by name.
pub fn recipes() -> &'static [PublishedRecipe] {
    &RECIPES
}

/// The published recipe with this name.
pub fn find(name: &str) -> Option<&'static PublishedRecipe> {
    recipes().iter().find(|recipe| recipe.name == name)
}

/// The published recipe with the largest batch for a configuration's kind of model, and that batch:
/// in tokens if the configuration has texts, otherwise in examples. `None` if there is no recipe
/// for it.
pub fn largest_batch(config: &Config) -> Option<(&'static PublishedRecipe, usize)> {
    let kind = ModelKind::of(config).name();
    let has_texts = config.data.tokens_per_example().is_some();
    let size = |published: &PublishedRecipe| match has_texts {
        true => {
            published.tokens_per_example().and_then(|tokens| tokens.checked_mul(published.batch))
        }
        false => Some(published.batch),
    };
    let of_kind = recipes().iter().filter(|published| published.kind == kind);
    of_kind
        .filter_map(|published| Some((published, size(published)?)))
        .max_by_key(|(_, size)| *size)
}

/// The published recipe for the same kind of model and optimizer with the nearest batch and size,
/// measured by ratios.
pub(super) fn nearest(recipe: &Recipe<'_>) -> Option<&'static PublishedRecipe> {
    let distance = |published: &PublishedRecipe| {
        let log_ratio = |a: f64, b: f64| (a / b).ln().abs();
        let of_size = published
            .parameters
            .zip(recipe.kind.num_parameters())
            .map_or(0.0, |(theirs, ours)| log_ratio(theirs, ours));
        log_ratio(published.batch as f64, recipe.batch()) + of_size
    };
    recipes()
        .iter()
        .filter(|published| published.is_comparable(recipe))
        .min_by(|a, b| distance(a).total_cmp(&distance(b)))
}

impl PublishedRecipe {
    /// `true` for the same kind of model and optimizer; Adam and AdamW are one.
    pub(super) fn is_comparable(&self, recipe: &Recipe<'_>) -> bool {
        let optimizer = &self.optimizer;
        let is_same = optimizer == recipe.config.optimizer.rule.name()
            || (optimizer.starts_with("adam") && recipe.is_adam());
        self.kind == recipe.kind.name() && is_same
    }

    /// Tokens of an example, by its configuration.
    fn tokens_per_example(&self) -> Option<usize> {
        let file: Table = toml::from_str(&self.config).ok()?;
        let data = file.get("data")?.as_table()?;
        let length = data.get("context").or_else(|| data.get("max_length"))?;
        usize::try_from(length.as_integer()?).ok()
    }

    /// One line: model, batch, rate, warm-up, source.
    pub fn describe(&self) -> String {
        format!(
            "{}: {} at a batch of {} with {} at {}, {} of {} steps of warm-up, {} ({})",
            self.name,
            self.model,
            self.batch,
            self.optimizer,
            short(self.peak),
            self.warmup_steps,
            self.steps,
            self.decay,
            self.source
        )
    }

    /// The configuration as a file, which begins with the source.
    pub fn text(&self) -> String {
        format!("# {}: {}\n# Source: {}\n{}", self.model, self.source, self.link, self.config)
    }

    /// The configuration with the replicas that it is checked with, and with `--set` arguments.
    ///
    /// # Errors
    /// Arguments that make it invalid.
    pub fn changed(&self, sets: &[String]) -> Result<Config, config::Error> {
        let replicas = self.replicas.map(|replicas| format!("mesh.data={replicas}"));
        let sets: Vec<_> = replicas.into_iter().chain(sets.iter().cloned()).collect();
        Config::parse(&self.config, Path::new(&format!("/{}.toml", self.name)), &sets)
    }

    /// The configuration for another batch: the rate is scaled as its papers do it, and lengths in
    /// steps keep the number of examples.
    ///
    /// # Errors
    /// A configuration that is not TOML, which the test of the table excludes.
    pub fn scaled(&self, batch: usize) -> Result<String, toml::de::Error> {
        let mut file: Table = toml::from_str(&self.config)?;
        let ratio = self.batch as f64 / batch.max(1) as f64;
        let rescale = |value: &mut Value| match value {
            Value::Integer(steps) => *steps = ((*steps as f64 * ratio).round() as i64).max(1),
            Value::Array(steps) => {
                // Boundaries rise, also those that were one step apart.
                let mut least = 0;
                for step in steps.iter_mut() {
                    if let Value::Integer(step) = step {
                        *step = ((*step as f64 * ratio).round() as i64).max(least);
                        least = *step + 1;
                    }
                }
            }
            _ => {}
        };
        for (section, keys) in [
            ("train", &["steps"][..]),
            ("schedule", &["warmup_steps", "decay_steps", "total_steps", "boundaries"]),
        ] {
            if let Some(Value::Table(table)) = file.get_mut(section) {
                keys.iter().for_each(|key| {
                    if let Some(value) = table.get_mut(*key)
                        && *value != Value::Integer(0)
                    {
                        rescale(value);
                    }
                });
            }
        }
        if let Some(Value::Table(train)) = file.get_mut("train") {
            train.insert("global_batch".into(), Value::Integer(batch as i64));
            train.remove("microbatch");
            train.remove("num_microbatches");
        }
        if let Some(Value::Table(schedule)) = file.get_mut("schedule") {
            schedule.remove("peak");
            schedule.insert("base_lr".into(), Value::Float(self.peak));
            schedule.insert("base_batch".into(), Value::Integer(self.batch as i64));
            let scaling = if self.scaling == Scaling::Linear { "linear" } else { "sqrt" };
            schedule.insert("scaling".into(), Value::String(scaling.to_owned()));
        }
        if let Some(Value::Table(mesh)) = file.get_mut("mesh") {
            mesh.insert("data".into(), Value::String("auto".to_owned()));
        }
        let about = format!(
            "# {}: {}\n# {}\n# From a batch of {} to {batch}: the rate is scaled ({}), lengths \
             keep their number of examples.\n\n",
            self.model,
            self.source,
            self.link,
            self.batch,
            if self.scaling == Scaling::Linear { "linear" } else { "sqrt" }
        );
        Ok(about + &file.to_string())
    }
}
