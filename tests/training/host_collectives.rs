//! Collectives that this process computes for the CPU backend: values, matching, failures, and
//! trainings.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use half::{bf16, f16};
use hlo::random::threefry2x32;
use hlo::{
    Axis, AxisSet, DType, Element, Graph, Groups, HostCalls, Literal, Mesh, Program, Reduction,
    Tensor, TensorType, interpret, lower, lower_with_host_calls, trace,
};
use lockstep::cluster::Rendezvous;
use lockstep::config::Config;
use lockstep::data::{self, TrainBatches};
use lockstep::pjrt::{
    Arg, Client, CompileOptions, Executable, HostCall, HostCollectives, InstallOptions, LaunchInfo,
    OverrideValue, Plugin, find_or_install,
};
use lockstep::state;
use lockstep::train::{Run, Trainer, open_devices};

const NUM_REPLICAS: usize = 4;

fn lowered(graph: &Graph) -> Program {
    let calls = HostCalls { collectives: Some(1), ..HostCalls::default() };
    lower_with_host_calls(graph, "test", calls)
}

fn plugin() -> Plugin {
    let options = InstallOptions::from_env().unwrap();
    let found = find_or_install("cpu", &options, |line| eprintln!("{line}")).unwrap();
    Plugin::load(&found.path).unwrap()
}

fn client_with(collectives: Arc<dyn HostCollectives>) -> Client {
    let client = Client::cpu(&plugin(), NUM_REPLICAS).unwrap();
    client.use_host_collectives(collectives).unwrap();
    client
}

/// A client and its rendezvous.
fn client() -> (Client, Arc<Rendezvous>) {
    let rendezvous = Arc::new(Rendezvous::new().unwrap());
    (client_with(rendezvous.clone()), rendezvous)
}

/// Waits until nothing is left of launches that have ended: the end is reported on another thread.
fn assert_empty(rendezvous: &Rendezvous) {
    let from = Instant::now();
    while rendezvous.num_launches() > 0 {
        assert!(from.elapsed() < Duration::from_secs(60), "a launch is not forgotten");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Options with which bf16 and f16 are rounded after each op, and which compile quickly.
fn options() -> CompileOptions {
    let overrides = [
        ("xla_allow_excess_precision".to_owned(), OverrideValue::Bool(false)),
        ("xla_backend_optimization_level".to_owned(), OverrideValue::Int(0)),
    ];
    CompileOptions { overrides: overrides.into(), ..CompileOptions::default() }
}

fn compile(client: &Client, graph: &Graph) -> Executable {
    client.compile(&lowered(graph), &options()).unwrap()
}

/// Like `hlo::interpret`, on the plugin.
fn run(executable: &Executable, inputs: &[Vec<Literal>]) -> Result<Vec<Vec<Literal>>, String> {
    let upload = |input: &Vec<Literal>| {
        let literals: Vec<_> = input.iter().cloned().map(Arc::new).collect();
        executable.client().upload_on(executable.placement(), &literals).unwrap()
    };
    let arguments = inputs.iter().map(|input| Arg::Donate(upload(input))).collect();
    let launch = executable.execute(arguments).unwrap();
    launch.done.wait().map_err(|error| error.to_string())?;
    let read = |output: &lockstep::pjrt::Buffers| {
        (0..executable.num_replicas()).map(|replica| output.read(replica).unwrap()).collect()
    };
    Ok(launch.outputs.iter().map(read).collect())
}

/// `count` different numbers for each `stream`, in [-1, 1).
fn uniform(stream: usize, count: usize) -> Vec<f64> {
    let word = |i: usize| threefry2x32([0x7e57, stream as u32], [0, i as u32])[0];
    (0..count).map(|i| f64::from(word(i)) / 2f64.powi(31) - 1.0).collect()
}

fn both() -> AxisSet {
    AxisSet::of(&[Axis::Data, Axis::Fsdp])
}

/// Every kind of collective over every kind of group on a mesh of 2 x 2.
fn every_collective(dtype: DType) -> Graph {
    let mesh = Mesh::new(&[(Axis::Data, 2), (Axis::Fsdp, 2)]);
    let groups: [Groups; 6] = [
        both().into(),
        Axis::Data.into(),
        Axis::Fsdp.into(),
        Groups::contiguous(both(), 2),
        Groups::strided(both(), 2),
        Groups::contiguous(both(), 1),
    ];
    let reductions: &[Reduction] = match dtype {
        DType::Pred => &[Reduction::And, Reduction::Or],
        _ => &[Reduction::Sum, Reduction::Max, Reduction::Min],
    };
    let graph = trace(mesh, |t| {
        let x = t.input("x", TensorType::new(dtype, &[4, 8]).varying(both()));
        let y = t.input("y", TensorType::new(dtype, &[3]).varying(both()));
        let empty = t.input("empty", TensorType::new(dtype, &[4, 0]).varying(both()));
        let output = |name: String, value: Tensor<'_>| {
            t.output_varying(name, value.vary(both()), both());
        };
        for (number, groups) in groups.into_iter().enumerate() {
            let size = groups.size(&mesh).unwrap();
            for reduction in reductions {
                let reduced = t.all_reduce(&[x, y, empty], *reduction, groups);
                for (index, value) in reduced.into_iter().enumerate() {
                    output(format!("{number} {} {index}", reduction.name()), value);
                }
            }
            for dim in [0, 1] {
                output(format!("{number} all_gather {dim}"), x.all_gather(dim, groups));
                if dtype != DType::Pred {
                    let scattered = x.reduce_scatter(dim, groups);
                    output(format!("{number} reduce_scatter {dim}"), scattered);
                }
                for concat in [0, 1] {
                    let name = format!("{number} all_to_all {dim} {concat}");
                    output(name, x.all_to_all(dim, concat, groups));
                }
            }
            output(format!("{number} empty"), empty.all_gather(1, groups));
            let ring: Vec<_> = (0..size).map(|from| (from, (from + 1) % size)).collect();
            output(format!("{number} ring"), x.collective_permute(&ring, groups));
            if size > 1 {
                output(format!("{number} line"), x.collective_permute(&ring[1..], groups));
            }
        }
    });
    graph.unwrap()
}

#[test]
fn every_kind_dtype_and_group_agrees_with_the_interpreter() {
    let (client, rendezvous) = client();
    for dtype in DType::ALL {
        let graph = every_collective(dtype);
        // Whole numbers with sums that every dtype has.
        let values = |input: usize, replica: usize, dims: &[usize]| {
            let whole = |x: f64| match dtype {
                DType::Pred => f64::from(u8::from(x > 0.0)),
                _ if dtype.is_unsigned() => (8.0 * x).floor().abs(),
                _ => (8.0 * x).floor(),
            };
            let count = dims.iter().product();
            let whole: Vec<_> =
                uniform(10 * input + replica, count).into_iter().map(whole).collect();
            Literal::from_f64(dtype, dims, &whole)
        };
        let dims: [&[usize]; 3] = [&[4, 8], &[3], &[4, 0]];
        let inputs: Vec<Vec<_>> = (0..dims.len())
            .map(|input| (0..NUM_REPLICAS).map(|r| values(input, r, dims[input])).collect())
            .collect();
        let expected = interpret(&graph, &inputs).unwrap();
        let found = run(&compile(&client, &graph), &inputs).unwrap();
        for ((output, expected), found) in graph.outputs().iter().zip(&expected).zip(&found) {
            assert_eq!(found, expected, "{dtype}: {}", output.name);
        }
    }
    assert_empty(&rendezvous);
}

/// An all_reduce and a reduce_scatter of vectors that are long enough for several threads.
fn long_sums(dtype: DType, len: usize) -> Graph {
    let graph = trace(Mesh::data(NUM_REPLICAS), |t| {
        let x = t.input("x", TensorType::new(dtype, &[len]).varying(Axis::Data.into()));
        t.output("sum", x.all_reduce(Reduction::Sum, Axis::Data));
        let shard = x.reduce_scatter(0, Axis::Data);
        t.output_varying("shard", shard, Axis::Data.into());
    });
    graph.unwrap()
}

/// Sums are added replica by replica in order; bf16 and f16 in f32, rounded once. Also prints how
/// many elements differ from XLA's own sums.
fn check_sums<T: Element + PartialEq + std::fmt::Debug>(sum: impl Fn([T; 4]) -> T) {
    const LEN: usize = 4 * 40_009;
    let dtype = T::DTYPE;
    let inputs: Vec<_> = (0..NUM_REPLICAS)
        .map(|replica| Literal::from_f64(dtype, &[LEN], &uniform(replica, LEN)))
        .collect();
    let of = |replica: usize| inputs[replica].as_slice::<T>();
    let expected: Vec<T> =
        (0..LEN).map(|i| sum([of(0)[i], of(1)[i], of(2)[i], of(3)[i]])).collect();
    let client = client().0;
    let graph = long_sums(dtype, LEN);
    let inputs = [inputs.clone()];
    let executable = compile(&client, &graph);
    for _ in 0..3 {
        let found = run(&executable, &inputs).unwrap();
        for replica in 0..NUM_REPLICAS {
            assert!(found[0][replica].as_slice::<T>() == expected, "{dtype}: all_reduce");
            let shard = &expected[replica * LEN / 4..(replica + 1) * LEN / 4];
            assert!(found[1][replica].as_slice::<T>() == shard, "{dtype}: reduce_scatter");
        }
    }
    let xla = client.compile(&lower(&graph, "test"), &options()).unwrap();
    let xla = run(&xla, &inputs).unwrap();
    let differ = xla[0][0].as_slice::<T>().iter().zip(&expected).filter(|(x, y)| x != y).count();
    println!("{dtype}: {differ} of {LEN} sums differ from XLA's");
    if matches!(dtype, DType::F32 | DType::F64) {
        assert_eq!(differ, 0, "{dtype}");
    }
}

#[test]
fn sums_are_added_in_the_order_of_replicas() {
    check_sums::<f64>(|[a, b, c, d]| ((a + b) + c) + d);
    check_sums::<f32>(|[a, b, c, d]| ((a + b) + c) + d);
    check_sums::<bf16>(|x| {
        bf16::from_f32(x[1..].iter().fold(x[0].to_f32(), |s, x| s + x.to_f32()))
    });
    check_sums::<f16>(|x| f16::from_f32(x[1..].iter().fold(x[0].to_f32(), |s, x| s + x.to_f32())));
}

/// Collectives in a loop, and others that depend neither on it nor on each other.
fn unordered() -> Graph {
    let axis = Axis::Data;
    let graph = trace(Mesh::data(NUM_REPLICAS), |t| {
        let ty = TensorType::new(DType::F64, &[8]).varying(axis.into());
        let inputs: Vec<_> = (0..6).map(|i| t.input(format!("x{i}"), ty.clone())).collect();
        let looped = t.fori_loop(20, &[inputs[0]], |_, x| {
            let gathered = x[0].all_gather(0, axis).reduce_scatter(0, axis);
            let sum = (x[0] * 0.25).all_reduce(Reduction::Sum, axis).vary(axis);
            vec![(gathered + sum) * 0.125]
        });
        t.output_varying("looped", looped[0], axis.into());
        for (index, x) in inputs[1..].iter().enumerate() {
            let value = (*x * (index + 1) as f64).all_gather(0, axis);
            t.output_varying(format!("gathered {index}"), value, axis.into());
        }
    });
    graph.unwrap()
}

#[test]
fn collectives_need_no_order() {
    let (client, rendezvous) = client();
    let graph = unordered();
    let inputs: Vec<Vec<_>> = (0..6)
        .map(|input| {
            let values =
                |replica| uniform(10 * input + replica, 8).iter().map(|x| x * 8.0).collect();
            let literal = |values: Vec<f64>| Literal::from_f64(DType::F64, &[8], &values);
            (0..NUM_REPLICAS).map(|replica| literal(values(replica))).collect()
        })
        .collect();
    let expected = interpret(&graph, &inputs).unwrap();
    let executable = compile(&client, &graph);
    for _ in 0..50 {
        assert_eq!(run(&executable, &inputs).unwrap(), expected);
    }
    assert_empty(&rendezvous);
}

/// Programs of the CPU backend treat denormals as zero. So must the threads on which replicas
/// continue, or replicas drift apart.
#[test]
fn denormals_are_zero_on_every_replica() {
    let (client, _) = client();
    let axis = Axis::Data;
    let graph = trace(Mesh::data(NUM_REPLICAS), |t| {
        let ty = TensorType::new(DType::F32, &[4]).varying(axis.into());
        let [x, factor] = ["x", "factor"].map(|name| t.input(name, ty.clone()));
        let denormal = x.all_reduce(Reduction::Sum, axis).vary(axis) * factor;
        t.output_varying("product", denormal, axis.into());
        t.output_varying("sum", denormal.all_reduce(Reduction::Sum, axis).vary(axis), axis.into());
    });
    let same = |value: f32| vec![Literal::from_slice(&[4], &[value; 4]); NUM_REPLICAS];
    let inputs = [same(f32::MIN_POSITIVE), same(0.01)];
    let executable = compile(&client, &graph.unwrap());
    for _ in 0..50 {
        for literal in run(&executable, &inputs).unwrap().iter().flatten() {
            assert_eq!(literal.bytes(), [0; 16], "{literal:?}");
        }
    }
}

/// Does not pass on the second call of replica 2: abandons it, or keeps it.
struct Faulty {
    inner: Rendezvous,
    keeps: bool,
    /// The number of calls of replica 2, and the one that was kept.
    state: Mutex<(usize, Option<HostCall>)>,
    has_failed: AtomicBool,
}

impl Faulty {
    fn new(keeps: bool, deadline: Duration) -> Arc<Self> {
        let inner = Rendezvous::with_deadline(deadline).unwrap();
        Arc::new(Self { inner, keeps, state: Mutex::default(), has_failed: AtomicBool::new(false) })
    }
}

impl HostCollectives for Faulty {
    fn begin(&self, launch: LaunchInfo) {
        self.inner.begin(launch);
    }

    fn start(&self, call: HostCall) {
        let mut state = self.state.lock().unwrap();
        state.0 += usize::from(call.replica() == 2);
        if call.replica() == 2 && state.0 == 2 {
            if self.keeps {
                state.1 = Some(call);
                return;
            }
            drop(state);
            drop(call);
            return;
        }
        drop(state);
        self.inner.start(call);
    }

    fn fail(&self, launch_id: i64, reason: &str) {
        self.inner.fail(launch_id, reason);
        self.has_failed.store(true, Ordering::Release);
    }

    fn end(&self, launch_id: i64) {
        self.inner.end(launch_id);
    }
}

/// Three all_reduces, one after the other.
fn three_sums() -> (Graph, Vec<Vec<Literal>>) {
    let axis = Axis::Data;
    let graph = trace(Mesh::data(NUM_REPLICAS), |t| {
        let x = t.input("x", TensorType::new(DType::F32, &[2]).varying(axis.into()));
        let once = x.all_reduce(Reduction::Sum, axis).vary(axis);
        let twice = once.all_reduce(Reduction::Sum, axis).vary(axis);
        t.output("sum", twice.all_reduce(Reduction::Sum, axis));
    });
    let inputs = vec![vec![Literal::from_slice(&[2], &[1f32, 2.0]); NUM_REPLICAS]];
    (graph.unwrap(), inputs)
}

#[test]
fn a_replica_that_fails_ends_the_launch_and_not_the_process() {
    let faulty = Faulty::new(false, Duration::from_secs(600));
    let client = client_with(faulty.clone());
    let (graph, inputs) = three_sums();
    let executable = compile(&client, &graph);
    let from = Instant::now();
    let error = run(&executable, &inputs).unwrap_err();
    assert!(error.contains("collective 1 (all_reduce) of replica 2 was abandoned"), "{error}");
    assert!(from.elapsed() < Duration::from_secs(30), "{:?}", from.elapsed());
    // The next launch is not affected, and nothing is left of this one.
    let sums = run(&executable, &inputs).unwrap();
    assert_eq!(sums[0][3], Literal::from_slice(&[2], &[64f32, 128.0]));
    assert_empty(&faulty.inner);
}

#[test]
fn a_replica_that_does_not_arrive_is_named_after_the_deadline() {
    let faulty = Faulty::new(true, Duration::from_millis(500));
    let client = client_with(faulty.clone());
    let (graph, inputs) = three_sums();
    let executable = compile(&client, &graph);
    let launched = std::thread::scope(|scope| {
        let launched = scope.spawn(|| run(&executable, &inputs));
        // The others fail by themselves; then the call that was kept ends the launch.
        let from = Instant::now();
        while !faulty.has_failed.load(Ordering::Acquire) {
            assert!(from.elapsed() < Duration::from_secs(60), "the deadline passed unnoticed");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(faulty.state.lock().unwrap().1.take());
        launched.join().unwrap()
    });
    let error = launched.unwrap_err();
    assert!(error.contains("replicas [2] did not arrive at collective 1 (all_reduce)"), "{error}");
    assert!(error.contains("replicas [0, 1, 3] wait"), "{error}");
    assert!(run(&executable, &inputs).is_ok());
}

#[test]
fn a_client_without_host_collectives_refuses_programs_that_need_them() {
    let client = Client::cpu(&plugin(), NUM_REPLICAS).unwrap();
    let program = lowered(&three_sums().0);
    let error = client.compile(&program, &options()).unwrap_err().to_string();
    assert!(error.contains("Client::use_host_collectives"), "{error}");
    client.use_host_collectives(Arc::new(Rendezvous::new().unwrap())).unwrap();
    client.compile(&program, &options()).unwrap();
    let again = client.use_host_collectives(Arc::new(Rendezvous::new().unwrap()));
    assert!(again.unwrap_err().to_string().contains("has some already"));
}

const DIGITS: &str = include_str!("../../examples/digits.toml");
const RESNET20: &str = include_str!("../../examples/resnet20-synthetic.toml");
const GPT: &str = r#"
[model]
name = "gpt"
num_layers = 2
width = 32
num_heads = 4
context = 16
vocabulary = 64
dropout = 0.1
[data]
source = "synthetic_tokens"
vocab_size = 64
context = 16
[train]
global_batch = 16
steps = 100
[optimizer]
name = "adamw"
clip_grad_norm = 1.0
[schedule]
name = "constant"
peak = 3e-3
"#;

/// Losses and the fingerprint of the model after some steps, a proof and an evaluation.
fn train(text: &str, sets: &[&str], num_steps: u64) -> (Vec<f64>, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/a.toml");
    let quick = "compile.overrides.xla_backend_optimization_level=0";
    let sets: Vec<_> = sets.iter().chain([&quick]).map(|set| (*set).to_owned()).collect();
    let config = Config::parse(text, &path, &sets).unwrap();
    let splits = data::open(&config).unwrap();
    let model = config.model.build(splits.train.num_outputs());
    let (client, mesh) = open_devices(&config, |_| ()).unwrap();
    let run = Run::new(&config, &splits, mesh, client.platform()).unwrap();
    let mut trainer = Trainer::new(&client, &run, &*model, config.train.seed).unwrap();
    let (batch, shards) = (run.batch.global_batch(), run.batch.num_batch_shards());
    let batches =
        TrainBatches::new(splits.train.clone(), config.train.seed, batch, shards).unwrap();
    let size = run.steps_per_launch.max(1) as u64;
    let mut losses = vec![];
    for index in 0..num_steps / size {
        let steps = index * size..(index + 1) * size;
        let batch = batches.launch(steps.clone()).unwrap();
        let batch = trainer.batch_sender().send(batch).unwrap();
        let rates = steps.map(|step| run.schedule.lr(step)).collect();
        let pending = trainer.launch(batch, rates).unwrap();
        losses.extend(trainer.finish(pending).unwrap().into_iter().map(|result| result.loss));
    }
    trainer.prove_lockstep().unwrap();
    losses.push(trainer.evaluate(&splits.eval, &run).unwrap().loss);
    (losses, state::fingerprint(&trainer.model().unwrap()))
}

/// Trains twice with host collectives, which must give the same bits, and once with XLA's, which
/// must be close.
fn check_training(text: &str, sets: &[&str], num_steps: u64) {
    let on_host: Vec<_> = sets.iter().copied().chain(["parallel.host_collectives=true"]).collect();
    let found = train(text, &on_host, num_steps);
    assert_eq!(found, train(text, &on_host, num_steps), "{sets:?}");
    let xla = train(text, sets, num_steps);
    let differences = found.0.iter().zip(&xla.0).map(|(a, b)| (a - b).abs() / b.abs());
    let worst = differences.fold(0.0, f64::max);
    println!("{sets:?}: bits equal XLA's: {}; losses differ by {worst:e}", found.1 == xla.1);
    assert!(worst < 1e-3, "{sets:?}: {worst:e}");
}

#[test]
fn digits_repeat_bit_for_bit() {
    check_training(DIGITS, &["mesh.data=4"], 20);
    check_training(DIGITS, &["mesh.data=4", "train.steps_per_launch=5"], 20);
    check_training(DIGITS, &["mesh.data=2", "mesh.fsdp=2", "parallel.zero=1"], 20);
}

#[test]
fn a_gpt_repeats_bit_for_bit_on_every_mesh() {
    check_training(GPT, &["mesh.data=4"], 10);
    let fsdp = ["mesh.data=1", "mesh.fsdp=4"];
    let both = ["mesh.data=2", "mesh.fsdp=2"];
    let tensor = ["mesh.data=2", "mesh.tensor=2"];
    let (microbatches, scan) = ("train.num_microbatches=2", "model.scan_layers=true");
    let cases = [
        (fsdp, ["parallel.zero=1", "train.precision=bf16"]),
        (tensor, [scan, microbatches]),
        (fsdp, ["parallel.zero=3", scan]),
        (both, ["parallel.zero=3", microbatches]),
    ];
    for (mesh, sets) in cases {
        check_training(GPT, &[mesh, sets].concat(), 10);
    }
}

#[test]
fn resnet20_repeats_bit_for_bit() {
    check_training(RESNET20, &["mesh.data=4", "train.global_batch=32"], 2);
}
