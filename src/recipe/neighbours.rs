//! The rate beside those that are published for the same optimizer and kind of model at about the
//! same batch.

use std::sync::LazyLock;

use toml::{Table, Value};

use super::figures::ModelKind;
use super::published::{PublishedRecipe, recipes};
use super::{Found, Recipe, Severity, rate, short, trust};
use crate::config::{Lars, Scaling, UpdateRule};

/// Published batches are compared up to this ratio to ours. For transformers batches are counted in
/// tokens.
const MAX_BATCH_RATIO: f64 = 16.0;
/// The same for transformers with Adam: more recipes of these are published.
const MAX_BATCH_RATIO_OF_ADAM: f64 = 8.0;
/// Published transformers are compared up to this ratio of parameters.
const MAX_SIZE_RATIO: f64 = 16.0;
/// The same with Adam.
const MAX_SIZE_RATIO_OF_ADAM: f64 = 8.0;
/// Ratio to the second highest published rate from which a rate is reported. The highest is often a
/// single unusual recipe.
const MAX_ABOVE: f64 = 2.5;
/// Ratio of the lowest published rate to ours from which ours is reported.
const MAX_BELOW: f64 = 4.0;
/// Rates of Adam for images up to this one, twice its default, are usual at any batch.
const USUAL_OF_ADAM: f64 = 2e-3;
/// Tokens per parameter above which a transformer is trained from scratch, and below which it is
/// fine-tuned.
const TOKENS_FROM_SCRATCH: f64 = 2.0;
/// Up to this factor from it, a run is compared with both.
const DOUBTFUL: f64 = 4.0;

/// The parts of a published recipe that are compared.
struct Neighbour {
    recipe: &'static PublishedRecipe,
    /// As [`effective_rate`].
    rate: f64,
    /// Tokens of a step.
    tokens: f64,
}

static NEIGHBOURS: LazyLock<Vec<Neighbour>> =
    LazyLock::new(|| recipes().iter().map(Neighbour::of).collect());

impl Neighbour {
    fn of(recipe: &'static PublishedRecipe) -> Self {
        // A test reads all of them.
        let file: Table = toml::from_str(&recipe.config).unwrap_or_default();
        let number = |section: &str, key: &str| match file.get(section)?.get(key)? {
            Value::Integer(number) => Some(*number as f64),
            Value::Float(number) => Some(*number),
            _ => None,
        };
        let Lars { momentum, trust_coefficient, .. } = Lars::default();
        let share = match recipe.optimizer.as_str() {
            "lars" => {
                let coefficient = number("optimizer", "trust_coefficient");
                let momentum = number("optimizer", "momentum").unwrap_or(momentum);
                coefficient.unwrap_or(trust_coefficient) / (1.0 - momentum)
            }
            _ => 1.0,
        };
        let context = number("data", "context").unwrap_or(1.0);
        Self { recipe, rate: recipe.peak * share, tokens: recipe.batch as f64 * context }
    }

    fn is_from_scratch(&self) -> bool {
        let tokens = self.tokens * self.recipe.steps as f64;
        self.recipe.parameters.is_none_or(|number| tokens >= TOKENS_FROM_SCRATCH * number)
    }

    /// `true` if its rate is comparable when it is scaled.
    fn is_near(&self, recipe: &Recipe<'_>) -> bool {
        let is_near = |a: f64, b: f64, most: f64| (a / b).max(b / a) <= most;
        let is_same = self.recipe.is_comparable(recipe);
        let batch = self.recipe.batch as f64;
        match recipe.kind {
            ModelKind::Transformer { num_parameters, .. } if recipe.is_adam() => {
                let size = self.recipe.parameters.unwrap_or(num_parameters);
                let tokens = recipe.total_tokens();
                let of_step = tokens / recipe.total_steps().max(1) as f64;
                let of_parameter = tokens / num_parameters;
                let is_doubtful = is_near(of_parameter, TOKENS_FROM_SCRATCH, DOUBTFUL);
                let is_from_scratch = of_parameter >= TOKENS_FROM_SCRATCH;
                is_same
                    && is_near(self.tokens, of_step, MAX_BATCH_RATIO_OF_ADAM)
                    && is_near(size, num_parameters, MAX_SIZE_RATIO_OF_ADAM)
                    && (is_doubtful || self.is_from_scratch() == is_from_scratch)
            }
            kind => {
                let sizes = self.recipe.parameters.zip(kind.num_parameters());
                is_same
                    && is_near(batch, recipe.batch(), MAX_BATCH_RATIO)
                    && sizes.is_none_or(|(theirs, ours)| is_near(theirs, ours, MAX_SIZE_RATIO))
            }
        }
    }

    /// Its rate, scaled to the batch of a recipe as its papers scale it.
    fn scaled_rate(&self, recipe: &Recipe<'_>) -> f64 {
        let ratio = match recipe.kind {
            ModelKind::Transformer { .. } if recipe.is_adam() => {
                recipe.total_tokens() / recipe.total_steps().max(1) as f64 / self.tokens
            }
            _ => recipe.batch() / self.recipe.batch as f64,
        };
        match self.recipe.scaling {
            Scaling::Linear => self.rate * ratio,
            _ => self.rate * ratio.sqrt(),
        }
    }
}

/// How far a gradient moves the parameters in the end, for a rate of this recipe: the share of a
/// layer's norm for LARS and LAMB, the rate for Adam.
fn effective_rate(recipe: &Recipe<'_>) -> Option<f64> {
    let is_compared =
        matches!(recipe.kind, ModelKind::Convolutional { .. } | ModelKind::Transformer { .. });
    match &recipe.config.optimizer.rule {
        _ if !is_compared => None,
        UpdateRule::Lars(_) | UpdateRule::Lamb(_) => {
            trust::shares(recipe).map(|(_, lasting)| lasting)
        }
        UpdateRule::Adam(_) | UpdateRule::AdamW(_) => {
            let is_small = |number| number < rate::SMALL_TRANSFORMER;
            let is_small = recipe.kind.num_parameters().is_some_and(is_small);
            recipe.rates.filter(|_| !is_small).map(|rates| rates.max)
        }
        UpdateRule::Sgd(_) => None,
    }
}

/// `true` if a rule with a limit for all batches says so already.
fn is_known(recipe: &Recipe<'_>) -> bool {
    let rules = [trust::too_high, trust::too_low, rate::too_high, rate::too_low];
    rules.iter().any(|find| !find(recipe).is_empty())
}

/// The rate is far from those of the published recipes at about this batch.
pub(super) fn unlike_published(recipe: &Recipe<'_>) -> Vec<Found> {
    let (Some(ours), Some(rates)) = (effective_rate(recipe), recipe.rates) else { return vec![] };
    if ours <= 0.0 || is_known(recipe) {
        return vec![];
    }
    let near = NEIGHBOURS.iter().filter(|neighbour| neighbour.is_near(recipe));
    let mut published: Vec<_> = near.map(|neighbour| neighbour.scaled_rate(recipe)).collect();
    published.sort_by(f64::total_cmp);
    // Fewer than three recipes are not a range.
    let [lowest, .., second, _] = published[..] else { return vec![] };
    let is_for_images = matches!(recipe.kind, ModelKind::Convolutional { .. });
    let is_usual = recipe.is_adam() && is_for_images && ours <= USUAL_OF_ADAM;
    let (how, change) = match () {
        () if ours > MAX_ABOVE * second && !is_usual => {
            (format!("{} times above all but one of them", short(ours / second)), "lower the rate")
        }
        () if ours < lowest / MAX_BELOW && !recipe.is_adam() => {
            (format!("{} times below all of them", short(lowest / ours)), "raise the rate")
        }
        () => return vec![],
    };
    let reason = format!(
        "{} recipes are published with {} for such models at about such a batch; scaled to a batch \
         of {}, their rates are such that {} is {how}",
        published.len(),
        recipe.config.optimizer.rule.name(),
        recipe.global_batch(),
        short(rates.max)
    );
    let median = published.get(published.len() / 2).copied().unwrap_or(second).min(second);
    let sets = recipe.set_peak(&rates, rates.max * median / ours);
    vec![Found::new(Severity::Warning, reason, change, sets).beside_published()]
}
