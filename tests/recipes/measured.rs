//! Published and faulty recipes: counts of what is found, as `README.md` says, and `docs/recipes.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, thread};

use lockstep::recipe::published::recipes;
use serde_json::Value;
use toml::Table;

/// The sets, and what must hold of them. The rules were written with all but `fourth`: `README.md` says what was found when the
/// others were first looked at.
const SETS: [Aim; 5] = [
    Aim { set: "build", min_found: 0.95, max_flagged: 0.1, max_errors: 0 },
    Aim { set: "heldout", min_found: 0.94, max_flagged: 0.1, max_errors: 0 },
    Aim { set: "second", min_found: 0.9, max_flagged: 0.1, max_errors: 0 },
    Aim { set: "third", min_found: 0.9, max_flagged: 0.1, max_errors: 0 },
    // 85 % is aimed at, and this is what was measured: no more may be lost.
    Aim { set: "fourth", min_found: 0.79, max_flagged: 0.1, max_errors: 0 },
];

/// What must hold of a set.
struct Aim {
    set: &'static str,
    /// Share of the faulty recipes that must be found.
    min_found: f64,
    /// Share of the published recipes that may have a warning or an error.
    max_flagged: f64,
    /// Number of them that may have an error.
    max_errors: usize,
}

/// The rules that may speak about a kind of fault. Any warning or error counts for other kinds.
const ABOUT: &[(&str, &[&str])] = &[
    (
        "accumulation",
        &[
            "batch-shape",
            "rate-too-high",
            "batch-norm-group",
            "refused-by-train",
            "rate-unlike-published",
            "fine-tuning-rate",
        ],
    ),
    ("absurd decay", &["weight-decay-too-strong"]),
    ("base_batch unlike the source", &["rate-too-high", "rate-too-low", "rate-unlike-published"]),
    ("batch-norm groups", &["batch-norm-group", "refused-by-train"]),
    ("betas", &["betas"]),
    ("clipping", &["clipping"]),
    ("decay of another convention", &["weight-decay-too-weak", "weight-decay-too-strong"]),
    ("decay of another optimizer", &["weight-decay-too-weak", "weight-decay-too-strong"]),
    (
        "double scaling",
        &["rate-too-high", "trust-ratio-too-high", "rate-unlike-published", "peak-unreached"],
    ),
    ("epsilon", &["epsilon"]),
    ("floor", &["never-decays"]),
    ("label smoothing", &["label-smoothing"]),
    (
        "leftover from another batch size",
        &[
            "boundaries-unreached",
            "decays-too-soon",
            "rate-too-high",
            "rate-too-low",
            "schedule-ends-early",
            "schedule-ends-late",
            "warmup-too-long",
            "warmup-too-short",
            "rate-unlike-published",
        ],
    ),
    ("milestones after the end", &["boundaries-unreached", "never-decays"]),
    (
        "missing scaling",
        &["rate-not-scaled", "rate-too-low", "trust-ratio-too-low", "rate-unlike-published"],
    ),
    (
        "momentum",
        &["momentum", "rate-too-high", "rate-too-low", "long-memory", "rate-unlike-published"],
    ),
    ("no decay", &["never-decays"]),
    ("no warm-up", &["warmup-missing", "warmup-too-short"]),
    (
        "rate of another convention",
        &["rate-too-high", "rate-too-low", "rate-unlike-published", "peak-unreached"],
    ),
    (
        "rate of another optimizer",
        &[
            "rate-too-high",
            "rate-too-low",
            "trust-ratio-too-high",
            "trust-ratio-too-low",
            "sgd-on-transformer",
            "fine-tuning-rate",
            "rate-unlike-published",
        ],
    ),
    (
        "rate of another parametrization",
        &["rate-too-high", "rate-too-low", "rate-unlike-published"],
    ),
    (
        "rate of another regime",
        &["rate-too-high", "rate-too-low", "fine-tuning-rate", "rate-unlike-published"],
    ),
    (
        "schedule length unlike run length",
        &["schedule-ends-early", "schedule-ends-late", "never-decays", "decays-too-soon"],
    ),
    ("too high for the size", &["rate-too-high", "rate-unlike-published"]),
    ("too short a warm-up", &["warmup-too-short", "warmup-missing"]),
    (
        "trust coefficient",
        &["trust-ratio-too-high", "trust-ratio-too-low", "rate-unlike-published", "trust-excluded"],
    ),
    ("warm-up longer than the run", &["warmup-too-long"]),
    ("warm-up that is none", &["warmup-missing", "warmup-too-short"]),
    (
        "wrong scaling rule",
        &["rate-not-scaled", "rate-too-high", "rate-too-low", "rate-unlike-published"],
    ),
];

/// The rules that say that `train` refuses the recipe.
const REFUSED: [&str; 2] = ["schedule-impossible", "refused-by-train"];

/// A row of a table with what the checker says.
struct Judged {
    row: Table,
    findings: Vec<Value>,
    /// Why the recipe is refused before it is checked.
    refusal: Option<String>,
}

impl Judged {
    fn text(&self, key: &str) -> &str {
        self.row.get(key).and_then(toml::Value::as_str).unwrap_or("")
    }

    fn of_severity<'a>(&'a self, severities: &'a [&str]) -> impl Iterator<Item = &'a Value> {
        self.findings.iter().filter(|finding| severities.contains(&text(finding, "severity")))
    }

    fn is_flagged(&self) -> bool {
        self.refusal.is_some() || self.of_severity(&["error", "warning"]).next().is_some()
    }

    /// The findings above a note (or all, for a fault that deserves no more) that are about the fault.
    fn about_fault(&self) -> Vec<&str> {
        let severities: &[&str] = match self.text("severity") {
            "note" => &["error", "warning", "note"],
            _ => &["error", "warning"],
        };
        let about = ABOUT.iter().find(|(kind, _)| *kind == self.text("kind"));
        let is_about = |rule: &&str| about.is_none_or(|(_, rules)| rules.contains(rule));
        self.of_severity(severities).map(|finding| text(finding, "rule")).filter(is_about).collect()
    }

    fn is_found(&self) -> bool {
        let is_refused = self.refusal.is_some()
            || self.findings.iter().any(|finding| {
                text(finding, "severity") == "error" && REFUSED.contains(&text(finding, "rule"))
            });
        is_refused || !self.about_fault().is_empty()
    }

    fn describe(&self) -> String {
        if let Some(refusal) = &self.refusal {
            return format!("refused: {refusal}");
        }
        let describe =
            |finding: &Value| format!("{} `{}`", text(finding, "severity"), text(finding, "rule"));
        match self.findings.iter().map(describe).collect::<Vec<_>>() {
            none if none.is_empty() => "none".to_owned(),
            found => found.join(", "),
        }
    }
}

fn text<'a>(finding: &'a Value, key: &str) -> &'a str {
    finding[key].as_str().unwrap_or("")
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recipes")
}

/// Runs the checker on each recipe of a table.
fn judge(set: &str, table: &str, recipes: &str) -> Vec<Judged> {
    let file = fs::read_to_string(folder().join(set).join(table)).unwrap();
    let file: Table = toml::from_str(&file).unwrap();
    let rows: Vec<Table> = file["recipe"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row.as_table().unwrap().clone())
        .collect();
    let judge = |row: Table| {
        let name = row["name"].as_str().unwrap();
        let path = folder().join(set).join(recipes).join(format!("{name}.toml"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
        let output =
            command.arg("schedule").arg(&path).args(["--check", "--json"]).output().unwrap();
        match serde_json::from_slice::<Value>(&output.stdout) {
            Ok(report) => {
                let findings = report["findings"].as_array().unwrap().clone();
                let has_error = findings.iter().any(|finding| text(finding, "severity") == "error");
                assert_eq!(output.status.code(), Some(i32::from(has_error)), "{name}");
                Judged { row, findings, refusal: None }
            }
            Err(_) => {
                let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
                let error = stderr.lines().find_map(|line| line.strip_prefix("error: "));
                let error = error.unwrap_or_else(|| panic!("{name}: {stderr}"));
                let refusal = error.split(&*path.to_string_lossy()).last().unwrap_or(error);
                let refusal = refusal.trim_start_matches([':', ' ']).to_owned();
                Judged { row, findings: vec![], refusal: Some(refusal) }
            }
        }
    };
    let middle = rows.len() / 2;
    let (first, second) = rows.split_at(middle);
    thread::scope(|scope| {
        let second = scope.spawn(|| second.iter().cloned().map(judge).collect::<Vec<_>>());
        let mut judged: Vec<_> = first.iter().cloned().map(judge).collect();
        judged.extend(second.join().unwrap());
        judged
    })
}

/// Published and faulty recipes of one folder.
struct RecipeSet {
    name: &'static str,
    published: Vec<Judged>,
    faulty: Vec<Judged>,
}

impl RecipeSet {
    fn of(name: &'static str) -> Self {
        Self {
            name,
            published: judge(name, "published.toml", "good"),
            faulty: judge(name, "faulty.toml", "faulty"),
        }
    }

    fn num_flagged(&self) -> usize {
        self.published.iter().filter(|recipe| recipe.is_flagged()).count()
    }

    fn num_errors(&self) -> usize {
        let is_error = |recipe: &&Judged| {
            recipe.refusal.is_some() || recipe.of_severity(&["error"]).next().is_some()
        };
        self.published.iter().filter(is_error).count()
    }

    fn num_found(&self) -> usize {
        self.faulty.iter().filter(|recipe| recipe.is_found()).count()
    }
}

fn percent(part: usize, whole: usize) -> String {
    format!("{:.0} %", 100.0 * part as f64 / whole.max(1) as f64)
}

/// `docs/recipes.md`.
fn page(sets: &[RecipeSet]) -> String {
    let mut page = "\
# Published and faulty recipes, and what `schedule --check` says about them

Generated by `cargo test --test recipes`, which fails if this page is out of date. [The README of the recipes](../tests/recipes/README.md)
says how they were collected, split and verified, how findings are counted, and what the first look at each set gave. The rules are written with
all but `fourth`, so that only its counts measure them.

- A **published** recipe is a false alarm if it has a warning or an error.
- A **faulty** recipe is found if it is refused, or if a rule that may speak about its kind of fault has a warning or an error (for faults
  that deserve only a note, a note). Which rules these are is a table in `tests/recipes/measured.rs`, made from the kinds in `build`. For a
  kind that is not in it, any warning or error counts.

| set | published | with a warning or an error | with an error | faulty | found |
|---|---|---|---|---|---|
"
    .to_owned();
    for set in sets {
        let (published, faulty) = (set.published.len(), set.faulty.len());
        let (flagged, found) = (set.num_flagged(), set.num_found());
        let _ = writeln!(
            page,
            "| `{}` | {published} | {flagged} ({}) | {} | {faulty} | {found} ({}) |",
            set.name,
            percent(flagged, published),
            set.num_errors(),
            percent(found, faulty)
        );
    }
    let sum = |count: fn(&RecipeSet) -> usize| -> usize { sets.iter().map(count).sum() };
    let (published, faulty) = (sum(|set| set.published.len()), sum(|set| set.faulty.len()));
    let (flagged, found) = (sum(RecipeSet::num_flagged), sum(RecipeSet::num_found));
    let _ = writeln!(
        page,
        "| all | {published} | {flagged} ({}) | {} | {faulty} | {found} ({}) |\n\n\
         `lockstep recipes` lists the {} published recipes that the program itself has, with which it compares others: those of all sets \
         but `fourth`, with few exceptions, and some for other batches of the same papers.",
        percent(flagged, published),
        sum(RecipeSet::num_errors),
        percent(found, faulty),
        recipes().len()
    );
    for set in sets {
        let _ = write!(
            page,
            "\n## Faults of `{}` by kind\n\n| kind | recipes | found |\n|---|---|---|\n",
            set.name
        );
        let mut kinds = BTreeMap::<_, (usize, usize)>::new();
        for recipe in &set.faulty {
            let count = kinds.entry(recipe.text("kind")).or_default();
            *count = (count.0 + 1, count.1 + usize::from(recipe.is_found()));
        }
        for (kind, (number, found)) in kinds {
            let _ = writeln!(page, "| {kind} | {number} | {found} |");
        }
    }
    for set in sets {
        let heading = "| recipe | source | findings |\n|---|---|---|\n";
        let _ = write!(page, "\n## Published recipes of `{}`\n\n{heading}", set.name);
        for recipe in &set.published {
            let (name, source, link) =
                (recipe.text("name"), recipe.text("source"), recipe.text("link"));
            let _ = writeln!(page, "| `{name}` | [{source}]({link}) | {} |", recipe.describe());
        }
        let heading = "| recipe | fault | kind | found | findings |\n|---|---|---|---|---|\n";
        let _ = write!(page, "\n## Faulty recipes of `{}`\n\n{heading}", set.name);
        for recipe in &set.faulty {
            let found = if recipe.is_found() { "yes" } else { "**no**" };
            let (name, wrong, kind) =
                (recipe.text("name"), recipe.text("wrong"), recipe.text("kind"));
            let _ =
                writeln!(page, "| `{name}` | {wrong} | {kind} | {found} | {} |", recipe.describe());
        }
    }
    page
}

#[test]
fn published_recipes_pass_and_faulty_ones_are_found() {
    let sets = SETS.map(|aim| RecipeSet::of(aim.set));
    let written = Path::new(env!("CARGO_TARGET_TMPDIR")).join("recipes.md");
    let page = page(&sets);
    fs::write(&written, &page).unwrap();
    for (set, Aim { min_found, max_flagged, max_errors, .. }) in sets.iter().zip(SETS) {
        let (published, faulty) = (set.published.len() as f64, set.faulty.len() as f64);
        let names = |recipes: &[Judged], is: fn(&Judged) -> bool| -> Vec<String> {
            recipes
                .iter()
                .filter(|recipe| is(recipe))
                .map(|recipe| format!("{}: {}", recipe.text("name"), recipe.describe()))
                .collect()
        };
        let flagged = names(&set.published, Judged::is_flagged);
        let missed = names(&set.faulty, |recipe| !recipe.is_found());
        println!("{}: false alarms {flagged:#?}, missed {missed:#?}", set.name);
        assert!(set.num_found() as f64 >= min_found * faulty, "{}: missed {missed:#?}", set.name);
        let most = max_flagged * published;
        assert!(set.num_flagged() as f64 <= most, "{}: false alarms {flagged:#?}", set.name);
        assert!(set.num_errors() <= max_errors, "{}: {flagged:#?}", set.name);
    }
    let readme =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let count = |of: fn(&RecipeSet) -> usize| -> usize { sets.iter().map(of).sum() };
    let (published, faulty) = (count(|set| set.published.len()), count(|set| set.faulty.len()));
    for claim in [
        format!("lists {} published recipes", recipes().len()),
        format!("found in {published} published and {faulty} faulty recipes"),
    ] {
        assert!(readme.contains(&claim), "README.md does not say {claim:?}");
    }
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/recipes.md");
    let known = fs::read_to_string(&docs).unwrap_or_default();
    assert!(known == page, "docs/recipes.md is out of date: copy {} over it", written.display());
}
