//! `[check]`: what `lockstep schedule --check` leaves out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::error::{KeyError, Problem};
use super::keys::{Reader, Section, field_names};

/// `[check]`. Training does not use it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckConfig {
    /// Rules whose findings are left out, each with the reason. The checker refuses names that are
    /// not rules.
    #[serde(rename = "ignore")]
    pub ignored_rules: BTreeMap<String, String>,
}

impl Section for CheckConfig {
    const NAME: &'static str = "check";

    fn keys(_choice: &str) -> Vec<&'static str> {
        field_names::<Self>().to_vec()
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
