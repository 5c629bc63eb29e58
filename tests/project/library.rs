//! The library as others use it, without the command line: the crate of docs/data.md, in a folder
//! of its own.

use std::fs;
use std::path::Path;
use std::process::Command;

/// The texts of all blocks in a language.
fn blocks<'t>(page: &'t str, language: &str) -> Vec<&'t str> {
    let blocks = page.split("\n```").collect::<Vec<_>>();
    let texts = blocks.iter().filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n'));
    texts.collect()
}

/// With its manifest, and without the command line. That its programs compile is a documentation
/// test.
#[test]
#[ignore = "compiles the library once more; of the full set"]
fn the_crate_of_the_page_compiles() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/data.md")).unwrap();
    let manifest = blocks(&page, "toml").into_iter().find(|text| text.starts_with("[package]"));
    let [main, lib] = blocks(&page, "rust")[..] else { panic!("a program and a source") };
    // Like the page, but for the place of this project. With this project's profiles and versions
    // of dependencies, the latter need not be compiled again.
    let own = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let profiles = &own[own.find("[profile.dev]").unwrap()..];
    let place = root.to_str().unwrap();
    let manifest = manifest.unwrap().replace("../lockstep", place);
    assert!(manifest.contains(place), "{manifest}");

    let crate_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside");
    fs::create_dir_all(crate_dir.join("src")).unwrap();
    let write = |name: &str, text: &str| fs::write(crate_dir.join(name), text).unwrap();
    write(
        "Cargo.toml",
        &format!("{manifest}\n[workspace]\n\n[lints.rust]\nwarnings = \"deny\"\n\n{profiles}"),
    );
    write("src/main.rs", main);
    write("src/lib.rs", lib);
    fs::copy(root.join("Cargo.lock"), crate_dir.join("Cargo.lock")).unwrap();
    let done = Command::new(env!("CARGO"))
        .args(["build", "--offline", "--target-dir"])
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap())
        // Whatever lints this build of the project has, they are not that crate's.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .current_dir(&crate_dir)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
