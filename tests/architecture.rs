//! Holds the sources against the house plan: which room may import which, where unsafe code stands, how
//! long files are, and what is nowhere to be found.
//!
//! The sources are read as tokens, so that neither comments nor strings count; examples in doc comments
//! may therefore show rooms working together.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What each room may import, beside itself. From top to bottom: a room may import only what stands
/// below it, so there are no circles.
const ROOMS: [(&str, &[&str]); 12] = [
    ("main", &["cli"]),
    // `hlo` for `lockstep hlo`, which lowers, and for doctor, which traces a trial program.
    (
        "cli",
        &[
            "train", "recipe", "targets", "step", "optim", "pjrt", "data", "observe", "config",
            "models", "hlo",
        ],
    ),
    // Rules about configurations and rates: neither data nor devices.
    ("recipe", &["optim", "config", "hlo"]),
    // It assembles the others; `targets` for the options of the chip that is there.
    (
        "train",
        &[
            "targets", "step", "optim", "parallel", "pjrt", "data", "observe", "config", "models",
            "hlo",
        ],
    ),
    // It takes a step as it comes, and knows its state by the paths.
    ("targets", &["step", "pjrt", "config", "hlo"]),
    ("step", &["optim", "parallel", "config", "models", "hlo"]),
    ("optim", &["config", "hlo"]),
    ("parallel", &["config", "hlo"]),
    ("pjrt", &["config", "hlo"]),
    ("data", &["config", "hlo"]),
    ("observe", &[]),
    // A leaf, but for the models' own configurations.
    ("config", &["models", "hlo"]),
];

/// The other packages, which the compiler keeps apart: `hlo` knows nobody, `models` knows `hlo`.
const PACKAGES: [&str; 2] = ["models", "hlo"];

/// A file longer than this is two files, unless it is a flat table.
const MAX_LINES: usize = 700;
const FLAT_TABLES: [&str; 1] = ["src/pjrt/abi.rs"];

/// Calls of `unwrap` and `expect` outside of tests: file, number, and why it cannot happen.
const UNWRAPS: [(&str, usize, &str); 6] = [
    ("hlo/src/rebuild.rs", 1, "a copied node fits its copied operands"),
    ("hlo/src/region/expand.rs", 1, "a scan's types were checked, and its `while` has the same"),
    ("hlo/src/region/vjp.rs", 2, "what a part needs was required into it, or is its input"),
    ("hlo/src/tensor.rs", 1, "the axes to add are those that are missing"),
    ("src/parallel/buckets.rs", 3, "nodes are copied in order, operands before users"),
    ("src/parallel/stacks.rs", 1, "a copied node fits its copied operands"),
];

#[test]
fn the_table_has_every_room_and_no_circle() {
    for (index, (room, imports)) in ROOMS.iter().enumerate() {
        let below: Vec<_> = ROOMS[index + 1..].iter().map(|row| row.0).chain(PACKAGES).collect();
        for import in *imports {
            assert!(below.contains(import), "{import} does not stand below {room}");
        }
    }
    let rooms: BTreeSet<_> = files(&["src"]).iter().map(|file| room_of(&file.path)).collect();
    let rows: BTreeSet<_> =
        ROOMS.iter().map(|row| row.0.to_owned()).chain(["lib".into()]).collect();
    assert_eq!(rooms, rows, "rooms under src/ on the left, rows of the table on the right");
}

#[test]
fn rooms_import_what_the_table_allows() {
    let files = files(&["src"]);
    let found = failures(&files, |file| {
        let imports = imports(&file.tokens, &module_of(&file.path));
        imports.iter().filter_map(|import| forbidden(&file.path, import)).collect()
    });
    assert!(found.is_empty(), "{}", found.join("\n"));
    // The reading itself works: these are imported, and by these rooms.
    for (room, import) in [("cli", "train"), ("train", "step"), ("step", "models"), ("pjrt", "hlo")]
    {
        let of_room = files.iter().filter(|file| room_of(&file.path) == room);
        let mut imports = of_room.flat_map(|file| imports(&file.tokens, &module_of(&file.path)));
        assert!(imports.any(|found| found.room == import), "{room} > {import} was not found");
    }
}

#[test]
fn unsafe_code_stands_in_pjrt_and_says_why_it_is_safe() {
    let files = files(&["src", "hlo/src", "models/src"]);
    let found = failures(&files, |file| match file.path.starts_with("src/pjrt/") {
        true => undocumented_unsafe(file),
        false => has_word(file, &["unsafe", "unsafe_code"]),
    });
    assert!(found.is_empty(), "{}", found.join("\n"));
    let unsafe_files = files.iter().filter(|file| !has_word(file, &["unsafe"]).is_empty());
    assert!(unsafe_files.count() > 3, "the words are not found at all");
}

#[test]
fn files_are_short() {
    let found = failures(&files(&["src", "hlo/src", "models/src"]), |file| {
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
fn nothing_is_left_for_later_skipped_or_ignored() {
    let everywhere = ["src", "hlo", "models", "tests", "benches", "examples"];
    let found = failures(&files(&everywhere), |file| {
        [put_off(&file.text), has_word(file, &["todo", "unimplemented", "ignore"])].concat()
    });
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn nothing_panics_where_a_reader_has_gone_away() {
    let found = failures(&files(&["src", "hlo/src", "models/src"]), |file| {
        has_word(file, &["print", "println", "eprint", "eprintln", "dbg"])
    });
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Is this the `tests` module of the module whose folder it is in, compiled for tests alone?
fn is_of_tests(path: &str) -> bool {
    let Some(folder) = path.strip_suffix("/tests.rs") else { return false };
    let parent = std::fs::read_to_string(root().join(folder).join("mod.rs")).unwrap();
    parent.contains("#[cfg(test)]\nmod tests;")
}

#[test]
fn what_can_fail_is_handled() {
    for file in files(&["src", "hlo/src", "models/src"]) {
        if is_of_tests(&file.path) {
            continue;
        }
        let lines = unwraps(&file.tokens);
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
fn planted_violations_are_found() {
    // path, source, the room that must be found to be forbidden
    let imports_of = [
        ("src/observe/jsonl.rs", "use crate::config::Config;", "config"),
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
        ("src/optim/mod.rs", "use crate::*;", "*"),
        ("src/optim/mod.rs", "use crate::attic;", "attic"),
    ];
    for (path, source, expected) in imports_of {
        let imports = imports(&tokens(source), &module_of(path));
        let rooms: Vec<_> = imports
            .iter()
            .filter(|import| forbidden(path, import).is_some())
            .map(|import| import.room.as_str())
            .collect();
        assert_eq!(rooms, [expected], "{path}: {source}");
    }
    let allowed = [
        ("src/optim/adam.rs", "use super::{Context, like_params}; use hlo::{Tensor, Tree};"),
        ("src/optim/mod.rs", "mod tests { use super::*; use crate::config::Decay; }"),
        ("src/data/mod.rs", "// use crate::cli;\n/* use /* crate::cli */ crate::cli; */"),
        (
            "src/data/mod.rs",
            "const A: &str = \"use crate::cli\"; const B: &str = r#\"\"crate::cli\"#;",
        ),
        ("src/data/mod.rs", "use other::crate_::cli; let models = self.hlo; x.cli::<u8>();"),
        ("src/main.rs", "fn main() { lockstep::cli::main() }"),
        ("src/cli/mod.rs", "use models::mlp::Mlp; fn hlo() { ::hlo::lower() }"),
    ];
    for (path, source) in allowed {
        let imports = imports(&tokens(source), &module_of(path));
        assert!(imports.iter().all(|import| forbidden(path, import).is_none()), "{path}: {source}");
    }

    // source under src/pjrt, are there undocumented blocks?
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

    let unwrapping = "fn f() { a.unwrap(); b.expect(\"c\"); d.unwrap_or(1); }\n\
                      #[cfg(test)]\nmod tests { fn g() { {} a.unwrap() } }\nfn h() { e\n.unwrap() }";
    assert_eq!(unwraps(&tokens(unwrapping)), [1, 1, 5]);
    assert_eq!(put_off(concat!("// TO", "DO: more")).len(), 1);
    assert_eq!(put_off(concat!("/// ```rust,ign", "ore")).len(), 1);
    let skipped = File::new("src/x.rs", "#[ignore = \"slow\"] fn f() { todo!() }");
    assert_eq!(has_word(&skipped, &["todo", "ignore"]).len(), 2);
}

/// A Rust file: its path from the repository's root, and what stands in it.
struct File {
    path: String,
    text: String,
    tokens: Vec<Token>,
}

impl File {
    fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned(), tokens: tokens(text) }
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every Rust file under the directories.
fn files(dirs: &[&str]) -> Vec<File> {
    let mut found = vec![];
    let mut pending: Vec<PathBuf> = dirs.iter().map(|dir| root().join(dir)).collect();
    while let Some(dir) = pending.pop() {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
                found.push(File::new(&name, &fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(found.len() >= dirs.len(), "no files under {dirs:?}");
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// What `check` finds in each file, with the place.
fn failures(files: &[File], check: impl Fn(&File) -> Vec<(usize, String)>) -> Vec<String> {
    let found =
        files.iter().flat_map(|file| check(file).into_iter().map(move |found| (file, found)));
    found.map(|(file, (line, text))| format!("{}:{line}: {text}", file.path)).collect()
}

/// `src/optim/adam.rs` -> `optim`, `src/main.rs` -> `main`.
fn room_of(path: &str) -> String {
    let inside = path.strip_prefix("src/").unwrap();
    inside.split('/').next().unwrap().trim_end_matches(".rs").to_owned()
}

/// `src/optim/adam.rs` -> `[optim, adam]`, `src/optim/mod.rs` -> `[optim]`, `src/main.rs` -> `[]`.
fn module_of(path: &str) -> Vec<String> {
    let inside = path.strip_prefix("src/").unwrap().trim_end_matches(".rs");
    let names = inside.split('/').map(str::to_owned);
    names.filter(|name| !["mod", "lib", "main"].contains(&name.as_str())).collect()
}

/// A name that a file takes from another room or package.
#[derive(Debug)]
struct Import {
    line: usize,
    /// A room, or a package.
    room: String,
    /// For a package: what is taken from it.
    name: Option<String>,
}

/// What the table has against it.
fn forbidden(path: &str, import: &Import) -> Option<(usize, String)> {
    let from = room_of(path);
    let refused = |why: String| Some((import.line, why));
    if from == import.room {
        return None;
    }
    let row = ROOMS.iter().find(|row| row.0 == from);
    if !row.is_some_and(|row| row.1.contains(&import.room.as_str())) {
        return refused(format!("{from} may not import {}", import.room));
    }
    // The step and the loop take models as they come: types of the package, but no architecture.
    let is_module = |name: &String| name.starts_with(|c: char| c.is_lowercase() || c == '*');
    if import.room == "models"
        && ["step", "train"].contains(&from.as_str())
        && import.name.as_ref().is_some_and(is_module)
    {
        return refused(format!("{from} may not know models::{}", import.name.as_ref()?));
    }
    None
}

/// Everything that is named through `crate`, `lockstep`, `super`, `hlo` or `models`, in `use` lines and
/// elsewhere. `module` is the module that the file is.
fn imports(tokens: &[Token], module: &[String]) -> Vec<Import> {
    let word = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let is_name = |at: usize| {
        let is_keyword = ["use", "in", "as", "return", "match", "if", "else"].contains(&word(at));
        !is_keyword && word(at).starts_with(|c: char| c.is_alphanumeric() || c == '_')
    };
    let mut found = vec![];
    // For each open brace: does it open an inline module?
    let mut braces = vec![];
    for at in 0..tokens.len() {
        match word(at) {
            "{" => braces.push(at >= 2 && word(at - 2) == "mod"),
            "}" => drop(braces.pop()),
            _ => {}
        }
        // Only where a path begins: `a::crate`, `a.hlo` and `<T>::hlo` are something else.
        let before = at.checked_sub(1).map_or("", word);
        let continues = before == "::" && at >= 2 && (is_name(at - 2) || word(at - 2) == ">");
        if continues || before == "." {
            continue;
        }
        let line = tokens[at].line;
        let mut add_all = |rooms: Vec<String>| {
            found.extend(rooms.into_iter().map(|room| Import { line, room, name: None }));
        };
        match word(at) {
            "crate" | "lockstep" if word(at + 1) == "::" => add_all(first_names(tokens, at + 2)),
            "super" => {
                let mut rest = at;
                let mut num_up = 0;
                while word(rest) == "super" && word(rest + 1) == "::" {
                    (rest, num_up) = (rest + 2, num_up + 1);
                }
                let depth = module.len() + braces.iter().filter(|is_module| **is_module).count();
                if num_up > 0 && num_up == depth {
                    add_all(first_names(tokens, rest));
                }
            }
            package if PACKAGES.contains(&package) && word(at + 1) == "::" => {
                for name in first_names(tokens, at + 2) {
                    found.push(Import { line, room: package.to_owned(), name: Some(name) });
                }
            }
            package if PACKAGES.contains(&package) && before == "use" => {
                add_all(vec![package.to_owned()]);
            }
            _ => {}
        }
    }
    found
}

/// The names that a path goes on with: one, or the first ones of each branch of a group.
fn first_names(tokens: &[Token], start: usize) -> Vec<String> {
    let group = tokens[start..].iter().map(|token| token.text.as_str());
    let (mut names, mut depth, mut is_first) = (vec![], 0, true);
    for word in group {
        match word {
            "{" => depth += 1,
            "}" => depth -= 1,
            "," => is_first |= depth == 1,
            name if is_first => {
                is_first = false;
                // `crate::{self}` takes no name from anywhere.
                names.extend((name != "self").then(|| name.to_owned()));
            }
            _ => {}
        }
        if depth <= 0 {
            break;
        }
    }
    names
}

/// Places where a word of code is one of these.
fn has_word(file: &File, words: &[&str]) -> Vec<(usize, String)> {
    let of_them = file.tokens.iter().filter(|token| words.contains(&token.text.as_str()));
    of_them.map(|token| (token.line, format!("`{}` has no place here", token.text))).collect()
}

/// Marks for later, and doc examples that are not run.
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

/// Blocks and implementations without `SAFETY:` directly above their statement, and functions whose
/// documentation has no section on safety.
fn undocumented_unsafe(file: &File) -> Vec<(usize, String)> {
    let lines: Vec<&str> = file.text.lines().map(str::trim).collect();
    let words = file.tokens.windows(3).filter(|words| words[0].text == "unsafe");
    let mut found = vec![];
    for words in words {
        let required = match (words[1].text.as_str(), words[2].text.as_str()) {
            ("{" | "impl", _) => "SAFETY:",
            ("fn", name) if name != "(" => "# Safety",
            _ => continue,
        };
        let line = words[0].line;
        // Up to the beginning of the statement, which is behind the end of the one before.
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
fn unwraps(tokens: &[Token]) -> Vec<usize> {
    let word = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let is_test = |at: usize| {
        let attribute = ["#", "[", "cfg", "(", "test", ")", "]"];
        attribute.iter().enumerate().all(|(offset, text)| word(at + offset) == *text)
    };
    let (mut found, mut at) = (vec![], 0);
    while at < tokens.len() {
        if is_test(at) {
            // To the end of the item: its braces, or a semicolon before any.
            let mut depth = 0;
            while at < tokens.len() {
                match word(at) {
                    "{" => depth += 1,
                    "}" => depth -= 1,
                    _ => {}
                }
                if depth == 0 && matches!(word(at), "}" | ";") {
                    break;
                }
                at += 1;
            }
        }
        if word(at) == "." && ["unwrap", "expect"].contains(&word(at + 1)) && word(at + 2) == "(" {
            found.push(tokens[at + 1].line);
        }
        at += 1;
    }
    found
}

/// A word, `::`, or one other character of code.
#[derive(Clone, Debug)]
struct Token {
    text: String,
    line: usize,
}

/// Cuts a source into tokens; comments, strings, characters and lifetimes are left out.
fn tokens(source: &str) -> Vec<Token> {
    let chars: Vec<char> = source.chars().collect();
    let get = |at: usize| chars.get(at).copied().unwrap_or('\0');
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut tokens, mut at, mut line) = (vec![], 0, 1);
    while at < chars.len() {
        let start = at;
        match (get(at), get(at + 1)) {
            ('/', '/') => at += chars[at..].iter().take_while(|c| **c != '\n').count(),
            ('/', '*') => {
                let mut depth = 0;
                loop {
                    match (get(at), get(at + 1)) {
                        ('/', '*') => (depth, at) = (depth + 1, at + 2),
                        ('*', '/') => (depth, at) = (depth - 1, at + 2),
                        _ => at += 1,
                    }
                    if depth == 0 || at >= chars.len() {
                        break;
                    }
                }
            }
            ('"', _) => at = end_of_quoted(&chars, at),
            ('\'', '\\') => at = end_of_quoted(&chars, at),
            ('\'', _) if get(at + 2) == '\'' => at += 3,
            ('\'', _) => at += 1 + chars[at + 1..].iter().take_while(|c| is_word(**c)).count(),
            (':', ':') => {
                at += 2;
                tokens.push(Token { text: "::".to_owned(), line });
            }
            (c, _) if is_word(c) => {
                at += chars[at..].iter().take_while(|c| is_word(**c)).count();
                let text: String = chars[start..at].iter().collect();
                let num_hashes = chars[at..].iter().take_while(|c| **c == '#').count();
                let is_raw = ["r", "br", "cr"].contains(&text.as_str());
                if is_raw && get(at + num_hashes) == '"' {
                    let end: Vec<char> =
                        "\"".chars().chain("#".repeat(num_hashes).chars()).collect();
                    at += num_hashes + 1;
                    while at < chars.len() && !chars[at..].starts_with(&end) {
                        at += 1;
                    }
                    at += end.len();
                } else {
                    tokens.push(Token { text, line });
                }
            }
            (c, _) => {
                at += 1;
                if !c.is_whitespace() {
                    tokens.push(Token { text: c.to_string(), line });
                }
            }
        }
        line += chars[start..at.min(chars.len())].iter().filter(|c| **c == '\n').count();
    }
    tokens
}

/// Behind the quote that closes the one at `start`.
fn end_of_quoted(chars: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < chars.len() && chars[at] != chars[start] {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}
