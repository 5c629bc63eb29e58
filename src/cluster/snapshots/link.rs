//! Connections to supervisors that hold snapshots. Both sides have the token of the job, see
//! [`token_tls`]; nothing is served before the handshake has ended.
//!
//! A message is its number of bytes, 4 of them, and a [`SnapshotAsk`] or a [`SnapshotReply`].

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use rustls::{
    ClientConfig, ClientConnection, ConnectionCommon, ServerConfig, ServerConnection, SideData,
    StreamOwned,
};

use super::slot::{SlotWriter, SnapshotRecord, SnapshotSlot};
use crate::cluster::Secret;
use crate::cluster::messages::{
    ForgetSnapshots, HeldSnapshot, ListSnapshots, ReadSnapshot, SnapshotAsk, SnapshotReply,
    SnapshotRows, snapshot_ask, snapshot_reply,
};
use crate::cluster::token_tls::{self, ACCEPTED, TokenTls};

/// A connection is there within this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A handshake takes no longer than this.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The other side sends or takes something within this time.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Messages are no longer.
const MAX_MESSAGE: u32 = 4 << 20;
/// Values are read and sent in pieces of this size.
pub(super) const PIECE: usize = 1 << 20;
/// What is asked for at a time.
pub(super) const MAX_READ: usize = 8 << 20;
/// What follows the bytes of a snapshot that did not change while they were sent.
pub(super) const WHOLE: u8 = 1;

/// The keys of a job for both sides.
#[derive(Clone, Debug)]
pub(super) struct HolderKeys {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl HolderKeys {
    pub fn new(secret: &Secret, job: &str) -> io::Result<Self> {
        let tls = TokenTls::new(secret, job)?;
        Ok(Self { client: tls.client(None)?, server: tls.server(None)? })
    }
}

/// One side of a connection, after the handshake.
type Side<C> = StreamOwned<C, TcpStream>;

/// Shakes hands until the deadline, however slowly the other side sends.
fn shake_hands<C, S: SideData>(tls: &mut C, tcp: &mut TcpStream) -> io::Result<()>
where
    C: DerefMut + Deref<Target = ConnectionCommon<S>>,
{
    let until = Instant::now() + HANDSHAKE_TIMEOUT;
    while tls.is_handshaking() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        tcp.set_read_timeout(Some(left))?;
        tcp.set_write_timeout(Some(left))?;
        if tls.wants_write() {
            tls.write_tls(tcp)?;
        } else if tls.read_tls(tcp)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        } else if let Err(error) = tls.process_new_packets() {
            // Also what is wrong, if something is. It may have gone away.
            let _ = tls.write_tls(tcp);
            return Err(io::Error::other(error));
        }
    }
    tcp.set_read_timeout(Some(TIMEOUT))?;
    tcp.set_write_timeout(Some(TIMEOUT))
}

fn write_message(stream: &mut impl Write, message: &impl Message) -> io::Result<()> {
    let bytes = message.encode_to_vec();
    let num_bytes = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    if num_bytes > MAX_MESSAGE {
        return Err(io::Error::other("a message about snapshots is too long"));
    }
    stream.write_all(&num_bytes.to_le_bytes())?;
    stream.write_all(&bytes)?;
    stream.flush()
}

fn read_message<M: Message + Default>(stream: &mut impl Read) -> io::Result<M> {
    let mut num_bytes = [0; 4];
    stream.read_exact(&mut num_bytes)?;
    let num_bytes = u32::from_le_bytes(num_bytes);
    if num_bytes > MAX_MESSAGE {
        return Err(io::Error::other("a message about snapshots is too long"));
    }
    let mut bytes = vec![0; num_bytes as usize];
    stream.read_exact(&mut bytes)?;
    M::decode(&*bytes).map_err(io::Error::other)
}

/// A connection to a supervisor that holds snapshots.
#[derive(Debug)]
pub struct HolderLink {
    stream: Side<ClientConnection>,
}

impl HolderLink {
    /// Connects to the supervisor at an address, of the job with this name and secret.
    ///
    /// # Errors
    /// If it does not answer, or has another token.
    pub fn connect(address: &str, secret: &Secret, job: &str) -> io::Result<Self> {
        let keys = HolderKeys::new(secret, job)?;
        let address: SocketAddr = address.parse().map_err(io::Error::other)?;
        let mut tcp = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
        tcp.set_nodelay(true)?;
        let tls = ClientConnection::new(keys.client, token_tls::no_name());
        let mut tls = tls.map_err(io::Error::other)?;
        shake_hands(&mut tls, &mut tcp)?;
        let mut stream = StreamOwned::new(tls, tcp);
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        match answer {
            [ACCEPTED] => Ok(Self { stream }),
            _ => Err(io::Error::other("runs another version of this program")),
        }
    }

    fn ask(&mut self, ask: snapshot_ask::Ask) -> io::Result<Option<SnapshotRows>> {
        write_message(&mut self.stream, &SnapshotAsk { ask: Some(ask) })?;
        let reply: SnapshotReply = read_message(&mut self.stream)?;
        match reply.answer {
            Some(snapshot_reply::Answer::Rows(rows)) => Ok(Some(rows)),
            Some(snapshot_reply::Answer::Granted(_)) => Ok(None),
            Some(snapshot_reply::Answer::Refused(why)) => Err(io::Error::other(why)),
            None => Err(io::Error::other("it gives no answer that is known here")),
        }
    }

    /// The snapshots that it holds, each with the number of its file there.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn list(&mut self) -> io::Result<Vec<(SnapshotRecord, i32)>> {
        let rows = self.ask(snapshot_ask::Ask::List(ListSnapshots {}))?.unwrap_or_default().rows;
        let record =
            |row: &HeldSnapshot| Some((SnapshotRecord::from(row.snapshot.as_ref()?), row.file));
        Ok(rows.iter().filter_map(record).collect())
    }

    /// Reads a part of a snapshot.
    ///
    /// # Errors
    /// If it does not hold it, or does not answer.
    pub fn read_exact_at(
        &mut self,
        record: &SnapshotRecord,
        bytes: &mut [u8],
        offset: u64,
    ) -> io::Result<()> {
        let mut offset = offset;
        for bytes in bytes.chunks_mut(MAX_READ) {
            let num_bytes = bytes.len() as u32;
            let snapshot = Some(record.to_row());
            self.ask(snapshot_ask::Ask::Read(ReadSnapshot { snapshot, offset, num_bytes }))?;
            self.stream.read_exact(bytes)?;
            offset += bytes.len() as u64;
        }
        Ok(())
    }

    /// Has it keep a copy of the snapshot in a slot. `false` if that has changed meanwhile, so that
    /// there is none.
    ///
    /// # Errors
    /// If it refuses to, or does not answer.
    pub fn keep(&mut self, record: &SnapshotRecord, slot: &SnapshotSlot) -> io::Result<bool> {
        self.ask(snapshot_ask::Ask::Keep(record.to_row()))?;
        let mut piece = vec![0; PIECE];
        let mut offset = 0;
        let mut is_whole = true;
        while offset < record.num_bytes() {
            let left = record.num_bytes() - offset;
            let piece = &mut piece[..left.min(PIECE as u64) as usize];
            // It has promised so many: bytes of another snapshot are void.
            is_whole &= slot.read_exact_at(piece, offset).is_ok();
            self.stream.write_all(piece)?;
            offset += piece.len() as u64;
        }
        is_whole &= slot.record() == Some(*record);
        self.stream.write_all(&[if is_whole { WHOLE } else { 0 }])?;
        self.stream.flush()?;
        let reply: SnapshotReply = read_message(&mut self.stream)?;
        match reply.answer {
            Some(snapshot_reply::Answer::Granted(_)) => Ok(is_whole),
            Some(snapshot_reply::Answer::Refused(why)) => Err(io::Error::other(why)),
            _ => Err(io::Error::other("it gives no answer that is known here")),
        }
    }

    /// The run goes on after `step` steps: what was taken after that is void.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn forget_after(&mut self, step: u64) -> io::Result<()> {
        let forget = ForgetSnapshots { after_step: step };
        self.ask(snapshot_ask::Ask::Forget(forget)).map(|_| ())
    }
}

/// A connection that somebody has opened to a supervisor, after the handshake.
pub(super) struct HolderGuest {
    stream: Side<ServerConnection>,
}

impl HolderGuest {
    /// Lets in who has the token of the job.
    pub fn admit(keys: &HolderKeys, mut tcp: TcpStream) -> io::Result<Self> {
        tcp.set_nodelay(true)?;
        let mut tls = ServerConnection::new(keys.server.clone()).map_err(io::Error::other)?;
        shake_hands(&mut tls, &mut tcp)?;
        let mut stream = StreamOwned::new(tls, tcp);
        stream.write_all(&[ACCEPTED])?;
        stream.flush()?;
        Ok(Self { stream })
    }

    /// What it asks next. `None` if it has gone.
    pub fn next(&mut self) -> io::Result<Option<snapshot_ask::Ask>> {
        match read_message::<SnapshotAsk>(&mut self.stream) {
            Ok(SnapshotAsk { ask }) => Ok(ask),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn answer(&mut self, answer: snapshot_reply::Answer) -> io::Result<()> {
        write_message(&mut self.stream, &SnapshotReply { answer: Some(answer) })
    }

    /// Sends a part of what a slot holds.
    pub fn send(&mut self, slot: &SnapshotSlot, offset: u64, num_bytes: usize) -> io::Result<()> {
        let mut piece = vec![0; num_bytes.min(PIECE)];
        let mut sent = 0;
        while sent < num_bytes {
            let piece = &mut piece[..(num_bytes - sent).min(PIECE)];
            slot.read_exact_at(piece, offset + sent as u64)?;
            self.stream.write_all(piece)?;
            sent += piece.len();
        }
        self.stream.flush()
    }

    /// Receives the bytes of a snapshot. `true` if they are whole.
    pub fn receive(&mut self, writer: &mut SlotWriter<'_>, num_bytes: u64) -> io::Result<bool> {
        let mut piece = vec![0; num_bytes.min(PIECE as u64) as usize];
        while writer.num_bytes() < num_bytes {
            let left = (num_bytes - writer.num_bytes()).min(PIECE as u64) as usize;
            let piece = &mut piece[..left];
            self.stream.read_exact(piece)?;
            writer.write_all(piece)?;
        }
        let mut last = [0];
        self.stream.read_exact(&mut last)?;
        Ok(last == [WHOLE])
    }
}
