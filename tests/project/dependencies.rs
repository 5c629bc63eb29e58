//! Dependencies: their licences and where they are from, as `deny.toml` allows.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use spdx::{Expression, ParseMode};

fn packages() -> Vec<Value> {
    let done = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--all-features"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let metadata: Value = serde_json::from_slice(&done.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

#[test]
fn every_licence_is_allowed_and_every_source_is_known() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deny.toml");
    let deny: toml::Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
    let allowed = deny["licenses"]["allow"].as_array().unwrap();
    let allowed: BTreeSet<_> = allowed.iter().map(|id| id.as_str().unwrap()).collect();
    let packages = packages();
    assert!(packages.len() > 200, "{} packages", packages.len());
    let mut used = BTreeSet::new();
    for package in &packages {
        let name = &package["name"];
        let licence =
            package["license"].as_str().unwrap_or_else(|| panic!("{name} has no licence"));
        let expression = Expression::parse_mode(licence, ParseMode::LAX).unwrap();
        let is_allowed = expression.evaluate(|requirement| {
            let id = requirement.to_string();
            let is_allowed = allowed.contains(id.as_str());
            used.extend(is_allowed.then_some(id));
            is_allowed
        });
        assert!(is_allowed, "{name} has the licence {licence}, which deny.toml does not allow");
        let source = package["source"].as_str();
        let is_registry = |source: &str| source.starts_with("registry+");
        assert!(source.is_none_or(is_registry), "{name} is from {source:?}");
    }
    let unused: Vec<_> = allowed.iter().filter(|id| !used.contains(**id)).collect();
    assert!(unused.is_empty(), "no dependency needs {unused:?}");
}
