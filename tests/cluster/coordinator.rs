//! The coordinator and its sessions over the loopback interface, several processes' sessions in
//! this one process.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lockstep::cluster::{
    AgreedWish, Cause, Contact, Coordinator, CoordinatorOptions, Directive, Error, HeldProcesses,
    Holders, HostPlace, JobChange, JobSize, JoinOptions, Phase, Report, Secret, Session, SlowCause,
    SlowPeer, StepTimes, SupervisorOptions, SupervisorSession, Watcher, Wish,
};

const SECOND: Duration = Duration::from_secs(1);

fn secret() -> Secret {
    Secret::new(vec![7; 32])
}

#[derive(Default)]
struct Log {
    reports: Mutex<Vec<Report>>,
    changes: Mutex<Vec<JobChange>>,
    refused: Mutex<Vec<String>>,
}

impl Watcher for Log {
    fn report(&self, report: &Report, _: Instant) {
        self.reports.lock().unwrap().push(report.clone());
    }

    fn changed(&self, change: &JobChange) {
        self.changes.lock().unwrap().push(change.clone());
    }

    fn refused(&self, _: SocketAddr, why: &str) {
        self.refused.lock().unwrap().push(why.to_owned());
    }
}

struct Cluster {
    coordinator: Option<Coordinator>,
    address: SocketAddr,
    log: Arc<Log>,
    num_processes: usize,
}

impl Cluster {
    fn start(num_processes: usize) -> Self {
        Self::with(num_processes, |_| {})
    }

    fn with(num_processes: usize, change: impl FnOnce(&mut CoordinatorOptions)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::new(Log::default());
        let mut options = CoordinatorOptions::new("job", secret(), num_processes);
        options.heartbeat = Duration::from_millis(100);
        options.dead_after = SECOND;
        change(&mut options);
        let coordinator =
            Some(Coordinator::start(listener, options, Arc::clone(&log) as Arc<_>).unwrap());
        Self { coordinator, address, log, num_processes }
    }

    fn contact(&self) -> Contact {
        Contact {
            address: self.address.to_string(),
            job: "job".to_owned(),
            secret: secret(),
            tls: None,
        }
    }

    fn options(&self, process_index: usize) -> JoinOptions {
        JoinOptions {
            contact: self.contact(),
            generation: None,
            process_index,
            num_processes: self.num_processes,
            host: format!("host{process_index}"),
            data_address: format!("127.0.0.1:{process_index}"),
            program: vec![("binary".to_owned(), "b".to_owned())],
            replaces_slow: false,
            deadline: 10 * SECOND,
            missing: Arc::default(),
        }
    }

    fn join_all(&self) -> Vec<Session> {
        let joining: Vec<_> = (0..self.num_processes)
            .map(|process| {
                let options = self.options(process);
                thread::spawn(move || Session::join(options).unwrap())
            })
            .collect();
        joining.into_iter().map(|joining| joining.join().unwrap()).collect()
    }

    fn supervise(&self, host_index: usize, num_hosts: usize) -> SupervisorSession {
        SupervisorSession::register(self.supervisor(host_index, num_hosts)).unwrap()
    }

    fn supervisor(&self, host_index: usize, num_hosts: usize) -> SupervisorOptions {
        SupervisorOptions {
            contact: self.contact(),
            id: host_index as u64,
            size: JobSize::fixed(num_hosts, self.num_processes),
            host: format!("host{host_index}"),
            host_index: Some(host_index),
            num_local: self.num_processes / num_hosts,
            snapshot_address: String::new(),
            held: HeldProcesses::default(),
            deadline: 5 * SECOND,
        }
    }
}

/// Runs `work` for each session on a thread of its own.
fn all<T: Send + 'static>(
    sessions: &[Session],
    work: impl Fn(&Session) -> T + Clone + Send + 'static,
) -> Vec<T> {
    all_later(sessions, work).into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn all_later<T: Send + 'static>(
    sessions: &[Session],
    work: impl Fn(&Session) -> T + Clone + Send + 'static,
) -> Vec<JoinHandle<T>> {
    let start = |session: &Session| {
        let (session, work) = (session.clone(), work.clone());
        thread::spawn(move || work(&session))
    };
    sessions.iter().map(start).collect()
}

fn wait_for(what: &str, mut is_true: impl FnMut() -> bool) {
    let until = Instant::now() + 10 * SECOND;
    while !is_true() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn processes_join_meet_and_leave() {
    let cluster = Cluster::start(3);
    let sessions = cluster.join_all();
    for (process, session) in sessions.iter().enumerate() {
        assert_eq!((session.generation(), session.process_index()), (1, process));
        assert_eq!(session.num_processes(), 3);
        assert_eq!(session.peers()[2].host, "host2");
        assert_eq!(session.peers()[1].data_address, "127.0.0.1:1");
        assert_eq!(session.peers()[0].pid, std::process::id());
        assert!(session.history().is_empty());
    }
    for round in 0..5u8 {
        let gathered = all(&sessions, move |session| {
            session
                .gather("losses", vec![session.process_index() as u8, round], 5 * SECOND)
                .unwrap()
        });
        assert_eq!(gathered, vec![vec![vec![0, round], vec![1, round], vec![2, round]]; 3]);
    }
    all(&sessions, |session| session.barrier("end", 5 * SECOND).unwrap());
    all(&sessions, |session| session.leave("done").unwrap());
    assert!(cluster.coordinator.as_ref().unwrap().wait_until_ended(SECOND));
    let changes = cluster.log.changes.lock().unwrap();
    assert!(changes.contains(&JobChange::Ended { is_success: true, text: "done".to_owned() }));
}

#[test]
fn only_the_first_process_hears_who_is_slow() {
    let cluster = Cluster::start(2);
    let sessions = cluster.join_all();
    let slow = |since_step| SlowPeer {
        process_index: 1,
        host: "host1".to_owned(),
        factor: 1.5,
        since_step,
        cause: SlowCause::Input,
        machine: "84 C".into(),
        text: "process 1 is slow".to_owned(),
    };
    let coordinator = cluster.coordinator.as_ref().unwrap();
    for since_step in [3, 9] {
        coordinator.name_slow(&slow(since_step));
        let mut heard = vec![];
        wait_for("the news", || {
            heard.extend(sessions[0].take_slow());
            !heard.is_empty()
        });
        assert_eq!(heard, [slow(since_step)]);
    }
    thread::sleep(Duration::from_millis(50));
    assert_eq!(sessions[0].take_slow(), []);
    assert_eq!(sessions[1].take_slow(), []);
}

#[test]
fn keys_are_set_once_and_waited_for() {
    let cluster = Cluster::start(2);
    let sessions = cluster.join_all();
    let (zero, one) = (&sessions[0], sessions[1].clone());
    let late = thread::spawn(move || one.get(b"key", 5 * SECOND));
    thread::sleep(Duration::from_millis(50));
    zero.put(b"key", b"value", false).unwrap();
    assert_eq!(late.join().unwrap().unwrap(), b"value");
    assert!(matches!(zero.put(b"key", b"other", false), Err(Error::KeyIsSet(key)) if key == "key"));
    zero.put(b"key", b"other", true).unwrap();
    assert_eq!(zero.try_get(b"key").unwrap(), b"other");
    assert!(zero.delete(b"key").unwrap());
    assert!(!zero.delete(b"key").unwrap());
    assert!(matches!(zero.try_get(b"key"), Err(Error::KeyNotSet(_))));
    let began = Instant::now();
    assert!(matches!(zero.get(b"key", Duration::from_millis(100)), Err(Error::KeyNotSet(_))));
    assert!(began.elapsed() < SECOND);
    zero.put(b"large", &vec![1; 3 << 20], false).unwrap();
    assert_eq!(zero.try_get(b"large").unwrap().len(), 3 << 20);
    let error = zero.put(b"larger", &vec![1; 5 << 20], false).unwrap_err();
    assert!(error.to_string().contains("too large for the key-value store"), "{error}");
    let fill = |number: u8| zero.put(&[number], &vec![1; 3 << 20], false);
    let error = (0..30).map(fill).find_map(Result::err).unwrap();
    assert!(error.to_string().contains("holds at most 67108864 bytes"), "{error}");
}

#[test]
fn a_plugin_gets_the_codes_it_expects() {
    use lockstep::pjrt::{Code, KeyValueStore};
    let cluster = Cluster::start(1);
    let store: Arc<dyn KeyValueStore> = Arc::new(cluster.join_all().remove(0));
    let codes = [
        store.try_get(b"a").unwrap_err().code,
        store.get(b"a", Duration::from_millis(20)).unwrap_err().code,
    ];
    assert_eq!(codes, [Code::NotFound, Code::DeadlineExceeded]);
    store.put(b"a", b"1").unwrap();
    assert_eq!(store.put(b"a", b"2").unwrap_err().code, Code::AlreadyExists);
    assert_eq!(store.try_get(b"a").unwrap(), b"1");
}

#[test]
fn who_did_not_join_is_named() {
    let cluster = Cluster::start(4);
    let joining: Vec<_> = [0, 2]
        .map(|process| {
            let options =
                JoinOptions { deadline: Duration::from_millis(500), ..cluster.options(process) };
            thread::spawn(move || Session::join(options).err().unwrap().to_string())
        })
        .into();
    let errors: Vec<_> = joining.into_iter().map(|thread| thread.join().unwrap()).collect();
    let pid = std::process::id();
    let expected = format!(
        "after 0 s: processes 1 and 3 have not joined; joined: 0 (host host0, pid {pid}), 2 (host \
         host2, pid {pid})"
    );
    assert_eq!(errors, [expected.clone(), expected]);
}

#[test]
fn nobody_there_is_an_error_within_the_deadline() {
    let mut cluster = Cluster::start(1);
    cluster.coordinator = None;
    let began = Instant::now();
    let options = JoinOptions { deadline: Duration::from_millis(300), ..cluster.options(0) };
    let error = Session::join(options).err().unwrap().to_string();
    assert!(error.contains("no coordinator answered at 127.0.0.1:"), "{error}");
    assert!(error.contains("refused"), "{error}");
    assert!(began.elapsed() < 2 * SECOND);
}

#[test]
fn a_different_program_is_refused_and_ends_the_wait_of_the_others() {
    let cluster = Cluster::start(3);
    let first = cluster.options(0);
    let first = thread::spawn(move || Session::join(first).err().unwrap().to_string());
    wait_for("the first has joined", || {
        let second = JoinOptions { deadline: SECOND / 10, ..cluster.options(1) };
        let error = Session::join(second).err().unwrap().to_string();
        error.contains("joined: 0 (host host0")
    });
    let duplicate = JoinOptions { host: "elsewhere".to_owned(), ..cluster.options(0) };
    let error = Session::join(duplicate).err().unwrap().to_string();
    assert!(error.contains("process 0 is already running on host host0"), "{error}");
    let mut other = cluster.options(2);
    other.program[0].1 = "c".to_owned();
    let expected = "process 2 (host host2, pid";
    let error = Session::join(other).err().unwrap().to_string();
    assert!(error.contains(expected), "{error}");
    assert!(error.contains("binary is `c`, there it is `b`"), "{error}");
    assert_eq!(first.join().unwrap(), error);
}

#[test]
fn a_failure_is_heard_by_all_at_once() {
    let cluster = Cluster::with(4, |options| options.heartbeat = 5 * SECOND);
    let sessions = cluster.join_all();
    let (sender, receiver) = mpsc::channel();
    for session in &sessions[1..] {
        let (sender, process) = (sender.clone(), session.process_index());
        session.on_end(move |reason| {
            sender.send((process, reason.to_owned(), Instant::now())).unwrap();
        });
    }
    let waiting = sessions[1].clone();
    let waiting = thread::spawn(move || waiting.gather("never", vec![], 60 * SECOND).unwrap_err());
    thread::sleep(Duration::from_millis(100));
    let began = Instant::now();
    sessions[0].fail(Cause::Own, "the loss is not finite");
    for _ in 1..4 {
        let (_, reason, at) = receiver.recv_timeout(5 * SECOND).unwrap();
        let pid = std::process::id();
        assert_eq!(reason, format!("process 0 (host host0, pid {pid}): the loss is not finite"));
        assert!(at - began < Duration::from_millis(200), "{:?}", at - began);
    }
    let error = waiting.join().unwrap().to_string();
    assert!(error.contains("the loss is not finite"), "{error}");
    let error = sessions[2].may_leave(0).unwrap_err().to_string();
    assert!(error.contains("the loss is not finite"), "{error}");
    let late = Session::join(cluster.options(0)).err().unwrap().to_string();
    assert!(late.contains("the loss is not finite"), "{late}");
}

#[test]
fn a_lost_connection_gives_way_to_the_cause() {
    let cluster = Cluster::start(3);
    let sessions = cluster.join_all();
    sessions[0].fail(Cause::PeerLost, "process 2 closed the connection");
    sessions[1].fail(Cause::PeerLost, "process 2 closed the connection");
    sessions[2].fail(Cause::Own, "out of memory");
    wait_for("the end", || sessions[0].ended().is_some());
    assert!(sessions[0].ended().unwrap().ends_with("out of memory"));

    let cluster = Cluster::start(2);
    let sessions = cluster.join_all();
    sessions[0].fail(Cause::PeerLost, "process 1 closed the connection");
    wait_for("the end", || sessions[1].ended().is_some());
    let reason = sessions[1].ended().unwrap();
    let expected = "process 1 closed the connection (process 0 (host host0";
    assert!(reason.starts_with(expected), "{reason}");
}

#[test]
fn a_process_without_heartbeats_is_dead() {
    let cluster = Cluster::start(2);
    let mut sessions = cluster.join_all();
    let began = Instant::now();
    drop(sessions.pop());
    wait_for("the end", || sessions[0].ended().is_some());
    let reason = sessions[0].ended().unwrap();
    assert!(reason.starts_with("process 1 (host host1, pid"), "{reason}");
    assert!(reason.ends_with("no heartbeat for 1 s"), "{reason}");
    assert!(began.elapsed() < 2 * SECOND, "{:?}", began.elapsed());
}

#[test]
fn a_coordinator_that_stops_says_so_and_one_that_vanishes_is_noticed() {
    let mut cluster = Cluster::start(1);
    let session = cluster.join_all().remove(0);
    cluster.coordinator = None;
    wait_for("the end", || session.ended().is_some());
    assert_eq!(session.ended().unwrap(), "the coordinator was stopped");
    assert!(matches!(session.try_get(b"a"), Err(Error::Ended(_))));

    // A proxy that stops forwarding, as a broken network would.
    let cluster = Cluster::start(1);
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = cluster.options(0);
    options.contact.address = proxy.local_addr().unwrap().to_string();
    let joining = thread::spawn(move || Session::join(options).unwrap());
    let (client, server) =
        (proxy.accept().unwrap().0, TcpStream::connect(cluster.address).unwrap());
    let is_cut = Arc::new(Mutex::new(false));
    for (mut from, mut to) in [
        (client.try_clone().unwrap(), server.try_clone().unwrap()),
        (server.try_clone().unwrap(), client.try_clone().unwrap()),
    ] {
        let is_cut = Arc::clone(&is_cut);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(num_bytes @ 1..) = from.read(&mut buffer) {
                if !*is_cut.lock().unwrap() && to.write_all(&buffer[..num_bytes]).is_err() {
                    break;
                }
            }
        });
    }
    let session = joining.join().unwrap();
    *is_cut.lock().unwrap() = true;
    let began = Instant::now();
    wait_for("the end", || session.ended().is_some());
    let reason = session.ended().unwrap();
    assert!(reason.starts_with("no answer from the coordinator at 127.0.0.1:"), "{reason}");
    assert!(began.elapsed() < 4 * SECOND, "{:?}", began.elapsed());
}

/// A process that fails soon after its first checkpoint has made progress.
#[test]
fn the_first_checkpoint_is_reported_at_once() {
    let cluster = Cluster::with(1, |options| {
        options.heartbeat = 60 * SECOND;
        options.dead_after = 240 * SECOND;
    });
    let session = cluster.join_all().remove(0);
    let num_reports = || cluster.log.reports.lock().unwrap().len();
    wait_for("the first heartbeat", || num_reports() == 1);
    session.saved(3);
    wait_for("another one", || num_reports() == 2);
    session.saved(4);
    thread::sleep(Duration::from_millis(300));
    assert_eq!(num_reports(), 2, "only the first one is urgent");
}

#[test]
fn reports_arrive() {
    let cluster = Cluster::start(1);
    let session = cluster.join_all().remove(0);
    session.set_phase(Phase::Compile, 0);
    session.set_phase(Phase::Compute, 1);
    session.set_waits_for(&[0]);
    session.step_done(StepTimes { own: SECOND, ..StepTimes::default() });
    let reports = || cluster.log.reports.lock().unwrap();
    wait_for("a report", || reports().iter().any(|report| !report.steps.is_empty()));
    let all: Vec<_> = reports().clone();
    let changes: Vec<_> = all.iter().flat_map(|report| &report.changes).collect();
    assert_eq!(
        changes.iter().map(|change| (change.phase, change.step)).collect::<Vec<_>>(),
        [(Phase::Compile, 0), (Phase::Compute, 1)]
    );
    let last = all.last().unwrap();
    assert_eq!((last.phase, last.step, &last.waits_for[..]), (Phase::Compute, 1, &[0][..]));
    let steps: Vec<_> = all.iter().flat_map(|report| &report.steps).collect();
    assert_eq!(steps.len(), 1);
}

#[test]
fn all_processes_stop_after_the_same_step() {
    let cluster = Cluster::start(3);
    let sessions = cluster.join_all();
    let runs = all(&sessions, |session| {
        let mut events: Vec<(u64, AgreedWish)> = Vec::new();
        for step in 100.. {
            let due = session.may_leave(step).unwrap();
            events.extend(due.into_iter().map(|event| (step, event)));
            if events.iter().any(|(_, event)| event.wish == Wish::Stop) {
                return events;
            }
            if step == 150 && session.process_index() == 1 {
                session.wish(Wish::Save);
            }
            if step == 400 && session.process_index() == 2 {
                session.wish(Wish::Stop);
            }
            thread::sleep(Duration::from_micros(500 * (1 + session.process_index() as u64)));
        }
        unreachable!()
    });
    assert_eq!(runs[0], runs[1]);
    assert_eq!(runs[0], runs[2]);
    let wishes: HashMap<_, _> = runs[0].iter().map(|(step, event)| (event.wish, *step)).collect();
    assert!(wishes[&Wish::Save] > 150 && wishes[&Wish::Stop] > 400, "{wishes:?}");
}

#[test]
fn without_the_secret_there_is_no_answer() {
    let cluster = Cluster::start(2);
    let mut options = cluster.options(0);
    options.contact.secret = Secret::new(vec![8; 32]);
    for _ in 0..3 {
        let error = Session::join(options.clone()).err().unwrap().to_string();
        assert!(error.contains("does not have the token of this job"), "{error}");
        assert!(error.contains("need the same token and job name"), "{error}");
    }
    let mut options = cluster.options(0);
    options.contact.job = "other".to_owned();
    let error = Session::join(options).err().unwrap().to_string();
    assert!(error.contains("does not have the token of this job"), "{error}");
    let refused = || cluster.log.refused.lock().unwrap().clone();
    wait_for("a refusal", || !refused().is_empty());
    assert!(refused()[0].contains("it has another token, or belongs to another job"));
    assert_eq!(refused().len(), 1, "once per address");
    assert_eq!(cluster.join_all().len(), 2);
}

/// A generation starts on hosts with a process each.
fn start(generation: u64, first_process: usize, num_hosts: usize) -> Directive {
    let place = Some(HostPlace { first_process, num_processes: num_hosts, num_hosts });
    let holders = Holders::default();
    Directive::Start { generation, place, full_processes: num_hosts, holders }
}

#[test]
fn supervisors_restart_what_failed() {
    let cluster = Cluster::with(2, |options| options.size = Some(JobSize::fixed(2, 2)));
    let supervisors = [cluster.supervise(0, 2), cluster.supervise(1, 2)];
    let next = |host: usize| supervisors[host].next_directive(5 * SECOND).unwrap().unwrap();
    for host in 0..2 {
        assert_eq!(next(host), start(1, host, 2));
    }
    let sessions = cluster.join_all();
    supervisors[1].child_ended(1, 1, "killed by signal 9", None).unwrap();
    let reason =
        format!("process 1 (host host1, pid {}) ended: killed by signal 9", std::process::id());
    for host in 0..2 {
        let reason = reason.clone();
        assert_eq!(next(host), Directive::Kill { generation: 1, reason });
    }
    wait_for("the end", || sessions[0].ended().as_ref() == Some(&reason));
    assert_eq!(supervisors[0].next_directive(Duration::from_millis(50)).unwrap(), None);
    supervisors[0].child_ended(1, 0, "killed by signal 9", None).unwrap();
    for host in 0..2 {
        assert_eq!(next(host), start(2, host, 2));
    }
    let sessions = cluster.join_all();
    assert_eq!(sessions[1].generation(), 2);
    assert_eq!(
        (sessions[1].history()[0].reason.as_str(), sessions[1].history().len()),
        (&*reason, 1)
    );
    assert_eq!(sessions[1].history()[0].processes, [1]);
    let stale = JoinOptions { generation: Some(1), ..cluster.options(0) };
    assert!(Session::join(stale).err().unwrap().to_string().contains("killed by signal 9"));
    all(&sessions, |session| session.leave("done").unwrap());
    for (host, supervisor) in supervisors.iter().enumerate() {
        supervisor.child_ended(2, host, "exit status: 0", Some(0)).unwrap();
    }
    for host in 0..2 {
        let end = Directive::End { is_success: true, text: "done".to_owned(), signal: 0 };
        assert_eq!(next(host), end);
    }
}

/// Passes connections on. On the first one, all that follows the handshake is lost on the way back.
fn relay(to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let (client, server) = (client.unwrap(), TcpStream::connect(to).unwrap());
            let halves = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut &halves.0, &mut &halves.1));
            thread::spawn(move || {
                // Records of TLS: type, version, two bytes of length. The handshake ends with the
                // byte that the listening side sends: it, its type and the tag are 18.
                let (mut header, mut is_open) = ([0; 5], false);
                while (&server).read_exact(&mut header).is_ok() {
                    let length = u16::from_be_bytes(*header.last_chunk().unwrap());
                    let mut record = vec![0; length.into()];
                    (&server).read_exact(&mut record).unwrap();
                    if number > 0 || !is_open {
                        (&client).write_all(&[&header[..], &record].concat()).unwrap();
                    }
                    is_open |= length == 18;
                }
            });
        }
    });
    address
}

#[test]
fn a_supervisor_whose_answer_was_lost_asks_again() {
    let cluster = Cluster::with(1, |options| {
        options.size = Some(JobSize::fixed(1, 1));
        options.dead_after = 20 * SECOND;
    });
    let mut options = cluster.supervisor(0, 1);
    options.contact.address = relay(cluster.address).to_string();
    options.deadline = 8 * SECOND;
    let supervisor = SupervisorSession::register(options).unwrap();
    // The first request has arrived: the generation that it started is not lost.
    let directive = supervisor.next_directive(10 * SECOND).unwrap();
    assert!(matches!(directive, Some(Directive::Start { generation: 1, .. })), "{directive:?}");
}

#[test]
fn a_supervisor_that_vanishes_ends_the_job() {
    let cluster = Cluster::with(2, |options| {
        options.size = Some(JobSize::fixed(2, 2));
        options.start_within = SECOND;
    });
    let supervisors = [cluster.supervise(0, 2), cluster.supervise(1, 2)];
    let [first, second] = supervisors;
    drop(second);
    let mut directives = Vec::new();
    while !matches!(directives.last(), Some(Directive::End { .. })) {
        directives.extend(first.next_directive(5 * SECOND).unwrap());
        if matches!(directives.last(), Some(Directive::Kill { .. })) {
            first.child_ended(1, 0, "killed by signal 9", None).unwrap();
        }
    }
    let Some(Directive::End { is_success: false, text, .. }) = directives.last() else { panic!() };
    let expected = "the supervisor on host1 (process 1) has not been heard of for 1 s";
    assert!(text.starts_with(expected), "{text}");
    assert_eq!(directives.len(), 3);
}

/// A standalone coordinator is stopped without a word and started again, in the middle of gathers.
#[test]
fn processes_go_on_when_the_coordinator_is_started_again() {
    let mut cluster = Cluster::with(2, |options| {
        options.num_processes = 0;
        options.is_standalone = true;
        options.dead_after = 20 * SECOND;
    });
    let register = |cluster: &Cluster, held: HeldProcesses| {
        let options = SupervisorOptions { held, ..cluster.supervisor(0, 1) };
        SupervisorSession::register(options).unwrap()
    };
    let mut supervisor = register(&cluster, HeldProcesses::default());
    let directive = supervisor.next_directive(5 * SECOND).unwrap();
    let place = HostPlace { first_process: 0, num_processes: 2, num_hosts: 1 };
    let start = Directive::Start {
        generation: 1,
        place: Some(place),
        full_processes: 2,
        holders: Holders::default(),
    };
    assert_eq!(directive, Some(start));
    let sessions = cluster.join_all();
    sessions[0].put(b"kept", b"1", false).unwrap();
    sessions[0].put(b"gone", b"1", false).unwrap();
    sessions[1].delete(b"gone").unwrap();
    let work = all_later(&sessions, |session| {
        let index = session.process_index() as u8;
        for round in 0..100u8 {
            let gathered = session.gather("g", vec![index, round], 20 * SECOND).unwrap();
            assert_eq!(gathered, [[0, round], [1, round]]);
            session.may_leave(u64::from(round)).unwrap();
            thread::sleep(Duration::from_millis(5));
        }
    });
    for _ in 0..2 {
        thread::sleep(Duration::from_millis(120));
        cluster.coordinator = None;
        let listener = TcpListener::bind(cluster.address).unwrap();
        let mut options = CoordinatorOptions::new("job", secret(), 0);
        options.is_standalone = true;
        options.dead_after = 20 * SECOND;
        let log = Arc::clone(&cluster.log) as Arc<_>;
        cluster.coordinator = Some(Coordinator::start(listener, options, log).unwrap());
        let lost = supervisor.next_directive(5 * SECOND);
        assert!(matches!(lost, Err(Error::Forgotten(_))), "{lost:?}");
        let held =
            HeldProcesses { generation: 1, place: Some(place), running: vec![0, 1], ended: vec![] };
        supervisor = register(&cluster, held);
    }
    work.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(sessions[1].try_get(b"kept").unwrap(), b"1");
    assert!(matches!(sessions[0].try_get(b"gone"), Err(Error::KeyNotSet(_))));
    assert!(matches!(sessions[1].put(b"kept", b"2", false), Err(Error::KeyIsSet(_))));
    assert_eq!(supervisor.next_directive(Duration::from_millis(50)).unwrap(), None);
    let notes = cluster.log.changes.lock().unwrap();
    let goes_on =
        JobChange::Note("the coordinator was started again; generation 1 goes on".to_owned());
    assert_eq!(notes.iter().filter(|change| **change == goes_on).count(), 2);
}

#[test]
fn garbage_stops_nothing() {
    let count = std::env::var("LOCKSTEP_FUZZ").ok().and_then(|count| count.parse().ok());
    let count: u64 = count.unwrap_or(200);
    let cluster = Cluster::start(2);
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut silent = Vec::new();
    for round in 0..count {
        let Ok(mut stream) = TcpStream::connect(cluster.address) else { panic!("round {round}") };
        let garbage: Vec<u8> = (0..next() % 600).map(|_| next() as u8).collect();
        match next() % 3 {
            0 => drop(stream.write_all(preface)),
            // A hello of TLS that announces 16 MB.
            1 => drop(stream.write_all(&[0x16, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff, 3, 3])),
            _ => {}
        }
        // A frame header of any length and kind, then anything.
        let _ =
            stream.write_all(&[next() as u8, 0, next() as u8, (next() % 11) as u8, 0, 0, 0, 0, 1]);
        let _ = stream.write_all(&garbage);
        if round % 50 == 0 {
            silent.push(stream);
        }
    }
    let sessions = cluster.join_all();
    sessions[0].put(b"a", b"b", false).unwrap();
    assert_eq!(sessions[1].try_get(b"a").unwrap(), b"b");
}

#[test]
fn oversized_and_replayed_messages_are_refused() {
    // A proxy that records what a session sends.
    let cluster = Cluster::start(1);
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = cluster.options(0);
    options.contact.address = proxy.local_addr().unwrap().to_string();
    let joining = thread::spawn(move || Session::join(options).unwrap());
    let (mut client, server) =
        (proxy.accept().unwrap().0, TcpStream::connect(cluster.address).unwrap());
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let (mut back, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    thread::spawn(move || std::io::copy(&mut back, &mut to_client));
    let record = Arc::clone(&recorded);
    let mut to_server = server.try_clone().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(num_bytes @ 1..) = client.read(&mut buffer) {
            record.lock().unwrap().extend_from_slice(&buffer[..num_bytes]);
            if to_server.write_all(&buffer[..num_bytes]).is_err() {
                break;
            }
        }
    });
    let session = joining.join().unwrap();
    session.put(b"once", b"1", false).unwrap();
    session.delete(b"once").unwrap();
    let refused = || cluster.log.refused.lock().unwrap().clone();
    assert_eq!(refused(), [""; 0]);
    // The whole recording again: the handshake, joining, the put.
    let recording = recorded.lock().unwrap().clone();
    let mut replay = TcpStream::connect(cluster.address).unwrap();
    replay.write_all(&recording).unwrap();
    wait_for("a refusal", || !refused().is_empty());
    assert_eq!(refused(), ["it does not have the token of this job"]);
    thread::sleep(Duration::from_millis(100));
    let found = session.try_get(b"once");
    assert!(matches!(found, Err(Error::KeyNotSet(_))), "not put again: {found:?}");

    // A frame that announces more than the coordinator reads, from a stranger.
    let mut stream = TcpStream::connect(cluster.address).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    stream.write_all(&[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]).unwrap();
    let _ = stream.set_read_timeout(Some(5 * SECOND));
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.len() < 1000, "closed after a short answer");
    assert_eq!(session.ended(), None);
    session.put(b"once", b"2", false).unwrap();
}

/// `tests/support/tls`: an authority and a certificate of 127.0.0.1 made with openssl for this
/// test, valid until 2126.
#[test]
fn a_certificate_takes_the_place_of_the_coordinators_key() {
    let file = |name: &str| {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/tls");
        std::fs::read(folder.join(name)).unwrap()
    };
    let cluster = Cluster::with(1, |options| {
        options.tls = Some((file("certificate.pem"), file("key.pem")));
    });
    let mut options = cluster.options(0);
    options.deadline = SECOND;
    let error = Session::join(options.clone()).err().unwrap().to_string();
    assert!(error.contains("what answers at 127.0.0.1"), "{error}");
    // A certificate that is not an authority for the coordinator's.
    options.contact.tls = Some(file("certificate.pem"));
    let error = Session::join(options.clone()).err().unwrap().to_string();
    assert!(error.contains("certificate"), "{error}");
    options.contact.tls = Some(file("authority.pem"));
    options.deadline = 10 * SECOND;
    // The certificate is not enough: the token counts, too.
    let mut stranger = options.clone();
    stranger.contact.secret = Secret::new(vec![8; 32]);
    let error = Session::join(stranger).err().unwrap().to_string();
    assert!(error.contains("it has another token"), "{error}");
    let session = Session::join(options).unwrap();
    session.put(b"a", b"b", false).unwrap();
    assert_eq!(session.try_get(b"a").unwrap(), b"b");
}
