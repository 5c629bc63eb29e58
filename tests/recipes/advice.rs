//! Advice can be followed: the changes of all findings are arguments that the configuration takes,
//! and after them nothing is found.

use lockstep::recipe::{apply, merged, repair};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::strategy::ValueTree;

use super::{Loaded, is_flagged, sets};

/// Follows the change of each finding by itself, then those of all together, and then one after the
/// other.
fn assert_advice_holds(loaded: &Loaded, about: &str) {
    let recipe = loaded.recipe();
    let mut flagged = loaded.findings();
    flagged.retain(is_flagged);
    for finding in &flagged {
        let rule = finding.rule;
        assert!(!finding.sets.is_empty(), "{about}: {rule} has no change that can be applied");
        let changed = apply(&loaded.config, &finding.sets);
        let changed = changed.unwrap_or_else(|error| panic!("{about}: {rule}: {error}"));
        let changed = Loaded { config: changed, ranks: loaded.ranks.clone() };
        let again = changed.findings();
        let is_there = again.iter().any(|other| is_flagged(other) && other.rule == rule);
        assert!(!is_there, "{about}: {:?} leaves {rule}: {again:#?}", finding.sets);
    }
    let sets = merged(&[], flagged.iter().flat_map(|finding| &finding.sets));
    let config = apply(&loaded.config, &sets).unwrap_or_else(|error| panic!("{about}: {error}"));
    let together = Loaded { config, ranks: loaded.ranks.clone() }.findings();
    let is_left = |rule| together.iter().any(|left| is_flagged(left) && left.rule == rule);
    let left: Vec<_> = flagged.iter().filter(|finding| is_left(finding.rule)).collect();
    assert!(left.is_empty(), "{about}: the changes together leave {left:#?}");
    let config = repair(&recipe).unwrap_or_else(|error| panic!("{about}: {error}"));
    let repaired = Loaded { config, ranks: loaded.ranks.clone() };
    let mut left = repaired.findings();
    left.retain(is_flagged);
    assert!(left.is_empty(), "{about}: {left:#?}\n{}", repaired.config.to_toml().unwrap());
}

#[test]
fn advice_for_faulty_recipes_ends_without_findings() {
    let mut num_flagged = 0;
    for case in sets::faulty("build") {
        let Ok(config) = case.config else { continue };
        let loaded = Loaded::of(config);
        num_flagged += usize::from(loaded.findings().iter().any(is_flagged));
        assert_advice_holds(&loaded, &case.name);
    }
    assert!(num_flagged > 70, "{num_flagged}");
}

/// Keys with values from usual to absurd. Values that a base does not take are left out.
const KEYS: &[(&str, &[&str])] = &[
    ("schedule.peak", &["1e-6", "1e-4", "6e-4", "5e-3", "0.1", "3.2", "40.0"]),
    ("schedule.name", &["cosine", "linear", "constant", "inverse_sqrt", "polynomial"]),
    ("schedule.floor", &["0.0", "0.1", "1.0"]),
    ("schedule.warmup_steps", &["0", "1", "30", "2000", "40000"]),
    ("schedule.warmup_factor", &["0.0", "0.5", "1.0"]),
    ("schedule.total_steps", &["200", "10000", "1000000"]),
    ("train.global_batch", &["32", "256", "1024", "8192", "65536"]),
    ("train.epochs", &["1", "20", "90"]),
    ("optimizer.name", &["sgd", "adam", "adamw", "lars", "lamb"]),
    ("optimizer.momentum", &["0.0", "0.09", "0.99", "0.9999"]),
    ("optimizer.beta1", &["0.5", "0.95", "0.99"]),
    ("optimizer.beta2", &["0.0", "0.9", "0.95", "0.9999"]),
    ("optimizer.epsilon", &["1e-8", "1e-3", "1.0"]),
    ("optimizer.weight_decay", &["0.0", "1e-4", "0.1", "10.0"]),
    ("optimizer.trust_coefficient", &["1e-6", "0.02", "1.0"]),
    ("optimizer.clip_grad_norm", &["1e-6", "0.01", "1.0"]),
    ("optimizer.ema_decay", &["0.99", "0.99999"]),
    ("optimizer.weight_decay_exclude", &["[]", "['*.nothing']"]),
    ("model.label_smoothing", &["0.1", "0.9"]),
    ("model.batch_norm_group", &["2", "64", "4096"]),
];

/// A decay for a rate of 30 would be far too weak for the rate that is advised.
#[test]
fn a_change_that_another_makes_unnecessary_is_that_other() {
    let loaded = Loaded::new("gpt-bytes.toml", &["schedule.peak=30".to_owned()]);
    let found = loaded.findings();
    let sets: Vec<_> = found.iter().filter(|finding| is_flagged(finding)).collect();
    let rules: Vec<_> = sets.iter().map(|finding| finding.rule).collect();
    assert_eq!(rules, ["rate-too-high", "weight-decay-too-strong"]);
    assert!(sets.iter().all(|finding| finding.sets == ["schedule.peak=0.001"]), "{sets:#?}");
    assert_eq!(sets[1].change, "the change for rate-too-high is enough for this, too");
    let all = sets.iter().flat_map(|finding| &finding.sets);
    assert_eq!(merged(&[], all), ["schedule.peak=0.001"]);
}

#[test]
fn advice_for_generated_recipes_ends_without_findings() {
    let bases = ["goyal-resnet50-2048-peak", "nanogpt-gpt2-124m", "flax-vae-adam-constant"];
    let bases = bases.map(|name| Loaded::new(name, &["mesh.data=4".to_owned()]));
    let case = || {
        let chosen = prop::collection::vec((select(KEYS), any::<Index>()), 1..6);
        (0..bases.len(), chosen)
    };
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut num_taken, mut num_flagged) = (0, 0);
    let num_cases = if std::env::var_os("LOCKSTEP_FULL").is_some() { 400 } else { 60 };
    for _ in 0..num_cases {
        let (base, chosen) = case().new_tree(&mut runner).unwrap().current();
        let sets: Vec<_> = chosen
            .iter()
            .map(|((key, values), index)| format!("{key}={}", index.get(values)))
            .collect();
        let Ok(config) = apply(&bases[base].config, &sets) else { continue };
        let loaded = Loaded { config, ranks: bases[base].ranks.clone() };
        if loaded.resolve().is_err() {
            continue;
        }
        num_taken += 1;
        num_flagged += usize::from(loaded.findings().iter().any(is_flagged));
        assert_advice_holds(&loaded, &format!("{base} {sets:?}"));
    }
    assert!(
        num_taken > num_cases / 4 && num_flagged > num_cases / 5,
        "{num_taken} taken, {num_flagged} flagged"
    );
}
