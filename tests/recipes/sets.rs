//! The test sets: published recipes, most of them from the program's own table, and faulty ones,
//! each of which is a published one with changes.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use lockstep::config::{self, Config};
use lockstep::recipe::published::{find, recipes};
use serde::Deserialize;

/// A published recipe or a faulty one.
pub struct Case {
    pub name: String,
    pub config: Result<Config, config::Error>,
    pub about: About,
}

/// What is said of a recipe.
pub enum About {
    Published { source: String, link: String },
    Faulty(Fault),
}

/// A row of a set's table of faulty recipes.
#[derive(Clone, Deserialize)]
pub struct Fault {
    name: String,
    /// The published recipe.
    from: String,
    /// What is changed in it, as arguments of `--set` and `--unset`.
    changes: Vec<String>,
    /// The kind of fault.
    pub kind: String,
    pub wrong: String,
    /// What a fair checker should give.
    pub severity: String,
}

/// A published recipe that the program does not have: a configuration, or changes to one that it
/// has.
#[derive(Deserialize)]
struct Other {
    name: String,
    test_set: String,
    from: Option<String>,
    #[serde(default)]
    changes: Vec<String>,
    #[serde(default)]
    config: String,
    source: Option<String>,
    link: Option<String>,
}

#[derive(Deserialize)]
struct Rows<T> {
    recipe: Vec<T>,
}

fn rows<T: for<'de> Deserialize<'de>>(file: &str) -> Vec<T> {
    let file = folder().join(file);
    let text = std::fs::read_to_string(&file).unwrap();
    let rows: Rows<T> = toml::from_str(&text).unwrap_or_else(|e| panic!("{file:?}: {e}"));
    rows.recipe
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recipes")
}

static OTHERS: LazyLock<Vec<Other>> = LazyLock::new(|| rows("published.toml"));

/// The published recipe with this name, as this set has it, with changes.
fn changed(set: &str, name: &str, changes: &[String]) -> Result<Config, config::Error> {
    let is_meant =
        |other: &&Other| other.name == name && (other.from.is_none() || other.test_set == set);
    let path = PathBuf::from(format!("/{name}.toml"));
    match OTHERS.iter().find(is_meant) {
        Some(Other { from: None, config, .. }) => Config::parse(config, &path, changes),
        Some(Other { from: Some(from), changes: first, .. }) => {
            find(from).unwrap().changed(&[&first[..], changes].concat())
        }
        None => find(name).unwrap_or_else(|| panic!("{name} is not published")).changed(changes),
    }
}

/// The published recipes of a set.
pub fn published(set: &str) -> Vec<Case> {
    let case = |name: &str, source: &str, link: &str| Case {
        name: name.to_owned(),
        config: changed(set, name, &[]),
        about: About::Published { source: source.to_owned(), link: link.to_owned() },
    };
    let own = recipes().iter().filter(|recipe| recipe.test_set.as_deref() == Some(set));
    let own = own.map(|recipe| case(&recipe.name, &recipe.source, &recipe.link));
    let others = OTHERS.iter().filter(|other| other.test_set == set).map(|other| {
        let from = other.from.as_deref().map(|from| find(from).unwrap());
        let source = other.source.as_deref().or(from.map(|from| &*from.source));
        let link = other.link.as_deref().or(from.map(|from| &*from.link));
        case(&other.name, source.unwrap(), link.unwrap())
    });
    let mut cases: Vec<_> = own.chain(others).collect();
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    cases
}

/// The faulty recipes of a set.
pub fn faulty(set: &str) -> Vec<Case> {
    let rows = rows::<Fault>(&format!("{set}.toml")).into_iter();
    rows.map(|fault| Case {
        name: fault.name.clone(),
        config: changed(set, &fault.from, &fault.changes),
        about: About::Faulty(fault),
    })
    .collect()
}
