//! The arguments, in one table.

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Parser, Subcommand, ValueEnum};

use crate::config::expand_home;

/// Synchronous distributed training on XLA.
#[derive(Debug, Parser)]
#[command(name = "lockstep", version, about, arg_required_else_help = true)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train, evaluate, and write metrics, summary and parameters to --out
    Train(TrainArgs),
    /// Print the resolved configuration as TOML: every key, defaults written out
    Config {
        #[command(flatten)]
        config: Option<ConfigArgs>,
        /// Print what every key means instead, as Markdown
        #[arg(long, exclusive = true)]
        reference: bool,
    },
    /// Print the program as StableHLO: the all_reduce can be read in it
    Hlo {
        #[command(flatten)]
        config: ConfigArgs,
        /// How much of it
        #[arg(long, value_enum, default_value_t = Stage::Step)]
        stage: Stage,
    },
    /// Time the step, the host's part of it, and the way to the first one
    Bench(BenchArgs),
    /// Print the learning rate over the run, before anyone pays for it; no plugin is needed
    Schedule(ScheduleArgs),
    /// Compile the step for a TPU slice or GPU cluster that need not be here
    Compile {
        #[command(flatten)]
        config: ConfigArgs,
        /// tpu:v4|v5e|v5p|v6e|tpu7x:TOPOLOGY[xSLICES] or gpu:h100|h200:HOSTSxGPUS, as in tpu:v5e:4x4
        #[arg(long)]
        target: String,
        /// Directory for the program, its optimised form and the executable
        #[arg(long, value_name = "DIR", value_parser = path())]
        dump: Option<PathBuf>,
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Predict step time and efficiency from one device to the whole target, without compiling
    Plan(PlanArgs),
    /// Compile what another process of this program left in a directory
    #[command(hide = true)]
    CompileWorker {
        /// The directory
        dir: PathBuf,
    },
    /// Load a plugin and say what it is, as JSON
    #[command(hide = true)]
    ProbePlugin {
        /// Its library
        path: PathBuf,
        /// Open its devices too
        #[arg(long)]
        open: bool,
    },
    /// Run steps whose ops XLA's log times, and print the optimised program
    #[command(hide = true)]
    TimeOps {
        #[command(flatten)]
        config: ConfigArgs,
        /// Replicas of the step, of which one runs
        #[arg(long)]
        replicas: usize,
        /// Steps that are counted
        #[arg(long)]
        steps: usize,
    },
    /// Ask NVIDIA's driver, and say what NCCL is there, as JSON
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
    /// Say what is on this machine, and what is wrong with it
    Doctor {
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
}

/// What to train.
#[derive(Debug, clap::Args)]
#[command(after_help = TRAIN_EXIT_CODES)]
pub struct TrainArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Directory for metrics.jsonl, summary.json, params.safetensors and the resolved configuration; it must not
    /// hold another run
    #[arg(long, value_name = "DIR", value_parser = path())]
    pub out: Option<PathBuf>,
    /// Replace the run in --out; its files are kept in DIR/replaced-run until this run is done
    #[arg(long, requires = "out")]
    pub overwrite: bool,
    /// Start from these parameters (safetensors) instead of the seed's
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub init: Option<PathBuf>,
    /// Print the summary as one line of JSON
    #[arg(long)]
    pub json: bool,
}

const TRAIN_EXIT_CODES: &str = "\
SIGINT (Ctrl-C), SIGTERM and SIGHUP stop the run after the launches that are under way; everything
is written then. A second signal ends it at once.

Exit codes:
  0    done
  1    an error, a value that is not finite at the end, or a file that could not be written
  2    wrong usage
  130  stopped by SIGINT
  143  stopped by SIGTERM
  129  stopped by SIGHUP";

/// What to time.
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Steps that are counted
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// Use compiled programs of earlier runs
    #[arg(long)]
    pub warm: bool,
    /// Say where the time goes: the parts of a step, and its ops one by one (CPU backend)
    #[arg(long)]
    pub profile: bool,
    /// Print one line of JSON
    #[arg(long)]
    pub json: bool,
}

/// What to show of a schedule.
#[derive(Debug, clap::Args)]
pub struct ScheduleArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Print every step as step,lr
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Draw it into a file that ends in .svg or .png
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub plot: Option<PathBuf>,
    /// Numbers of replicas to show side by side; needs train.batch_per_replica
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub replicas: Vec<u32>,
    /// Look for what is wrong with the whole recipe; exit with 1 if there is an error
    #[arg(long, conflicts_with_all = ["csv", "plot", "replicas"])]
    pub check: bool,
    /// Print every step, or what --check finds, as one line of JSON
    #[arg(long)]
    pub json: bool,
}

/// What to show of a plan.
#[derive(Debug, clap::Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// As for compile
    #[arg(long)]
    pub target: String,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Draw step times, and the all_reduce by algorithm, into a file that ends in .svg or .png
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub plot: Option<PathBuf>,
    /// Print one line of JSON
    #[arg(long)]
    pub json: bool,
}

/// What to do with plugins.
#[derive(Debug, Subcommand)]
pub enum PluginCommand {
    /// Plugins, their versions and where they are
    List {
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Fetch a plugin (cpu, cuda, cuda-compiler or tpu) with your own pip, and unpack it into your cache. One
    /// that is installed is verified, and installed again where it is damaged
    Install {
        /// cpu, cuda, cuda-compiler (for `compile` without a GPU) or tpu
        name: String,
    },
    /// Hash the files of installed plugins, and compare them with what was installed; exit with 1 if one is damaged
    Verify {
        /// The plugin; all that are installed if none is named
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

/// A configuration and changes to it.
#[derive(Debug, clap::Args)]
pub struct ConfigArgs {
    /// Configuration file (TOML)
    pub config: PathBuf,
    /// Change a key of the configuration; may be given several times. Paths are relative to the current
    /// directory, those in the file to the file
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// cpu, cuda, tpu, or the path of a plugin: short for --set device.backend=..
    #[arg(long)]
    backend: Option<String>,
}

/// Reads a path, whose `~/` no shell has replaced where it stands after a `=`.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(|path| expand_home(path.as_ref()))
}

impl ConfigArgs {
    /// All changes, in order.
    pub fn sets(&self) -> Vec<String> {
        let backend = self.backend.iter().map(|name| format!("device.backend={name}"));
        self.set.iter().cloned().chain(backend).collect()
    }
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
