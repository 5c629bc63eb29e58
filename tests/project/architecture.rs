//! Checks the sources against ARCHITECTURE.md: imports between modules, places of unsafe code,
//! lengths of files, and forbidden code.
//!
//! Sources are parsed, so comments and strings are ignored, and examples in doc comments may use
//! any modules. Arguments of macros are not parsed but read as a list of words.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// The other packages that modules import. The compiler enforces the boundaries between them:
/// `models` depends on `hlo`, and `hlo` on neither of the other two. The crate `kernels` depends on
/// none and is used by the module of that name only.
const PACKAGES: [&str; 2] = ["models", "hlo"];

/// The sources of all packages, without their tests.
const SOURCES: [&str; 4] = ["src", "hlo/src", "kernels/src", "models/src"];

/// All sources.
const EVERYWHERE: [&str; 7] = ["src", "hlo", "kernels", "models", "tests", "benches", "examples"];

/// Places of unsafe code: the C interface of plugins, and products on strides.
const UNSAFE: [&str; 2] = ["src/pjrt/", "kernels/src/gemm.rs"];

/// Modules that work with any model: they may use types of `models`, but none of its architectures.
const BLIND_TO_MODELS: [&str; 3] = ["step", "train", "config"];

/// Modules that divide batches or average over examples. They count the shards of a batch: replicas
/// along other axes than `data` and `fsdp` have the same examples.
const BLIND_TO_REPLICAS: [&str; 6] = ["config", "data", "optim", "parallel", "recipe", "step"];
/// Files of these modules that count replicas all the same, and why.
const COUNTING_REPLICAS: [(&str, &str); 3] = [
    ("src/config/mesh.rs", "axes share the devices"),
    ("src/config/roster.rs", "processes share the replicas"),
    ("src/step/signature.rs", "a program in a test"),
];

/// Names that several public types may have: `Error`, because each module has its own error type.
const SHARED_NAMES: [&str; 1] = ["Error"];

/// A longer file must be split, unless it is a flat table.
const MAX_LINES: usize = 700;
/// Longest lines of comments, which rustfmt does not wrap. Tables, code and addresses may be
/// longer.
const MAX_COMMENT: usize = 100;
const FLAT_TABLES: [&str; 1] = ["src/pjrt/abi.rs"];

/// Calls of `unwrap` and `expect` outside of tests: file, number of calls, and why they cannot
/// panic.
const UNWRAPS: [(&str, usize, &str); 6] = [
    (
        "hlo/src/rewriter.rs",
        2,
        "operands are copied first, and a copied node fits its copied operands",
    ),
    ("hlo/src/ops/threefry.rs", 1, "its operands were checked, and the ops fit them"),
    ("hlo/src/region/expand.rs", 1, "a scan's types were checked, and its `while` has the same"),
    ("hlo/src/region/vjp.rs", 1, "what a part needs was required into it, or is its input"),
    ("hlo/src/tensor.rs", 1, "the axes to add are those that are missing"),
    ("kernels/src/convolution/tiles.rs", 4, "layouts end with whole tiles"),
];

#[test]
fn the_table_has_every_module_and_no_cycle() {
    let table = Table::of_architecture();
    let modules: BTreeSet<_> = files(&["src"]).iter().map(|file| module_name(&file.path)).collect();
    let rows: BTreeSet<_> = table.rows.keys().cloned().chain(["lib".into()]).collect();
    assert_eq!(
        modules, rows,
        "modules under src/ on the left, rows in ARCHITECTURE.md on the right"
    );
    for (module, imports) in &table.rows {
        for import in imports {
            let is_known = rows.contains(import) || PACKAGES.contains(&import.as_str());
            assert!(is_known, "{module} > {import}: there is no such module");
        }
    }
    assert_eq!(table.circle(), None);
}

#[test]
fn modules_import_what_the_table_allows() {
    let table = Table::of_architecture();
    let files = files(&["src"]);
    let found = failures(&files, |file| {
        imports(file).iter().filter_map(|import| table.forbids(&file.path, import)).collect()
    });
    assert!(found.is_empty(), "{}", found.join("\n"));
    // Known imports, to check that any are found.
    for (module, import) in
        [("cli", "train"), ("train", "step"), ("step", "models"), ("pjrt", "hlo")]
    {
        let mut files = files.iter().filter(|file| module_name(&file.path) == module);
        let is_there = files.any(|file| imports(file).iter().any(|found| found.module == import));
        assert!(is_there, "{module} > {import} was not found");
    }
}

#[test]
fn batches_are_not_divided_by_replicas() {
    let files = files(&["src"]);
    let counts = |file: &File| !has_word(file, &["num_replicas"]).is_empty();
    let is_blind = |file: &&File| BLIND_TO_REPLICAS.contains(&module_name(&file.path).as_str());
    let counting: Vec<_> =
        files.iter().filter(is_blind).filter(|file| counts(file)).map(|file| &file.path).collect();
    let allowed = COUNTING_REPLICAS.map(|(path, _)| path);
    assert_eq!(counting, allowed, "`Mesh::num_batch_shards` divides batches");
}

#[test]
fn no_two_public_types_have_the_same_name() {
    // The crate `kernels` is used in one module only, and has words of its own.
    let files = files(&["src", "hlo/src", "models/src"]);
    let found = doubled_types(&files);
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(files.iter().flat_map(public_types).count() > 300, "types are not found at all");
}

#[test]
fn unsafe_code_is_where_it_is_allowed_and_documented() {
    let files = files(&SOURCES);
    let is_allowed = |file: &File| UNSAFE.iter().any(|place| file.path.starts_with(place));
    let found = failures(&files, |file| match is_allowed(file) {
        true => undocumented_unsafe(file),
        false => has_word(file, &["unsafe", "unsafe_code"]),
    });
    assert!(found.is_empty(), "{}", found.join("\n"));
    let unsafe_files = files.iter().filter(|file| !has_word(file, &["unsafe"]).is_empty());
    assert!(unsafe_files.count() > 3, "the words are not found at all");
}

#[test]
fn files_are_short() {
    let found = failures(&files(&SOURCES), |file| {
        let num_lines = file.text.lines().count();
        let is_long = num_lines > MAX_LINES && !FLAT_TABLES.contains(&file.path.as_str());
        is_long
            .then(|| (num_lines, "is where the file ends: too long".to_owned()))
            .into_iter()
            .collect()
    });
    assert!(found.is_empty(), "{}", found.join("\n"));
    for table in FLAT_TABLES {
        assert!(root().join(table).is_file(), "{table} is gone");
    }
}

#[test]
fn comments_are_wrapped() {
    let found = failures(&files(&EVERYWHERE), |file| {
        let mut is_code = false;
        let mut found = vec![];
        for (index, line) in file.text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else {
                is_code = false;
                continue;
            };
            let comment = comment.trim_start_matches(['/', '!']).trim_start();
            is_code ^= comment.starts_with("```");
            let is_path = !comment.contains(' ');
            let may_be_long =
                is_code || is_path || comment.starts_with('|') || comment.contains("://");
            if !may_be_long && line.chars().count() > MAX_COMMENT {
                found.push((index + 1, format!("is a comment of more than {MAX_COMMENT} columns")));
            }
        }
        found
    });
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn nothing_is_unfinished_and_only_the_full_set_is_ignored() {
    let found = failures(&files(&EVERYWHERE), |file| {
        let mut words = has_word(file, &["todo", "unimplemented", "ignore"]);
        // `tests/README.md` says how these run.
        let is_of_full_set = |line: usize| {
            let text = file.text.lines().nth(line - 1).unwrap_or_default();
            file.path.starts_with("tests/") && text.contains("; of the full set\"]")
        };
        words.retain(|(line, _)| !is_of_full_set(*line));
        [put_off(&file.text), words].concat()
    });
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn no_print_macro_panics_on_a_closed_pipe() {
    let found = failures(&files(&SOURCES), |file| {
        has_word(file, &["print", "println", "eprint", "eprintln", "dbg"])
    });
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn unwraps_are_listed_with_a_reason() {
    for file in files(&SOURCES) {
        if is_of_tests(&file.path) {
            continue;
        }
        let lines = unwraps(&file);
        let row = UNWRAPS.iter().find(|row| row.0 == file.path);
        let (allowed, reason) = row.map_or((0, "nothing"), |row| (row.1, row.2));
        let path = &file.path;
        assert_eq!(lines.len(), allowed, "{path} unwraps on lines {lines:?}; known: {reason}");
    }
    for (path, ..) in UNWRAPS {
        assert!(root().join(path).is_file(), "{path} is gone");
    }
}

#[test]
fn planted_imports_are_found() {
    let table = Table::parse(
        "main > cli > step, optim, models, hlo\nstep, optim > config, hlo       step > \
         models       data, pjrt > hlo   (neither of them more)\nconfig > models\nobserve > \
         nothing",
    );
    // path, source, the module with the import that must be reported
    let forbidden = [
        ("src/observe/writer.rs", "use crate::config::Config;", "config"),
        ("src/optim/adam.rs", "use crate::{config, step};", "step"),
        ("src/optim/adam.rs", "use crate::{config::{self, Decay}, pjrt::{Client, Code}};", "pjrt"),
        ("src/optim/adam.rs", "use super::super::train;", "train"),
        ("src/optim/mod.rs", "use super::{config, cli};", "cli"),
        (
            "src/optim/mod.rs",
            "mod tests { use super::*; fn f() { super::super::cli::main() } }",
            "cli",
        ),
        ("src/optim/mod.rs", "mod a { mod b {} } use super::cli;", "cli"),
        ("src/data/mod.rs", "fn f(x: &crate::pjrt::Client) {}", "pjrt"),
        ("src/data/mod.rs", "macro_rules! m { () => { $crate::step::f() } }", "step"),
        ("src/data/mod.rs", "fn f() { assert!(crate::step::f()) }", "step"),
        ("src/data/mod.rs", "fn f() { vec![{ use crate::{hlo, step}; 1 }]; }", "step"),
        ("src/data/mod.rs", "#[derive(crate::step::Derived)] struct A;", "step"),
        ("src/data/mod.rs", "pub(in crate::cli) fn f() {}", "cli"),
        (
            "src/data/mod.rs",
            "const C: char = '\"'; use models::Scope; const D: char = '\"';",
            "models",
        ),
        ("src/pjrt/client.rs", "use ::models::Scope;", "models"),
        ("src/pjrt/client.rs", "use models as m;", "models"),
        ("src/pjrt/client.rs", "fn f<'a>(x: &'a str) -> models::Scope<'a> {}", "models"),
        ("src/main.rs", "use lockstep::train;", "train"),
        ("src/step/mod.rs", "use models::{Scope, mlp::Mlp};", "models"),
        ("src/step/mod.rs", "use models::*;", "models"),
        ("src/config/mod.rs", "fn f(x: models::gpt::Gpt) {}", "models"),
        ("src/optim/mod.rs", "use crate::*;", "*"),
        ("src/optim/mod.rs", "use crate::attic;", "attic"),
    ];
    for (path, source, expected) in forbidden {
        let file = File::new(path, source);
        let imports = imports(&file);
        let mut modules: Vec<_> = imports
            .iter()
            .filter(|import| table.forbids(path, import).is_some())
            .map(|import| import.module.as_str())
            .collect();
        modules.dedup();
        assert_eq!(modules, [expected], "{path}: {source}");
    }
    let allowed = [
        ("src/optim/adam.rs", "use super::{Context, like_params}; use hlo::{Tensor, Tree};"),
        ("src/optim/mod.rs", "mod tests { use super::*; use crate::config::Decay; }"),
        ("src/data/mod.rs", "// use crate::cli;\n/* use /* crate::cli */ crate::cli; */"),
        (
            "src/data/mod.rs",
            "const A: &str = \"use crate::cli\"; const B: &str = r#\"\"crate::cli\"#;",
        ),
        (
            "src/data/mod.rs",
            "use other::crate_::cli; fn f() \
             { let models = self.hlo; x.cli::<u8>(); <T>::hlo::f(); }",
        ),
        ("src/main.rs", "fn main() { lockstep::cli::main() }"),
        ("src/cli/mod.rs", "use models::mlp::Mlp; fn hlo() { ::hlo::lower() }"),
    ];
    for (path, source) in allowed {
        let found: Vec<_> = imports(&File::new(path, source))
            .iter()
            .filter_map(|import| table.forbids(path, import))
            .collect();
        assert!(found.is_empty(), "{path}: {source}: {found:?}");
    }
    assert_eq!(table.circle(), None);
    let circle = Table::parse("a > b > c\nc > d, a").circle();
    assert_eq!(circle.as_deref(), Some("a > b > c > a"));
}

#[test]
fn planted_violations_are_found() {
    // source under src/pjrt, `true` if it has undocumented unsafe code
    let blocks = [
        ("fn f() { unsafe { g() } }", true),
        ("// SAFETY: because.\nlet x = unsafe { g() };", false),
        ("// SAFETY: because.\nlet x =\n    unsafe { g() }\n        .h();", false),
        ("// SAFETY: a reason that\n// takes two lines.\nunsafe impl Send for T {}", false),
        ("// SAFETY: of another one.\nunsafe impl Send for T {}\nunsafe impl Sync for T {}", true),
        ("// SAFETY: because.\nlet x = 1;\nlet y = unsafe { g(x) };", true),
        ("// Fast.\nunsafe { g() };", true),
        ("/// # Safety\n/// `x` must be.\npub unsafe fn f(x: u8) {}", false),
        ("/// Does it.\npub unsafe fn f(x: u8) {}", true),
        ("type F = unsafe extern \"C\" fn(u8);", false),
    ];
    for (source, expected) in blocks {
        let found = undocumented_unsafe(&File::new("src/pjrt/x.rs", source));
        assert_eq!(!found.is_empty(), expected, "{source}: {found:?}");
    }

    let unwrapping = File::new(
        "src/x.rs",
        "fn f() { a.unwrap(); b.expect(\"c\"); d.unwrap_or(1); }\n\
         #[cfg(test)]\nmod tests { fn g() { {} a.unwrap() } }\n\
         fn h() { e\n.unwrap() }\nfn i() { vec![a.unwrap()] }",
    );
    assert_eq!(unwraps(&unwrapping), [1, 1, 5, 6]);
    assert_eq!(put_off(concat!("// TO", "DO: more")).len(), 1);
    assert_eq!(put_off(concat!("/// ```rust,ign", "ore")).len(), 1);
    let skipped = File::new("src/x.rs", "#[ignore = \"slow\"] fn f() { todo!() }");
    assert_eq!(has_word(&skipped, &["todo", "ignore"]).len(), 2);

    let types = [
        File::new("src/a.rs", "pub struct Plan; struct Own; pub enum Error {} type Row = u8;"),
        File::new("src/b.rs", "pub(super) enum Plan {} pub struct Own; pub enum Error {}"),
        File::new("src/c.rs", "choices! { pub enum Own by \"name\" {} } pub trait Row {}"),
        File::new("src/d.rs", "#[cfg(test)] mod tests { pub struct Row; }"),
    ];
    let found = doubled_types(&types);
    assert_eq!(found, ["Own: src/b.rs:1, src/c.rs:1", "Plan: src/a.rs:1, src/b.rs:1"]);
}

/// A Rust file: its path from the repository's root, and its contents.
struct File {
    path: String,
    text: String,
    syntax: syn::File,
    words: Vec<Word>,
}

impl File {
    fn new(path: &str, text: &str) -> Self {
        // Planted sources may be statements, which are wrapped in a function.
        let syntax = syn::parse_file(text).or_else(|error| {
            let function = format!("fn planted() {{ {text}\n}}");
            syn::parse_file(&function).map_err(|_| error)
        });
        let syntax = syntax.unwrap_or_else(|error| panic!("{path}: {error}"));
        let tokens = text.parse().unwrap_or_else(|error| panic!("{path}: {error}"));
        Self { path: path.to_owned(), text: text.to_owned(), syntax, words: words(tokens) }
    }
}

/// A word, `::`, or one other character of code. Strings and other literals are omitted.
#[derive(Clone, Debug)]
struct Word {
    text: String,
    line: usize,
}

fn words(tokens: TokenStream) -> Vec<Word> {
    let mut words: Vec<Word> = vec![];
    for token in tokens {
        let line = token.span().start().line;
        let mut push = |text: String| words.push(Word { text, line });
        match token {
            TokenTree::Ident(ident) => push(ident.to_string()),
            TokenTree::Literal(_) => {}
            TokenTree::Punct(punct) => {
                // The second half of `::`.
                let half =
                    words.last_mut().filter(|word| word.text == ":" && punct.as_char() == ':');
                match half {
                    Some(half) => half.text = "::".to_owned(),
                    None => words.push(Word { text: punct.to_string(), line }),
                }
            }
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                push(open.to_owned());
                words.extend(self::words(group.stream()));
                words.push(Word { text: close.to_owned(), line: group.span_close().start().line });
            }
        }
    }
    words
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every Rust file under the directories that a person has written.
fn files(dirs: &[&str]) -> Vec<File> {
    let mut found = vec![];
    let mut pending: Vec<PathBuf> = dirs.iter().map(|dir| root().join(dir)).collect();
    while let Some(dir) = pending.pop() {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && !path.ends_with("generated.rs")
            {
                let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
                found.push(File::new(&name, &fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(found.len() >= dirs.len(), "no files under {dirs:?}");
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// The findings of `check` in each file, with their locations.
fn failures(files: &[File], check: impl Fn(&File) -> Vec<(usize, String)>) -> Vec<String> {
    let found =
        files.iter().flat_map(|file| check(file).into_iter().map(move |found| (file, found)));
    found.map(|(file, (line, text))| format!("{}:{line}: {text}", file.path)).collect()
}

/// `src/optim/adam.rs` -> `optim`, `src/main.rs` -> `main`.
fn module_name(path: &str) -> String {
    let inside = path.strip_prefix("src/").unwrap();
    inside.split('/').next().unwrap().trim_end_matches(".rs").to_owned()
}

/// The number of modules that contain a file's items: `src/optim/adam.rs` -> 2, `src/optim/mod.rs`
/// -> 1, `src/main.rs` -> 0.
fn depth_of(path: &str) -> usize {
    let inside = path.strip_prefix("src/").unwrap().trim_end_matches(".rs");
    inside.split('/').filter(|name| !["mod", "lib", "main"].contains(name)).count()
}

/// `true` if this is the `tests` module in the folder of its module, compiled only for tests.
fn is_of_tests(path: &str) -> bool {
    let Some(folder) = path.strip_suffix("/tests.rs") else { return false };
    let parent = fs::read_to_string(root().join(folder).join("mod.rs")).unwrap();
    parent.contains("#[cfg(test)]\nmod tests;")
}

/// The modules that each module may import.
struct Table {
    rows: BTreeMap<String, BTreeSet<String>>,
}

impl Table {
    /// The table in ARCHITECTURE.md: the fenced block with a row for `main`.
    fn of_architecture() -> Self {
        let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
        let mut blocks = page.split("```").skip(1).step_by(2);
        let block = blocks.find(|block| block.lines().any(|line| line.starts_with("main >")));
        Self::parse(block.expect("ARCHITECTURE.md has a block with a line `main > ..`"))
    }

    /// Rows are `left > right`: each module on the left may import each on the right; `nothing`
    /// stands for none. A chain `a > b > c` means `a > b` and `b > c`. A line may have several
    /// rows, separated by two spaces or more, and remarks in parentheses.
    fn parse(text: &str) -> Self {
        let mut rows = BTreeMap::<_, BTreeSet<_>>::new();
        for line in text.lines() {
            let mut parts = line.split('(');
            let mut plain = parts.next().unwrap_or_default().to_owned();
            plain.extend(parts.filter_map(|part| part.split_once(')')).map(|(_, rest)| rest));
            for row in plain.split("  ").filter(|row| row.contains('>')) {
                let names = |list: &str| -> Vec<_> {
                    let names = list.split(',').map(|name| name.trim().to_owned());
                    names.filter(|name| !name.is_empty() && name != "nothing").collect()
                };
                let lists: Vec<_> = row.split('>').map(names).collect();
                for pair in lists.windows(2) {
                    for left in &pair[0] {
                        rows.entry(left.clone()).or_default().extend(pair[1].iter().cloned());
                    }
                }
            }
        }
        Self { rows }
    }

    /// A cycle of imports, direct or through other modules: `a > b > a`.
    fn circle(&self) -> Option<String> {
        fn search(table: &Table, path: &mut Vec<String>, done: &mut BTreeSet<String>) -> bool {
            let Some(imports) = path.last().and_then(|last| table.rows.get(last)) else {
                return false;
            };
            for import in imports {
                if let Some(start) = path.iter().position(|name| name == import) {
                    path.drain(..start);
                    path.push(import.clone());
                    return true;
                }
                if !done.contains(import) {
                    path.push(import.clone());
                    if search(table, path, done) {
                        return true;
                    }
                    path.pop();
                }
            }
            done.extend(path.last().cloned());
            false
        }
        let mut done = BTreeSet::new();
        self.rows.keys().find_map(|name| {
            let mut path = vec![name.clone()];
            search(self, &mut path, &mut done).then(|| path.join(" > "))
        })
    }

    /// Why the table forbids an import, if it does.
    fn forbids(&self, path: &str, import: &Import) -> Option<(usize, String)> {
        let from = module_name(path);
        if from == import.module {
            return None;
        }
        if !self.rows.get(&from).is_some_and(|allowed| allowed.contains(&import.module)) {
            return Some((import.line, format!("{from} may not import {}", import.module)));
        }
        let is_module = |name: &str| name.starts_with(|c: char| c.is_lowercase() || c == '*');
        let name = import.name.as_deref().filter(|name| is_module(name))?;
        let is_architecture = import.module == "models" && BLIND_TO_MODELS.contains(&from.as_str());
        is_architecture.then(|| (import.line, format!("{from} may not know models::{name}")))
    }
}

/// A name that a file takes from another module or package.
#[derive(Debug)]
struct Import {
    line: usize,
    /// A module of this package, or another package.
    module: String,
    /// The name taken from a package.
    name: Option<String>,
}

/// All paths that begin with `crate`, `lockstep`, `super`, `hlo` or `models`, in `use` items and
/// elsewhere.
fn imports(file: &File) -> Vec<Import> {
    let mut finder = ImportFinder { depth: depth_of(&file.path), found: vec![] };
    finder.visit_file(&file.syntax);
    finder.found
}

struct ImportFinder {
    /// The number of modules that contain the current item.
    depth: usize,
    found: Vec<Import>,
}

impl ImportFinder {
    fn add(&mut self, line: usize, path: &[String]) {
        let num_supers = path.iter().take_while(|name| *name == "super").count();
        let name = |at: usize| path.get(at).filter(|name| *name != "self").cloned();
        match path.first().map_or("", String::as_str) {
            "crate" | "lockstep" => {
                self.found.extend(name(1).map(|module| Import { line, module, name: None }));
            }
            "super" if num_supers == self.depth => {
                let module = name(num_supers);
                self.found.extend(module.map(|module| Import { line, module, name: None }));
            }
            package if PACKAGES.contains(&package) => {
                self.found.push(Import { line, module: package.to_owned(), name: name(1) });
            }
            _ => {}
        }
    }

    /// Adds the paths in the arguments of a macro or an attribute: each begins at a word not
    /// preceded by `::` or `.`.
    fn add_words(&mut self, words: &[Word]) {
        for (at, word) in words.iter().enumerate() {
            let text = |at: usize| words.get(at).map_or("", |word| word.text.as_str());
            let before = at.checked_sub(1).map_or("", text);
            let continues = before == "::" && at >= 2 && is_name(text(at - 2));
            if !is_name(&word.text) || continues || before == "." || text(at + 1) != "::" {
                continue;
            }
            let mut end = at + 2;
            while is_name(text(end)) && text(end + 1) == "::" {
                end += 2;
            }
            let head: Vec<_> = words[at..end].iter().filter(|word| word.text != "::").collect();
            for name in first_names(&words[end..]) {
                let names = head.iter().map(|word| word.text.clone()).chain([name]);
                self.add(word.line, &names.collect::<Vec<_>>());
            }
        }
    }
}

impl<'ast> Visit<'ast> for ImportFinder {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.depth += 1;
        visit::visit_item_mod(self, module);
        self.depth -= 1;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        visit::visit_item_use(self, item);
        let mut paths = vec![];
        add_leaves(&item.tree, &[], &mut paths);
        for path in paths {
            self.add(item.span().start().line, &path);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        visit::visit_path(self, path);
        let names: Vec<_> = path.segments.iter().map(|name| name.ident.to_string()).collect();
        // A single name is a variable or an item of this module.
        if names.len() > 1 {
            self.add(path.span().start().line, &names);
        }
    }

    // The path after `<T>` belongs to the type.
    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        match &path.qself {
            Some(qself) => self.visit_qself(qself),
            None => visit::visit_expr_path(self, path),
        }
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        visit::visit_macro(self, call);
        self.add_words(&words(call.tokens.clone()));
    }

    fn visit_meta_list(&mut self, list: &'ast syn::MetaList) {
        visit::visit_meta_list(self, list);
        self.add_words(&words(list.tokens.clone()));
    }
}

/// The paths in a `use` item.
fn add_leaves(tree: &syn::UseTree, before: &[String], paths: &mut Vec<Vec<String>>) {
    let with = |name: String| [before, &[name]].concat();
    match tree {
        syn::UseTree::Path(path) => add_leaves(&path.tree, &with(path.ident.to_string()), paths),
        syn::UseTree::Name(name) => paths.push(with(name.ident.to_string())),
        syn::UseTree::Rename(rename) => paths.push(with(rename.ident.to_string())),
        syn::UseTree::Glob(_) => paths.push(with("*".to_owned())),
        syn::UseTree::Group(group) => {
            group.items.iter().for_each(|tree| add_leaves(tree, before, paths));
        }
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// The next names of a path: one name, or the first name in each branch of a group.
fn first_names(words: &[Word]) -> Vec<String> {
    let (mut names, mut depth, mut is_first) = (vec![], 0, true);
    for word in words {
        match word.text.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            "," => is_first |= depth == 1,
            name if is_first => {
                is_first = false;
                names.push(name.to_owned());
            }
            _ => {}
        }
        if depth <= 0 {
            break;
        }
    }
    names
}

/// The lines that are compiled only for tests: first and last line of each item.
fn test_lines(file: &File) -> Vec<(usize, usize)> {
    struct Finder(Vec<(usize, usize)>);
    impl Finder {
        fn look(&mut self, attributes: &[syn::Attribute], item: &impl Spanned) {
            let is_test = |attribute: &syn::Attribute| match &attribute.meta {
                syn::Meta::List(list) => {
                    list.path.is_ident("cfg") && list.tokens.to_string() == "test"
                }
                _ => false,
            };
            if attributes.iter().any(is_test) {
                self.0.push((item.span().start().line, item.span().end().line));
            }
        }
    }
    impl<'ast> Visit<'ast> for Finder {
        fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
            self.look(&item.attrs, item);
            visit::visit_item_mod(self, item);
        }
        fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
            self.look(&item.attrs, item);
            visit::visit_item_fn(self, item);
        }
        fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
            self.look(&item.attrs, item);
            visit::visit_item_impl(self, item);
        }
        fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
            self.look(&item.attrs, item);
            visit::visit_impl_item_fn(self, item);
        }
    }
    let mut finder = Finder(vec![]);
    finder.visit_file(&file.syntax);
    finder.0
}

/// The words of a file, except those compiled only for tests.
fn shipped_words(file: &File) -> Vec<&Word> {
    let tests = test_lines(file);
    let is_of_tests =
        |line: usize| tests.iter().any(|(first, last)| (*first..=*last).contains(&line));
    file.words.iter().filter(|word| !is_of_tests(word.line)).collect()
}

/// Names and lines of the types that other files can use, including those declared by macros.
fn public_types(file: &File) -> Vec<(String, usize)> {
    const KINDS: [&str; 5] = ["struct", "enum", "union", "trait", "type"];
    let words = shipped_words(file);
    let text = |at: usize| words.get(at).map_or("", |word| word.text.as_str());
    let mut found = vec![];
    for at in (0..words.len()).filter(|at| text(*at) == "pub") {
        let mut kind = at + 1;
        if text(kind) == "(" {
            kind += words[kind..].iter().take_while(|word| word.text != ")").count() + 1;
        }
        if KINDS.contains(&text(kind)) && is_name(text(kind + 1)) {
            found.push((text(kind + 1).to_owned(), words[kind].line));
        }
    }
    found
}

/// Names that several public types have, with their locations.
fn doubled_types(files: &[File]) -> Vec<String> {
    let mut places = BTreeMap::<_, Vec<_>>::new();
    for file in files.iter().filter(|file| !is_of_tests(&file.path)) {
        for (name, line) in public_types(file) {
            places.entry(name).or_default().push(format!("{}:{line}", file.path));
        }
    }
    let is_doubled = |(name, places): &(String, Vec<String>)| {
        places.len() > 1 && !SHARED_NAMES.contains(&name.as_str())
    };
    let doubled = places.into_iter().filter(is_doubled);
    doubled.map(|(name, places)| format!("{name}: {}", places.join(", "))).collect()
}

/// Locations of these words in code.
fn has_word(file: &File, words: &[&str]) -> Vec<(usize, String)> {
    let of_them = file.words.iter().filter(|word| words.contains(&word.text.as_str()));
    of_them.map(|word| (word.line, format!("`{}` has no place here", word.text))).collect()
}

/// Markers of unfinished work, and doc examples that are not run.
fn put_off(text: &str) -> Vec<(usize, String)> {
    let marks = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
        concat!("```ign", "ore"),
        concat!("```rust,ign", "ore"),
        concat!("```no", "_run"),
    ];
    let lines = text.lines().enumerate();
    let marked = lines.filter(|(_, line)| marks.iter().any(|mark| line.contains(mark)));
    marked.map(|(index, line)| (index + 1, line.trim().to_owned())).collect()
}

/// Unsafe blocks and implementations without `SAFETY:` directly above their statement, and unsafe
/// functions without a section on safety in their documentation.
fn undocumented_unsafe(file: &File) -> Vec<(usize, String)> {
    let lines: Vec<&str> = file.text.lines().map(str::trim).collect();
    let words = file.words.windows(3).filter(|words| words[0].text == "unsafe");
    let mut found = vec![];
    for words in words {
        let required = match (words[1].text.as_str(), words[2].text.as_str()) {
            ("{" | "impl", _) => "SAFETY:",
            ("fn", name) if name != "(" => "# Safety",
            _ => continue,
        };
        let line = words[0].line;
        // Go up to the start of the statement, which is after the end of the previous one.
        let mut top = line - 1;
        let ends = |line: &str| line.is_empty() || line.ends_with([';', '{', '}']);
        while top > 0 && !lines[top - 1].starts_with("//") && !ends(lines[top - 1]) {
            top -= 1;
        }
        let comment = lines[..top].iter().rev().take_while(|line| line.starts_with("//"));
        if !comment.into_iter().any(|line| line.contains(required)) {
            found.push((line, format!("unsafe without `{required}` directly above")));
        }
    }
    found
}

/// Lines of `.unwrap()` and `.expect(..)` outside of tests.
fn unwraps(file: &File) -> Vec<usize> {
    let words = shipped_words(file);
    let calls = words.windows(3).filter(|words| {
        let [dot, name, open] = [0, 1, 2].map(|at| words[at].text.as_str());
        dot == "." && ["unwrap", "expect"].contains(&name) && open == "("
    });
    calls.map(|words| words[1].line).collect()
}
