//! The output directory of a run. Only that run writes into it, and its files always belong to one
//! run, even if a process is killed.
//!
//! A run that replaces another first moves the other's files to `replaced-run`, and removes them
//! when it is done. So a run that fails or is stopped destroys nothing. If such a run is replaced
//! in turn while `replaced-run` still holds another, the better one is kept: see `worth`.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Error, Stop, params_file};
use crate::checkpoint::CheckpointDir;
use crate::config::{CheckpointConfig, Config};
use crate::observe::{
    Jsonl, LayersFile, ProcessTimesFile, StepTrace, Summary, TensorBoard, say, unfinished_prefix,
};

/// All files and folders of a run. A new one must be added here.
const FILES: [&str; 9] = [
    CONFIG_FILE,
    Jsonl::FILE,
    LayersFile::FILE,
    ProcessTimesFile::FILE,
    params_file::FILE,
    Summary::FILE,
    CheckpointConfig::DIR,
    TensorBoard::DIR,
    StepTrace::DIR,
];
/// The resolved configuration. Not `config.toml`, which may be a file of the user's.
pub const CONFIG_FILE: &str = "config.resolved.toml";
/// Largest size of that file, in bytes.
pub(super) const MAX_CONFIG: u64 = 1 << 20;
/// The folder for the files of a run until the one that replaces it is done.
const REPLACED: &str = "replaced-run";
/// The name of that folder until all files are in it.
const MOVING: &str = ".replaced-run";

/// The treatment of another run in the directory of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// The run does not start.
    Refuse,
    /// The run takes the other's place.
    Replace,
    /// The run continues the other.
    Continue,
}

/// A directory that only this process writes into, as long as this value lives.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    existing: Existing,
    /// Locked, if the file system supports it.
    _lock: File,
}

/// Why a run cannot write into a directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunDirError {
    /// The directory cannot be created, or a file cannot be created in it.
    #[error("cannot write into the output directory {}: {source}; choose another with --out", dir.display())]
    Unusable {
        /// The directory.
        dir: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Something that is not a file has the name of one.
    #[error(
        "{} is {what}, but the run writes a file of that name; remove it, or choose another \
         directory with --out", path.display()
    )]
    NotAFile {
        /// Its path.
        path: PathBuf,
        /// The kind of file that it is.
        what: &'static str,
    },
    /// The folder for the previous run holds something else.
    #[error(
        "the previous run would be moved to {}, which is not a directory or holds other files; \
         move that away, or choose another directory with --out", path.display()
    )]
    NotARun {
        /// The folder.
        path: PathBuf,
    },
    /// The directory belongs to another run.
    #[error(
        "the output directory {} holds another run ({}); choose another with --out, continue that \
         run with --resume if it has checkpoints, or replace it with --overwrite", dir.display(), names.join(", ")
    )]
    Occupied {
        /// The directory.
        dir: PathBuf,
        /// That run's files.
        names: Vec<&'static str>,
    },
    /// The directory holds a run that is to be continued, but not with this configuration.
    #[error(
        "--resume finds no checkpoint of the run in {} with this configuration, which differs from \
         the run's: {}; use the run's values{}, or choose another directory with --out",
        dir.display(), differences.join("; "),
        if differences.iter().any(|key| key.starts_with("checkpoint.dir")) {
            ", or move its checkpoints to the new checkpoint.dir"
        } else { "" }
    )]
    Elsewhere {
        /// The directory.
        dir: PathBuf,
        /// The keys that differ.
        differences: Vec<String>,
    },
    /// The directory holds a run that is to be continued, but none of its checkpoints.
    #[error(
        "the run in {} has no checkpoint to continue from; replace it with --overwrite instead of \
         --resume, or choose another directory with --out", dir.display()
    )]
    NoCheckpoint {
        /// The directory.
        dir: PathBuf,
    },
    /// Another process is writing into it.
    #[error(
        "another process is writing a run into {}; choose another directory with --out, or wait \
         for it",
        dir.display()
    )]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
}

/// Waits, for at most `patience`, until no other process has locked one of these directories: one
/// that was killed a moment ago keeps its locks until its memory is freed. Call this before
/// anything is read there that the other process may still write.
///
/// # Errors
/// If `stop` is requested meanwhile.
pub(super) fn wait_until_free(
    dirs: &[&Path],
    patience: Duration,
    stop: &Stop,
) -> Result<(), Error> {
    let began = Instant::now();
    let mut has_said = false;
    for dir in dirs {
        // What cannot be opened or locked is found when it is claimed.
        let Ok(lock) = File::open(dir) else { continue };
        while let Err(TryLockError::WouldBlock) = lock.try_lock() {
            if began.elapsed() >= patience {
                return Ok(());
            }
            if !std::mem::replace(&mut has_said, true) {
                say(&format!(
                    "another process is writing a run into {}; waiting up to {} s until it has \
                     ended",
                    dir.display(),
                    patience.as_secs_f64()
                ));
            }
            stop.check()?;
            thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

impl RunDir {
    /// Creates the directory if needed, and checks that a run can be written into it, without
    /// changing its contents. Call this before anything that takes time: a run that cannot write
    /// its files does not start.
    ///
    /// # Errors
    /// A directory that cannot be written into, that another process is writing into, or that holds
    /// another run which is to be refused.
    pub fn claim(path: &Path, existing: Existing) -> Result<Self, RunDirError> {
        let dir = path.to_owned();
        let open = || {
            if path.is_file() {
                return Err(io::Error::other("it is a file"));
            }
            if [REPLACED, MOVING].iter().any(|name| path.ends_with(name)) {
                return Err(io::Error::other(
                    "runs that are being replaced are kept under that name",
                ));
            }
            fs::create_dir_all(path)?;
            tempfile::tempfile_in(path)?;
            File::open(path)
        };
        let lock = open().map_err(|source| RunDirError::Unusable { dir: dir.clone(), source })?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(RunDirError::InUse { dir }),
            Err(TryLockError::Error(error)) => say(&format!(
                "{} cannot be locked ({error}): make sure that no other run writes into it",
                path.display()
            )),
        }
        for name in FILES {
            let path = path.join(name);
            let what = match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() == is_folder(name) => continue,
                Ok(metadata) if metadata.is_dir() => "a directory",
                Ok(_) if is_folder(name) => "not a directory",
                Ok(metadata) if !metadata.is_file() => "not a regular file",
                _ => continue,
            };
            return Err(RunDirError::NotAFile { path, what });
        }
        let this = Self { path: dir, existing, _lock: lock };
        let names = this.names();
        let replaced = this.path.join(REPLACED);
        if existing == Existing::Replace
            && !names.is_empty()
            && (replaced.is_file() || has_foreign_files(&replaced))
        {
            return Err(RunDirError::NotARun { path: replaced });
        }
        match names.is_empty() || existing != Existing::Refuse {
            true => Ok(this),
            false => Err(RunDirError::Occupied { dir: this.path, names }),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the files of a previous run to `replaced-run`, unless this run continues it.
    ///
    /// # Errors
    /// Files that cannot be moved or removed.
    pub fn begin(&self) -> Result<(), RunDirError> {
        let failed = |source| RunDirError::Unusable { dir: self.path.clone(), source };
        if self.existing == Existing::Continue {
            let metrics = self.path.join(Jsonl::FILE);
            if !metrics.exists() {
                say(&format!(
                    "warning: {} is gone: it begins again, without the steps before the checkpoint",
                    metrics.display()
                ));
            }
            return remove_unfinished(&self.path).map_err(failed);
        }
        self.set_aside().map_err(failed)?;
        if let Some(place) = self.replaced() {
            say(&format!("the previous run is kept in {place} until this one is done"));
        }
        Ok(())
    }

    /// Removes the files of this run, which did not reach its first step. Those of a run that it
    /// continues stay.
    pub fn give_up(&self) {
        if self.existing == Existing::Continue {
            return;
        }
        if let Err(error) = remove_run_files(&self.path) {
            say(&format!("cannot remove what was written into {}: {error}", self.path.display()));
        }
        self.end(false);
    }

    /// Removes the run that this one has replaced if it `is_done`, and otherwise says where that
    /// is.
    pub fn end(&self, is_done: bool) {
        let Some(place) = self.replaced() else { return };
        if !is_done {
            say(&format!("the previous run is kept in {place}"));
        } else if let Err(error) = remove_run(&self.path.join(REPLACED)) {
            say(&format!("cannot remove the previous run from {place}: {error}"));
        }
    }

    /// The files and folders of runs in the directory.
    fn names(&self) -> Vec<&'static str> {
        let folders = [REPLACED, MOVING].into_iter();
        let folders = folders.filter(|name| !files_in(&self.path.join(name)).is_empty());
        files_in(&self.path).into_iter().chain(folders).collect()
    }

    fn replaced(&self) -> Option<String> {
        let place = self.path.join(REPLACED);
        (!files_in(&place).is_empty()).then(|| place.display().to_string())
    }

    fn set_aside(&self) -> io::Result<()> {
        let (replaced, moving) = (self.path.join(REPLACED), self.path.join(MOVING));
        remove_unfinished(&self.path)?;
        let names = files_in(&self.path);
        // If a process was killed while it moved files, this moves the rest.
        let is_moving = !files_in(&moving).is_empty();
        if names.is_empty() && !is_moving {
            return Ok(());
        }
        if !is_moving && self.replaced().is_some() && worth(&self.path) < worth(&replaced) {
            return remove_run_files(&self.path);
        }
        fs::create_dir_all(&moving)?;
        for name in names {
            fs::rename(self.path.join(name), moving.join(name))?;
        }
        remove_run(&replaced)?;
        fs::rename(moving, replaced)
    }
}

/// The summary of the run in a directory; `null` if there is none.
pub(super) fn summary_in(dir: &Path) -> Value {
    let summary = fs::read(dir.join(Summary::FILE)).unwrap_or_default();
    serde_json::from_slice(&summary).unwrap_or_default()
}

/// `true` if a directory holds no run, or one that was killed or failed before it saved anything:
/// it may begin again. Its checkpoints may be elsewhere, as its configuration says.
pub fn has_nothing_saved(dir: &Path, config: &Config) -> bool {
    let summary = summary_in(dir);
    let has_ended = ["done", "interrupted"].iter().any(|status| summary["status"] == *status);
    let is_saved_elsewhere = keys_of(dir).is_some_and(|keys| keys != is_identified_by(config));
    !has_ended
        && !dir.join(params_file::FILE).exists()
        && !has_checkpoints(dir)
        && !is_saved_elsewhere
}

fn has_checkpoints(dir: &Path) -> bool {
    CheckpointDir::list(dir.join(CheckpointConfig::DIR)).is_ok_and(|found| !found.is_empty())
}

/// How the run in a directory differs from the one of `config` in what tells their checkpoints
/// apart; empty if it does not, or if there is no such run.
pub fn differences(dir: &Path, config: &Config) -> Vec<String> {
    let Some((place, seed)) = keys_of(dir) else { return vec![] };
    let (new_place, new_seed) = is_identified_by(config);
    let text = |value: Option<String>| value.unwrap_or_else(|| "not set".to_owned());
    let number = |value: Option<i64>| text(value.map(|value| value.to_string()));
    let mut found = vec![];
    if place != new_place {
        found.push(format!("checkpoint.dir: {:?} -> {:?}", text(place), text(new_place)));
    }
    if seed != new_seed {
        found.push(format!("train.seed: {} -> {}", number(seed), number(new_seed)));
    }
    found
}

/// `true` unless a directory holds a run that saves its checkpoints elsewhere or has another seed
/// than `config`.
pub fn may_be_run_of(dir: &Path, config: &Config) -> bool {
    keys_of(dir).is_none_or(|keys| keys == is_identified_by(config))
}

/// The identity of the run of a configuration.
fn is_identified_by(config: &Config) -> (Option<String>, Option<i64>) {
    let seed = i64::try_from(config.train.seed).ok();
    (Some(config.checkpoint.dir.display().to_string()), seed)
}

/// The same of the run in a directory, if it has left its configuration.
fn keys_of(dir: &Path) -> Option<(Option<String>, Option<i64>)> {
    let text = fs::read_to_string(dir.join(CONFIG_FILE)).ok()?;
    let keys: toml::Table = text.parse().ok()?;
    let key = |section: &str, key: &str| keys.get(section)?.get(key).cloned();
    let place = key("checkpoint", "dir").and_then(|dir| dir.as_str().map(str::to_owned));
    Some((place, key("train", "seed").and_then(|seed| seed.as_integer())))
}

/// `true` for the names of folders.
fn is_folder(name: &str) -> bool {
    [CheckpointConfig::DIR, TensorBoard::DIR, StepTrace::DIR].contains(&name)
}

/// The files of a run that are in a directory.
fn files_in(dir: &Path) -> Vec<&'static str> {
    FILES.into_iter().filter(|name| dir.join(name).exists()).collect()
}

/// Ranks the run in a directory: a run that is done is worth more than one that was stopped after
/// some steps, and that more than one that failed, was killed, or has no parameters.
fn worth(dir: &Path) -> u32 {
    let summary = summary_in(dir);
    match summary["status"].as_str() {
        Some("done") if dir.join(params_file::FILE).exists() => 2,
        // The run can be continued.
        _ if has_checkpoints(dir) => 1,
        _ if !dir.join(params_file::FILE).exists() => 0,
        Some("interrupted") if summary["steps"].as_u64() > Some(0) => 1,
        _ => 0,
    }
}

/// `true` if a directory holds anything but the files of a run.
fn has_foreign_files(dir: &Path) -> bool {
    let is_foreign = |entry: io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| !FILES.iter().any(|name| entry.file_name() == *name))
    };
    fs::read_dir(dir).is_ok_and(|mut entries| entries.any(is_foreign))
}

fn remove_run_files(dir: &Path) -> io::Result<()> {
    files_in(dir).into_iter().try_for_each(|name| match is_folder(name) {
        true => fs::remove_dir_all(dir.join(name)),
        false => fs::remove_file(dir.join(name)),
    })
}

/// Removes the run in a directory, and the directory if nothing else is in it.
fn remove_run(dir: &Path) -> io::Result<()> {
    remove_run_files(dir)?;
    match fs::remove_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes the unfinished files of a killed process.
fn remove_unfinished(dir: &Path) -> io::Result<()> {
    let prefixes = FILES.map(|name| unfinished_prefix(Path::new(name)));
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let (name, is_file) = (entry.file_name(), entry.file_type()?.is_file());
        let begins = |prefix: &std::ffi::OsString| {
            name.as_encoded_bytes().starts_with(prefix.as_encoded_bytes())
        };
        if is_file && prefixes.iter().any(begins) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a run; its files hold its name.
    fn write_run(dir: &Path, name: &str) {
        for file in FILES.map(|file| dir.join(file)) {
            match is_folder(file.file_name().unwrap().to_str().unwrap()) {
                true => {
                    fs::create_dir_all(&file).unwrap();
                    fs::write(file.join("inside"), name).unwrap();
                }
                false => fs::write(file, name).unwrap(),
            }
        }
    }

    fn name_of(dir: &Path) -> [Option<String>; FILES.len()] {
        FILES.map(|file| {
            let file = if is_folder(file) { dir.join(file).join("inside") } else { dir.join(file) };
            fs::read_to_string(file).ok()
        })
    }

    #[test]
    fn checking_a_directory_leaves_it_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        RunDir::claim(&dir.path().join("new/run"), Existing::Refuse).unwrap();
        fs::write(dir.path().join("notes"), "mine").unwrap();
        RunDir::claim(dir.path(), Existing::Refuse).unwrap();
        write_run(dir.path(), "a");
        let error = RunDir::claim(dir.path(), Existing::Refuse).unwrap_err().to_string();
        let expected = "holds another run (config.resolved.toml, metrics.jsonl, layers.jsonl, \
                        processes.jsonl, params.safetensors, summary.json, checkpoints, \
                        tensorboard, trace); choose";
        assert!(error.contains(expected), "{error}");
        RunDir::claim(dir.path(), Existing::Replace).unwrap();
        assert_eq!(name_of(dir.path()), FILES.map(|_| Some("a".to_owned())));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2 + FILES.len());
    }

    #[test]
    fn a_directory_has_one_owner_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = RunDir::claim(dir.path(), Existing::Refuse).unwrap();
        let error = RunDir::claim(dir.path(), Existing::Replace).unwrap_err();
        assert!(matches!(error, RunDirError::InUse { .. }), "{error}");
        drop(first);
        RunDir::claim(dir.path(), Existing::Refuse).unwrap();
    }

    #[test]
    fn a_killed_move_is_finished_and_what_was_half_written_removed() {
        for num_moved in 0..=FILES.len() {
            let dir = tempfile::tempdir().unwrap();
            let (moving, replaced) = (dir.path().join(MOVING), dir.path().join(REPLACED));
            fs::create_dir(&moving).unwrap();
            fs::create_dir(&replaced).unwrap();
            write_run(dir.path(), "second");
            write_run(&replaced, "first");
            for name in &FILES[..num_moved] {
                fs::rename(dir.path().join(name), moving.join(name)).unwrap();
            }
            fs::write(dir.path().join(".unfinished.params.safetensors.x1"), "half").unwrap();
            RunDir::claim(dir.path(), Existing::Refuse).unwrap_err();
            let claimed = RunDir::claim(dir.path(), Existing::Replace).unwrap();
            claimed.begin().unwrap();
            assert_eq!(name_of(dir.path()), FILES.map(|_| None));
            assert_eq!(name_of(&replaced), FILES.map(|_| Some("second".to_owned())));
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
            claimed.end(false);
            assert!(replaced.exists());
            claimed.end(true);
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn the_run_that_is_worth_more_is_kept() {
        let runs = ["failed", "interrupted", "done"];
        for (first, second) in runs.iter().flat_map(|a| runs.iter().map(move |b| (a, b))) {
            let dir = tempfile::tempdir().unwrap();
            let replaced = dir.path().join(REPLACED);
            fs::create_dir(&replaced).unwrap();
            for (place, status) in [(&*replaced, first), (dir.path(), second)] {
                let summary = format!("{{\"status\": {status:?}, \"steps\": 7}}");
                write_run(place, &summary);
            }
            RunDir::claim(dir.path(), Existing::Replace).unwrap().begin().unwrap();
            let place = |status: &&str| runs.iter().position(|run| run == status);
            let kept = if place(second) < place(first) { first } else { second };
            let summary = fs::read_to_string(replaced.join(Summary::FILE)).unwrap();
            assert!(summary.contains(kept), "{first}, {second}: {summary}");
        }
        let dir = tempfile::tempdir().unwrap();
        write_run(dir.path(), "{\"status\": \"interrupted\", \"steps\": 0}");
        assert_eq!(worth(dir.path()), 0);
        let error =
            RunDir::claim(&dir.path().join(REPLACED), Existing::Refuse).unwrap_err().to_string();
        assert!(error.contains("are kept under that name"), "{error}");
    }

    #[test]
    fn a_folder_of_the_same_name_with_something_else_in_it_stays() {
        let dir = tempfile::tempdir().unwrap();
        let mine = dir.path().join(REPLACED).join("notes");
        fs::create_dir(mine.parent().unwrap()).unwrap();
        fs::write(&mine, "mine").unwrap();
        RunDir::claim(dir.path(), Existing::Refuse).unwrap().end(true);
        write_run(dir.path(), "a");
        let error = RunDir::claim(dir.path(), Existing::Replace).unwrap_err();
        assert!(matches!(error, RunDirError::NotARun { .. }), "{error}");
        assert_eq!(name_of(dir.path()), FILES.map(|_| Some("a".to_owned())));
        assert_eq!(fs::read_to_string(mine).unwrap(), "mine");
    }
}
