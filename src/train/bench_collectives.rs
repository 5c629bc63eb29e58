//! Timing collectives alone, over sizes.

use std::fs;
use std::sync::Arc;
use std::time::Instant;

use hlo::{
    Algorithm, Axis, DType, Graph, Groups, HostCalls, Literal, Mesh, Reduction, Tensor, TensorType,
    lower_isolated, rewrites, trace,
};

use super::processes::Processes;
use super::run::eval_compile_settings;
use super::{CompileSettings, Error, setup};
use crate::cluster::{Member, Phase};
use crate::config::Config;
use crate::lowering::Lowering;
use crate::observe::{StartupSpans, median};
use crate::pjrt::{Arg, Buffers, Client, Executable, Platform};
use crate::targets::cost::{
    CollectiveSpan, DIRECT, LineFit, MeasuredCollective, MeasuredFabric, MeasuredPoint,
};

/// Options of [`bench_collectives`].
pub struct CollectivesOptions<'a> {
    /// This process as one of several that take part.
    pub member: Option<&'a Member>,
    /// Most launches that are timed for a point.
    pub max_launches: usize,
    /// The largest size.
    pub max_bytes: usize,
}

/// The smallest size, and the factor between two.
const MIN_BYTES: usize = 1 << 10;
const FACTOR: usize = 4;
/// A size is timed for about so long.
const BUDGET_SECS: f64 = 0.6;
/// The fewest launches that are timed.
const MIN_LAUNCHES: usize = 5;
/// A collective that takes longer than this is the last one of its kind.
const LONG_SECS: f64 = 1.0;
/// One that takes less than this is timed several times in a launch, one after the other, so that
/// the launch counts for little.
const IN_A_ROW: [(f64, u32); 2] = [(1e-3, 16), (5e-3, 4)];

/// What is timed over sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Timed {
    AllReduce(Option<Algorithm>),
    ReduceScatter,
    AllGather,
    AllToAll,
    Permute(CollectiveSpan),
}

impl Timed {
    /// By StableHLO's name.
    fn kind(self) -> &'static str {
        match self {
            Self::AllReduce(_) => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::AllToAll => "all_to_all",
            Self::Permute(_) => "collective_permute",
        }
    }

    fn algorithm(self) -> &'static str {
        match self {
            Self::AllReduce(Some(algorithm)) => algorithm.name(),
            _ => DIRECT,
        }
    }

    fn span(self) -> CollectiveSpan {
        match self {
            Self::Permute(span) => span,
            _ => CollectiveSpan::All,
        }
    }

    /// All that these devices can do.
    fn all(num_devices: usize, num_processes: usize, replicas_per_host: usize) -> Vec<Self> {
        let of_process = num_devices / num_processes;
        let has_hosts = replicas_per_host > 1
            && replicas_per_host < num_devices
            && num_devices.is_multiple_of(replicas_per_host);
        let algorithms = Algorithm::ALL.into_iter().filter(|algorithm| match algorithm {
            Algorithm::Hierarchical => has_hosts,
            Algorithm::Ring | Algorithm::Tree => true,
        });
        let host = (of_process > 1).then_some(Self::Permute(CollectiveSpan::Host));
        let network = (num_processes > 1).then_some(Self::Permute(CollectiveSpan::Network));
        let all = host.into_iter().chain(network).chain([Self::AllReduce(None)]);
        let all = all.chain(algorithms.map(|algorithm| Self::AllReduce(Some(algorithm))));
        all.chain([Self::ReduceScatter, Self::AllGather, Self::AllToAll]).collect()
    }

    #[track_caller]
    fn once(self, x: Tensor<'_>, of_process: usize) -> Tensor<'_> {
        let axis = Axis::Data;
        let p = x.tracer().mesh().num_replicas();
        match self {
            Self::AllReduce(_) => x.all_reduce(Reduction::Sum, axis).vary(axis) * (1.0 / p as f64),
            Self::ReduceScatter => x.reduce_scatter(0, axis),
            Self::AllGather => x.all_gather(0, axis),
            Self::AllToAll => x.all_to_all(0, 0, axis),
            Self::Permute(CollectiveSpan::Host) => {
                let pairs: Vec<_> = (0..of_process).map(|i| (i, (i + 1) % of_process)).collect();
                x.collective_permute(&pairs, Groups::contiguous(axis, of_process))
            }
            // Each device sends to that in the same place of the next process.
            Self::Permute(_) => {
                let pairs: Vec<_> = (0..p).map(|i| (i, (i + of_process) % p)).collect();
                x.collective_permute(&pairs, axis)
            }
        }
    }

    /// The collective of `num_elements` elements, `in_a_row` times, each after the one before.
    fn graph(self, mesh: Mesh, of_process: usize, num_elements: usize, in_a_row: u32) -> Graph {
        let (axis, p) = (Axis::Data, mesh.num_replicas());
        let [len, result] = match self {
            Self::AllGather => [num_elements / p, num_elements],
            Self::ReduceScatter => [num_elements, num_elements / p],
            _ => [num_elements; 2],
        };
        let graph = trace(mesh, |t| {
            let x = t.input("x", TensorType::new(DType::F32, &[len]).varying(axis.into()));
            let results = if len == result {
                t.fori_loop(in_a_row, &[x], |_, x| vec![self.once(x[0], of_process)])
            } else {
                let padded = x.pad_end(0, len.max(result)).slice_dim(0, 0, result);
                t.fori_loop(in_a_row, &[x, padded], |i, carried| {
                    let found = self.once(carried[0], of_process);
                    // So that the next one cannot begin before.
                    let first = found.slice_dim(0, 0, 1);
                    vec![carried[0].dynamic_update_slice(first, &[i.full_like(0.0)]), found]
                })
            };
            for (index, result) in results.into_iter().enumerate() {
                t.output_varying(format!("{index}"), result, axis.into());
            }
        });
        graph.unwrap_or_else(|error| unreachable!("a collective alone: {error}"))
    }
}

/// Times collectives of growing sizes over all devices, and fits lines to the times.
///
/// # Errors
/// If the devices cannot be opened or are too few, a program fails, or a process is lost.
pub fn bench_collectives(
    config: &Config,
    options: &CollectivesOptions<'_>,
) -> Result<MeasuredFabric, Error> {
    let processes = Processes::of(options.member);
    let num_processes = processes.this().num_processes;
    let waiting = processes.waiting("opening the devices");
    let spans = StartupSpans::new(Instant::now());
    let (client, mesh) = setup::open_timed(config, processes, &spans, |text| processes.say(text))?;
    drop(waiting);
    let num_devices = mesh.num_replicas();
    if num_devices < 2 {
        return Err(Error::NothingToReduce);
    }
    processes.phase(Phase::Compile, 0);
    let mut fabric = MeasuredFabric::new(client.platform_name(), num_devices, num_processes);
    fabric.replicas_per_host = config.parallel.replicas_per_host.or(fabric.replicas_per_host);
    let mut lowering = Lowering::for_platform(client.platform());
    let has_host_collectives = config.parallel.host_collectives.or(options.member.is_some());
    lowering.host_collectives =
        (client.platform() == Platform::Cpu && has_host_collectives).then_some(num_processes);
    let mesh = Mesh::data(num_devices);
    let bench = CollectivesBench {
        settings: eval_compile_settings(config)?
            .on_platform(client.platform())
            .for_devices(&client, &mesh),
        client,
        lowering,
        mesh,
        of_process: num_devices / num_processes,
        replicas_per_host: fabric.replicas_per_host,
        processes,
        max_launches: options.max_launches.max(MIN_LAUNCHES),
    };
    let all = Timed::all(num_devices, num_processes, fabric.replicas_per_host);
    let waiting = processes.waiting("measuring collectives");
    for (index, timed) in all.iter().enumerate() {
        let measured = bench.series(*timed, options.max_bytes)?;
        match timed.span() {
            CollectiveSpan::Host => fabric.host = measured.fit,
            CollectiveSpan::Network => fabric.network = measured.fit,
            CollectiveSpan::All => {}
        }
        fabric.collectives.push(measured);
        if let Some(waiting) = &waiting {
            waiting.set_done(index as u64 + 1, all.len() as u64);
        }
    }
    Ok(fabric)
}

struct CollectivesBench<'a> {
    client: Client,
    settings: CompileSettings,
    lowering: Lowering,
    mesh: Mesh,
    /// Number of devices of a process.
    of_process: usize,
    replicas_per_host: usize,
    processes: Processes<'a>,
    max_launches: usize,
}

impl CollectivesBench<'_> {
    /// The times over sizes.
    fn series(&self, timed: Timed, max_bytes: usize) -> Result<MeasuredCollective, Error> {
        let sizes = std::iter::successors(Some(MIN_BYTES), |size| size.checked_mul(FACTOR));
        let mut points: Vec<MeasuredPoint> = vec![];
        for bytes in sizes.take_while(|size| *size <= max_bytes.max(MIN_BYTES)) {
            let point = self.point(timed, bytes)?;
            points.push(point);
            if point.secs > LONG_SECS {
                break;
            }
        }
        let seconds: Vec<_> = points.iter().map(|at| (at.bytes as f64, at.secs)).collect();
        Ok(MeasuredCollective {
            kind: timed.kind().to_owned(),
            algorithm: timed.algorithm().to_owned(),
            span: timed.span(),
            fit: LineFit::of(&seconds),
            points,
        })
    }

    /// The time of one size. The first process decides how it is measured, and its time counts.
    fn point(&self, timed: Timed, bytes: usize) -> Result<MeasuredPoint, Error> {
        let p = self.mesh.num_replicas();
        let num_elements = (bytes / DType::F32.size_bytes()).next_multiple_of(p);
        let name = |what: &str| {
            format!("{} {} {:?} {bytes} {what}", timed.kind(), timed.algorithm(), timed.span())
        };
        let mut program = self.compile(timed, num_elements, 1)?;
        program.launch(2)?;
        let secs = self.agree(&name("one"), program.launch(1)?[0])?;
        let in_a_row = IN_A_ROW.into_iter().find(|(limit, _)| secs < *limit);
        let in_a_row = in_a_row.map_or(1, |(_, in_a_row)| in_a_row);
        if in_a_row > 1 {
            program = self.compile(timed, num_elements, in_a_row)?;
            program.launch(2)?;
        }
        let busy = Processors::now();
        let secs = self.agree(&name("several"), program.launch(1)?[0])?;
        let num_launches = (BUDGET_SECS / secs) as usize;
        let times = program.launch(num_launches.clamp(MIN_LAUNCHES, self.max_launches))?;
        let busy = busy.and_then(|before| before.busy_until(Processors::now()?));
        let alone = program.launch_alone(MIN_LAUNCHES)?;
        let times = median(&times).unwrap_or(f64::NAN);
        // The least: another program may disturb some of them, and no collective takes no time.
        let alone = alone.into_iter().fold(times / 2.0, f64::min);
        let secs = (times - alone) / f64::from(in_a_row);
        let secs = self.agree(&name("median"), secs)?;
        Ok(MeasuredPoint { bytes: (num_elements * 4) as u64, secs, busy })
    }

    /// The number that the first process has.
    fn agree(&self, what: &str, secs: f64) -> Result<f64, Error> {
        self.processes.decided_by_first(&format!("bench/{what}"), || Ok(secs))
    }

    fn compile(
        &self,
        timed: Timed,
        num_elements: usize,
        in_a_row: u32,
    ) -> Result<CollectiveProgram, Error> {
        let graph = timed.graph(self.mesh, self.of_process, num_elements, in_a_row);
        let passes = |graph: Graph| {
            self.lowering.passes().into_iter().fold(graph, |graph, pass| pass.run(&graph))
        };
        let written = match timed {
            Timed::AllReduce(Some(algorithm)) => {
                rewrites::write_all_reduces_by(&graph, &|_| Some(algorithm), self.replicas_per_host)
            }
            _ => graph.clone(),
        };
        let program = self.lowering.emit(passes(written), "collective").program;
        let (executable, _) = self.settings.compile(&self.client, &program)?;
        // On the devices of this process alone: nothing connects it with others.
        let alone = lower_isolated(&passes(graph), "alone", self.of_process, HostCalls::default());
        let own = self.client.process_index();
        let devices = self.client.global_devices().iter();
        let devices = devices.filter(|device| device.process_index == own);
        let mut settings = self.settings.clone();
        settings.options.device_assignment = Some(devices.map(|device| device.id).collect());
        let (alone, _) = settings.compile(&self.client, &alone)?;
        let len = program.inputs[0].ty.num_elements();
        let [operand, operand_alone] = [&executable, &alone].map(|executable| {
            let placement = executable.placement();
            // One for each: a shared one would be read from the cache.
            let zeros = |_| Arc::new(Literal::zeros(DType::F32, &[len]));
            let literals: Vec<_> = (0..placement.num_addressable()).map(zeros).collect();
            self.client.upload_on(placement, &literals)
        });
        Ok(CollectiveProgram { collective: (executable, operand?), alone: (alone, operand_alone?) })
    }
}

/// A collective, and the same program without it.
struct CollectiveProgram {
    collective: (Executable, Buffers),
    alone: (Executable, Buffers),
}

impl CollectiveProgram {
    /// The seconds of launches, each waited for.
    fn launch(&self, count: usize) -> Result<Vec<f64>, Error> {
        time(&self.collective, count)
    }

    fn launch_alone(&self, count: usize) -> Result<Vec<f64>, Error> {
        // The first ones touch fresh memory.
        time(&self.alone, count + 2).map(|secs| secs[2..].to_vec())
    }
}

fn time((executable, operand): &(Executable, Buffers), count: usize) -> Result<Vec<f64>, Error> {
    let once = |_| {
        let started = Instant::now();
        executable.execute(vec![Arg::Borrow(operand)])?.done.wait()?;
        Ok(started.elapsed().as_secs_f64())
    };
    (0..count).map(once).collect()
}

/// Times of this host's processors so far, in its own units.
#[derive(Clone, Copy)]
struct Processors {
    idle: u64,
    all: u64,
}

impl Processors {
    /// `None` where the system does not tell.
    fn now() -> Option<Self> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let times = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        // Guests, after the eighth, are counted before.
        let times: Vec<u64> = times.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Self { idle: times.get(3)? + times.get(4)?, all: times.iter().sum() })
    }

    /// The fraction of the time until `later` in which they worked; `None` if that is too short.
    fn busy_until(self, later: Self) -> Option<f64> {
        let [idle, all] = [later.idle - self.idle, later.all - self.all].map(|time| time as f64);
        (all > 0.0).then_some(1.0 - idle / all)
    }
}
