//! From a configuration to devices, mesh and specification: what `train`, `bench` and `hlo` share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use hlo::Mesh;
use models::{Model, Precision};

use super::programs::Traced;
use super::{CompileSettings, Error, Formulation, Job, Trainer};
use crate::config::{
    AutoOr, Backend, BatchSplit, Config, Device, OnNonfinite, OptionValue, PluginOption, RunLength,
};
use crate::data::Splits;
use crate::observe::{StartupSpans, say};
use crate::optim::{self, Transformation, schedule::Schedule};
use crate::parallel::Policy;
use crate::pjrt::{
    self, Client, CompileOptions, CpuWaits, InstallOptions, OverrideValue, Platform, Plugin, Value,
};
use crate::step::{BatchField, StepSpec};
use crate::targets::{Chip, flags};

/// More devices than this the CPU backend is not asked for: each takes threads.
const MAX_CPU_DEVICES: usize = 256;

/// A configuration resolved against the data and the number of replicas: everything that is known before
/// a plugin is loaded.
pub struct Run {
    /// The arithmetic of the global batch.
    pub batch: BatchSplit,
    /// The length of the run.
    pub length: RunLength,
    /// The learning rates.
    pub schedule: Schedule,
    /// The replicas.
    pub mesh: Mesh,
    /// The update rule.
    pub optimizer: Box<dyn Transformation>,
    /// The fields of a batch.
    pub fields: Vec<BatchField>,
    /// Element types of parameters and computation.
    pub precision: Precision,
    /// What happens where the loss is not finite.
    pub on_nonfinite: OnNonfinite,
    /// How programs are compiled.
    pub compile: CompileSettings,
}

impl Run {
    /// Resolves a configuration for `num_replicas` on devices of a platform: [`Client::platform`]'s, or
    /// [`platform_on_host`]'s before there is a client.
    ///
    /// # Errors
    /// A batch that does not divide, a run or a schedule that does not fit.
    pub fn new(
        config: &Config,
        splits: &Splits,
        num_replicas: usize,
        platform: Platform,
    ) -> Result<Self, Error> {
        let batch = config.split_batch(num_replicas)?;
        let num_examples = usize::try_from(splits.train.num_examples()).unwrap_or(usize::MAX);
        let length = RunLength::new(config.train.length, Some(num_examples), batch.global_batch())?;
        let field = |field: &crate::data::Field| BatchField {
            name: field.name.to_owned(),
            dtype: field.dtype,
            dims: field.dims.clone(),
        };
        let mut formulation = Formulation::of(platform);
        if let AutoOr::Value(bytes) = config.parallel.bucket_bytes {
            formulation.bucket_bytes = bytes as u64;
        }
        Ok(Self {
            schedule: Schedule::new(&config.schedule, &length)?,
            batch,
            length,
            mesh: Mesh::data(num_replicas),
            optimizer: optim::from_config(&config.optimizer),
            fields: splits.train.fields().iter().map(field).collect(),
            precision: config.train.precision.dtypes(),
            on_nonfinite: config.train.on_nonfinite,
            compile: CompileSettings {
                options: CompileOptions {
                    overrides: own_overrides(config),
                    ..CompileOptions::default()
                },
                formulation,
                steps_per_launch: config.train.steps_per_launch,
                cache_dir: cache_dir(config)?,
            },
        })
    }

    /// Adds the XLA options of the chip that is there, where it is one that is known; the configuration's own
    /// win. So what runs is what `lockstep compile` showed.
    pub(super) fn tune(&mut self, client: &Client) {
        let chip = client.devices().first().and_then(|device| Chip::of_kind(&device.kind));
        if let Some(chip) = chip {
            let options = &mut self.compile.options.overrides;
            *options = flags::with_overrides(chip, options);
        }
    }

    /// The specification of the step for a model.
    pub fn spec<'a>(&'a self, model: &'a dyn Model) -> StepSpec<'a> {
        StepSpec {
            model,
            fields: &self.fields,
            mesh: self.mesh,
            microbatch: self.batch.microbatch(),
            num_microbatches: self.batch.num_microbatches(),
            precision: self.precision,
            optimizer: &*self.optimizer,
            policy: Policy,
            on_nonfinite: self.on_nonfinite,
        }
    }
}

/// The options that the configuration passes to the compiler.
fn own_overrides(config: &Config) -> BTreeMap<String, OverrideValue> {
    let value = |value: &OptionValue| match value {
        OptionValue::Bool(value) => OverrideValue::Bool(*value),
        OptionValue::Int(value) => OverrideValue::Int(*value),
        OptionValue::Float(value) => OverrideValue::Double(*value),
        OptionValue::Text(value) => OverrideValue::String(value.clone()),
    };
    config.compile.overrides.iter().map(|(name, v)| (name.clone(), value(v))).collect()
}

fn cache_dir(config: &Config) -> Result<Option<PathBuf>, Error> {
    if !config.compile.cache {
        return Ok(None);
    }
    Ok(Some(InstallOptions::from_env()?.compile_cache_dir()))
}

/// Opens the devices with the configuration's options. Whoever has set some is told that they took part.
fn open(plugin: &Plugin, device: &Device) -> Result<Client, Error> {
    let value = |option: &PluginOption| match option {
        PluginOption::Bool(value) => Value::Bool(*value),
        PluginOption::Int(value) => Value::Int64(*value),
        // PJRT has no doubles.
        PluginOption::Float(value) => Value::Float(*value as f32),
        PluginOption::Text(value) => Value::String(value.clone()),
        PluginOption::Ints(values) => Value::Int64List(values.clone()),
    };
    let options = device.options.iter().map(|(name, option)| (name.as_str(), value(option)));
    let options: Vec<(&str, Value)> = options.collect();
    Client::new(plugin, &options, None).map_err(|source| match options.is_empty() {
        true => source.into(),
        false => Error::Device {
            backend: device.backend.to_string(),
            options: options.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "),
            source: Box::new(source),
        },
    })
}

/// The platform of the configured backend where its name tells it. A plugin that is given by path has to be
/// asked.
pub fn platform_on_host(config: &Config) -> Option<Platform> {
    match config.device.backend {
        Backend::Cpu => Some(Platform::Cpu),
        Backend::Cuda => Some(Platform::Cuda),
        Backend::Tpu => Some(Platform::Tpu),
        Backend::Path(_) => None,
    }
}

/// The number of replicas where no plugin is asked: `mesh.data`, and for `"auto"` the cores, which is
/// what it means on the CPU backend.
pub fn num_replicas_on_host(config: &Config) -> usize {
    match config.mesh.data {
        AutoOr::Value(num_replicas) => num_replicas,
        AutoOr::Auto => thread::available_parallelism().map_or(1, usize::from),
    }
}

/// Finds the plugin (installing the CPU's if need be, and `say`ing so), and opens the devices.
///
/// # Errors
/// No plugin, or fewer devices than the mesh asks for.
pub fn open_devices(config: &Config, say: impl Fn(&str)) -> Result<(Client, usize), Error> {
    open_timed(config, &StartupSpans::new(Instant::now()), say)
}

fn open_timed(
    config: &Config,
    spans: &StartupSpans,
    say: impl Fn(&str),
) -> Result<(Client, usize), Error> {
    let backend = &config.device.backend;
    let platform = platform_on_host(config);
    if platform == Some(Platform::Cpu) {
        check_num_cpu_devices(config)?;
    }
    let options = InstallOptions::from_env()?;
    let find = || pjrt::find_or_install(&backend.to_string(), &options, say);
    let found = spans.time("find the plugin", find)?;
    let plugin = spans.time("load the plugin", || Plugin::load(found.path))?;
    let open_cpu = || {
        let waits = CpuWaits::of(&own_overrides(config));
        Ok::<_, Error>(Client::cpu_with(&plugin, num_replicas_on_host(config), waits)?)
    };
    let client = spans.time("open the devices", || match platform {
        Some(Platform::Cpu) => open_cpu(),
        Some(_) => open(&plugin, &config.device),
        None => {
            let client = open(&plugin, &config.device)?;
            if client.platform() != Platform::Cpu {
                return Ok(client);
            }
            // Again, now that it is known to make devices to order.
            drop(client);
            check_num_cpu_devices(config)?;
            open_cpu()
        }
    })?;
    let num_devices = client.devices().len();
    let num_replicas = config.mesh.num_replicas(num_devices);
    if num_replicas > num_devices {
        return Err(too_many(config, num_replicas, num_devices));
    }
    Ok((client, num_replicas))
}

fn check_num_cpu_devices(config: &Config) -> Result<(), Error> {
    let on_host = num_replicas_on_host(config);
    if on_host > MAX_CPU_DEVICES {
        return Err(too_many(config, on_host, MAX_CPU_DEVICES));
    }
    Ok(())
}

fn too_many(config: &Config, num_replicas: usize, num_devices: usize) -> Error {
    let backend = config.device.backend.to_string();
    Error::TooManyReplicas { num_replicas, backend, num_devices }
}

/// An error that speaks of options of the configuration's, with their keys.
fn with_overrides(error: Error, config: &Config) -> Error {
    let text = error.to_string();
    let is_named = |name: &&String| text.contains(name.as_str());
    let names: Vec<_> = config.compile.overrides.keys().filter(is_named).cloned().collect();
    match names.is_empty() {
        true => error,
        false => Error::Overrides { names, source: Box::new(error) },
    }
}

/// Everything from a job to a state on devices. `check` is asked between its parts whether to go on.
pub(super) fn start(
    job: &Job<'_>,
    spans: &StartupSpans,
    check: impl Fn() -> Result<(), Error>,
) -> Result<(Client, Run, Trainer), Error> {
    let Job { config, model, splits } = job;
    check()?;
    let trace = |num_replicas, platform| {
        let run = Run::new(config, splits, num_replicas, platform)?;
        let traced = Traced::new(&run.spec(*model), &run.compile, spans)?;
        Ok::<_, Error>((run, traced))
    };
    let num_replicas_known =
        |platform| platform == Platform::Cpu || matches!(config.mesh.data, AutoOr::Value(_));
    let (client, (mut run, traced)) = match platform_on_host(config) {
        Some(platform) if num_replicas_known(platform) => {
            if platform == Platform::Cpu {
                check_num_cpu_devices(config)?;
            }
            thread::scope(|scope| {
                let opening = scope.spawn(|| open_timed(config, spans, say));
                let traced = trace(num_replicas_on_host(config), platform);
                let opened =
                    opening.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                let (client, _) = opened?;
                Ok::<_, Error>((client, traced?))
            })?
        }
        _ => {
            let (client, num_replicas) = open_timed(config, spans, say)?;
            let traced = trace(num_replicas, client.platform())?;
            (client, traced)
        }
    };
    run.tune(&client);
    check()?;
    let trainer = Trainer::with_programs(&client, &run, traced, config.train.seed, spans)
        .map_err(|error| with_overrides(error, config))?;
    Ok((client, run, trainer))
}
