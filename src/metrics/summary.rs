//! `summary.json`: the outcome of a run, for programs.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde::Serialize;

use super::Error;

/// The outcome of a run. What was not measured, or is not finite, is `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Steps taken, those before a restart included.
    pub steps: u64,
    /// Replicas that took them.
    pub num_replicas: usize,
    /// Examples per step.
    pub global_batch: usize,
    /// Mean training loss of the last step; none if the run took no step.
    pub final_loss: Option<f64>,
    /// Mean loss over the evaluation split, after the last step.
    pub eval_loss: Option<f64>,
    /// Share of the evaluation split that is classified correctly, 0 to 1.
    pub eval_accuracy: Option<f64>,
    /// Share of it whose label is among the five classes of the highest score, 0 to 1.
    pub eval_top5_accuracy: Option<f64>,
    /// Median step time in milliseconds.
    pub median_step_ms: Option<f64>,
    /// Seconds from process start to the end of the first step.
    pub first_step_secs: Option<f64>,
    /// Updates left out because something was not finite.
    pub num_skipped: u64,
    /// Hexadecimal digest of the bits of the final parameters, and of the model state with them.
    pub params_fingerprint: String,
}

impl Summary {
    /// The name of the file.
    pub const FILE: &'static str = "summary.json";

    /// Writes `DIR/summary.json` under another name and renames it, so that whoever reads it reads all
    /// of it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), Error> {
        let path = dir.join(Self::FILE);
        let write = || -> std::io::Result<()> {
            // As any other new file: the process's umask takes its part away.
            let permissions = Permissions::from_mode(0o666);
            let mut file = tempfile::Builder::new()
                .prefix(".summary")
                .permissions(permissions)
                .tempfile_in(dir)?;
            serde_json::to_writer_pretty(&mut file, self)?;
            file.write_all(b"\n")?;
            file.as_file().sync_all()?;
            file.persist(&path)?;
            Ok(())
        };
        write().map_err(|source| Error::Write { path: path.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_whole_replaced_and_valid_json() {
        let dir = tempfile::tempdir().unwrap();
        let mut summary = Summary { steps: 3, final_loss: Some(f64::NAN), ..Summary::default() };
        summary.save(dir.path()).unwrap();
        summary.steps = 4;
        summary.eval_accuracy = Some(0.5);
        summary.save(dir.path()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let path = dir.path().join(Summary::FILE);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o600, 0o600);
        let text = std::fs::read_to_string(path).unwrap();
        let read: serde_json::Map<_, _> = serde_json::from_str(&text).unwrap();
        assert_eq!((&read["steps"], &read["eval_accuracy"]), (&4.into(), &0.5.into()));
        assert!(read["final_loss"].is_null() && read["eval_loss"].is_null());
        let mut expected = vec![
            "steps",
            "num_replicas",
            "global_batch",
            "final_loss",
            "eval_loss",
            "eval_accuracy",
            "eval_top5_accuracy",
            "median_step_ms",
            "first_step_secs",
            "num_skipped",
            "params_fingerprint",
        ];
        expected.sort_unstable();
        let mut names: Vec<_> = read.keys().collect();
        names.sort_unstable();
        assert_eq!(names, expected);
        let error = summary.save(&dir.path().join("gone")).unwrap_err().to_string();
        assert!(error.contains("gone/summary.json"), "{error}");
    }
}
