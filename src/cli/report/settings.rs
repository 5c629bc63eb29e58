//! What runs were configured to do, and how they differ in it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::read::RunFiles;

/// A setting that is not the same in all runs.
#[derive(Serialize)]
pub struct Difference {
    /// Its path: `optimizer.weight_decay`.
    pub key: String,
    /// Its value in each run as TOML; `None` where it is not set.
    pub values: Vec<Option<String>>,
}

/// The settings that are not the same in all runs; none if a configuration is not recorded.
pub fn differences(runs: &[RunFiles]) -> Vec<Difference> {
    let mut settings: BTreeMap<String, Vec<Option<String>>> = BTreeMap::new();
    if runs.iter().any(|run| run.config.is_empty()) {
        return vec![];
    }
    for (number, run) in runs.iter().enumerate() {
        let mut add = |key: String, value: &toml::Value| {
            let values = settings.entry(key).or_insert_with(|| vec![None; runs.len()]);
            if let Some(place) = values.get_mut(number) {
                *place = Some(value.to_string());
            }
        };
        flatten("", &run.config, &mut add);
    }
    let differ = |values: &Vec<Option<String>>| values.windows(2).any(|pair| pair[0] != pair[1]);
    let settings = settings.into_iter().filter(|(_, values)| differ(values));
    settings.map(|(key, values)| Difference { key, values }).collect()
}

fn flatten(prefix: &str, table: &toml::Table, add: &mut impl FnMut(String, &toml::Value)) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            toml::Value::Table(table) => flatten(&key, table, add),
            value => add(key, value),
        }
    }
}

/// The model, the data, the optimizer and the devices in a sentence.
pub fn trained(run: &RunFiles) -> String {
    let text = |path: &str| run.setting(path)?.as_str().map(str::to_owned);
    let number = |field: &str| run.number(field).map(super::numbers::count);
    let mut parts = vec![];
    let model = text("model.name").unwrap_or_else(|| "a model that is not recorded".to_owned());
    match number("num_params") {
        Some(num) => parts.push(format!("{model} ({num} parameters)")),
        None => parts.push(model),
    }
    if let Some(source) = text("data.source") {
        let path = ["data.path", "data.train", "data.dir"].into_iter().find_map(text);
        let path = path.map_or(String::new(), |path| format!(" ({path})"));
        parts.push(format!("on {source}{path}"));
    }
    if let Some(optimizer) = text("optimizer.name") {
        parts.push(format!("with {optimizer}"));
    }
    if let Some(batch) = number("global_batch") {
        parts.push(format!("in batches of {batch}"));
    }
    if let Some(replicas) = run.number("num_replicas") {
        let replicas = ::hlo::counted(replicas as u64, "replica");
        let processes = run.number("num_processes").unwrap_or(1.0);
        let processes = ::hlo::counted(processes as u64, "process");
        parts.push(format!("on {replicas} in {processes}"));
    }
    if let Some(device) = run.text("device").filter(|device| !device.is_empty()) {
        parts.push(format!("({})", device));
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::report::read::StepTable;

    #[test]
    fn only_settings_that_differ_are_named() {
        let run = |config: &str| RunFiles {
            name: String::new(),
            dir: "a".into(),
            summary: serde_json::Map::new(),
            config_text: None,
            config: config.parse().unwrap(),
            steps: StepTable::default(),
            layers: vec![],
            process_times: vec![],
            notes: vec![],
        };
        let runs =
            ["[a]\nb = 1\nc = [1, 2]\n", "[a]\nb = 2\nc = [1, 2]\n[d]\ne = \"x\"\n"].map(run);
        let found = differences(&runs);
        let found: Vec<_> = found.iter().map(|found| (&*found.key, found.values.clone())).collect();
        let value = |text: &str| Some(text.to_owned());
        let expected = [("a.b", vec![value("1"), value("2")]), ("d.e", vec![None, value("\"x\"")])];
        assert_eq!(found, expected);
        assert!(differences(&runs[..1]).is_empty() && differences(&[]).is_empty());
    }
}
