//! What can end a run before its last step.

use std::path::PathBuf;

use super::profile::ProfileError;
use super::run_dir::RunDirError;
use crate::config::{BatchError, RunLengthError};
use crate::data::PrefetchError;
use crate::step::StepError;
use crate::{data, observe, optim, pjrt};

/// Why a run could not start, or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The global batch cannot be cut.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The run cannot be counted in steps.
    #[error(transparent)]
    RunLength(#[from] RunLengthError),
    /// The learning rates cannot be resolved.
    #[error(transparent)]
    Schedule(#[from] optim::schedule::Error),
    /// The model, or the step made of it.
    #[error(transparent)]
    Step(#[from] StepError),
    /// Reading examples.
    #[error(transparent)]
    Data(#[from] data::Error),
    /// Reading examples ahead.
    #[error(transparent)]
    Prefetch(#[from] PrefetchError<pjrt::Error>),
    /// The plugin is not there and cannot be installed.
    #[error(transparent)]
    Install(#[from] pjrt::InstallError),
    /// The plugin, its compiler or the devices.
    #[error(transparent)]
    Pjrt(#[from] pjrt::Error),
    /// The devices cannot be opened, with options of the configuration's.
    #[error("cannot open the devices of `{backend}` with device.options ({options}): {source}")]
    Device {
        /// The backend's name.
        backend: String,
        /// The options' names.
        options: String,
        /// What the plugin reported.
        source: Box<pjrt::Error>,
    },
    /// The compiler refuses options of the configuration's.
    #[error("the compiler does not take compile.overrides.{}: {source}", names.join(" or compile.overrides."))]
    Overrides {
        /// The options that it speaks of.
        names: Vec<String>,
        /// What it reported.
        source: Box<Error>,
    },
    /// Compiling a program beside the run.
    #[error("cannot compile the evaluation or the lockstep proof: {reason}")]
    Compile {
        /// What the compiler reported.
        reason: String,
    },
    /// Timing the ops of a step.
    #[error("cannot time the ops of the step: {0}")]
    Profile(#[from] Box<ProfileError>),
    /// A file of the run cannot be written.
    #[error(transparent)]
    Write(#[from] observe::Error),
    /// A metric of the model has a name that cannot be a field of the run's files.
    #[error("cannot record the model's metric `{name}`: {reason}")]
    MetricName {
        /// The metric.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// The output directory.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// The configuration does not go into TOML.
    #[error(
        "cannot write the configuration down, which a run keeps beside its results: {0}; paths must be Unicode"
    )]
    Unwritable(#[source] toml::ser::Error),
    /// The run was asked to end before there was anything to be kept.
    #[error("stopped before the first step; nothing was written")]
    StoppedBeforeStart,
    /// More replicas than there are devices.
    #[error(
        "the mesh asks for {num_replicas} replicas, but the backend `{backend}` has {num_devices} \
         devices; set mesh.data to {num_devices} or less, or to \"auto\""
    )]
    TooManyReplicas {
        /// Replicas of the mesh.
        num_replicas: usize,
        /// The backend's name.
        backend: String,
        /// Devices it has.
        num_devices: usize,
    },
    /// The loss, a gradient or a leaf of the next state is infinite or NaN.
    #[error(
        "step {step}: {what}; the parameters are left as they were before it. Lower the rate or warm up \
         longer, or set train.on_nonfinite = \"skip\" to leave such updates out and go on"
    )]
    NonFinite {
        /// The step, from 0.
        step: u64,
        /// Which value, and on which replicas.
        what: String,
    },
    /// With `train.on_nonfinite = "skip"`: the last update of the run was left out.
    #[error(
        "the last update of the run was left out, in step {step}: {what}. {num_skipped} of {num_steps} updates \
         were; lower the rate or warm up longer"
    )]
    LastSkipped {
        /// The step, from 0.
        step: u64,
        /// Which value, and on which replicas.
        what: String,
        /// Updates that were left out.
        num_skipped: u64,
        /// Steps of the run.
        num_steps: u64,
    },
    /// The state is finite, but what the model makes of the evaluation split is not.
    #[error(
        "the evaluation at the end of the run gives a loss of {loss}; lower the rate or warm up longer"
    )]
    NonFiniteEval {
        /// The mean loss.
        loss: f64,
    },
    /// The proof found replicas that differ.
    #[error(
        "lockstep is lost after step {step}: `{leaf}` differs on replica {replicas}; a device or its \
         memory is faulty, or a program is not deterministic. These parameters are not saved"
    )]
    LockstepLost {
        /// Steps taken.
        step: u64,
        /// Path of the first leaf that differs.
        leaf: String,
        /// The replicas that differ from most, or all groups where there is no majority.
        replicas: String,
    },
    /// A value that does not fit the leaf of the state it was given for.
    #[error("cannot replace `{path}`: {reason}")]
    Leaf {
        /// The leaf's path.
        path: String,
        /// Why.
        reason: String,
    },
    /// Parameters could not be read or written.
    #[error("cannot {verb} the parameters {}: {reason}", path.display())]
    Params {
        /// `read` or `write`.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}
