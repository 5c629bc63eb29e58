//! Plugins that are not what was installed are refused before they are loaded, which would end the
//! process.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Outcome, install_plugin, lockstep, lockstep_with, text, train_args};

/// The record of a plugin's files, in its directory.
const RECORD: &str = ".lockstep-files.json";

/// A cache with a copy of the CPU plugin, and a Python without a network.
struct Cache {
    dir: tempfile::TempDir,
    library: PathBuf,
}

impl Cache {
    fn new() -> Self {
        install_plugin();
        let listed = lockstep(&["plugin", "list", "--json"]).succeeded().json();
        let library = PathBuf::from(listed[0]["path"].as_str().unwrap());
        let original = library.ancestors().nth(3).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let plugins = dir.path().join("plugins");
        fs::create_dir(&plugins).unwrap();
        let copied = Command::new("cp").arg("-pR").arg(original).arg(&plugins).status().unwrap();
        assert!(copied.success());
        let library = plugins.join(library.strip_prefix(original.parent().unwrap()).unwrap());
        Self { dir, library }
    }

    fn run(&self, args: &[&str]) -> Outcome {
        let offline = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/pip_offline.sh");
        lockstep_with(args, &[("LOCKSTEP_CACHE", self.dir.path()), ("LOCKSTEP_PYTHON", &offline)])
    }

    fn train(&self) -> Outcome {
        let args = train_args(
            &["train.steps=1", "schedule.warmup=none", "mesh.data=1", "model.hidden=[8]"],
            &[],
        );
        self.run(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn plugin_dir(&self) -> &Path {
        self.library.ancestors().nth(3).unwrap()
    }

    fn file(&self) -> File {
        File::options().read(true).write(true).open(&self.library).unwrap()
    }

    /// Changes one byte of a file, and leaves its size and its times.
    fn change_unseen(&self, path: &Path) {
        let modified = path.metadata().unwrap().modified().unwrap();
        let mut bytes = fs::read(path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(path, bytes).unwrap();
        File::options().write(true).open(path).unwrap().set_modified(modified).unwrap();
    }
}

/// By the dynamic linker's own account. Otherwise steps would only be slower.
#[test]
#[cfg(target_env = "gnu")]
fn a_plugin_allocates_from_the_programs_allocator() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let env = [("LD_DEBUG", Path::new("bindings")), ("LD_DEBUG_OUTPUT", &log)];
    lockstep_with(&["doctor"], &env).succeeded();
    // One for each process.
    let logs = fs::read_dir(dir.path()).unwrap();
    let logs = logs.map(|log| fs::read_to_string(log.unwrap().path()).unwrap()).collect::<String>();
    for name in ["malloc", "free"] {
        let symbol = format!("symbol `{name}'");
        let is_plugins =
            |line: &&str| line.contains("/xla_cpu_pjrt.so [0] to ") && line.contains(&symbol);
        let bound: Vec<_> = logs.lines().filter(is_plugins).collect();
        assert!(!bound.is_empty(), "no {name} in {logs}");
        assert!(bound.iter().all(|line| line.contains("/lockstep [0]:")), "{bound:?}");
    }
}

/// Ended with an error in words, not by a signal.
#[track_caller]
fn refused(done: &Outcome, fragments: &[&str]) {
    assert_eq!(done.code, Some(1), "{done:?}");
    for fragment in fragments {
        assert!(done.stderr.contains(fragment), "{fragment:?} is not in {}", done.stderr);
    }
    assert!(!done.stderr.contains("panicked"), "{}", done.stderr);
}

#[test]
fn a_plugin_that_is_cut_off_is_refused_and_installed_again() {
    let cache = Cache::new();
    cache.train().succeeded();
    let verified = cache.run(&["plugin", "verify"]).succeeded().stdout;
    assert!(verified.starts_with("cpu is as it was installed: 3 files, "), "{verified}");

    let length = cache.file().metadata().unwrap().len();
    for left in [length - 1, length / 2, 4096, 0] {
        cache.file().set_len(left).unwrap();
        let damage = format!("xla_cpu_pjrt.so has {left} bytes instead of {length}");
        let said = ["error: the cpu plugin is damaged: ", &damage, "`lockstep plugin install cpu`"];
        refused(&cache.train(), &said);
        refused(&cache.run(&["plugin", "verify"]), &said);
        refused(&cache.run(&["plugin", "verify", "cpu"]), &said);
        let doctor = cache.run(&["doctor", "--json"]);
        assert_eq!(doctor.code, Some(1), "{doctor:?}");
        let problem = doctor.json()["plugins"][0]["problem"].as_str().unwrap().to_owned();
        assert!(problem.contains(&damage), "{problem}");
        let listed = cache.run(&["plugin", "list"]).succeeded().stdout;
        let line = listed.lines().next().unwrap();
        assert!(line.contains("damaged: ") && line.contains(&damage), "{listed}");
        // That it is not installed again here is pip's doing, which has no network.
        let again = "it is installed again now\nerror: pip could not fetch the cpu plugin";
        refused(&cache.run(&["plugin", "install", "cpu"]), &[&damage, again]);
    }
    let rows = cache.run(&["plugin", "verify", "--json"]);
    assert_eq!(rows.code, Some(1), "{rows:?}");
    let damage = rows.json()[0]["damage"].as_str().unwrap().to_owned();
    assert!(damage.contains("xla_cpu_pjrt.so has 0 bytes"), "{damage}");

    fs::remove_file(&cache.library).unwrap();
    refused(&cache.run(&["plugin", "verify"]), &[]);
    refused(
        &cache.run(&["plugin", "verify", "cpu"]),
        &["the cpu plugin is damaged", "is not a file"],
    );
}

#[test]
fn contents_that_were_changed_are_found() {
    let cache = Cache::new();
    let header = cache.library.with_file_name("include").join("pjrt_c_api.h");
    let damage = format!("{} does not hold what was installed", text(&header));
    // Every file counts. The copy is hashed once, so that the times are known.
    cache.train().succeeded();
    cache.change_unseen(&header);
    cache.train().succeeded();
    refused(&cache.run(&["plugin", "verify"]), &[&damage]);
    let now = std::time::SystemTime::now();
    File::options().write(true).open(&header).unwrap().set_modified(now).unwrap();
    refused(&cache.train(), &[&damage]);
    fs::remove_file(&header).unwrap();
    refused(&cache.train(), &["the cpu plugin is damaged", "pjrt_c_api.h"]);

    fs::write(cache.plugin_dir().join(RECORD), "{").unwrap();
    refused(&cache.train(), &["the cpu plugin is damaged", RECORD, "cannot be read"]);
}

/// Older versions of this program kept no record.
#[test]
fn a_plugin_without_a_record_gets_one_unless_it_is_cut_off() {
    let cache = Cache::new();
    let record = cache.plugin_dir().join(RECORD);
    fs::remove_file(&record).unwrap();
    cache.train().succeeded();
    assert!(!record.exists());
    let length = cache.file().metadata().unwrap().len();
    cache.file().set_len(length - 1).unwrap();
    let cut_off = "xla_cpu_pjrt.so is cut off (bytes missing: at least 1)";
    let again = "`lockstep plugin install cpu` installs it again";
    refused(&cache.train(), &["error: the cpu plugin is damaged: ", cut_off, again]);
    refused(&cache.run(&["plugin", "verify"]), &["the cpu plugin is damaged", "is cut off"]);
    refused(&cache.run(&["plugin", "install", "cpu"]), &["it is installed again now"]);
    assert!(!record.exists());
    for contents in ["", "a page of a proxy"] {
        fs::write(&cache.library, contents).unwrap();
        refused(&cache.train(), &["error: the cpu plugin is damaged: ", again]);
    }
    // Under a directory of another name nobody knows what it was.
    let elsewhere = cache.plugin_dir().with_file_name("mine");
    fs::rename(cache.plugin_dir(), &elsewhere).unwrap();
    let library = elsewhere.join(cache.library.strip_prefix(cache.plugin_dir()).unwrap());
    let backend = format!("device.backend={}", text(&library));
    let done = lockstep(&train_args(&[&backend, "train.steps=1", "schedule.warmup=none"], &[]));
    refused(&done, &["is not a PJRT plugin"]);
    assert!(!done.stderr.contains("install cpu"), "{}", done.stderr);

    let cache = Cache::new();
    let record = cache.plugin_dir().join(RECORD);
    fs::remove_file(&record).unwrap();
    let said = cache.run(&["plugin", "verify", "cpu"]).succeeded().stdout;
    assert!(said.contains("an older version") && said.contains("recorded now"), "{said}");
    assert!(record.exists());
    let said = cache.run(&["plugin", "verify", "cpu"]).succeeded().stdout;
    assert!(said.contains("as it was installed"), "{said}");
    fs::remove_file(&record).unwrap();
    let said = cache.run(&["plugin", "install", "cpu"]).succeeded().stderr;
    assert!(said.contains("by an older version") && record.exists(), "{said}");
}

/// A plugin that passes the checks at the start, but that cannot be loaded.
#[test]
#[cfg(target_env = "gnu")]
fn a_damaged_plugin_that_is_found_when_it_is_loaded_is_named() {
    let cache = Cache::new();
    let modified = cache.file().metadata().unwrap().modified().unwrap();
    let (file, mut start) = (cache.file(), vec![0; 1 << 20]);
    file.read_exact_at(&mut start, 0).unwrap();
    let name = b"GetPjrtApi\0";
    let offset = start.windows(name.len()).position(|bytes| bytes == name).unwrap();
    file.write_all_at(b"g", offset as u64).unwrap();
    file.set_modified(modified).unwrap();
    let again = "`lockstep plugin install cpu` installs it again";
    let damage = "xla_cpu_pjrt.so does not hold what was installed";
    refused(&cache.train(), &["error: the cpu plugin is damaged: ", damage, again]);

    // Without a record `plugin install` believes the files that are there.
    fs::remove_file(cache.plugin_dir().join(RECORD)).unwrap();
    let remove = "remove it first with `lockstep plugin remove cpu`";
    refused(&cache.train(), &["error: the cpu plugin is damaged: ", "GetPjrtApi", remove, again]);
}

#[test]
fn files_that_are_given_by_path_and_are_no_whole_library_are_refused() {
    let cache = Cache::new();
    // Elsewhere, so that there is no record.
    let library = cache.dir.path().join("copy.so");
    fs::rename(&cache.library, &library).unwrap();
    let train = |path: &Path| {
        let backend = format!("device.backend={}", text(path));
        lockstep(&train_args(&[&backend, "train.steps=1", "schedule.warmup=none"], &[]))
    };
    let file = File::options().write(true).open(&library).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    refused(&train(&library), &["error: ", "copy.so is cut off (bytes missing: at least "]);
    file.set_len(0).unwrap();
    refused(&train(&library), &["copy.so is not a PJRT plugin: it is empty"]);
    let dir = cache.dir.path().join("dir.so");
    fs::create_dir(&dir).unwrap();
    refused(&train(&dir), &["dir.so is not a PJRT plugin: it is a directory"]);
    let pipe = cache.dir.path().join("pipe.so");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    refused(&train(&pipe), &["pipe.so is not a PJRT plugin: it is not a regular file"]);
}

#[test]
fn what_is_installed_can_be_removed() {
    let cache = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let offline = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/pip_offline.sh");
        lockstep_with(args, &[("LOCKSTEP_CACHE", cache.path()), ("LOCKSTEP_PYTHON", &offline)])
    };
    let absent = "the cuda plugin is not installed";
    refused(&run(&["plugin", "remove", "cuda"]), &[absent]);
    refused(&run(&["plugin", "verify", "cuda"]), &[absent]);
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
    assert_eq!(run(&["plugin", "verify", "--json"]).succeeded().stdout, "[]\n");
    refused(&run(&["plugin", "remove", "gpu"]), &["known are cpu, cuda, cuda-compiler, tpu"]);

    // Only the directories of this plugin, for this processor.
    let arch = std::env::consts::ARCH;
    let dir = |name: &str| cache.path().join("plugins").join(name);
    let removed = [format!("cuda-0.1-{arch}"), format!("cuda-0.12.0.1-{arch}")];
    let kept = [format!("cuda-compiler-0.12.0.1-{arch}"), "cuda-0.1-other".to_owned()];
    for name in removed.iter().chain(&kept) {
        fs::create_dir_all(dir(name)).unwrap();
        fs::write(dir(name).join("file"), "").unwrap();
    }
    let said = run(&["plugin", "remove", "cuda"]).succeeded().stdout;
    for name in &removed {
        assert!(said.contains(&format!("cuda is removed from {}", text(&dir(name)))), "{said}");
        assert!(!dir(name).exists());
    }
    assert!(kept.iter().all(|name| dir(name).join("file").exists()));
    refused(&run(&["plugin", "remove", "cuda"]), &[absent]);
}
