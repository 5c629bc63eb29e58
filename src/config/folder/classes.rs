//! The names of the classes of a folder's model, and whether a text has one or several of them.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::config::shorten;

/// The classes of a folder's model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FolderClasses {
    /// Their names in order. `None` if the file has none, or only those that transformers makes up:
    /// `LABEL_0` and so on.
    pub names: Option<Vec<String>>,
    /// Their number, if the file says it.
    pub num_classes: Option<usize>,
    /// `true` if a text has any number of classes: `problem_type` is `multi_label_classification`.
    pub is_multi_label: bool,
}

impl FolderClasses {
    /// The name of a class without one.
    pub fn made_up(class: usize) -> String {
        format!("LABEL_{class}")
    }

    /// The classes in `config`, from `id2label`, `label2id`, `num_labels` and `problem_type`.
    ///
    /// # Errors
    /// Keys that contradict each other, and a head that gives numbers, not classes.
    pub(super) fn of(config: &Map<String, Value>) -> Result<Self, String> {
        let given = |key: &str| config.get(key).filter(|value| !value.is_null());
        let is_multi_label = match given("problem_type").map(|value| (value, value.as_str())) {
            None | Some((_, Some("single_label_classification"))) => false,
            Some((_, Some("multi_label_classification"))) => true,
            Some((_, Some("regression"))) => {
                return Err("problem_type is \"regression\": the model gives numbers, not classes"
                    .to_owned());
            }
            Some((other, _)) => {
                return Err(format!(
                    "problem_type is {}, which is not known",
                    shorten(&other.to_string())
                ));
            }
        };
        let by_id = given("id2label").map(by_id).transpose()?;
        let by_name = given("label2id").map(by_name).transpose()?;
        let is_made_up = |names: &Vec<String>| {
            (0..).zip(names).all(|(class, name)| *name == Self::made_up(class))
        };
        let named = |names: &Option<Vec<String>>| names.clone().filter(|names| !is_made_up(names));
        let names = match (named(&by_id), named(&by_name)) {
            (Some(by_id), Some(by_name)) if by_id != by_name => {
                return Err(
                    "id2label and label2id do not have the same names in the same order".to_owned()
                );
            }
            (by_id, by_name) => by_id.or(by_name),
        };
        let number =
            ["num_labels", "_num_labels"].into_iter().find_map(|key| Some((key, given(key)?)));
        let number = number.map(|(key, value)| match value.as_u64() {
            Some(number) if number > 0 => Ok((key, number as usize)),
            _ => Err(format!("{key} is {}, not a number of classes", shorten(&value.to_string()))),
        });
        let number = number.transpose()?;
        let map = [("id2label", &by_id), ("label2id", &names)];
        let listed = map.into_iter().find_map(|(key, names)| Some((key, names.as_ref()?.len())));
        if let (Some((key, number)), Some((map, listed))) = (number, listed)
            && number != listed
        {
            return Err(format!("{key} is {number}, but {map} has {listed} classes"));
        }
        let num_classes = listed.or(number);
        match num_classes {
            Some((key, 1)) => Err(format!(
                "{key} has one class: the model gives a number, not one of several classes"
            )),
            _ => Ok(Self {
                names,
                num_classes: num_classes.map(|(_, number)| number),
                is_multi_label,
            }),
        }
    }
}

/// The names in `id2label`, which has the number of each.
fn by_id(map: &Value) -> Result<Vec<String>, String> {
    let entries = map.as_object().ok_or("id2label is no object")?;
    let name = |class: usize| {
        let name = entries.get(&class.to_string())?;
        Some(name.as_str().map_or_else(|| name.to_string(), str::to_owned))
    };
    let names: Option<Vec<_>> = (0..entries.len()).map(name).collect();
    let names = names.filter(|names| !names.is_empty());
    let names = names.ok_or("the numbers of id2label are not 0, 1, 2 and so on without a gap")?;
    match names.iter().collect::<BTreeSet<_>>().len() == names.len() {
        true => Ok(names),
        false => Err("two classes of id2label have the same name".to_owned()),
    }
}

/// The names in `label2id`, which has the name of each.
fn by_name(map: &Value) -> Result<Vec<String>, String> {
    let entries = map.as_object().ok_or("label2id is no object")?;
    let name = |class: usize| {
        entries
            .iter()
            .find(|(_, id)| id.as_u64() == Some(class as u64))
            .map(|(name, _)| name.clone())
    };
    let names: Option<Vec<_>> = (0..entries.len()).map(name).collect();
    let names = names.filter(|names| !names.is_empty());
    names
        .ok_or_else(|| "the numbers of label2id are not 0, 1, 2 and so on without a gap".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(text: &str) -> Result<FolderClasses, String> {
        let config: Map<String, Value> = serde_json::from_str(text).unwrap();
        FolderClasses::of(&config)
    }

    #[test]
    fn names_and_their_number_are_read() {
        for (text, names, num_classes) in [
            ("{}", None, None),
            (r#"{"id2label": null, "num_labels": 3}"#, None, Some(3)),
            (r#"{"_num_labels": 5}"#, None, Some(5)),
            (r#"{"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}"#, None, Some(2)),
            (
                r#"{"id2label": {"1": "bad", "0": "good"}, "num_labels": 2}"#,
                Some(["good", "bad"]),
                Some(2),
            ),
            (r#"{"id2label": {"0": 1, "1": 2}}"#, Some(["1", "2"]), Some(2)),
            (r#"{"label2id": {"bad": 1, "good": 0}}"#, Some(["good", "bad"]), Some(2)),
            (
                r#"{"id2label": {"0": "good", "1": "bad"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}}"#,
                Some(["good", "bad"]),
                Some(2),
            ),
        ] {
            let found = classes(text).unwrap();
            let names = names.map(|names| names.map(str::to_owned).to_vec());
            assert_eq!((found.names, found.num_classes), (names, num_classes), "{text}");
        }
        let multi = classes(r#"{"problem_type": "multi_label_classification"}"#).unwrap();
        assert!(multi.is_multi_label);
        assert!(
            !classes(r#"{"problem_type": "single_label_classification"}"#).unwrap().is_multi_label
        );
    }

    #[test]
    fn what_contradicts_itself_and_what_has_no_classes_is_refused() {
        for (text, expected) in [
            (r#"{"problem_type": "regression"}"#, "gives numbers, not classes"),
            (r#"{"problem_type": "other"}"#, "problem_type is \"other\""),
            (r#"{"num_labels": 1}"#, "num_labels has one class"),
            (r#"{"num_labels": -1}"#, "num_labels is -1"),
            (r#"{"id2label": {"0": "score"}}"#, "id2label has one class"),
            (r#"{"id2label": []}"#, "id2label is no object"),
            (r#"{"id2label": {"0": "a", "2": "b"}}"#, "without a gap"),
            (r#"{"id2label": {"0": "a", "1": "a"}}"#, "the same name"),
            (r#"{"label2id": {"a": 0, "b": 0}}"#, "the numbers of label2id"),
            (
                r#"{"id2label": {"0": "a", "1": "b"}, "num_labels": 3}"#,
                "num_labels is 3, but id2label has 2",
            ),
            (r#"{"id2label": {"0": "a", "1": "b"}, "label2id": {"b": 0, "a": 1}}"#, "same order"),
        ] {
            let error = classes(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
