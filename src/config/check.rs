//! `[check]`: rules that `lockstep schedule --check` ignores.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::{KeyError, Problem};
use super::key::{KeyInfo, OnResume};
use super::keys::{Reader, Section};

/// `[check]`. Training does not use it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct CheckConfig {
    /// Rules to ignore, each with the reason: `ignore = { rate-too-low = "distillation" }`.
    /// `lockstep schedule --explain RULE` describes a rule.
    #[serde(rename = "ignore")]
    #[schemars(extend("values" = "table of reasons by rule"))]
    pub ignored_rules: BTreeMap<String, String>,
}

impl Section for CheckConfig {
    const NAME: &'static str = "check";
    const ABOUT: &str = "\
        Rules that `lockstep schedule --check` ignores. Training does not use this section.";

    fn keys(_choice: &str) -> Vec<KeyInfo> {
        KeyInfo::shared::<Self>(OnResume::Warn)
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let keys: Self = reader.keys()?;
        for (rule, reason) in &keys.ignored_rules {
            if reason.trim().is_empty() {
                let allowed = "the reason why the rule is ignored".to_owned();
                let problem = Problem::Value { found: format!("{rule} = {reason:?}"), allowed };
                reader.errors.push(KeyError::new("ignore", problem));
            }
        }
        Some(keys)
    }
}
