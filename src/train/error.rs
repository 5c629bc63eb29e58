//! Errors that end a run before its last step.

use std::path::{Path, PathBuf};

use hlo::counted;

use super::profile::ProfileError;
use super::run_dir::RunDirError;
use crate::config::{BatchError, FolderError, RunLengthError, UnevenMesh};
use crate::data::PrefetchError;
use crate::step::{SignatureError, StepError};
use crate::{checkpoint, cluster, data, observe, optim, pjrt, state};

/// Why a run could not start, or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The fabric file is none.
    #[error(transparent)]
    Fabric(#[from] super::FabricFileError),
    /// There is one device, so no collective.
    #[error(
        "there is only one device, and collectives need at least two: set mesh.data, or on the cpu \
         backend --processes"
    )]
    NothingToReduce,
    /// The global batch cannot be split.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The layers cannot be computed by several replicas together.
    #[error("mesh.tensor = {num_replicas}, but model.name = {model:?}: {reason}")]
    Tensor {
        /// Replicas along `tensor`.
        num_replicas: usize,
        /// The model's name.
        model: &'static str,
        /// Why not, and what to do.
        reason: String,
    },
    /// Examples have no positions that a key could cut.
    #[error(
        "parallel.{key} = true cuts the positions of tokens, which model.name = {model:?} does \
         not have; remove the key"
    )]
    NoPositions {
        /// The key of `[parallel]`.
        key: &'static str,
        /// The model's name.
        model: &'static str,
    },
    /// The layers cannot be cut into stages.
    #[error("mesh.pipeline = {num_stages}: {reason}")]
    Pipeline {
        /// Number of stages.
        num_stages: usize,
        /// Why not, and what to do.
        reason: String,
    },
    /// Replicas cannot train on their own between outer steps.
    #[error("sync.every = {every}: {reason}")]
    LocalSteps {
        /// Steps from one outer step to the next.
        every: u64,
        /// Why not, and what to do.
        reason: String,
    },
    /// The length of the run cannot be converted to steps.
    #[error(transparent)]
    RunLength(#[from] RunLengthError),
    /// The learning rates cannot be resolved.
    #[error(transparent)]
    Schedule(#[from] optim::schedule::Error),
    /// The step cannot be built.
    #[error(transparent)]
    Step(#[from] StepError),
    /// Examples cannot be read.
    #[error(transparent)]
    Data(#[from] data::Error),
    /// The folder of a model is of another one.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The model does not take the examples.
    #[error(
        "{key}: an example is {example} of {}, but model.name = {model:?} takes {takes}",
        counted(*num_classes, "class")
    )]
    Example {
        /// The key to change.
        key: &'static str,
        /// The type of an example.
        example: String,
        /// The number of classes of the data.
        num_classes: usize,
        /// The model's name.
        model: &'static str,
        /// The inputs that it takes.
        takes: String,
    },
    /// The loss does not fit the labels.
    #[error("train.loss = {loss:?}, but {labels}; set it to \"auto\" or {allowed}")]
    Loss {
        /// The loss.
        loss: &'static str,
        /// What the labels are.
        labels: &'static str,
        /// What fits them.
        allowed: &'static str,
    },
    /// The weights of the classes do not fit the data.
    #[error("train.class_weights: {reason}")]
    ClassWeights {
        /// Why not, and what to do.
        reason: String,
    },
    /// A batch cannot be prefetched.
    #[error(transparent)]
    Prefetch(#[from] PrefetchError<pjrt::Error>),
    /// The plugin is missing and cannot be installed.
    #[error(transparent)]
    Install(#[from] pjrt::InstallError),
    /// The plugin, its compiler or a device failed.
    #[error("{error}{advice}", error = .0, advice = advice(.0))]
    Pjrt(#[from] pjrt::Error),
    /// The run is larger than the memory.
    #[error("{message}")]
    Memory {
        /// The memory that it needs, the memory that there is, and the remedy.
        message: String,
    },
    /// The devices cannot be opened with the options of the configuration.
    #[error("cannot open the devices of `{backend}` with device.options ({options}): {source}")]
    Device {
        /// The backend's name.
        backend: String,
        /// The options' names.
        options: String,
        /// The plugin's error.
        source: Box<pjrt::Error>,
    },
    /// The compiler rejects options of the configuration.
    #[error("the compiler does not accept compile.overrides.{}: {source}", names.join(" or compile.overrides."))]
    Overrides {
        /// The options that the compiler mentions.
        names: Vec<String>,
        /// The compiler's error.
        source: Box<Error>,
    },
    /// The processes of a run cannot share the replicas of the mesh evenly.
    #[error(
        "{num_processes} processes cannot share {} evenly; make mesh.data x mesh.fsdp a multiple \
         of {num_processes}",
        counted(*num_replicas, "replica")
    )]
    UnevenProcesses {
        /// Replicas of the mesh.
        num_replicas: usize,
        /// Processes of the run.
        num_processes: usize,
    },
    /// XLA's own collectives on the CPU end at the process.
    #[error(
        "parallel.host_collectives = false, but the run has {num_processes} processes, which on \
         the cpu backend only these collectives connect; leave it out (--unset \
         parallel.host_collectives)"
    )]
    NeedsHostCollectives {
        /// Processes of the run.
        num_processes: usize,
    },
    /// The other processes of the run cannot be reached, or the job has failed.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// This process cannot join the others.
    #[error(transparent)]
    Member(#[from] cluster::MemberError),
    /// Another process of the run does not what is expected of it.
    #[error("{reason}")]
    OtherProcess {
        /// The problem.
        reason: String,
    },
    /// The threads of host collectives cannot be started.
    #[error("cannot start the threads of host collectives: {0}")]
    Threads(#[source] std::io::Error),
    /// A program that the first step does not need cannot be compiled.
    #[error("cannot compile the evaluation or the lockstep proof: {reason}")]
    Compile {
        /// The compiler's error.
        reason: String,
    },
    /// The ops of a step cannot be timed.
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
        /// The reason.
        reason: &'static str,
    },
    /// Labels of examples where the model takes those of tokens, or the other way round.
    #[error(
        "model.name = {model:?} as configured takes a label of {takes}, but the data have one of \
         {found}; choose another data.source, or another model.head if the model has one"
    )]
    Labels {
        /// The model.
        model: &'static str,
        /// The inputs that it takes.
        takes: &'static str,
        /// The inputs in the data.
        found: &'static str,
    },
    /// The data lack a field that the model takes.
    #[error(
        "model.name = {model:?} as configured takes the field `{field}` of examples, which the \
         data do not have; choose data.source = \"classification\" for texts, or another model"
    )]
    Field {
        /// The model.
        model: &'static str,
        /// The name of the field.
        field: &'static str,
    },
    /// The tokenizer has tokens that the model lacks.
    #[error(
        "model.vocabulary: found {vocabulary}, but the ids of the tokenizer go up to {}; set it to \
         {found} or more, or choose the model's own data.tokenizer", found - 1
    )]
    Vocabulary {
        /// One more than the highest id.
        found: usize,
        /// The model's.
        vocabulary: usize,
    },
    /// The metric by which the best evaluation is chosen is not one of the model's.
    #[error("train.best_metric: found {found:?}; this model has {known}")]
    BestMetric {
        /// The metric.
        found: String,
        /// The possible choices.
        known: String,
    },
    /// The output directory cannot be used.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// The configuration cannot be written as TOML.
    #[error(
        "cannot write the resolved configuration, which a run keeps with its results: {0}; paths \
         must be Unicode"
    )]
    Unwritable(#[source] toml::ser::Error),
    /// The run was stopped before it had any results to keep.
    #[error("stopped before the first step; nothing was written")]
    StoppedBeforeStart,
    /// The mesh does not fit the number of devices.
    #[error(transparent)]
    Mesh(#[from] UnevenMesh),
    /// The mesh has more replicas than there are devices.
    #[error(
        "the mesh asks for {num_replicas} replicas, but the backend `{backend}` has {}; make \
         {axes} {num_devices} or less, or set mesh.data or mesh.fsdp to \"auto\"",
        counted(*num_devices, "device")
    )]
    TooManyReplicas {
        /// Replicas of the mesh.
        num_replicas: usize,
        /// The keys of which they are the product.
        axes: String,
        /// The backend's name.
        backend: String,
        /// Devices of the backend.
        num_devices: usize,
    },
    /// The loss, a gradient or a leaf of the next state is infinite or NaN.
    #[error(
        "step {step}: {what}; the parameters are unchanged by it. Lower the rate or warm up \
         longer, or set train.on_nonfinite = \"skip\" to leave such updates out and continue"
    )]
    NonFinite {
        /// The step, from 0.
        step: u64,
        /// Which value, and on which replicas.
        what: String,
    },
    /// With `train.on_nonfinite = "skip"`: the last update of the run was skipped.
    #[error(
        "the last update of the run was skipped, in step {step}: {what}. {num_skipped} of \
         {num_steps} updates were skipped; lower the rate or warm up longer"
    )]
    LastSkipped {
        /// The step, from 0.
        step: u64,
        /// Which value, and on which replicas.
        what: String,
        /// Updates that were skipped.
        num_skipped: u64,
        /// Steps of the run.
        num_steps: u64,
    },
    /// The state is finite, but the loss of the evaluation split is not.
    #[error(
        "the evaluation at the end of the run gives a loss of {loss}; lower the rate or warm up \
         longer"
    )]
    NonFiniteEval {
        /// The mean loss.
        loss: f64,
    },
    /// All evaluation examples were broken and skipped.
    #[error(
        "no evaluation example can be decoded, so there is nothing to evaluate: data.on_broken = \
         \"skip\" has left out all of them; replace the files, or set data.eval_path to others"
    )]
    NothingEvaluated,
    /// The lockstep proof found replicas that differ.
    #[error(
        "lockstep is lost after step {step}: `{leaf}` differs on replica {replicas}; a device or \
         its memory is faulty, or a program is not deterministic. These parameters are not saved"
    )]
    LockstepLost {
        /// Steps taken.
        step: u64,
        /// Path of the first leaf that differs.
        leaf: String,
        /// The replicas that differ from the majority, or all groups if there is no majority.
        replicas: String,
    },
    /// A value does not fit the leaf of the state that it should replace.
    #[error(transparent)]
    State(state::Error),
    /// A program does not have the inputs and outputs of its kind.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// A checkpoint cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// A run without a directory for checkpoints is to be continued.
    #[error(
        "--resume needs to know where the checkpoints are: set --out, or checkpoint.dir to an \
         absolute path or a URL, and leave checkpoint.keep above 0"
    )]
    NothingToResume,
    /// What was late in another run cannot be read.
    #[error("cannot read which batches were late in {} (data.late_from): {source}", path.display())]
    LateFrom {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The checkpoint belongs to a run that this configuration cannot continue.
    #[error("this configuration cannot continue the run that was saved: {differences}")]
    OtherRun {
        /// The differences.
        differences: String,
    },
    /// A job was started again after a failure, but its command does not continue the run that it
    /// has left.
    #[error(
        "generation {generation} of this job has failed: {reason}; its run in {} cannot be \
         continued, because the command of lockstep launch has no --resume: add it, or replace the \
         run with --overwrite",
        dir.display()
    )]
    NotResumed {
        /// The number of the first attempt.
        generation: u64,
        /// Why it failed.
        reason: String,
        /// The directory of the run.
        dir: PathBuf,
    },
    /// The training data are not those of the run that is to be continued.
    #[error(
        "this configuration cannot continue the run that was saved: {source_name} has {now} \
         training examples, {}. Use the data of the run; or, to go on with these as another run \
         from here on, {key} and give --resume again",
        if now == before { "as many as when the checkpoint was saved, but others".to_owned() }
        else { format!("but {before} when the checkpoint was saved") }
    )]
    OtherData {
        /// The path of the data.
        source_name: String,
        /// Number of training examples.
        now: u64,
        /// Their number when the checkpoint was saved.
        before: u64,
        /// The remedy, with a key of `[data]`.
        key: String,
    },
    /// A thread cannot be started.
    #[error("cannot start the thread that {what}: {source}")]
    Thread {
        /// Its task, as a verb with its object.
        what: &'static str,
        /// Why not.
        source: std::io::Error,
    },
    /// Parameters cannot be read or written.
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

impl Error {
    /// `true` for an error that all processes of a run come to at the same step, because it follows
    /// from reduced values.
    pub(super) fn is_common(&self) -> bool {
        matches!(
            self,
            Self::NonFinite { .. }
                | Self::LastSkipped { .. }
                | Self::NonFiniteEval { .. }
                | Self::LockstepLost { .. }
        )
    }

    /// For a file or directory of parameters that cannot be read, given the reason.
    pub(super) fn unreadable_params(path: &Path) -> impl Fn(String) -> Self {
        move |reason| Self::Params { verb: "read", path: path.to_owned(), reason }
    }
}

impl From<state::Error> for Error {
    fn from(error: state::Error) -> Self {
        match error {
            state::Error::Pjrt(error) => Self::Pjrt(error),
            error => Self::State(error),
        }
    }
}

/// Advice if memory has run out.
fn advice(error: &pjrt::Error) -> &'static str {
    match error.is_out_of_memory() {
        true => {
            ". The memory is too small for this run: use a smaller batch, or more microbatches \
             (train.num_microbatches, or a smaller train.microbatch); recompute activations \
             (model.remat = true) where the model can; or shard the state over more devices (mesh.fsdp, parallel.zero)"
        }
        false => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pjrt::Code;

    #[test]
    fn a_plugin_that_runs_out_of_memory_is_answered_with_what_to_change() {
        let failed = |code, message: &str| {
            let message = message.to_owned();
            let source = pjrt::Error::Pjrt { call: "PJRT_Event_Await", code, message };
            Error::from(pjrt::Error::Replica { replica: 1, source: Box::new(source) }).to_string()
        };
        for (code, message) in [
            (Code::Internal, "Out of memory allocating 68719476736 bytes."),
            (
                Code::ResourceExhausted,
                "Error allocating device buffer: Attempting to allocate 9.00G",
            ),
            (
                Code::Internal,
                "Failed to allocate request for 2.00GiB (2147483648B) on device ordinal 0",
            ),
        ] {
            let said = failed(code, message);
            assert!(said.contains(message) && said.contains("train.num_microbatches"), "{said}");
        }
        let said = failed(Code::Internal, "Unknown custom call");
        assert!(said.ends_with("Unknown custom call"), "{said}");
    }
}
