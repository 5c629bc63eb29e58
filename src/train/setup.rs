//! Startup, shared by `train` and `bench`: opens the devices, compiles the programs, initializes
//! the state.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use hlo::{LeafSpec, Mesh, Tree};

use super::params_file::OpenModel;
use super::processes::Processes;
use super::programs::LoweredPrograms;
use super::run::compile_overrides;
use super::{Error, Job, Run, Trainer};
use crate::cluster::{Member, Phase, Rendezvous};
use crate::config::{
    AutoOr, Backend, Config, DeviceConfig, KernelsConfig, MeshConfig, PluginOption,
};
use crate::kernels::CpuKernels;
use crate::observe::StartupSpans;
use crate::pjrt::{self, Client, CpuWaits, InstallOptions, Platform, Plugin, Process, Value};

/// Limit on the devices of the CPU backend, because each takes threads.
const MAX_CPU_DEVICES: usize = 256;

/// Opens the devices with the options of the configuration. An error names these options.
fn open(plugin: &Plugin, device: &DeviceConfig, processes: Processes<'_>) -> Result<Client, Error> {
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
    let mut all = options.clone();
    let store = processes.with_others().map(Member::store);
    if device.backend == Backend::Cuda && store.is_some() {
        let Process { index, num_processes } = processes.this();
        all.push(("node_id", Value::Int64(index as i64)));
        all.push(("num_nodes", Value::Int64(num_processes as i64)));
        if let Some(gpus) = processes.member().and_then(Member::gpus) {
            let gpus = gpus.iter().map(|gpu| *gpu as i64).collect();
            all.push(("visible_devices", Value::Int64List(gpus)));
        }
    }
    Client::new(plugin, &all, store).map_err(|source| match options.is_empty() {
        true => source.into(),
        false => Error::Device {
            backend: device.backend.to_string(),
            options: options.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "),
            source: Box::new(source),
        },
    })
}

/// The platform of the configured backend, if its name determines it. `None` for a plugin given by
/// path, which has to be loaded to find out.
pub fn platform_on_host(config: &Config) -> Option<Platform> {
    match config.device.backend {
        Backend::Cpu => Some(Platform::Cpu),
        Backend::Cuda => Some(Platform::Cuda),
        Backend::Tpu => Some(Platform::Tpu),
        Backend::Path(_) => None,
    }
}

/// The mesh as known without a plugin: `"auto"` is the number of the host's cores, as on the CPU
/// backend.
pub fn mesh_on_host(config: &Config) -> Mesh {
    config.mesh.on_virtual_devices(thread::available_parallelism().map_or(1, usize::from))
}

/// [`mesh_on_host`] for one of several processes: `"auto"` is then a replica per process on the CPU
/// backend.
fn mesh_among(config: &Config, processes: Processes<'_>) -> Result<Mesh, Error> {
    let num_processes = processes.this().num_processes;
    if num_processes == 1 {
        return Ok(mesh_on_host(config));
    }
    let is_cpu = platform_on_host(config) == Some(Platform::Cpu);
    let mesh = config.mesh.on_virtual_devices(num_processes);
    match mesh.num_replicas() {
        _ if is_cpu && config.parallel.host_collectives == AutoOr::Value(false) => {
            Err(Error::NeedsHostCollectives { num_processes })
        }
        num_replicas if num_replicas.is_multiple_of(num_processes) => Ok(mesh),
        num_replicas => Err(Error::UnevenProcesses { num_replicas, num_processes }),
    }
}

/// Finds the plugin and opens the devices of the mesh. Installs the CPU plugin if it is missing,
/// and reports that through `say`.
///
/// # Errors
/// If there is no plugin, or the devices do not fit the mesh.
pub fn open_devices(config: &Config, say: impl Fn(&str)) -> Result<(Client, Mesh), Error> {
    open_timed(config, Processes::default(), &StartupSpans::new(Instant::now()), say)
}

pub(super) fn open_timed(
    config: &Config,
    processes: Processes<'_>,
    spans: &StartupSpans,
    say: impl Fn(&str),
) -> Result<(Client, Mesh), Error> {
    let backend = &config.device.backend;
    let platform = platform_on_host(config);
    let num_processes = processes.this().num_processes;
    let virtual_mesh = mesh_among(config, processes)?;
    if platform == Some(Platform::Cpu) {
        check_num_cpu_devices(config, &virtual_mesh, num_processes)?;
    }
    let options = InstallOptions::from_env()?;
    let find = || pjrt::find_or_install(&backend.to_string(), &options, say);
    let found = spans.time("find the plugin", find)?;
    let plugin = spans.time("load the plugin", || Plugin::load(found.path))?;
    let open_cpu = || {
        let waits = CpuWaits::of(&compile_overrides(config));
        let num_devices = virtual_mesh.num_replicas() / num_processes;
        Ok::<_, Error>(Client::cpu_of_process(&plugin, num_devices, waits, processes.this())?)
    };
    let client = spans.time("open the devices", || match platform {
        Some(Platform::Cpu) => open_cpu(),
        Some(_) => open(&plugin, &config.device, processes),
        None => {
            let client = open(&plugin, &config.device, processes)?;
            if client.platform() != Platform::Cpu {
                return Ok(client);
            }
            // Reopened with the number of devices of the mesh, which only CPU backends can create.
            drop(client);
            check_num_cpu_devices(config, &virtual_mesh, num_processes)?;
            open_cpu()
        }
    })?;
    let num_devices = client.global_devices().len();
    let mesh = match client.platform() {
        Platform::Cpu => virtual_mesh,
        _ => config.mesh.on_devices(num_devices)?,
    };
    if mesh.num_replicas() > num_devices {
        return Err(too_many(config, mesh.num_replicas(), num_devices));
    }
    if client.platform() == Platform::Cpu {
        if config.compile.kernels != KernelsConfig::Xla {
            client.use_host_kernels(|| Arc::new(CpuKernels::default()))?;
        }
        match processes.with_others() {
            Some(member) => client.use_host_collectives(member.rendezvous()?)?,
            None if config.parallel.host_collectives.or(num_processes > 1) => {
                client
                    .use_host_collectives(Arc::new(Rendezvous::new().map_err(Error::Threads)?))?;
            }
            None => {}
        }
    }
    Ok((client, mesh))
}

fn check_num_cpu_devices(config: &Config, mesh: &Mesh, num_processes: usize) -> Result<(), Error> {
    match mesh.num_replicas() {
        num_replicas if num_replicas / num_processes <= MAX_CPU_DEVICES => Ok(()),
        num_replicas => Err(too_many(config, num_replicas, MAX_CPU_DEVICES * num_processes)),
    }
}

fn too_many(config: &Config, num_replicas: usize, num_devices: usize) -> Error {
    let backend = config.device.backend.to_string();
    let MeshConfig { tensor, pipeline, .. } = config.mesh;
    let others = [("mesh.tensor", tensor), ("mesh.pipeline", pipeline)];
    let others = others.into_iter().filter(|(_, size)| size.is_some_and(|size| size > 1));
    let keys = ["mesh.data", "mesh.fsdp"].into_iter().chain(others.map(|(key, _)| key));
    let axes = keys.collect::<Vec<_>>().join(" x ");
    Error::TooManyReplicas { num_replicas, axes, backend, num_devices }
}

/// Adds the configuration's keys to an error that mentions compiler options set there.
fn with_overrides(error: Error, config: &Config) -> Error {
    let text = error.to_string();
    let is_named = |name: &&String| text.contains(name.as_str());
    let names: Vec<_> = config.compile.overrides.keys().filter(is_named).cloned().collect();
    match names.is_empty() {
        true => error,
        false => Error::Overrides { names, source: Box::new(error) },
    }
}

/// The programs of a job, for the devices of these processes.
fn lower(
    Job { config, model, splits }: &Job<'_>,
    processes: Processes<'_>,
    (mesh, platform): (Mesh, Platform),
    spans: &StartupSpans,
) -> Result<(Run, LoweredPrograms), Error> {
    let mut run = Run::new(config, splits, mesh, platform)?;
    let num_processes = processes.this().num_processes;
    let of_process = mesh.num_replicas() / num_processes.max(1);
    let replicas_per_host = config.parallel.replicas_per_host.or(of_process);
    run.lowering.set_replicas_per_host(replicas_per_host);
    if platform == Platform::Cpu && num_processes > 1 {
        run.lowering.host_collectives = Some(num_processes);
    }
    let lowered = LoweredPrograms::new(&run, *model, spans)?;
    Ok((run, lowered))
}

/// `true` if programs can be compiled for processes that are not there: into the compile cache, and
/// on the CPU backend, because elsewhere the devices belong to the processes that train.
pub fn compiles_beforehand(config: &Config) -> bool {
    config.compile.cache && platform_on_host(config) == Some(Platform::Cpu)
}

/// Compiles the programs that so many processes would start with into the compile cache, where
/// [`compiles_beforehand`] says that it can.
///
/// # Errors
/// If the job cannot run in so many processes, or the compiler fails.
pub fn compile_beforehand(job: &Job<'_>, num_processes: usize) -> Result<(), Error> {
    let processes = Processes::absent(num_processes);
    let spans = StartupSpans::new(Instant::now());
    let mesh = mesh_among(job.config, processes)?;
    let (run, lowered) = lower(job, processes, (mesh, Platform::Cpu), &spans)?;
    let (client, _) = open_timed(job.config, processes, &spans, |_| ())?;
    let settings = run.compile.for_devices(&client, &mesh);
    lowered.compile_into_cache(&client, &settings)
}

/// The whole startup, from a job to a state on the devices. `check` is called between the phases,
/// and its error ends the startup. `load` gets the run, the leaves of its state and the
/// specifications of what files of a model hold, and returns the model to start from if it is not
/// drawn; it is called before anything is compiled, so that what does not fit is known at once.
pub(super) fn start(
    job: &Job<'_>,
    processes: Processes<'_>,
    spans: &StartupSpans,
    check: impl Fn() -> Result<(), Error>,
    load: impl FnOnce(&Run, &Tree<LeafSpec>, &Tree<LeafSpec>) -> Result<Option<OpenModel>, Error>,
) -> Result<(Client, Run, Trainer), Error> {
    let config = job.config;
    check()?;
    let lower = |mesh, platform| lower(job, processes, (mesh, platform), spans);
    let waiting = processes.waiting("opening the devices");
    let is_mesh_known = |platform| platform == Platform::Cpu || config.mesh.fixed().is_some();
    let (client, (run, lowered)) = match platform_on_host(config) {
        Some(platform) if is_mesh_known(platform) => {
            let mesh = mesh_among(config, processes)?;
            if platform == Platform::Cpu {
                check_num_cpu_devices(config, &mesh, processes.this().num_processes)?;
            }
            thread::scope(|scope| {
                let say = |text: &str| processes.say(text);
                let opening = scope.spawn(move || open_timed(config, processes, spans, say));
                let lowered = lower(mesh, platform);
                let opened =
                    opening.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                let (client, _) = opened?;
                Ok::<_, Error>((client, lowered?))
            })?
        }
        _ => {
            let say = |text: &str| processes.say(text);
            let (client, mesh) = open_timed(config, processes, spans, say)?;
            let lowered = lower(mesh, client.platform())?;
            (client, lowered)
        }
    };
    drop(waiting);
    check()?;
    let model = load(&run, &lowered.leaves, &lowered.model_specs())?;
    processes.phase(Phase::Compile, 0);
    let waiting = processes.waiting("compiling the step");
    let mut trainer = Trainer::with_programs(&client, &run, lowered, config.train.seed, spans)
        .map_err(|error| with_overrides(error, config))?;
    drop(waiting);
    if let Some(model) = model {
        let _waiting = processes.waiting("reading the parameters");
        trainer.set_model(&model)?;
    }
    processes.phase(Phase::Start, 0);
    processes.set_replicas(trainer.programs.init.executable.placement());
    Ok((client, run, trainer))
}
