//! How two processes come to know that they belong to the same generation of a job.
//!
//! A connection carries one direction: the process that opens it sends. It begins with a handshake
//! of TLS, see [`token_tls`], by which both have the token of the job. Then the sender says who it
//! is ([`LinkHello`]), and is accepted or not. Plain links go on below TLS from here: what they
//! carry is neither encrypted nor signed, but no others than members were let in.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};

use super::LinkOptions;
use crate::cluster::messages::LinkHello;
use crate::cluster::token_tls::{self, ACCEPTED, TokenTls};

/// How long a handshake may take.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// A stranger sends no more than this before it is refused.
const MAX_HANDSHAKE_BYTES: usize = 1 << 14;

/// What both sides of handshakes need.
#[derive(Clone)]
pub(super) struct LinkKeys {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl LinkKeys {
    pub fn new(options: &LinkOptions) -> io::Result<Self> {
        let tls = TokenTls::new(&options.secret, &options.job)?;
        Ok(Self { client: tls.client(None)?, server: tls.server(None)? })
    }
}

/// One direction of a link.
pub(super) struct OneWay<T: ?Sized> {
    /// To close it from anywhere.
    pub tcp: TcpStream,
    pub stream: Box<T>,
}

pub(super) type Outgoing = OneWay<dyn Write + Send>;
pub(super) type Incoming = OneWay<dyn Read + Send>;

/// Connects to a process, to send.
pub(super) fn connect(
    options: &LinkOptions,
    keys: &LinkKeys,
    process: usize,
) -> io::Result<Outgoing> {
    let tcp = open(options, process)?;
    let tls = ClientConnection::new(keys.client.clone(), token_tls::no_name())
        .map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(tls, tcp.try_clone()?);
    let index = |index: usize| u32::try_from(index).map_err(io::Error::other);
    let hello = LinkHello {
        generation: options.generation,
        from: index(options.process_index)?,
        to: index(process)?,
        is_plain: options.is_plain,
    };
    stream.write_all(&hello.encode_length_delimited_to_vec())?;
    stream.flush()?;
    let mut answer = [0];
    stream.read_exact(&mut answer).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => {
            io::Error::other("refused the connection: it says why")
        }
        _ => error,
    })?;
    if answer != [ACCEPTED] {
        return Err(io::Error::other("runs another version of this program"));
    }
    tcp.set_read_timeout(None)?;
    tcp.set_write_timeout(None)?;
    let stream: Box<dyn Write + Send> = match options.is_plain {
        true => Box::new(tcp.try_clone()?),
        false => Box::new(stream),
    };
    Ok(OneWay { tcp, stream })
}

fn open(options: &LinkOptions, process: usize) -> io::Result<TcpStream> {
    let address = options.addresses.get(process).ok_or(ErrorKind::AddrNotAvailable)?;
    let stream = TcpStream::connect_timeout(address, HANDSHAKE_TIMEOUT)?;
    // An address that is not bound yet may be the one from which this connection comes.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(ErrorKind::ConnectionRefused.into());
    }
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
    stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
    Ok(stream)
}

/// A connection that somebody has opened to this process.
pub(super) struct Guest {
    stream: TcpStream,
    tls: ServerConnection,
    pub address: SocketAddr,
    since: Instant,
    num_read: usize,
    /// The hello, as far as it has come.
    hello: Vec<u8>,
}

/// How far a guest's handshake is.
pub(super) enum HandshakeProgress {
    Pending,
    /// It is a process of the job.
    Member(usize),
    Refused(String),
}

impl Guest {
    pub fn new(keys: &LinkKeys, stream: TcpStream, address: SocketAddr) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let tls = ServerConnection::new(keys.server.clone()).map_err(io::Error::other)?;
        Ok(Self { stream, tls, address, since: Instant::now(), num_read: 0, hello: vec![] })
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
        let describe = |error: io::Error| token_tls::describe(&error);
        loop {
            match self.tls.read_tls(&mut self.stream) {
                Ok(0) => return Err("closed the connection".to_owned()),
                Ok(num_bytes) => self.num_read += num_bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(describe(error)),
            }
            let processed = self.tls.process_new_packets().map_err(io::Error::other);
            // Also what is wrong, if something is.
            let sent = self.send();
            let available = processed.map_err(describe)?.plaintext_bytes_to_read();
            sent.map_err(describe)?;
            if self.num_read > MAX_HANDSHAKE_BYTES {
                return Err("sends too much before it says who it is".to_owned());
            }
            let known = self.hello.len();
            self.hello.resize(known + available, 0);
            self.tls.reader().read_exact(&mut self.hello[known..]).map_err(describe)?;
            if let Some(hello) = decode(&self.hello)? {
                let process = check(options, &hello)?;
                let accepted = self.tls.writer().write_all(&[ACCEPTED]);
                accepted.and_then(|()| self.send()).map_err(describe)?;
                return Ok(Some(process));
            }
        }
    }

    /// The few bytes of an answer fit the buffer of a new connection.
    fn send(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.stream)?;
        }
        Ok(())
    }

    /// The connection, with reads that wait.
    pub fn into_incoming(self, is_plain: bool) -> io::Result<Incoming> {
        self.stream.set_nonblocking(false)?;
        let tcp = self.stream.try_clone()?;
        let stream: Box<dyn Read + Send> = match is_plain {
            true => Box::new(self.stream),
            false => Box::new(StreamOwned::new(self.tls, self.stream)),
        };
        Ok(OneWay { tcp, stream })
    }
}

/// `None` as long as there is more to come.
fn decode(bytes: &[u8]) -> Result<Option<LinkHello>, String> {
    // The length is one byte: numbers are few and short.
    let Some((&length, rest)) = bytes.split_first() else { return Ok(None) };
    if length >= 0x80 || rest.len() > usize::from(length) {
        return Err("does not say who it is".to_owned());
    }
    if rest.len() < usize::from(length) {
        return Ok(None);
    }
    LinkHello::decode(rest).map(Some).map_err(|error| format!("does not say who it is: {error}"))
}

/// The process that sends.
fn check(options: &LinkOptions, hello: &LinkHello) -> Result<usize, String> {
    let (from, to) = (hello.from as usize, hello.to as usize);
    let LinkOptions { process_index, generation, addresses, is_plain, .. } = options;
    if hello.generation != *generation {
        return Err(format!("is of generation {}, this is {generation}", hello.generation));
    }
    if to != *process_index {
        return Err(format!("looks for process {to}, this is process {process_index}"));
    }
    if from == *process_index || from >= addresses.len() {
        return Err(format!("says that it is process {from}, which does not connect to this one"));
    }
    if hello.is_plain != *is_plain {
        let name = |is_plain| if is_plain { "plain" } else { "tls" };
        return Err(format!(
            "has cluster.links = {:?}, this process {:?}: make it the same in all",
            name(hello.is_plain),
            name(*is_plain)
        ));
    }
    Ok(from)
}
