//! The threads that send and receive frames.

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::{io, thread};

use super::super::arrivals::{ArrivalMeter, MIN_BYTES};
use super::super::call::ReplicaCall;
use super::super::exchange::{Exchange, Outbox};
use super::super::frame::{FrameKind, HEADER_BYTES, Header, Payload, PayloadBuffers};
use super::handshake::{Incoming, Outgoing};

/// Frames of up to this size are copied so that they are sent at once.
const MAX_JOINED_BYTES: usize = 1 << 14;

/// A thread for each other process that sends frames in order.
pub(super) struct Writers {
    process_index: usize,
    addresses: Vec<SocketAddr>,
    /// By process. `None` for this one, and once closed.
    queues: Vec<Mutex<Option<Sender<Frame>>>>,
    /// Disconnected once all writers have ended.
    ended: Mutex<Receiver<()>>,
}

struct Frame {
    header: Header,
    payload: Arc<Payload>,
}

impl Writers {
    pub fn start(
        process_index: usize,
        addresses: Vec<SocketAddr>,
        streams: Vec<Option<(Outgoing, TcpStream)>>,
    ) -> io::Result<Self> {
        let (alive, ended) = mpsc::channel();
        let mut queues = vec![];
        for (process, stream) in streams.into_iter().enumerate() {
            let mut queue = None;
            if let Some((outgoing, back)) = stream {
                let (sender, receiver) = mpsc::channel();
                let alive = alive.clone();
                let thread = thread::Builder::new().name(format!("send-{process}"));
                thread.spawn(move || {
                    send_all(outgoing, &back, &receiver);
                    drop(alive);
                })?;
                queue = Some(sender);
            }
            queues.push(Mutex::new(queue));
        }
        Ok(Self { process_index, addresses, queues, ended: Mutex::new(ended) })
    }
}

impl Outbox for Writers {
    fn process_index(&self) -> usize {
        self.process_index
    }

    fn num_processes(&self) -> usize {
        self.addresses.len()
    }

    fn send(&self, process: usize, header: Header, payload: Arc<Payload>) {
        let queue = self.queues.get(process).map(|queue| queue.lock());
        if let Some(queue) = queue
            && let Some(queue) = &*queue.unwrap_or_else(PoisonError::into_inner)
        {
            // A writer ends when its connection breaks, which the reader reports.
            let _ = queue.send(Frame { header, payload });
        }
    }

    fn name(&self, process: usize) -> String {
        match self.addresses.get(process) {
            Some(address) => format!("process {process} ({address})"),
            None => format!("process {process}"),
        }
    }

    fn close(&self, timeout: Duration) -> bool {
        let from = Instant::now();
        for queue in &self.queues {
            queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let left = timeout.saturating_sub(from.elapsed());
        ended.recv_timeout(left) == Err(RecvTimeoutError::Disconnected)
    }
}

/// Sends frames until the queue is closed, then says goodbye.
fn send_all(outgoing: Outgoing, back: &TcpStream, queue: &Receiver<Frame>) {
    let Outgoing { tcp, mut stream } = outgoing;
    let goodbye = || {
        let header = Header::of_launch(FrameKind::Goodbye, 0);
        Frame { header, payload: Arc::default() }
    };
    let mut joined = Vec::with_capacity(HEADER_BYTES + MAX_JOINED_BYTES);
    let sent = queue
        .iter()
        .chain(std::iter::once_with(goodbye))
        .try_for_each(|frame| send(&mut stream, &frame, &mut joined));
    let _ = match sent {
        Ok(()) => tcp.shutdown(Shutdown::Write),
        // The reader of this process notices, and reports it.
        Err(_) => back.shutdown(Shutdown::Both).and_then(|()| tcp.shutdown(Shutdown::Both)),
    };
}

fn send(stream: &mut impl Write, frame: &Frame, joined: &mut Vec<u8>) -> io::Result<()> {
    let payload = frame.payload.bytes();
    let header = frame.header.encode(payload.len());
    if payload.len() > MAX_JOINED_BYTES {
        stream.write_all(&header)?;
        stream.write_all(payload)?;
    } else {
        joined.clear();
        joined.extend_from_slice(&header);
        joined.extend_from_slice(payload);
        stream.write_all(joined)?;
    }
    stream.flush()
}

/// Delivers the frames of a process until it says goodbye, or the connection breaks, or the
/// exchange is gone.
pub(super) fn receive<C: ReplicaCall>(
    exchange: &Weak<Exchange<C>>,
    process: usize,
    incoming: Incoming,
    there: &TcpStream,
    (buffers, arrivals): (&Arc<PayloadBuffers>, &ArrivalMeter),
) {
    let Incoming { tcp, stream } = incoming;
    let mut reader = BufReader::with_capacity(MAX_JOINED_BYTES, stream);
    let lost = loop {
        let frame = read_frame(&mut reader, buffers, arrivals);
        let Some(exchange) = exchange.upgrade() else { return };
        match frame {
            Ok((header, payload)) => {
                exchange.deliver(process, header, payload);
                if header.kind == FrameKind::Goodbye {
                    return;
                }
            }
            Err(reason) => break reason,
        }
    };
    // Whatever else it sends is not read, and it must notice.
    let _ = tcp.shutdown(Shutdown::Both);
    let _ = there.shutdown(Shutdown::Both);
    if let Some(exchange) = exchange.upgrade() {
        exchange.lose(process, &lost);
    }
}

/// A frame, or what has happened instead, to follow the name of the process.
fn read_frame(
    mut reader: impl Read,
    buffers: &Arc<PayloadBuffers>,
    arrivals: &ArrivalMeter,
) -> Result<(Header, Payload), String> {
    let describe = |error: io::Error| match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => "closed the connection".to_owned(),
        _ => format!("cannot be reached any more: {error}"),
    };
    let mut header = [0; HEADER_BYTES];
    reader.read_exact(&mut header).map_err(describe)?;
    let (header, num_bytes) = Header::decode(&header)?;
    let is_measured = num_bytes >= MIN_BYTES;
    if is_measured {
        arrivals.begin(Instant::now());
    }
    let payload = Payload::read(reader, num_bytes, buffers);
    if is_measured {
        arrivals.end(Instant::now(), num_bytes);
    }
    let payload = payload.map_err(describe)?;
    Ok((header, payload))
}
