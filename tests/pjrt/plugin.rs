//! Loading plugins.

use std::os::unix::fs::symlink;

use lockstep::pjrt::{Client, CompileOptions, Error, Plugin};

use crate::programs::{all_reduce, found, plugin};

#[test]
fn a_plugin_says_what_it_is() {
    let plugin = plugin();
    assert_eq!(plugin.api_version(), (0, 81));
    assert!(plugin.extensions().contains(&5), "FFI among {:?}", plugin.extensions());
    assert!(
        plugin.attributes().contains_key("stablehlo_current_version"),
        "{:?}",
        plugin.attributes()
    );
}

#[test]
fn the_same_file_is_the_same_plugin() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("other_name.so");
    symlink(&found().path, &link).unwrap();
    assert_eq!(Plugin::load(link).unwrap().path(), plugin().path());
}

#[test]
fn a_file_that_is_no_plugin_is_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes.so");
    std::fs::write(&path, "not a library at all, just text").unwrap();
    let error = Plugin::load(&path).unwrap_err();
    assert!(matches!(error, Error::NotAPlugin { .. }), "{error}");

    let absent = Plugin::load(dir.path().join("absent.so")).unwrap_err();
    assert!(matches!(absent, Error::UnreadablePlugin { .. }), "{absent}");

    // An honest library, but not a plugin.
    let source = dir.path().join("empty.c");
    let library = dir.path().join("empty.so");
    std::fs::write(&source, "int nothing;\n").unwrap();
    let cc = std::process::Command::new("cc")
        .args(["-shared", "-o"])
        .args([&library, &source])
        .status()
        .unwrap();
    assert!(cc.success());
    let error = Plugin::load(&library).unwrap_err();
    assert!(error.to_string().contains("GetPjrtApi"), "{error}");
}

#[test]
fn another_processor_and_another_abi_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("elsewhere.so");
    let mut header = vec![0u8; 64];
    header[..4].copy_from_slice(b"\x7fELF");
    header[18] = 243; // RISC-V
    std::fs::write(&path, &header).unwrap();
    let error = Plugin::load(&path).unwrap_err();
    assert!(matches!(error, Error::WrongArchitecture { .. }), "{error}");

    let source = dir.path().join("future.c");
    let library = dir.path().join("future.so");
    let include = found().path.with_file_name("include");
    std::fs::write(
        &source,
        "#include \"pjrt_c_api.h\"\nstatic PJRT_Api api;\nconst PJRT_Api* GetPjrtApi(void) {\n\
         api.struct_size = PJRT_Api_STRUCT_SIZE;\napi.pjrt_api_version.major_version = 7;\n\
         return &api; }\n",
    )
    .unwrap();
    let cc = std::process::Command::new("cc")
        .arg("-I")
        .arg(include)
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status()
        .unwrap();
    assert!(cc.success());
    let error = Plugin::load(&library).unwrap_err();
    assert!(matches!(error, Error::IncompatibleAbi { major: 7, .. }), "{error}");
}

/// Loads the plugin with `XLA_FLAGS` set to `flags`, compiles and runs a program, and gives the
/// variable as it is then, or the error. The environment belongs to the whole process, so a child
/// does it: the test `test`, run again.
fn load_with(test: &str, flags: &str) -> String {
    const IN_CHILD: &str = "LOCKSTEP_TEST_FLAGS";
    const MARK: &str = "flags: ";
    if std::env::var_os(IN_CHILD).is_some() {
        match Plugin::load(&found().path) {
            Ok(plugin) => {
                let client = Client::cpu(&plugin, 2).unwrap();
                let program = all_reduce(2, 4);
                client.compile(&program, &CompileOptions::default()).unwrap();
                println!("{MARK}{}", std::env::var("XLA_FLAGS").unwrap());
            }
            Err(error) => println!("{MARK}{error}"),
        }
        std::process::exit(0);
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("plugin::{test}"), "--nocapture"])
        .env(IN_CHILD, "1")
        .env("XLA_FLAGS", flags)
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = stdout.lines().find_map(|line| line.split_once(MARK));
    line.unwrap_or_else(|| panic!("{flags:?}: {stdout}")).1.to_owned()
}

const WARN: &str = "--xla_cpu_collective_call_warn_stuck_timeout_seconds";
const TERMINATE: &str = "--xla_cpu_collective_call_terminate_timeout_seconds";

#[test]
fn an_unknown_xla_flag_is_an_error_and_a_known_one_is_not() {
    let load =
        |flags: &str| load_with("an_unknown_xla_flag_is_an_error_and_a_known_one_is_not", flags);
    let refused = load("--xla_no_such_flag=1");
    assert!(refused.contains("XLA_FLAGS holds --xla_no_such_flag, which"), "{refused}");
    let known = format!("{WARN}=5 --xla_cpu_multi_thread_eigen=false");
    assert_eq!(load(&known), format!("{TERMINATE}=1800 {known}"));
}

#[test]
fn flags_in_a_file_are_treated_as_if_they_stood_in_the_variable() {
    let test = "flags_in_a_file_are_treated_as_if_they_stood_in_the_variable";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flags");
    let load = |text: &str| {
        std::fs::write(&path, text).unwrap();
        load_with(test, path.to_str().unwrap())
    };
    let known = "--xla_cpu_multi_thread_eigen=false";
    assert_eq!(load(&format!("\n{known}\n")), format!("{WARN}=60 {TERMINATE}=1800 {known}"));
    let refused = load(&format!("{known}\n--xla_no_such_flag=1\n"));
    assert!(refused.contains("XLA_FLAGS holds --xla_no_such_flag, which"), "{refused}");
    let absent = load_with(test, dir.path().join("absent").to_str().unwrap());
    assert!(absent.contains("XLA_FLAGS names the file") && absent.contains("absent"), "{absent}");
}

#[test]
fn replicas_wait_longer_for_each_other_than_xla_lets_them() {
    let test = "replicas_wait_longer_for_each_other_than_xla_lets_them";
    assert_eq!(load_with(test, ""), format!("{WARN}=60 {TERMINATE}=1800"));
}
