//! The cost of a coordinator with many workers: the sessions of all workers live in this process
//! and share two cores with the coordinator.
//!
//! `cargo bench --bench coordinator -- --workers 2000 --secs 20` prints one line of JSON: seconds
//! until the generation has formed, memory of everything, CPU seconds per second while all send
//! heartbeats every 2 s (coordinator and sessions together, each about half), milliseconds until
//! all have heard of a failure, and seconds until a silent worker is dead.

use std::error::Error;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use lockstep::cluster::{
    Cause, Contact, Coordinator, CoordinatorOptions, JobChange, JoinOptions, Report, Secret,
    Session, Watcher,
};

#[derive(Default)]
struct Count {
    reports: AtomicUsize,
}

impl Watcher for Count {
    fn report(&self, _: &Report, _: Instant) {
        self.reports.fetch_add(1, Ordering::Relaxed);
    }

    fn changed(&self, _: &JobChange) {}
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut num_workers, mut secs) = (200, 5);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || -> Result<usize, Box<dyn Error>> {
            Ok(arguments.next().ok_or("a number must follow")?.parse()?)
        };
        match argument.as_str() {
            "--workers" => num_workers = number()?,
            "--secs" => secs = number()?,
            "--bench" => {}
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    let before = resident_mib()?;
    let count = Arc::new(Count::default());
    let (coordinator, address) = start(num_workers, &count)?;
    let began = Instant::now();
    let sessions = join_all(num_workers, address)?;
    let form_secs = began.elapsed().as_secs_f64();
    thread::sleep(Duration::from_secs(2));
    let memory_mib = resident_mib()? - before;

    let (cpu, heartbeats) = (cpu_secs()?, count.reports.load(Ordering::Relaxed));
    thread::sleep(Duration::from_secs(secs as u64));
    let cpu_per_sec = (cpu_secs()? - cpu) / secs as f64;
    let heartbeats = (count.reports.load(Ordering::Relaxed) - heartbeats) as f64 / secs as f64;

    let (sender, receiver) = mpsc::channel();
    for session in &sessions {
        let sender = sender.clone();
        session.on_end(move |_| {
            let _ = sender.send(Instant::now());
        });
    }
    let began = Instant::now();
    sessions[0].fail(Cause::Own, "the end of the measurement");
    let mut last = began;
    for _ in &sessions {
        last = last.max(receiver.recv_timeout(Duration::from_secs(60))?);
    }
    let hear_ms = (last - began).as_secs_f64() * 1e3;
    drop(sessions);
    drop(coordinator);

    // One worker falls silent; the others hear that it is dead.
    let (_coordinator, address) = start(num_workers, &count)?;
    let mut sessions = join_all(num_workers, address)?;
    thread::sleep(Duration::from_secs(3));
    let began = Instant::now();
    drop(sessions.pop());
    let (sender, receiver) = mpsc::channel();
    sessions[0].on_end(move |reason| {
        let _ = sender.send(reason.to_owned());
    });
    let reason = receiver.recv_timeout(Duration::from_secs(60))?;
    let detect_secs = began.elapsed().as_secs_f64();
    assert!(reason.contains(&format!("process {}", num_workers - 1)), "{reason}");
    println!(
        "{{\"workers\": {num_workers}, \"form_secs\": {form_secs:.2}, \"memory_mib\": \
         {memory_mib:.0}, \"heartbeats_per_sec\": {heartbeats:.0}, \"cpu_per_sec\": \
         {cpu_per_sec:.3}, \"hear_ms\": {hear_ms:.0}, \"detect_secs\": {detect_secs:.1}}}"
    );
    Ok(())
}

fn start(
    num_workers: usize,
    count: &Arc<Count>,
) -> Result<(Coordinator, SocketAddr), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let options = CoordinatorOptions::new("scale", secret(), num_workers);
    let coordinator = Coordinator::start(listener, options, Arc::clone(count) as Arc<_>)?;
    let address = coordinator.address();
    Ok((coordinator, address))
}

fn secret() -> Secret {
    Secret::new(vec![7; 32])
}

fn join_all(num_workers: usize, address: SocketAddr) -> Result<Vec<Session>, Box<dyn Error>> {
    let joining: Vec<_> = (0..num_workers)
        .map(|process_index| {
            let options = JoinOptions {
                contact: Contact {
                    address: address.to_string(),
                    job: "scale".to_owned(),
                    secret: secret(),
                    tls: None,
                },
                generation: None,
                process_index,
                num_processes: num_workers,
                host: format!("worker-{process_index:04}.example"),
                data_address: format!("10.0.0.1:{process_index}"),
                program: vec![("binary".to_owned(), "0123456789abcdef".to_owned())],
                replaces_slow: false,
                deadline: Duration::from_secs(120),
                missing: Arc::default(),
            };
            thread::Builder::new().stack_size(64 << 10).spawn(move || Session::join(options))
        })
        .collect::<Result<_, _>>()?;
    let mut sessions = Vec::with_capacity(num_workers);
    for joining in joining {
        sessions.push(joining.join().map_err(|_| "a worker panicked")??);
    }
    Ok(sessions)
}

fn resident_mib() -> Result<f64, Box<dyn Error>> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages: f64 = statm.split(' ').nth(1).ok_or("statm")?.parse()?;
    Ok(pages * 4096.0 / (1 << 20) as f64)
}

/// User and system time of this process, in clock ticks of 10 ms.
fn cpu_secs() -> Result<f64, Box<dyn Error>> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok());
    Ok((ticks(11).ok_or("stat")? + ticks(12).ok_or("stat")?) / 100.0)
}
