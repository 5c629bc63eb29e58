//! How two processes prove to each other that they belong to the same generation of a job.
//!
//! The connecting process sends a hello with its index and a nonce; the other answers with a nonce;
//! the connecting one proves that it has the secret, then the other one does. Proofs cover the
//! role, the job, the generation, both indices and both nonces, so none can be used again, by
//! whomever and for whatever. A stranger learns nothing but a nonce.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::LinkOptions;
use crate::cluster::secret::random_bytes;

/// How long a handshake may take.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

const MAGIC: [u8; 8] = *b"LOCKSTP1";
const HELLO_BYTES: usize = 8 + 8 + 4 + 4 + 32;

type Nonce = [u8; 32];

/// The first message of the connecting process.
#[derive(Clone, Copy)]
struct Hello {
    generation: u64,
    from: u32,
    to: u32,
    nonce: Nonce,
}

impl Hello {
    fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.generation.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.from.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.to.to_le_bytes());
        bytes[24..].copy_from_slice(&self.nonce);
        bytes
    }

    /// `None` without the magic bytes.
    fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (generation, rest) = rest.split_first_chunk()?;
        let (from, rest) = rest.split_first_chunk()?;
        let (to, rest) = rest.split_first_chunk()?;
        let hello = Self {
            generation: u64::from_le_bytes(*generation),
            from: u32::from_le_bytes(*from),
            to: u32::from_le_bytes(*to),
            nonce: *rest.first_chunk()?,
        };
        (*magic == MAGIC).then_some(hello)
    }
}

/// Who makes a proof.
#[derive(Clone, Copy)]
enum Role {
    Connecting,
    Listening,
}

/// Calls `use_parts` with what a proof covers.
fn with_parts<T>(
    options: &LinkOptions,
    role: Role,
    hello: &Hello,
    answer: &Nonce,
    use_parts: impl FnOnce(&[&[u8]]) -> T,
) -> T {
    let role: &[u8] = match role {
        Role::Connecting => b"connecting",
        Role::Listening => b"listening",
    };
    use_parts(&[b"lockstep link", role, options.job.as_bytes(), &hello.encode(), answer])
}

/// Connects to a process and proves both sides.
pub(super) fn connect(options: &LinkOptions, process: usize) -> io::Result<TcpStream> {
    let other = |reason: &str| io::Error::new(ErrorKind::InvalidData, reason.to_owned());
    let address = options.addresses.get(process).ok_or_else(|| other("has no address"))?;
    let stream = TcpStream::connect_timeout(address, HANDSHAKE_TIMEOUT)?;
    // An address that is not bound yet may be the one from which this connection comes.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(ErrorKind::ConnectionRefused.into());
    }
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
    stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
    let index = |index: usize| u32::try_from(index).map_err(io::Error::other);
    let hello = Hello {
        generation: options.generation,
        from: index(options.process_index)?,
        to: index(process)?,
        nonce: random_bytes()?,
    };
    let refused = |error: io::Error| match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => other(
            "refused the connection: it belongs to another job or generation, or has another \
             secret",
        ),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => other("does not answer"),
        _ => error,
    };
    let mut answer = [0; 32];
    (&stream).write_all(&hello.encode())?;
    (&stream).read_exact(&mut answer).map_err(refused)?;
    let proof = with_parts(options, Role::Connecting, &hello, &answer, |x| options.secret.proof(x));
    (&stream).write_all(&proof)?;
    let mut proof = [0; 32];
    (&stream).read_exact(&mut proof).map_err(refused)?;
    let verify = |parts: &[&[u8]]| options.secret.verify(parts, &proof);
    if !with_parts(options, Role::Listening, &hello, &answer, verify) {
        return Err(other("does not have the job's secret"));
    }
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    Ok(stream)
}

/// A connection that somebody has opened to this process.
pub(super) struct Guest {
    stream: TcpStream,
    pub address: SocketAddr,
    since: Instant,
    received: Vec<u8>,
    /// After the hello: it, and the nonce that was the answer.
    hello: Option<(Hello, Nonce)>,
}

/// How far a guest's handshake is.
pub(super) enum HandshakeProgress {
    Pending,
    /// It is a process of the job.
    Member(usize),
    Refused(String),
}

impl Guest {
    pub fn new(stream: TcpStream, address: SocketAddr) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, address, since: Instant::now(), received: vec![], hello: None })
    }

    /// Reads what has come and answers it. Does not wait.
    pub fn advance(&mut self, options: &LinkOptions) -> HandshakeProgress {
        match self.try_advance(options) {
            Ok(Some(process)) => HandshakeProgress::Member(process),
            Ok(None) if self.since.elapsed() > HANDSHAKE_TIMEOUT => {
                HandshakeProgress::Refused("was silent for too long".to_owned())
            }
            Ok(None) => HandshakeProgress::Pending,
            Err(reason) => HandshakeProgress::Refused(reason),
        }
    }

    fn try_advance(&mut self, options: &LinkOptions) -> Result<Option<usize>, String> {
        loop {
            let missing = match self.hello {
                None => HELLO_BYTES - self.received.len(),
                Some(_) => 32 - self.received.len(),
            };
            let mut buffer = [0; HELLO_BYTES];
            match self.stream.read(&mut buffer[..missing]) {
                Ok(0) => return Err("closed the connection".to_owned()),
                Ok(num_bytes) => self.received.extend_from_slice(&buffer[..num_bytes]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
            match self.hello {
                None => {
                    if let Ok(hello) = <&[u8; HELLO_BYTES]>::try_from(&self.received[..]) {
                        let hello = check_hello(options, hello)?;
                        let answer = random_bytes().map_err(|error| error.to_string())?;
                        self.send(&answer)?;
                        self.hello = Some((hello, answer));
                        self.received.clear();
                    }
                }
                Some((hello, answer)) if self.received.len() == 32 => {
                    let verify = |parts: &[&[u8]]| options.secret.verify(parts, &self.received);
                    if !with_parts(options, Role::Connecting, &hello, &answer, verify) {
                        return Err("does not have the job's secret".to_owned());
                    }
                    let prove = |parts: &[&[u8]]| options.secret.proof(parts);
                    self.send(&with_parts(options, Role::Listening, &hello, &answer, prove))?;
                    return Ok(Some(hello.from as usize));
                }
                Some(_) => {}
            }
        }
    }

    /// The few bytes of an answer fit the buffer of a new connection.
    fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.stream.write_all(bytes).map_err(|error| error.to_string())
    }

    /// The connection, with reads and writes that wait.
    pub fn into_stream(self) -> io::Result<TcpStream> {
        self.stream.set_nonblocking(false)?;
        Ok(self.stream)
    }
}

fn check_hello(options: &LinkOptions, bytes: &[u8; HELLO_BYTES]) -> Result<Hello, String> {
    let hello = Hello::decode(bytes).ok_or("is not a process of this program")?;
    let (from, to) = (hello.from as usize, hello.to as usize);
    let LinkOptions { process_index, generation, addresses, .. } = options;
    if hello.generation != *generation {
        return Err(format!("is of generation {}, this is {generation}", hello.generation));
    }
    if to != *process_index {
        return Err(format!("looks for process {to}, this is process {process_index}"));
    }
    if from <= *process_index || from >= addresses.len() {
        return Err(format!("says that it is process {from}, which does not connect to this one"));
    }
    Ok(hello)
}
