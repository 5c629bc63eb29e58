//! The arguments, in one table.

mod launch;
mod own_data;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Parser, Subcommand, ValueEnum};

use super::changes::Changes;
pub use super::changes::ConfigArgs;
use crate::config::{HostPort, MAX_BATCH, expand_home};
use crate::targets::cost::{NamedNetwork, WhatIf};
use launch::COORDINATOR_HELP;
pub use launch::{CoordinatorArgs, HostRange, JobRules, LaunchArgs};
pub use own_data::{DataArgs, InitArgs, InitKind, PredictArgs};

/// Synchronous distributed training on XLA.
#[derive(Debug, Parser)]
#[command(name = "lockstep", version, about, arg_required_else_help = true)]
pub struct Args {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
    /// What is said of it.
    #[command(flatten)]
    pub log: LogArgs,
}

/// The program's messages about its work on stderr.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Messages")]
pub struct LogArgs {
    /// Say what the program does (-v), and what its libraries do (-vv, -vvv); RUST_LOG chooses
    /// exactly
    #[arg(short, long, global = true, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    pub verbose: u8,
    /// Say nothing but warnings and errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Write everything on stderr as lines of JSON
    #[arg(long, global = true)]
    pub log_json: bool,
    /// How far the program is: a block at the bottom of the terminal, or lines
    #[arg(long, global = true, value_enum, value_name = "FORM", default_value_t)]
    pub progress: ProgressArg,
}

/// How progress is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, ValueEnum)]
pub enum ProgressArg {
    /// The block where stderr is a terminal, lines elsewhere
    #[default]
    Auto,
    /// A line every few seconds
    Plain,
    /// The block; an error where stderr is no terminal
    Rich,
    /// Only messages
    None,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train, evaluate, and write metrics, summary and parameters to --out
    Train(TrainArgs),
    /// Run several training processes on this host, and start them again after a failure
    #[command(after_help = TRAIN_EXIT_CODES)]
    Launch(LaunchArgs),
    /// Run the coordinator of a job whose hosts have `lockstep launch --external-coordinator`
    #[command(after_help = COORDINATOR_HELP)]
    Coordinator(CoordinatorArgs),
    /// Evaluate a trained model on the evaluation data of its run, or on others
    Evaluate(EvaluateArgs),
    /// Predict the classes, labels or values of texts, images, arrays, or rows of a table; prints a
    /// line of JSON for each
    Predict(PredictArgs),
    /// Write a small configuration to begin with, beside your data
    Init(InitArgs),
    /// Show what a run will read, and check all of it: counts, classes, a few examples
    Data(DataArgs),
    /// Print the resolved configuration as TOML: every key, defaults written out
    Config {
        #[command(flatten)]
        config: Option<ConfigArgs>,
        /// Print a reference of all keys instead, as Markdown
        #[arg(long, exclusive = true)]
        reference: bool,
    },
    /// Print the program as StableHLO, with its all_reduce
    Hlo {
        #[command(flatten)]
        config: ConfigArgs,
        /// Part of the program
        #[arg(long, value_enum, default_value_t = Stage::Step)]
        stage: Stage,
    },
    /// Measure the step, the work of the host, and the time to the first step; or collectives alone
    Bench(BenchArgs),
    /// Print the learning rate over the run; needs no plugin
    Schedule(ScheduleArgs),
    /// Draw loss, evaluations and learning rate of runs, on the terminal or in a picture
    Plot(PlotArgs),
    /// Write a page about runs for the browser: results, where the time went, curves, configuration
    Report(ReportArgs),
    /// Compare two runs: configuration, versions, the first step that differs; exit with 1 if they
    /// took different steps
    Compare(CompareArgs),
    /// List published recipes, or write one as a configuration
    Recipes {
        /// Which one to write; without it, all are listed
        name: Option<String>,
        /// Scale it to this global batch, as its papers do it
        #[arg(long, value_name = "N", requires = "name", value_parser = clap::value_parser!(u32).range(1..=(MAX_BATCH as i64)))]
        batch: Option<u32>,
        /// Print the list as one line of JSON
        #[arg(long, conflicts_with = "name")]
        json: bool,
        /// Print a table with what `schedule --check` finds in each, or in this one;
        /// `--table=markdown` for Markdown
        #[arg(
            long,
            value_name = "FORM",
            num_args = 0..=1,
            require_equals = true,
            default_missing_value = "text",
            conflicts_with_all = ["batch", "json"]
        )]
        table: Option<TableForm>,
    },
    /// Compile the step for a TPU slice or GPU cluster that need not be attached
    Compile(CompileArgs),
    /// Predict step time and efficiency from one device to the whole target, without compiling
    Plan(Box<PlanArgs>),
    /// Answer before a run: does it fit, does communication hide, is the recipe sound, does the
    /// input keep up, what does it cost?
    Preflight(PreflightArgs),
    /// Compile the program that another process has put into a directory
    #[command(hide = true)]
    CompileWorker {
        /// The directory
        dir: PathBuf,
    },
    /// Load a plugin and describe it, as JSON
    #[command(hide = true)]
    ProbePlugin {
        /// Its library
        path: PathBuf,
        /// Open its devices too
        #[arg(long)]
        open: bool,
        /// It is the CPU plugin: run a program too
        #[arg(long, conflicts_with = "open")]
        trial: bool,
    },
    /// Run steps with op times from XLA's log, and print the optimized program
    #[command(hide = true)]
    TimeOps {
        #[command(flatten)]
        config: ConfigArgs,
        /// Sizes of the mesh along all of its axes; one of the replicas runs
        #[arg(long, value_delimiter = ',')]
        mesh: Vec<NonZeroUsize>,
        /// Number of measured steps
        #[arg(long)]
        steps: usize,
    },
    /// Query NVIDIA's driver and NCCL, as JSON
    #[command(hide = true)]
    ProbeNvidia {
        /// The NCCL library
        nccl: Option<PathBuf>,
    },
    /// List, install, verify or remove PJRT plugins
    Plugin {
        #[command(subcommand)]
        command: PluginCommand,
    },
    /// List, check, compare and export checkpoints; needs no plugin
    Checkpoint {
        #[command(subcommand)]
        command: CheckpointCommand,
    },
    /// Print a script with which a shell completes commands and options
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of all commands into a folder, for `man`
    Man {
        /// The folder, such as ~/.local/share/man/man1; earlier pages in it are replaced
        #[arg(value_parser = path())]
        dir: PathBuf,
        /// Replace files that have the names of pages, whatever they are
        #[arg(long)]
        overwrite: bool,
    },
    /// Describe this machine, and report what is wrong with it
    Doctor {
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
}

/// Arguments of `train`.
#[derive(Debug, clap::Args)]
#[command(after_help = TRAIN_EXIT_CODES)]
pub struct TrainArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Directory for metrics.jsonl, summary.json, params.safetensors and the resolved
    /// configuration; it must not contain another run
    #[arg(long, value_name = "DIR", value_parser = path())]
    pub out: Option<PathBuf>,
    /// Replace the run in --out; its files are kept in DIR/replaced-run until this run is done
    #[arg(long, requires = "out")]
    pub overwrite: bool,
    /// Continue from the newest checkpoint of the run in --out, or from this one, or the newest in
    /// this directory or of this run; without any, start
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "auto", conflicts_with = "overwrite")]
    pub resume: Option<PathBuf>,
    /// Start from these parameters instead of random ones: a safetensors file, a checkpoint, the
    /// --out of a run, or a Hugging Face folder. With --resume only if there is nothing to continue
    #[arg(long, value_name = "PATH", value_parser = path())]
    pub init: Option<PathBuf>,
    /// Print the summary as one line of JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `evaluate`.
#[derive(Debug, clap::Args)]
pub struct EvaluateArgs {
    /// The --out of a run, or a checkpoint
    #[arg(value_parser = path())]
    pub run: PathBuf,
    #[command(flatten)]
    pub sets: Changes,
    /// Examples of a batch on each replica
    #[arg(long, value_name = "N", default_value = "32")]
    pub batch_per_replica: NonZeroUsize,
    /// Print one line of JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `plot`.
#[derive(Debug, clap::Args)]
pub struct PlotArgs {
    /// The --out of a run, or its metrics.jsonl; several runs are drawn over each other
    #[arg(value_name = "RUN", required = true, value_parser = path())]
    pub runs: Vec<PathBuf>,
    /// File for the picture, which ends in .svg or .png, instead of the terminal; it must not exist
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub to: Option<PathBuf>,
    /// Replace the file of --to
    #[arg(long, requires = "to")]
    pub overwrite: bool,
    /// What the curves are drawn over
    #[arg(long, value_enum, default_value_t = PlotX::Step)]
    pub x: PlotX,
    /// Show the loss on a logarithmic axis
    #[arg(long)]
    pub log: bool,
    /// Draw a running mean over the training loss, in which each step counts WEIGHT times as much
    /// as the next one
    #[arg(
        long,
        value_name = "WEIGHT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "0.9",
        value_parser = weight
    )]
    pub smooth: Option<f64>,
}

/// The x axis of `plot`.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum PlotX {
    /// Steps, from 0
    Step,
    /// Examples seen
    Examples,
    /// Time since the first step, breaks included
    Time,
}

/// Reads a number from 0 to below 1.
fn weight(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.0..1.0).contains(number));
    number.ok_or_else(|| "it must be a number from 0 to below 1".to_owned())
}

/// Arguments of `report`.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// The --out of a run; several are compared
    #[arg(value_name = "DIR", required = true, value_parser = path())]
    pub dirs: Vec<PathBuf>,
    /// File for the page; by default report.html, but none with --json. An earlier report is
    /// replaced
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub to: Option<PathBuf>,
    /// Replace the file, whatever it is
    #[arg(long)]
    pub overwrite: bool,
    /// Print all of it as one line of JSON
    #[arg(long)]
    pub json: bool,
    /// Serve the page at this address, and follow what the runs write, until Ctrl-C. For an
    /// address that others can reach, the printed URL has a token, without which nothing is shown
    #[arg(
        long,
        value_name = "HOST:PORT",
        num_args = 0..=1,
        default_missing_value = super::report::ADDRESS,
        conflicts_with_all = ["to", "overwrite", "json"]
    )]
    pub serve: Option<HostPort>,
}

/// Arguments of `compare`.
#[derive(Debug, clap::Args)]
pub struct CompareArgs {
    /// The --out of a run
    #[arg(value_parser = path())]
    pub a: PathBuf,
    /// The other
    #[arg(value_parser = path())]
    pub b: PathBuf,
    /// Print one line of JSON
    #[arg(long)]
    pub json: bool,
}

const TRAIN_EXIT_CODES: &str = "\
SIGINT (Ctrl-C), SIGTERM and SIGHUP stop the run after the launches in flight, and all files are
written, with a checkpoint from which --resume continues. A second signal ends the process at once.
SIGUSR1 saves a checkpoint and goes on.

Exit codes:
  0    done
  1    an error, a value that is not finite at the end, or a file that could not be written
  2    wrong usage
  130  stopped by SIGINT
  143  stopped by SIGTERM
  129  stopped by SIGHUP";

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("config", |config| config.required(false).required_unless_present("collectives")))]
pub struct BenchArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Number of measured steps; with --collectives at most so many launches for each size
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// Use the cache of compiled programs
    #[arg(long)]
    pub warm: bool,
    /// Print where the time goes: the parts of a step, and its ops (CPU backend)
    #[arg(long)]
    pub profile: bool,
    /// Measure collectives instead, over sizes from 1 KiB: latency and bandwidth of the links, and
    /// the algorithms; needs no CONFIG
    #[arg(long, conflicts_with = "profile")]
    pub collectives: bool,
    /// Measure in so many processes on this host (CPU backend). For several hosts: `lockstep launch
    /// OPTIONS -- bench ..`
    #[arg(long, value_name = "N", conflicts_with = "profile")]
    pub processes: Option<NonZeroUsize>,
    /// With --collectives: the largest size
    #[arg(long, value_name = "BYTES", default_value = "67108864", requires = "collectives")]
    pub max_bytes: NonZeroUsize,
    /// With --collectives: write a fabric file, for `plan --fabric` and parallel.fabric
    #[arg(long, value_name = "FILE", value_parser = path(), requires = "collectives")]
    pub to: Option<PathBuf>,
    /// Replace the file of --to
    #[arg(long, requires = "to")]
    pub overwrite: bool,
    /// Print one line of JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `schedule`.
#[derive(Debug, clap::Args)]
pub struct ScheduleArgs {
    #[command(flatten)]
    pub config: Option<ConfigArgs>,
    /// Print every step as step,lr
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Plot it to a file that ends in .svg or .png; an earlier plot is replaced
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub plot: Option<PathBuf>,
    /// Replace the file of --plot, whatever it is
    #[arg(long, requires = "plot")]
    pub overwrite: bool,
    /// Numbers of replicas to show side by side; needs train.batch_per_replica
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub replicas: Vec<u32>,
    /// Check the whole recipe for known problems; exit with 1 if there is an error
    #[arg(long, conflicts_with_all = ["csv", "plot", "replicas"])]
    pub check: bool,
    /// Compare the recipe with a published one; `lockstep recipes` lists them
    #[arg(long, value_name = "NAME", conflicts_with_all = ["csv", "plot", "replicas", "check"])]
    pub against: Option<String>,
    /// Describe a rule of --check: its purpose, its limits, its source
    #[arg(long, value_name = "RULE", exclusive = true)]
    pub explain: Option<String>,
    /// Print every step, what --check finds, or the comparison, as one line of JSON
    #[arg(long)]
    pub json: bool,
}

/// A positive number that is not so large or small that times overflow.
fn positive(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| (1e-3..=1e9).contains(value));
    value.ok_or_else(|| format!("{text:?} is no number from 0.001 to 1000000000"))
}

/// Arguments of `plan`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("config", |config| config.required(false).required_unless_present("stragglers")))]
pub struct PlanArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Target, as for `compile`
    #[arg(long, required_unless_present = "stragglers")]
    pub target: Option<String>,
    /// Rank ways of sharding (fsdp, ZeRO), remat and microbatches that fit on the whole target;
    /// compiles the step and the best
    #[arg(long, conflicts_with_all = ["csv", "plot", "network", "what_if", "mtbf", "stragglers"])]
    pub search: bool,
    /// Another network between hosts or slices than the target's: ib-hdr, roce-v2-400, ethernet-25,
    /// ...; options follow: ib-hdr:oversubscription=2:devices_per_port=4:multipath
    #[arg(long)]
    pub network: Option<NamedNetwork>,
    /// Links between processes as `bench --collectives --to FILE` has measured them, for the
    /// network between hosts or slices: short for --set parallel.fabric=FILE
    #[arg(long, value_name = "FILE", value_parser = path(), conflicts_with = "network")]
    pub fabric: Option<PathBuf>,
    /// A change of that network and of what is sent, keys with commas between them.
    /// alpha=+20us (or x2): latency of a hop; beta=x0.5 (or bandwidth=x2): time of a byte.
    /// alpha:region=+60ms, beta:region, bandwidth:region: only for hops between regions, with as
    /// many hosts or slices in each; regions=N is their number, 2 by default.
    /// r=4: a fourth of the bytes of gradients; encode=30ms/GB: what a device takes to encode and
    /// decode 10^9 bytes of them.
    /// reroute=10us or 10s: a device's link dies, and the step waits so long for another way;
    /// link_mtbf=50000h: mean time until a link dies
    #[arg(long, value_name = "CHANGE")]
    pub what_if: Option<WhatIf>,
    /// Mean time between failures of one device, for the best interval between checkpoints and what
    /// failures cost
    #[arg(long, value_name = "HOURS", value_parser = positive)]
    pub mtbf: Option<f64>,
    /// The directory of a run that has what a checkpoint and a restart cost: its `summary.json`
    #[arg(long, value_name = "DIR", value_parser = path(), requires = "mtbf")]
    pub run: Option<PathBuf>,
    /// Seconds for which a checkpoint stalls the run; otherwise those of --run, or 10, an
    /// assumption
    #[arg(long, value_name = "SECONDS", value_parser = positive, requires = "mtbf")]
    pub save_secs: Option<f64>,
    /// Seconds from a failure to the first new step; otherwise those of --run, or 300, an
    /// assumption
    #[arg(long, value_name = "SECONDS", value_parser = positive, requires = "mtbf")]
    pub restart_secs: Option<f64>,
    /// What so many spare hosts (or slices) cost, and what failures cost without and with them
    #[arg(
        long,
        value_name = "K",
        value_parser = clap::value_parser!(u32).range(1..=16_384),
        requires = "mtbf",
        conflicts_with = "csv"
    )]
    pub spares: Option<u32>,
    /// Hours until a failed host (or slice) is repaired, to compare numbers of spares; with
    /// --spares otherwise 24, an assumption
    #[arg(long, value_name = "HOURS", value_parser = positive, requires = "mtbf", conflicts_with = "csv")]
    pub repair_hours: Option<f64>,
    /// The directory of a run of several processes: what it costs to wait for slow ones, to skip
    /// their late batches, and to replace them, on the hosts of the target. Without CONFIG and
    /// --target, on the machines of that run
    #[arg(long, value_name = "DIR", value_parser = path(), conflicts_with = "csv")]
    pub stragglers: Option<PathBuf>,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Plot step times, and all_reduce times by algorithm, to a file that ends in .svg or .png; an
    /// earlier plot is replaced
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub plot: Option<PathBuf>,
    /// Replace the file of --plot, whatever it is
    #[arg(long, requires = "plot")]
    pub overwrite: bool,
    /// Print one line of JSON
    #[arg(long)]
    pub json: bool,
}

/// `preflight`.
#[derive(Debug, clap::Args)]
pub struct PreflightArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Target, as for `compile`
    #[arg(long)]
    pub target: String,
    /// Links between processes as `bench --collectives --to FILE` has measured them, for the
    /// network between hosts or slices: short for --set parallel.fabric=FILE
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub fabric: Option<PathBuf>,
    /// Processors of a host of the target, for the input; by default as many as this machine has
    #[arg(long, value_name = "N")]
    pub host_processors: Option<NonZeroUsize>,
    /// Most device hours that the run may take
    #[arg(long, value_name = "HOURS", value_parser = positive)]
    pub max_device_hours: Option<f64>,
    /// Plot step times and learning rates to a file that ends in .svg or .png; an earlier plot is
    /// replaced
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub plot: Option<PathBuf>,
    /// Replace the file of --plot, whatever it is
    #[arg(long, requires = "plot")]
    pub overwrite: bool,
    /// Print one line of JSON
    #[arg(long)]
    pub json: bool,
}

/// The commands about plugins.
#[derive(Debug, Subcommand)]
pub enum PluginCommand {
    /// List plugins, their versions and their locations
    List {
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Download a plugin (cpu, cuda, cuda-compiler or tpu) with your pip, and unpack it into your
    /// cache. An installed plugin is verified, and installed again if it is damaged
    Install {
        /// cpu, cuda, cuda-compiler (for `compile` without a GPU) or tpu
        name: String,
    },
    /// Compare the hashes of the files of installed plugins with those at installation; exit with 1
    /// if one is damaged
    Verify {
        /// The plugin (default: all installed)
        name: Option<String>,
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a plugin from your cache
    Remove {
        /// cpu, cuda, cuda-compiler or tpu
        name: String,
    },
}

/// The commands of `checkpoint`. DIR is a checkpoint, a directory of checkpoints, or the --out of a
/// run.
#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// List the checkpoints in a directory
    List {
        /// The directory, such as run/checkpoints, or the --out of a run
        #[arg(value_parser = path())]
        dir: PathBuf,
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Print steps, mesh, leaves with their shardings, and configuration
    Inspect {
        /// A checkpoint, or the newest one in a directory or in the --out of a run
        #[arg(value_parser = path())]
        dir: PathBuf,
        /// Print the manifest as one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Read everything and compare all checksums; exit with 1 if something is damaged
    Verify {
        /// A checkpoint, or all checkpoints in a directory or in the --out of a run
        #[arg(value_parser = path())]
        dir: PathBuf,
    },
    /// Compare two checkpoints leaf by leaf; exit with 1 if they differ
    Diff {
        /// A checkpoint, or the newest one in a directory or in the --out of a run
        #[arg(value_parser = path())]
        a: PathBuf,
        /// The other
        #[arg(value_parser = path())]
        b: PathBuf,
    },
    /// Write the model's parameters and running statistics for other programs
    Export(ExportArgs),
}

/// `compile`.
#[derive(Debug, clap::Args)]
pub struct CompileArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// tpu:v4|v5e|v5p|v6e|tpu7x:TOPOLOGY[xSLICES], as in tpu:v5e:4x4; an accelerator type, as in
    /// tpu:v5litepod-16; or gpu:a100|a100-40gb|l4|l40s|h100|h100-pcie|h200|b200|gb200:HOSTSxGPUS,
    /// as in gpu:h100:4x8
    #[arg(long)]
    pub target: String,
    /// Directory for the program, its optimized form and the executable; an earlier dump is
    /// replaced
    #[arg(long, value_name = "DIR", value_parser = path())]
    pub dump: Option<PathBuf>,
    /// Replace files of the same names in the directory of --dump
    #[arg(long, requires = "dump")]
    pub overwrite: bool,
    /// If the step does not fit, do not compile it with what is advised
    #[arg(long)]
    pub no_check: bool,
    /// Print one line of JSON
    #[arg(long)]
    pub json: bool,
}

/// `checkpoint export`.
#[derive(Debug, clap::Args)]
pub struct ExportArgs {
    /// A checkpoint, the newest one in a directory, or the --out of a run
    #[arg(value_parser = path())]
    pub dir: PathBuf,
    /// The file to write; a folder with --format huggingface
    #[arg(long, value_name = "PATH", value_parser = path())]
    pub to: PathBuf,
    /// Names and layout
    #[arg(long, value_enum, default_value_t = ExportFormat::Safetensors)]
    pub format: ExportFormat,
    /// Write the parameters themselves where the optimizer keeps running means of them
    #[arg(long)]
    pub without_ema: bool,
    /// With --format huggingface: divide the parameters over files of at most this size
    #[arg(long, value_name = "BYTES", default_value = "5000000000")]
    pub max_file_bytes: NonZeroUsize,
}

/// The formats of `checkpoint export`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ExportFormat {
    /// One safetensors file with the model's own names, as `train` writes at its end
    Safetensors,
    /// A folder that transformers loads with `from_pretrained` (gpt, bert, distilbert)
    Huggingface,
    /// One safetensors file with torchvision's names (resnet50)
    Torchvision,
}

/// Reads a path. Shells do not expand `~/` after a `=`, so this does.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(|path| expand_home(path.as_ref()))
}

/// How a table is printed.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum TableForm {
    /// Columns
    Text,
    /// A table of Markdown, with links to the sources
    Markdown,
}

/// How much of the program to print.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Stage {
    /// The mean loss of a batch
    Loss,
    /// Its gradient, all_reduced
    Grad,
    /// The whole step
    Step,
}
