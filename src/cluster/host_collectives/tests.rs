//! Collectives of several processes in one, without XLA.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use hlo::{DType, Reduction};

use super::call::ReplicaCall;
use super::exchange::{Exchange, Outbox};
use super::frame::{FrameKind, Header, Meeting, Payload};
use crate::pjrt::{
    CallBuffers, CollectiveKind, CollectiveSite, HostTensor, LaunchInfo, flush_denormals,
};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// A call whose results go to a channel.
pub(super) struct TestCall {
    exchange: Arc<Exchange<TestCall>>,
    launch: LaunchInfo,
    replica: usize,
    num_replicas: usize,
    local: Range<usize>,
    site: Arc<CollectiveSite>,
    types: Arc<[HostTensor]>,
    result_types: Vec<HostTensor>,
    operands: Vec<Payload>,
    results: Vec<Payload>,
    sender: Option<Sender<Completion>>,
}

type Completion = Result<Vec<Vec<u8>>, String>;

impl ReplicaCall for TestCall {
    fn launch(&self) -> LaunchInfo {
        self.launch
    }

    fn num_replicas(&self) -> usize {
        self.num_replicas
    }

    fn local_replicas(&self) -> impl Iterator<Item = usize> {
        self.local.clone()
    }

    fn replica(&self) -> usize {
        self.replica
    }

    fn site(&self) -> &CollectiveSite {
        &self.site
    }

    fn operand_types(&self) -> impl Iterator<Item = &HostTensor> {
        self.types.iter()
    }

    fn result_types(&self) -> impl Iterator<Item = &HostTensor> {
        self.result_types.iter()
    }

    fn buffers(&mut self) -> CallBuffers<'_> {
        CallBuffers {
            operands: self.operands.iter().map(Payload::bytes).collect(),
            results: self.results.iter_mut().map(Payload::bytes_mut).collect(),
        }
    }

    fn complete(mut self, result: Result<(), &str>) {
        let completion = match result {
            Ok(()) => Ok(self.results.iter().map(|result| result.bytes().to_vec()).collect()),
            Err(reason) => Err(reason.to_owned()),
        };
        self.finish(completion);
    }
}

impl TestCall {
    /// As a call of XLA does, an error fails the launch.
    fn finish(&mut self, completion: Completion) {
        let Some(sender) = self.sender.take() else { return };
        if let Err(reason) = &completion {
            self.exchange.fail(self.launch.id, reason);
        }
        let _ = sender.send(completion);
    }
}

impl Drop for TestCall {
    fn drop(&mut self) {
        self.finish(Err("abandoned".to_owned()));
    }
}

fn zeros(num_bytes: usize) -> Payload {
    Payload::new(num_bytes, &Arc::default())
}

/// Random numbers.
#[derive(Clone)]
pub(super) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// SplitMix64.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for index in (1..items.len()).rev() {
            items.swap(index, self.below(index + 1));
        }
    }
}

/// How many random cases a test tries: by hand more, with the environment variable.
fn num_cases(default: u64) -> u64 {
    let set = std::env::var("LOCKSTEP_FUZZ_CASES").ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(default)
}

type Exchanges = Arc<OnceLock<Vec<Weak<Exchange<TestCall>>>>>;
type Sent = (usize, usize, Header, Arc<Payload>);

/// Hands frames over within this process, by a thread that may delay and reorder them.
struct Courier {
    process_index: usize,
    num_processes: usize,
    sender: Mutex<Sender<Sent>>,
}

impl Outbox for Courier {
    fn process_index(&self) -> usize {
        self.process_index
    }

    fn num_processes(&self) -> usize {
        self.num_processes
    }

    fn send(&self, process: usize, header: Header, payload: Arc<Payload>) {
        let _ = self.sender.lock().unwrap().send((self.process_index, process, header, payload));
    }

    fn name(&self, process: usize) -> String {
        format!("process {process} (here)")
    }

    fn close(&self, _: Duration) -> bool {
        true
    }
}

/// Delivers what arrives, in random order if there is a seed.
fn carry(received: &Receiver<Sent>, exchanges: &Exchanges, random: Option<u64>) {
    let mut random = random.map(Random::new);
    let mut held: Vec<Sent> = vec![];
    loop {
        match received.recv_timeout(Duration::from_micros(if held.is_empty() {
            50_000
        } else {
            100
        })) {
            Ok(sent) => held.push(sent),
            Err(mpsc::RecvTimeoutError::Disconnected) if held.is_empty() => return,
            Err(_) => {}
        }
        let is_held = random.as_mut().is_some_and(|random| random.below(3) == 0);
        if held.is_empty() || is_held {
            continue;
        }
        let index = random.as_mut().map_or(0, |random| random.below(held.len()));
        let (from, to, header, payload) = held.remove(index);
        if let Some(exchange) = exchanges.get().and_then(|all| all[to].upgrade()) {
            let mut copy = zeros(payload.bytes().len());
            copy.bytes_mut().copy_from_slice(payload.bytes());
            exchange.deliver(from, header, copy);
        }
    }
}

/// Exchanges of several processes between which frames are handed over in random order.
fn local_cluster(
    num_processes: usize,
    deadline: Duration,
    seed: Option<u64>,
) -> Vec<Arc<Exchange<TestCall>>> {
    if num_processes == 1 {
        return vec![Exchange::new(deadline, None).unwrap()];
    }
    let (sender, receiver) = mpsc::channel();
    let all: Exchanges = Arc::default();
    let exchanges: Vec<_> = (0..num_processes)
        .map(|process_index| {
            let sender = Mutex::new(sender.clone());
            let courier = Courier { process_index, num_processes, sender };
            Exchange::new(deadline, Some(Box::new(courier))).unwrap()
        })
        .collect();
    assert!(all.set(exchanges.iter().map(Arc::downgrade).collect()).is_ok());
    thread::spawn(move || carry(&receiver, &all, seed));
    exchanges
}

/// One collective of a program.
#[derive(Clone, Debug)]
pub(super) struct TestSite {
    site: Arc<CollectiveSite>,
    types: Arc<[HostTensor]>,
    result_types: Vec<HostTensor>,
}

impl TestSite {
    pub fn new(
        index: usize,
        kind: CollectiveKind,
        groups: Vec<usize>,
        group_size: usize,
        types: Vec<HostTensor>,
    ) -> Self {
        let result_types = types.iter().map(|ty| {
            let mut result = ty.clone();
            match kind {
                CollectiveKind::AllGather { dim } => result.dims[dim] *= group_size,
                CollectiveKind::ReduceScatter { dim, .. } => result.dims[dim] /= group_size,
                CollectiveKind::AllToAll { split_dim, concat_dim } => {
                    result.dims[split_dim] /= group_size;
                    result.dims[concat_dim] *= group_size;
                }
                _ => {}
            }
            result
        });
        let result_types = result_types.collect();
        let site = Arc::new(CollectiveSite { index, kind, groups, group_size });
        Self { site, types: types.into(), result_types }
    }

    /// All replicas in one group.
    pub fn all_reduce(index: usize, num_replicas: usize, len: usize) -> Self {
        let ty = HostTensor { dtype: DType::F32, dims: vec![len] };
        let kind = CollectiveKind::AllReduce(Reduction::Sum);
        Self::new(index, kind, (0..num_replicas).collect(), num_replicas, vec![ty])
    }

    /// Random operands of a replica.
    fn operands(&self, seed: u64) -> Vec<Payload> {
        let mut random = Random::new(seed);
        let operand = |ty: &HostTensor| {
            let mut payload = zeros(ty.num_bytes());
            fill(ty.dtype, &mut random, payload.bytes_mut());
            payload
        };
        self.types.iter().map(operand).collect()
    }
}

/// Numbers in [-1, 1), or random bits of integers.
fn fill(dtype: DType, random: &mut Random, bytes: &mut [u8]) {
    let mut unit = || (random.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
    match dtype {
        DType::F64 => bytemuck::cast_slice_mut(bytes).fill_with(&mut unit),
        DType::F32 => bytemuck::cast_slice_mut(bytes).fill_with(|| unit() as f32),
        DType::F16 => bytemuck::cast_slice_mut(bytes).fill_with(|| half::f16::from_f64(unit())),
        DType::Bf16 => bytemuck::cast_slice_mut(bytes).fill_with(|| half::bf16::from_f64(unit())),
        DType::Pred => bytes.fill_with(|| u8::from(unit() > 0.0)),
        _ => bytes.fill_with(|| random.next() as u8),
    }
}

/// Runs a program on all replicas of a process, each with a thread that starts one call after the
/// other. What each replica got at each site.
pub(super) fn launch(
    exchange: &Arc<Exchange<TestCall>>,
    launch: LaunchInfo,
    local: Range<usize>,
    num_replicas: usize,
    program: &[TestSite],
    seed: u64,
) -> HashMap<usize, Vec<Completion>> {
    exchange.begin(launch);
    let results = thread::scope(|scope| {
        let replicas = local.clone().map(|replica| {
            let local = local.clone();
            let run = move || {
                let _flushed = flush_denormals();
                let mut random = Random::new(seed ^ launch.number << 32 ^ replica as u64);
                let mut completions = vec![];
                for site in program {
                    if random.below(4) == 0 {
                        thread::sleep(Duration::from_micros(random.below(500) as u64));
                    }
                    let (sender, receiver) = mpsc::channel();
                    let seed =
                        launch.number << 40 | (site.site.index as u64) << 20 | replica as u64;
                    exchange.start(TestCall {
                        exchange: exchange.clone(),
                        launch,
                        replica,
                        num_replicas,
                        local: local.clone(),
                        site: site.site.clone(),
                        types: site.types.clone(),
                        result_types: site.result_types.clone(),
                        operands: site.operands(seed),
                        results: site.result_types.iter().map(|ty| zeros(ty.num_bytes())).collect(),
                        sender: Some(sender),
                    });
                    completions.push(receiver.recv_timeout(LONG).unwrap());
                    if completions.last().is_some_and(Result::is_err) {
                        break;
                    }
                }
                completions
            };
            (replica, scope.spawn(run))
        });
        let replicas: Vec<_> = replicas.collect();
        replicas.into_iter().map(|(replica, run)| (replica, run.join().unwrap())).collect()
    });
    exchange.end(launch.id);
    results
}

/// Runs a program in all processes. What each replica got at each site.
pub(super) fn launch_everywhere(
    exchanges: &[Arc<Exchange<TestCall>>],
    number: u64,
    num_replicas: usize,
    program: &[TestSite],
    seed: u64,
) -> Vec<Vec<Completion>> {
    let num_local = num_replicas / exchanges.len();
    let mut results = thread::scope(|scope| {
        let run = |(process, exchange)| {
            let local = process * num_local..(process + 1) * num_local;
            // Ids differ between processes.
            let key =
                LaunchInfo { id: number as i64 * 7 + process as i64, number, program_digest: 5 };
            scope.spawn(move || launch(exchange, key, local, num_replicas, program, seed))
        };
        let processes: Vec<_> = exchanges.iter().enumerate().map(run).collect();
        let results = processes.into_iter().map(|process| process.join().unwrap());
        results.flatten().collect::<HashMap<_, _>>()
    });
    (0..num_replicas).map(|replica| results.remove(&replica).unwrap()).collect()
}

fn random_site(random: &mut Random, index: usize, num_replicas: usize) -> TestSite {
    let sizes: Vec<_> =
        (1..=num_replicas).filter(|size| num_replicas.is_multiple_of(*size)).collect();
    let group_size = random.one_of(&sizes);
    let mut groups: Vec<usize> = (0..num_replicas).collect();
    if random.below(2) == 0 {
        random.shuffle(&mut groups);
    }
    let reduction = random.one_of(Reduction::ALL);
    let rank = 1 + random.below(3);
    let (dim, other) = (random.below(rank), random.below(rank));
    let kind = match random.below(5) {
        0 => CollectiveKind::AllReduce(reduction),
        1 => CollectiveKind::AllGather { dim },
        2 => CollectiveKind::ReduceScatter { dim, reduction },
        3 => CollectiveKind::AllToAll { split_dim: dim, concat_dim: other },
        _ => {
            let mut targets: Vec<_> = (0..group_size).collect();
            random.shuffle(&mut targets);
            targets.truncate(random.below(group_size + 1));
            let pairs = targets.into_iter().map(|target| (random.below(group_size), target));
            CollectiveKind::CollectivePermute { pairs: pairs.collect() }
        }
    };
    let is_bitwise = matches!(reduction, Reduction::And | Reduction::Or);
    let types = (0..1 + random.below(3)).map(|_| {
        let dtypes: Vec<_> =
            DType::ALL.into_iter().filter(|x| !is_bitwise || !x.is_float()).collect();
        // Some are cut into slices, and some are long enough for the pool.
        let bounds = random.one_of(&[[3, 3, 2], [40, 7, 5], [40, 90, 40]]);
        let mut dims: Vec<_> = (0..rank).map(|at| random.below(bounds[at])).collect();
        if matches!(kind, CollectiveKind::ReduceScatter { .. } | CollectiveKind::AllToAll { .. }) {
            dims[dim] = dims[dim].div_ceil(group_size) * group_size;
        }
        HostTensor { dtype: random.one_of(&dtypes), dims }
    });
    let types = types.collect();
    TestSite::new(index, kind, groups, group_size, types)
}

#[test]
fn several_processes_compute_the_bits_of_one() {
    for seed in 0..num_cases(60) {
        let mut random = Random::new(seed);
        let num_processes = 1 + random.below(4);
        let num_replicas = num_processes * (1 + random.below(3));
        let num_sites = 1 + random.below(5);
        let mut program: Vec<_> =
            (0..num_sites).map(|index| random_site(&mut random, index, num_replicas)).collect();
        // A site that is visited again.
        program.push(program[0].clone());
        let one = local_cluster(1, LONG, None);
        let many = local_cluster(num_processes, LONG, Some(seed));
        for number in 0..3 {
            let expected = launch_everywhere(&one, number, num_replicas, &program, seed);
            let found = launch_everywhere(&many, number, num_replicas, &program, seed);
            for replica in 0..num_replicas {
                assert!(
                    expected[replica].iter().all(Result::is_ok),
                    "{seed}: {:?}",
                    expected[replica]
                );
                for (site, expected) in expected[replica].iter().enumerate() {
                    let found = &found[replica][site];
                    assert!(
                        found == expected,
                        "seed {seed}, launch {number}, replica {replica} of {num_replicas} in \
                         {num_processes} processes, {:?}: {:?}",
                        program[site],
                        found.as_ref().err()
                    );
                }
            }
        }
        for exchange in one.iter().chain(&many) {
            assert_eq!(exchange.num_launches(), 0);
            exchange.close();
        }
    }
}

/// Two processes of one replica each, in which the first one runs `programs.0`, the second
/// `programs.1`.
fn launch_two(
    exchanges: &[Arc<Exchange<TestCall>>],
    digests: [u64; 2],
    programs: [&[TestSite]; 2],
) -> [String; 2] {
    thread::scope(|scope| {
        let run = |process: usize| {
            let key = LaunchInfo { id: 3, number: 17, program_digest: digests[process] };
            scope.spawn(move || {
                let replicas = process..process + 1;
                let mut results =
                    launch(&exchanges[process], key, replicas, 2, programs[process], 0);
                results.remove(&process).unwrap().pop().unwrap().unwrap_err()
            })
        };
        let (zero, one) = (run(0), run(1));
        [zero.join().unwrap(), one.join().unwrap()]
    })
}

#[test]
fn programs_that_differ_are_noticed() {
    let program = [TestSite::all_reduce(4, 2, 10)];
    let longer = [TestSite::all_reduce(4, 2, 20)];
    let gather = CollectiveKind::AllGather { dim: 0 };
    let types = vec![HostTensor { dtype: DType::F32, dims: vec![10] }];
    let permute = CollectiveKind::CollectivePermute { pairs: vec![(0, 0), (1, 1)] };
    let permute = [TestSite::new(4, permute, vec![0, 1], 2, types.clone())];
    let gather = [TestSite::new(4, gather, vec![1, 0], 2, types)];
    let cases: [(_, [&[TestSite]; 2], _); 3] = [
        ([1, 2], [&program, &program], "runs another program in launch 17"),
        ([1, 1], [&program, &longer], "bytes for collective 4 (all_reduce), which needs"),
        ([1, 1], [&gather, &longer], "bytes for collective 4"),
    ];
    for (digests, programs, expected) in cases {
        let exchanges = local_cluster(2, LONG, None);
        let errors = launch_two(&exchanges, digests, programs);
        assert!(errors.iter().any(|error| error.contains(expected)), "{errors:?}");
        for (process, error) in errors.iter().enumerate() {
            assert!(error.contains(&format!("process {}", 1 - process)), "{error}");
        }
        exchanges.iter().for_each(|exchange| exchange.close());
    }
    // A replica that needs nothing from the other process does not wait, whatever that one does.
    let exchanges = local_cluster(2, Duration::from_millis(200), None);
    let key = LaunchInfo { id: 3, number: 17, program_digest: 1 };
    let results = launch(&exchanges[0], key, 0..1, 2, &permute, 0);
    assert!(results[&0][0].is_ok());
}

#[test]
fn a_failure_is_told_to_the_other_processes() {
    let program = [TestSite::all_reduce(4, 2, 10)];
    let exchanges = local_cluster(2, LONG, None);
    let key = LaunchInfo { id: 3, number: 0, program_digest: 1 };
    thread::scope(|scope| {
        let waits = scope.spawn(|| launch(&exchanges[0], key, 0..1, 2, &program, 0));
        exchanges[1].begin(LaunchInfo { id: 5, ..key });
        exchanges[1].fail(5, "replica 1 failed: out of memory");
        exchanges[1].end(5);
        let error = waits.join().unwrap()[&0][0].clone().unwrap_err();
        assert_eq!(error, "process 1 (here): replica 1 failed: out of memory");
    });
    // The next launch is not affected.
    let results = launch_everywhere(&exchanges, 1, 2, &program, 0);
    assert!(results.iter().flatten().all(Result::is_ok));
    // A failure may come before the launch begins.
    let key = LaunchInfo { number: 2, ..key };
    exchanges[1].begin(key);
    exchanges[1].fail_all("stuck");
    let results = launch(&exchanges[0], key, 0..1, 2, &program, 0);
    assert_eq!(results[&0][0], Err("process 1 (here): stuck".to_owned()));
    exchanges[1].end(key.id);
    let results = launch(&exchanges[1], LaunchInfo { number: 3, ..key }, 1..2, 2, &program, 0);
    assert_eq!(results[&1][0], Err("stuck".to_owned()));
}

#[test]
fn a_process_that_sends_nothing_is_named_after_the_deadline() {
    let program = [TestSite::all_reduce(4, 2, 10)];
    let exchanges = local_cluster(2, Duration::from_millis(100), None);
    let key = LaunchInfo { id: 3, number: 0, program_digest: 1 };
    let results = launch(&exchanges[0], key, 0..1, 2, &program, 0);
    let error = results[&0][0].clone().unwrap_err();
    assert!(
        error.contains("process 1 (here) did not arrive at collective 4 (all_reduce)"),
        "{error}"
    );
    assert!(error.contains("replicas [0] wait"), "{error}");
}

#[test]
fn waits_for_a_late_process_are_measured() {
    let program = [TestSite::all_reduce(4, 2, 10), TestSite::all_reduce(5, 2, 50_000)];
    let exchanges = local_cluster(2, LONG, None);
    let late = Duration::from_millis(60);
    let key = LaunchInfo { id: 3, number: 0, program_digest: 1 };
    thread::scope(|scope| {
        scope.spawn(|| launch(&exchanges[0], key, 0..1, 2, &program, 0));
        thread::sleep(late);
        launch(&exchanges[1], key, 1..2, 2, &program, 0);
    });
    let [zero, one] = [0, 1].map(|process| exchanges[process].take_waits());
    assert_eq!([zero.len(), one.len()], [1, 1]);
    assert!(zero[0].waited >= late / 2 && zero[0].waited < LONG / 2, "{zero:?}");
    assert!(zero[0].last.iter().any(|last| last.process_index == 1 && last.waited >= late / 2));
    assert!(one[0].waited < zero[0].waited, "{one:?}");
    assert_eq!(exchanges[0].take_waits(), []);
}

#[test]
fn a_process_without_links_refuses_groups_of_several() {
    let exchange = &local_cluster(1, LONG, None)[0];
    let key = LaunchInfo { id: 3, number: 0, program_digest: 1 };
    let program = [TestSite::all_reduce(4, 4, 10)];
    let results = launch(exchange, key, 0..2, 4, &program, 0);
    let error = results[&0][0].clone().unwrap_err();
    assert!(error.contains("replica 2 is not in this process"), "{error}");
    // A cluster of two that gets replicas as of four.
    let exchanges = local_cluster(2, LONG, None);
    let results = launch(&exchanges[0], key, 0..1, 4, &program, 0);
    let error = results[&0][0].clone().unwrap_err();
    assert!(error.contains("process 0 of 4, this is process 0 of 2"), "{error}");
}

/// Frames with random contents fail launches at most.
#[test]
fn nonsense_from_a_process_fails_launches_and_nothing_else() {
    let mut random = Random::new(7);
    let program = [TestSite::all_reduce(0, 3, 10), TestSite::all_reduce(1, 3, 30_000)];
    let exchanges = local_cluster(3, LONG, Some(7));
    let mut num_failed = 0;
    for number in 0..num_cases(2_000).div_ceil(20) {
        for _ in 0..20 {
            let kinds =
                [FrameKind::Operands, FrameKind::Totals, FrameKind::Operands, FrameKind::Failure];
            let meeting = Meeting {
                site: random.below(4),
                visit: random.below(2) as u64,
                group: random.below(2),
            };
            let header = Header {
                kind: random.one_of(&kinds),
                // Of this launch, the next, an old one, or one that never comes.
                launch: (number + random.one_of(&[0, 0, 1, 90_000]))
                    .saturating_sub(random.one_of(&[0, 9])),
                digest: random.one_of(&[5, 5, 6]),
                meeting,
            };
            // Few of them hit the launch that runs, so that some succeed.
            if random.below(8) > 0 && header.launch == number {
                continue;
            }
            let num_bytes = random.one_of(&[0, 1, 40, 40_000, 100_000]);
            let (from, to) = (random.below(3), random.below(3));
            exchanges[to].deliver(from, header, zeros(num_bytes));
        }
        let results = launch_everywhere(&exchanges, number, 3, &program, 0);
        num_failed += usize::from(results.iter().flatten().any(Result::is_err));
    }
    assert!(num_failed > 0);
    let results = launch_everywhere(&exchanges, 1 << 40, 3, &program, 0);
    assert!(results.iter().flatten().all(Result::is_ok), "{results:?}");
}
