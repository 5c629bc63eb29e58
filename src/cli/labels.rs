//! The order of the classes in a run that starts from another model.

use std::path::Path;

use anyhow::{Result, bail};

use crate::config::{ClassificationConfig, Config, DataConfig, shorten};
use crate::data;
use crate::train::params_file::{SavedClasses, saved_classes};

/// Sets `data.labels` to the order of the classes in the model that the run starts from, `init` or
/// `model.from`, if its names are those of the data. Returns warnings.
///
/// # Errors
/// A model with another number of classes in its head, or other kinds of labels; files that cannot
/// be read.
pub(super) fn settle(config: &mut Config, init: Option<&Path>) -> Result<Vec<String>> {
    let folder = config.model.folder().filter(|folder| folder.exists());
    let Some(path) = init.or(folder).map(Path::to_owned) else { return Ok(vec![]) };
    let DataConfig::Classification(texts) = &mut config.data else { return Ok(vec![]) };
    let Some(saved) = saved_classes(&path)? else { return Ok(vec![]) };
    if saved.is_multi_label {
        bail!(
            "{}: problem_type is \"multi_label_classification\": a text may have any number of \
             labels. Only predict takes such a model; to train it on one label for each text, \
             remove problem_type from its config.json",
            path.display()
        );
    }
    settle_by(texts, &saved, &path.display().to_string())
}

fn settle_by(
    texts: &mut ClassificationConfig,
    saved: &SavedClasses,
    model: &str,
) -> Result<Vec<String>> {
    if !texts.labels.is_empty() {
        return check_given(&texts.labels, saved, model);
    }
    let found = data::labels_of_file(texts)?;
    match order(&found, saved) {
        Order::Of(labels) => texts.labels = labels,
        Order::OfFile => {}
        Order::Number(number) => bail!(
            "the head of {model} has {number} classes{}, but the labels in data.path are {}; \
             correct data.label, or name all classes in data.labels, in the order of the head",
            saved.names.as_deref().map_or(String::new(), |names| format!(", {}", listed(names))),
            listed(&found)
        ),
        Order::OtherNames(names) => {
            return Ok(vec![format!(
                "the classes of {model} are {}, but the labels in data.path are {}: its head \
                 begins with the labels in this order, whatever its rows meant; name them in \
                 data.labels to choose another",
                listed(&names),
                listed(&found)
            )]);
        }
    }
    Ok(vec![])
}

/// Compares `data.labels` with a model.
fn check_given(given: &[String], saved: &SavedClasses, model: &str) -> Result<Vec<String>> {
    if let Some(number) =
        saved.num_classes.filter(|number| saved.has_head && *number != given.len())
    {
        bail!(
            "data.labels has {} classes, but the head of {model} has {number}; name all of them, \
             in its order",
            given.len()
        );
    }
    let Some(names) = saved.names.as_ref().filter(|_| saved.has_head) else { return Ok(vec![]) };
    let is_same = |(a, b): (&String, &String)| a.to_lowercase() == b.to_lowercase();
    let is_elsewhere = |name: &String| given.iter().any(|other| is_same((name, other)));
    if names.iter().zip(given).all(is_same) || !names.iter().all(is_elsewhere) {
        return Ok(vec![]);
    }
    Ok(vec![format!(
        "data.labels is {}, but the classes of {model} are {}, in this order: its head begins with \
         other meanings",
        listed(given),
        listed(names)
    )])
}

/// Which order the classes have.
#[derive(Debug, PartialEq, Eq)]
enum Order {
    /// This one.
    Of(Vec<String>),
    /// That of the labels in the file, as without a model.
    OfFile,
    /// That of the labels in the file, although the model has these names.
    OtherNames(Vec<String>),
    /// None: the head has this number of classes.
    Number(usize),
}

/// The order for the labels that a file has.
fn order(found: &[String], saved: &SavedClasses) -> Order {
    let number = saved.num_classes.unwrap_or(found.len());
    let fits = found.len() == number || saved.has_head && found.len() < number;
    let class =
        |label: &String| label.parse().ok().filter(|class: &usize| class.to_string() == *label);
    let numbers: Option<Vec<_>> = found.iter().map(class).collect();
    let is_below = numbers.is_some_and(|numbers| numbers.iter().all(|class| *class < number));
    match &saved.names {
        Some(names) if fits => {
            if let Some(labels) = in_order(found, names) {
                return Order::Of(labels);
            }
            // A number is that of a class, unless classes are named with numbers.
            if is_below && !names.iter().any(|name| class(name).is_some()) {
                return Order::Of(names.clone());
            }
        }
        None if saved.has_head && fits && is_below => {
            return Order::Of((0..number).map(|class| class.to_string()).collect());
        }
        _ => {}
    }
    match &saved.names {
        _ if !saved.has_head => Order::OfFile,
        _ if found.len() != number => Order::Number(number),
        Some(names) => Order::OtherNames(names.clone()),
        None => Order::OfFile,
    }
}

/// The labels of a file in the order of `names`, among which they are, in capital letters or not;
/// and names that the file lacks.
fn in_order(found: &[String], names: &[String]) -> Option<Vec<String>> {
    let mut labels = names.to_vec();
    let mut taken = vec![false; names.len()];
    for label in found {
        let is_same = |name: &String| name == label || name.to_lowercase() == label.to_lowercase();
        let exact = names.iter().position(|name| name == label);
        let place = exact.or_else(|| names.iter().position(is_same))?;
        if std::mem::replace(&mut taken[place], true) {
            return None;
        }
        labels[place].clone_from(label);
    }
    Some(labels)
}

/// Names that a message lists, shortened.
fn listed(names: &[String]) -> String {
    let names: Vec<_> = names.iter().map(|name| format!("{name:?}")).collect();
    shorten(&names.join(", ")).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn saved(names: Option<&[&str]>, num_classes: Option<usize>, has_head: bool) -> SavedClasses {
        let names = names.map(strings);
        SavedClasses { names, num_classes, has_head, is_multi_label: false }
    }

    #[test]
    fn the_order_is_that_of_the_model_if_it_has_the_names() {
        let of = |labels: &[&str]| Order::Of(strings(labels));
        let good_bad: Option<&[&str]> = Some(&["good", "bad"]);
        let three: Option<&[&str]> = Some(&["NEG", "NEU", "POS"]);
        for (found, saved, expected) in [
            (&["bad", "good"][..], saved(good_bad, Some(2), true), of(&["good", "bad"])),
            (&["bad", "good"], saved(good_bad, Some(2), false), of(&["good", "bad"])),
            // As run_glue compares them.
            (&["neg", "neu", "pos"], saved(three, Some(3), true), of(&["neg", "neu", "pos"])),
            (&["neg", "pos"], saved(three, Some(3), true), of(&["neg", "NEU", "pos"])),
            (&["neg", "pos"], saved(three, Some(3), false), Order::OfFile),
            (
                &["NEG", "neg", "pos"],
                saved(three, Some(3), true),
                Order::OtherNames(strings(&["NEG", "NEU", "POS"])),
            ),
            (&["0", "1"], saved(good_bad, Some(2), true), of(&["good", "bad"])),
            (&["0", "2"], saved(three, Some(3), true), of(&["NEG", "NEU", "POS"])),
            (
                &["1", "2"],
                saved(good_bad, Some(2), true),
                Order::OtherNames(strings(&["good", "bad"])),
            ),
            (&["0", "1"], saved(Some(&["1", "0"]), Some(2), true), of(&["1", "0"])),
            (
                &["no", "yes"],
                saved(good_bad, Some(2), true),
                Order::OtherNames(strings(&["good", "bad"])),
            ),
            (&["no", "yes"], saved(good_bad, Some(2), false), Order::OfFile),
            (&["a", "b", "c"], saved(good_bad, Some(2), true), Order::Number(2)),
            (&["a", "b"], saved(three, Some(3), true), Order::Number(3)),
            (&["a", "b", "c"], saved(good_bad, Some(2), false), Order::OfFile),
            (&["0", "1"], saved(None, Some(3), true), of(&["0", "1", "2"])),
            (&["a", "b"], saved(None, Some(2), true), Order::OfFile),
            (&["a", "b"], saved(None, Some(3), true), Order::Number(3)),
            (&["a", "b"], saved(None, Some(3), false), Order::OfFile),
            (&["a", "b"], saved(None, None, false), Order::OfFile),
        ] {
            assert_eq!(order(&strings(found), &saved), expected, "{found:?} {saved:?}");
        }
    }

    #[test]
    fn labels_that_are_given_are_compared() {
        let check = |given: &[&str], saved: &SavedClasses| check_given(&strings(given), saved, "m");
        let two = saved(Some(&["good", "bad"]), Some(2), true);
        assert!(check(&["good", "BAD"], &two).unwrap().is_empty());
        assert!(check(&["no", "yes"], &two).unwrap().is_empty(), "other names are meant");
        let warned = check(&["bad", "good"], &two).unwrap().join("");
        assert!(warned.contains("its head begins with other meanings"), "{warned}");
        let error = check(&["bad", "good", "fair"], &two).unwrap_err().to_string();
        assert!(error.contains("data.labels has 3 classes, but the head of m has 2"), "{error}");
        let without = saved(Some(&["good", "bad"]), Some(2), false);
        assert!(check(&["bad", "good", "fair"], &without).unwrap().is_empty());
    }
}
