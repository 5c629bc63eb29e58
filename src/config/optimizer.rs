//! `[optimizer]`: which update rule and its constants.

use serde::{Deserialize, Serialize};
use toml::Table;

use super::error::{KeyError, require};
use super::keys::{Section, choices};

choices! {
    /// `[optimizer]`, picked by `name`.
    pub enum Optimizer by "name" {
        /// Stochastic gradient descent.
        "sgd" => Sgd(Sgd),
        /// Adam with decoupled weight decay.
        "adamw" => AdamW(AdamW),
    }
}

/// Stochastic gradient descent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sgd {
    /// What is kept of the running sum of gradients at each step, 0 to below 1. Default 0.9.
    pub momentum: f64,
    /// Does the update look one step ahead along the momentum? Default false.
    pub nesterov: bool,
    /// The parameter times this is added to its gradient. Default 0.
    pub weight_decay: f64,
}

impl Default for Sgd {
    fn default() -> Self {
        Self { momentum: 0.9, nesterov: false, weight_decay: 0.0 }
    }
}

/// Adam with decoupled weight decay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AdamW {
    /// Decay of the running mean of gradients, 0 to below 1. Default 0.9.
    pub beta1: f64,
    /// Decay of the running mean of squared gradients, 0 to below 1. Default 0.999.
    pub beta2: f64,
    /// Added to the root of the mean square, above 0. Default 1e-8.
    pub epsilon: f64,
    /// Share of a parameter, per unit of learning rate, that each step takes away. Default 0.01.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 }
    }
}

impl Section for Optimizer {
    const NAME: &'static str = "optimizer";
    const TAG: Option<&'static str> = Some(Self::TAG);
    const CHOICES: &'static [&'static str] = Self::NAMES;

    fn keys(choice: &str) -> Vec<&'static str> {
        Self::keys_of(choice)
    }

    fn read(choice: &str, table: &Table) -> Result<Self, KeyError> {
        let optimizer = Self::read_choice(choice, table)?;
        match &optimizer {
            Self::Sgd(Sgd { momentum, nesterov, weight_decay }) => {
                decay_rate("momentum", *momentum)?;
                let has_momentum = !nesterov || *momentum > 0.0;
                require(has_momentum, "nesterov", nesterov, "false while momentum is 0")?;
                not_negative("weight_decay", *weight_decay)?;
            }
            Self::AdamW(AdamW { beta1, beta2, epsilon, weight_decay }) => {
                decay_rate("beta1", *beta1)?;
                decay_rate("beta2", *beta2)?;
                let positive = epsilon.is_finite() && *epsilon > 0.0;
                require(positive, "epsilon", epsilon, "a finite number above 0")?;
                not_negative("weight_decay", *weight_decay)?;
            }
        }
        Ok(optimizer)
    }
}

fn decay_rate(key: &str, value: f64) -> Result<(), KeyError> {
    require((0.0..1.0).contains(&value), key, value, "a number from 0 to below 1")
}

fn not_negative(key: &str, value: f64) -> Result<(), KeyError> {
    require(value.is_finite() && value >= 0.0, key, value, "a finite number, 0 or more")
}
