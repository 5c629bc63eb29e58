//! Whether all processes of a run see the directory into which they save.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::checkpoints;
use super::processes::Processes;
use super::{Error, Job};
use crate::checkpoint::{self, Location};
use crate::cluster::random_bytes;

/// A shared file system shows a new file to other hosts within this time: NFS keeps what it knows
/// of a directory for 30 s.
const SEEN_WITHIN: Duration = Duration::from_secs(35);
/// The wait before it is looked for again.
const PAUSE: Duration = Duration::from_millis(100);

/// Checks that the processes of a run that saves checkpoints in a directory have it in common: a
/// host with another `--out`, or with the same relative one from another directory, would be found
/// at the first checkpoint only, which may be where the run ends. The first process has claimed the
/// directory.
///
/// # Errors
/// In a process that does not see the directory of the first one.
pub(super) fn check_shared(
    processes: Processes<'_>,
    job: &Job<'_>,
    out: Option<&Path>,
) -> Result<(), Error> {
    if processes.with_others().is_none() {
        return Ok(());
    }
    let dir = || match checkpoints::place(&job.config.checkpoint, out) {
        Some(Location::Path(dir)) => Some(dir),
        Some(Location::Url(_)) | None => None,
    };
    let mark = || {
        let Some(dir) = dir() else { return Ok(None) };
        let random = random_bytes().map_err(checkpoint::Error::io("write", &*dir))?;
        let random = u64::from_le_bytes(*random.first_chunk().unwrap_or(&[0; 8]));
        let name = format!(".seen-by-all-{random:016x}");
        let path = dir.join(&name);
        fs::write(&path, "").map_err(checkpoint::Error::io("write", &*path))?;
        Ok(Some((dir.to_string_lossy().into_owned(), name)))
    };
    let marked = processes.decided_by_first("a file for all to see", mark)?;
    let Some((of_first, name)) = marked else { return Ok(()) };
    // All write their parts of a checkpoint to the path that the first process has.
    let mut dirs = vec![PathBuf::from(of_first)];
    if processes.num_hosts() > 1 && !processes.is_first() {
        // Its host may come to have the first process.
        dirs.push(dir().unwrap_or_else(|| PathBuf::from(".")));
    }
    let since = Instant::now();
    while let Some(unseen) = dirs.iter().find(|dir| !dir.join(&name).exists()) {
        if since.elapsed() > SEEN_WITHIN {
            return Err(checkpoint::Error::NotShared { path: unseen.as_path().into() }.into());
        }
        thread::sleep(PAUSE);
    }
    let seen = processes.gather("the file was seen", ());
    if processes.is_first() {
        // It is empty, and in nobody's way.
        let _ = fs::remove_file(dirs[0].join(&name));
    }
    seen.map(drop)
}
