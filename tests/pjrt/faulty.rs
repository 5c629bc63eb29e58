//! Plugins that fail where they seldom do, and that answer as others may: the CPU plugin behind a
//! small one that is compiled here. It is loaded by a child process, the test run again, so that it
//! stands alone there.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use hlo::Literal;
use lockstep::pjrt::{Client, CompileOptions, Plugin};

use crate::programs::{found, program};

const FAULTY: &str = "LOCKSTEP_TEST_FAULTY_PLUGIN";

/// A client of the faulty plugin, in the child.
fn faulty_client() -> Option<Client> {
    let plugin = std::env::var_os(FAULTY)?;
    Some(Client::cpu(&Plugin::load(Path::new(&plugin)).unwrap(), 2).unwrap())
}

/// Runs `test` again, in a process with a plugin that has this fault.
fn in_child(test: &str, fault: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let plugin = dir.path().join("faulty.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pjrt/faulty.c");
    let real = &found().path;
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-I"])
        .arg(real.with_file_name("include"))
        .arg(format!("-DREAL_PLUGIN=\"{}\"", real.display()))
        .arg("-o")
        .args([&plugin, &source])
        .arg("-ldl")
        .status()
        .unwrap();
    assert!(compiled.success());
    let Output { status, stdout, stderr } = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("faulty::{test}"), "--nocapture"])
        .envs([(FAULTY, plugin.as_os_str()), ("LOCKSTEP_TEST_FAULT", fault.as_ref())])
        .output()
        .unwrap();
    assert!(status.success(), "{status}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

#[test]
fn an_upload_whose_callback_cannot_be_registered_leaves_no_buffer() {
    if let Some(client) = faulty_client() {
        let literal = Arc::new(Literal::from_slice(&[1024], &[1f32; 1024]));
        let error = client.upload_replicated(literal).unwrap_err().to_string();
        assert!(error.contains("PJRT_Event_OnReady"), "{error}");
        return;
    }
    let test = "an_upload_whose_callback_cannot_be_registered_leaves_no_buffer";
    let said = in_child(test, "no callbacks");
    assert!(said.contains("live buffers: 0\n"), "{said}");
}

#[test]
fn an_array_that_is_null_is_one_without_elements() {
    if let Some(client) = faulty_client() {
        // Without results, in a process that has none of its devices.
        let nothing = program(1, &[&[2]], &[], &[], "  return");
        let executable = client.compile(&nothing, &CompileOptions::default()).unwrap();
        assert_eq!(executable.placement().num_addressable(), 0);
        assert!(!executable.serialize().unwrap().is_empty(), "there is a seal at least");
        return;
    }
    in_child("an_array_that_is_null_is_one_without_elements", "null arrays");
}
