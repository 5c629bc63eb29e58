//! Links of a known rate and delay between processes of this host.
//!
//! Each process has a network namespace with one port, a veth pair to a hub of its own, and `tbf`
//! limits both directions of it. A relay connects the hubs: it accepts the connections to all other
//! processes in each hub, connects to the process in the other's hub, and passes on what comes
//! after a delay, with a delay line for each direction. So a port is shared by all connections of
//! its process, as a network card is, and no process knows of the relay.
//!
//! ```text
//! process 0 [10.9.0.2] -- tbf -- [hub 0 = all others' addresses] = relay = [hub 1] -- tbf -- [10.9.1.2] process 1
//! ```
//! Needs Linux, root, `ip` and `tc`.

#![allow(dead_code, reason = "each target uses its part")]

use std::error::Error;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The ports that processes listen at: the relay listens at all of them.
const PORTS: std::ops::Range<u16> = 40_000..40_032;
/// The port at which the first process may run a coordinator.
pub const COORDINATOR_PORT: u16 = 40_000;
/// Bytes of a packet. Larger ones cost less of a processor, and make small messages too fast: those
/// of a bucket of `tbf` pass at once.
const MTU: usize = 3_000;
const BURST_BYTES: usize = 3_200;
/// Bytes that wait for a port before packets are dropped: more than processes send at once.
const QUEUE_BYTES: usize = 32 << 20;
/// Bytes that the relay reads at once, and how many such pieces wait in a delay line.
const PIECE_BYTES: usize = 1 << 16;
const PIECES: usize = 4_096;

/// A result of something that may fail in many ways, each of which ends a measurement.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The ports of all processes. The namespaces vanish with it.
pub struct LimitedLinks {
    name: String,
    num_processes: usize,
}

/// A rate and a delay, as asked for or as measured.
#[derive(Clone, Copy, Debug)]
pub struct LinkSpeed {
    /// In each direction of a port.
    pub bits_per_sec: f64,
    /// One way.
    pub delay: Duration,
}

impl LimitedLinks {
    /// Makes the ports of so many processes, all with the same speed.
    pub fn new(num_processes: usize, speed: LinkSpeed) -> Outcome<Self> {
        let links = Self { name: format!("lockstep{}", std::process::id()), num_processes };
        for process in 0..num_processes {
            links.make(process, speed)?;
        }
        for hub in 0..num_processes {
            for port in PORTS {
                let listener =
                    links.in_hub(hub, move || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))?;
                let (name, delay) = (links.name.clone(), speed.delay);
                thread::Builder::new().stack_size(1 << 17).spawn(move || {
                    for stream in listener.incoming().flatten() {
                        // The process may have ended; then the other one's connection ends too.
                        let _ = relay(stream, &name, delay);
                    }
                })?;
            }
        }
        Ok(links)
    }

    fn make(&self, process: usize, speed: LinkSpeed) -> Outcome<()> {
        let [own, hub] = [self.namespace(process), self.hub(process)];
        let ip = |words: &str| command("ip", words);
        for namespace in [&own, &hub] {
            ip(&format!("netns add {namespace}"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
        }
        ip(&format!("link add port netns {own} type veth peer name port netns {hub}"))?;
        for (namespace, last) in [(&own, 2), (&hub, 1)] {
            ip(&format!("-n {namespace} addr add 10.9.{process}.{last}/24 dev port"))?;
            ip(&format!("-n {namespace} link set port mtu {MTU} up"))?;
            let rate = speed.bits_per_sec as u64;
            command(
                "ip",
                &format!(
                    "netns exec {namespace} tc qdisc add dev port root tbf rate {rate}bit burst \
                     {BURST_BYTES} limit {QUEUE_BYTES}"
                ),
            )?;
        }
        for other in (0..self.num_processes).filter(|other| *other != process) {
            ip(&format!("-n {hub} addr add 10.9.{other}.2/32 dev lo"))?;
        }
        ip(&format!("-n {own} route add default via 10.9.{process}.1"))?;
        let [first, last] = [PORTS.start, PORTS.end - 1];
        ip(&format!("netns exec {own} sysctl -qw net.ipv4.ip_local_port_range={first}\\ {last}"))
    }

    fn namespace(&self, process: usize) -> String {
        format!("{}-{process}", self.name)
    }

    fn hub(&self, process: usize) -> String {
        hub(&self.name, process)
    }

    /// The address of a process.
    pub fn address(process: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 9, process as u8, 2)
    }

    /// What to put before a command that runs as a process.
    pub fn on(&self, process: usize) -> Vec<String> {
        ["ip", "netns", "exec", &self.namespace(process)].map(str::to_owned).into()
    }

    fn in_hub<T: Send + 'static>(
        &self,
        process: usize,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Outcome<T> {
        in_namespace(self.hub(process), work)
    }

    /// Bytes that have left a process since the start, with headers.
    pub fn sent_bytes(&self, process: usize) -> Outcome<u64> {
        let path = "/sys/class/net/port/statistics/tx_bytes";
        let on = self.on(process);
        let output = Command::new(&on[0]).args(&on[1..]).args(["cat", path]).output()?;
        Ok(String::from_utf8(output.stdout)?.trim().parse()?)
    }

    /// The speed from the first process to the second, measured with connections like theirs.
    pub fn measure(&self, asked: LinkSpeed) -> Outcome<LinkSpeed> {
        let target = SocketAddr::from((Self::address(1), PORTS.end - 1));
        let num_bytes = ((asked.bits_per_sec / 8.0 * 0.5) as usize).max(1 << 18);
        let receive = move || {
            let (mut stream, _) = TcpListener::bind(target)?.accept()?;
            stream.set_nodelay(true)?;
            let mut byte = [0];
            for _ in 0..PINGS {
                stream.read_exact(&mut byte)?;
                stream.write_all(&byte)?;
            }
            let mut block = vec![0; PIECE_BYTES];
            stream.read_exact(&mut block)?;
            let (began, mut left) = (Instant::now(), num_bytes);
            while left > 0 {
                let most = left.min(PIECE_BYTES);
                left -= stream.read(&mut block[..most])?;
            }
            Ok(began.elapsed())
        };
        let receiver = self.namespace(1);
        let received = thread::spawn(move || in_namespace(receiver, receive));
        let send = move || {
            let mut stream = connect(target)?;
            stream.set_nodelay(true)?;
            let mut byte = [0];
            let mut trips = vec![];
            for _ in 0..PINGS {
                let began = Instant::now();
                stream.write_all(&byte)?;
                stream.read_exact(&mut byte)?;
                trips.push(began.elapsed());
            }
            stream.write_all(&vec![0; PIECE_BYTES + num_bytes])?;
            trips.sort();
            Ok(trips[PINGS / 2] / 2)
        };
        let delay = in_namespace(self.namespace(0), send)?;
        let took = received.join().map_err(|_| "the receiver has panicked")??;
        Ok(LinkSpeed { bits_per_sec: 8.0 * num_bytes as f64 / took.as_secs_f64(), delay })
    }
}

/// Messages there and back, before the delay is known.
const PINGS: usize = 21;

impl Drop for LimitedLinks {
    fn drop(&mut self) {
        for process in 0..self.num_processes {
            for namespace in [self.namespace(process), self.hub(process)] {
                let _ = command("ip", &format!("netns del {namespace}"));
            }
        }
    }
}

fn hub(name: &str, process: usize) -> String {
    format!("{name}-hub{process}")
}

/// Runs a command of words that are separated by spaces; `\ ` is a space in a word.
fn command(program: &str, words: &str) -> Outcome<()> {
    let words = words.replace("\\ ", "\u{0}");
    let words = words.split_whitespace().map(|word| word.replace('\u{0}', " "));
    let output = Command::new(program).args(words.clone()).output()?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let words: Vec<_> = words.collect();
            Err(format!("{program} {}: {said}", words.join(" ")).into())
        }
    }
}

/// Does something on a thread that is in a network namespace. Sockets stay in it.
fn in_namespace<T: Send + 'static>(
    name: String,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Outcome<T> {
    let enter = move || {
        let namespace = File::open(format!("/run/netns/{name}"))?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        work()
    };
    let thread: JoinHandle<io::Result<T>> = thread::spawn(enter);
    Ok(thread.join().map_err(|_| "a thread has panicked")??)
}

/// Connects as soon as somebody listens.
fn connect(target: SocketAddr) -> io::Result<TcpStream> {
    let began = Instant::now();
    loop {
        match TcpStream::connect(target) {
            Err(_) if began.elapsed() < Duration::from_secs(10) => {
                thread::sleep(Duration::from_millis(2));
            }
            result => return result,
        }
    }
}

/// Passes a connection on to the process that it is meant for.
fn relay(from: TcpStream, name: &str, delay: Duration) -> Outcome<()> {
    let target = from.local_addr()?;
    let SocketAddr::V4(address) = target else { return Err("not IPv4".into()) };
    let process = usize::from(address.ip().octets()[2]);
    let to = in_namespace(hub(name, process), move || TcpStream::connect(target))?;
    from.set_nodelay(true)?;
    to.set_nodelay(true)?;
    for (from, to) in [(from.try_clone()?, to.try_clone()?), (to, from)] {
        let (sender, receiver) = sync_channel(PIECES);
        let [reads, writes] = [0; 2].map(|_| thread::Builder::new().stack_size(1 << 17));
        reads.spawn(move || read_pieces(from, &sender))?;
        writes.spawn(move || write_pieces(to, &receiver, delay))?;
    }
    Ok(())
}

/// Bytes, and when they came. None at the end.
type TimedPiece = (Instant, Vec<u8>);

fn read_pieces(mut from: TcpStream, line: &SyncSender<TimedPiece>) {
    let mut block = vec![0; PIECE_BYTES];
    loop {
        let count = from.read(&mut block).unwrap_or(0);
        let is_sent = line.send((Instant::now(), block[..count].to_vec())).is_ok();
        if count == 0 || !is_sent {
            return;
        }
    }
}

fn write_pieces(mut to: TcpStream, line: &Receiver<TimedPiece>, delay: Duration) {
    while let Ok((came, piece)) = line.recv() {
        thread::sleep((came + delay).saturating_duration_since(Instant::now()));
        if piece.is_empty() || to.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
