//! The events of a run ([`RunEvent`]), and where they go ([`Sink`]): a line per step in
//! `metrics.jsonl`, one object in `summary.json`, TensorBoard's files, a trace for Perfetto, an
//! endpoint for Prometheus, and a block or lines on stderr (phase: run).
//!
//! Sinks only report; `train` decides. Between the start and the end of the steps, a sink can
//! neither stop nor slow a run: what takes time goes through a [`Writer`], which says where that
//! ends. [`Sinks::start`] has the list of all sinks.
//!
//! JSON has no numbers that are not finite: they are written as `null`. `docs/outputs.md` explains
//! the fields to users.

mod bar;
mod bytes;
mod confusion;
mod event;
mod file;
mod histogram;
mod http;
mod jsonl;
mod layers;
mod live;
mod messages;
mod metric;
mod noise;
mod passed;
mod process_times;
mod program;
mod progress;
mod prometheus;
mod records;
mod sink;
mod spans;
mod steps_file;
mod summary;
mod tensorboard;
mod terminal;
mod timer;
mod trace;
mod waiting;
mod writer;

use std::io;
use std::path::PathBuf;

pub use bar::{above_bottom, stdout_columns};
pub use bytes::human_bytes;
pub use confusion::ConfusionMatrix;
pub use event::{
    EvalCounts, EvalResult, FailedGeneration, GenerationStart, LaunchMetrics, LaunchSpans,
    LikeSteps, OpSpan, PeakMemory, ProcessTimes, RunEnd, RunEvent, RunInfo, RunProgress,
    SavedCheckpoint, SlowProcess, StepEval, StepLayers, StepMetrics,
};
pub use file::{create_file, replace_file, unfinished_prefix};
pub use histogram::HistogramBuckets;
pub use http::{HttpAnswer, HttpRequest, HttpServer};
pub use jsonl::Jsonl;
pub use layers::LayersFile;
pub use messages::{
    MESSAGE_TARGET, Messages, ProgressForm, can_draw, draws_block, say, set_messages, set_progress,
    write_line,
};
pub use metric::{Metric, MetricValues};
pub use noise::{NoiseAverages, describe_noise};
pub use passed::{end_passed, show_passed};
pub use process_times::ProcessTimesFile;
pub use program::{StepCollective, StepProgram};
pub use progress::ProgressDisplay;
pub use prometheus::Prometheus;
pub use sink::{FlushLater, Sink, SinkChoice, Sinks};
pub use spans::{StartupSpan, StartupSpans};
pub use summary::{Status, Summary, SummaryFile};
pub use tensorboard::TensorBoard;
pub use terminal::Terminal;
pub use timer::{StepTimer, median};
pub use trace::{StepTrace, TraceChoice};
pub use waiting::Waiting;
pub use writer::{Writer, WriterTarget};

/// A file of a run could not be written: the disk is full, or the directory is gone.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A write failed.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Nobody can be served at an address.
    #[error(
        "cannot listen on port {port} of {host}: {source}; choose another address with \
         observe.prometheus, or remove the key"
    )]
    Listen {
        /// A name or an address.
        host: String,
        /// The port.
        port: usize,
        /// Why not.
        source: io::Error,
    },
    /// Writes failed for so long that lines could not be kept.
    #[error(
        "cannot write {}: {source}; the lines of {} are lost", path.display(),
        if *num_lost == 1 { "1 step".to_owned() } else { format!("{num_lost} steps") }
    )]
    Lost {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
        /// Number of lost lines.
        num_lost: u64,
    },
}
