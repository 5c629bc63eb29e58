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

/// A file in the directory, for as long as the processes look for it; after a kill until the next
/// start.
const NAME: &str = ".seen-by-all";
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
    // The processes of one supervisor were started in the same place with the same arguments.
    if processes.with_others().is_none() || processes.num_hosts() == 1 {
        return Ok(());
    }
    let dir = || match checkpoints::place(&job.config.checkpoint, out) {
        Some(Location::Path(dir)) => Some(dir),
        Some(Location::Url(_)) | None => None,
    };
    let mark = || {
        let Some(dir) = dir() else { return Ok(None) };
        let path = dir.join(NAME);
        let failed = checkpoint::Error::io("write", &*path);
        let contents = random_bytes().map_err(&failed)?;
        fs::write(&path, contents).map_err(failed)?;
        Ok(Some((dir.to_string_lossy().into_owned(), contents)))
    };
    let marked = processes.decided_by_first("a file for all to see", mark)?;
    let Some((of_first, contents)) = marked else { return Ok(()) };
    // All write their parts of a checkpoint to the path that the first process has.
    let mut dirs = vec![PathBuf::from(of_first)];
    if processes.num_hosts() > 1 && !processes.is_first() {
        // Its host may come to have the first process.
        dirs.push(dir().unwrap_or_else(|| PathBuf::from(".")));
    }
    let since = Instant::now();
    let is_seen = |dir: &Path| fs::read(dir.join(NAME)).is_ok_and(|found| found == contents);
    while let Some(unseen) = dirs.iter().find(|dir| !is_seen(dir)) {
        if since.elapsed() > SEEN_WITHIN {
            return Err(checkpoint::Error::NotShared { path: unseen.as_path().into() }.into());
        }
        thread::sleep(PAUSE);
    }
    let seen = processes.gather("the file was seen", ());
    if processes.is_first() {
        // It is small, and in nobody's way.
        let _ = fs::remove_file(dirs[0].join(NAME));
    }
    seen.map(drop)
}
