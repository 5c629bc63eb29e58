//! Synchronous training on XLA, as a library.
//!
//! A model is written for one device: a function of a [`models::Scope`], which holds its
//! parameters, and of a [`models::Batch`]. Lockstep traces it, adds gradients, all_reduce and
//! optimizer, and compiles the result into one program that runs on every replica of a mesh.
//! Programs run on PJRT plugins, which are loaded at run time: XLA's CPU backend with several
//! devices in this process, GPUs, TPUs.
//!
//! # From a configuration to a trained model
//!
//! ```
//! use lockstep::{config::Config, data, train};
//! use models::{Batch, Initializer, Loss, Scope, layers::linear, loss::cross_entropy};
//!
//! fn classifier<'g>(scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
//!     let x = batch.field("x"); // f32[examples, features]
//!     let logits = linear(&scope.at("head"), x, 10, Initializer::lecun_normal(x.dim(1)));
//!     cross_entropy(logits, batch.field("y"), batch.weight)
//! }
//!
//! let text = r#"
//!     model = { name = "mlp", hidden = [32] }
//!     data = { source = "synthetic" }
//!     train = { global_batch = 64, steps = 20 }
//!     optimizer = { name = "sgd" }
//!     schedule = { name = "cosine", peak = 0.1 }
//!     mesh = { data = 2 }
//! "#;
//! let config = Config::parse(text, "example.toml".as_ref(), &[])?;
//! let splits = data::open(&config)?;
//! let mlp = config.model.build(splits.train.num_outputs());
//! for model in [&*mlp, &classifier] {
//!     let job = train::Job { config: &config, model, splits: &splits };
//!     let outcome = train::train(&job, &train::Options::default())?.success()?;
//!     assert_eq!(outcome.summary.steps, 20);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The first run installs the CPU plugin with the user's own pip. [`train::Options::out`] names a
//! directory for metrics, summary and parameters; [`train::params_file`] reads the parameters back.
//! `examples/custom_model.rs` trains a larger model of its own, `examples/linear.rs` writes a step
//! by hand, and `examples/sample.rs` draws text from a trained GPT.
//!
//! # Where to look
//!
//! | module | purpose |
//! |---|---|
//! | [`config`] | the configuration: reading, checking, and every key as a typed field |
//! | [`data`] | data sources, the order of examples, batches |
//! | [`models`] | layers, losses, and the models that a configuration can name |
//! | [`optim`] | optimizers as chains of gradient transformations, learning rate schedules |
//! | [`recipe`] | checks of a whole recipe, each with its source in the literature |
//! | [`step`] | the graphs of a step: gradients, accumulation, update, evaluation, initial values |
//! | [`parallel`] | policies: how the batch is cut, how parameters are kept, when they are gathered |
//! | [`lowering`] | from a graph to the form that a backend is fastest with |
//! | [`pjrt`] | plugins, devices, buffers and executables; all `unsafe` code |
//! | [`cluster`] | the processes of a run: coordinator, membership, collectives between them; the order of devices |
//! | [`kernels`](mod@kernels) | kernels for the CPU backend: what programs leave to this process |
//! | [`launch`] | the supervisor of a host: starts workers, watches them, starts them again |
//! | [`state`] | the training state on the devices: gather, scatter, fingerprint |
//! | [`checkpoint`] | the state of a run on disk: manifest, files, saving and reading |
//! | [`train`] | the training loop, benchmarks, parameter files |
//! | [`targets`] | compiling for TPUs and GPUs that are not attached, the cost model |
//! | [`observe`] | events of a run, and the sinks that record and print them |
//! | `figure` | curves as SVG, PNG and text, with the feature `figures` |
//! | [`hlo`] | tensors, ops, gradients, and lowering to StableHLO |
//!
//! With the default feature `cli` there is also `cli`, the program `lockstep`. A user of the
//! library leaves it out with `default-features = false`.
//!
//! # Errors
//!
//! Every module has an error type of its own, and each message says what to change. Tracing does
//! not return a `Result` at every op: the first error is kept, with the source line of the op, and
//! returned when the trace ends. A run that has begun does not return an error but a
//! [`train::Outcome`], because its metrics and its summary have been written;
//! [`train::Outcome::success`] turns its failure into an error.

pub mod checkpoint;
mod children;
#[cfg(feature = "cli")]
pub mod cli;
pub mod cluster;
pub mod config;
pub mod data;
#[cfg(feature = "figures")]
pub mod figure;
pub mod kernels;
pub mod launch;
pub mod lowering;
pub mod observe;
pub mod optim;
pub mod parallel;
pub mod pjrt;
pub mod recipe;
pub mod state;
pub mod step;
pub mod targets;
pub mod train;

/// The program on the page compiles.
#[cfg(doctest)]
#[doc = include_str!("../docs/data.md")]
struct PageOfData;
