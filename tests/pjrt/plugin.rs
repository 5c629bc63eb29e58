//! Loading plugins.

use std::os::unix::fs::symlink;

use lockstep::pjrt::{Error, Plugin};

use crate::programs::{found, plugin};

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
         api.struct_size = PJRT_Api_STRUCT_SIZE;\napi.pjrt_api_version.major_version = 7;\nreturn &api; }\n",
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

/// The environment belongs to the whole process, so the load happens in a child: this test, run again
/// with the variable set.
#[test]
fn an_unknown_xla_flag_is_an_error_and_a_known_one_is_not() {
    if std::env::var("LOCKSTEP_TEST_FLAGS").is_ok() {
        match Plugin::load(&found().path) {
            Ok(_) => println!("loaded"),
            Err(Error::UnknownXlaFlag { flag, .. }) => println!("refused {flag}"),
            Err(other) => panic!("{other}"),
        }
        return;
    }
    let run = |flags: &str| {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "plugin::an_unknown_xla_flag_is_an_error_and_a_known_one_is_not",
                "--nocapture",
            ])
            .env("LOCKSTEP_TEST_FLAGS", "1")
            .env("XLA_FLAGS", flags)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(run("--xla_no_such_flag=1").contains("refused --xla_no_such_flag"));
    let known =
        "--xla_cpu_collective_call_warn_stuck_timeout_seconds=5 --xla_cpu_multi_thread_eigen=false";
    assert!(run(known).contains("loaded"));
}
