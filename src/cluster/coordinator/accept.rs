//! Accepts connections, and closes those that say nothing.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::listen;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Sleep;
use tonic::codegen::tokio_stream::Stream;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// A connection must begin to speak within this time. A stranger that is silent keeps its place no
/// longer.
const MAX_SILENCE: Duration = Duration::from_secs(10);
/// A client sends more than this at once: the preface, settings and its first request.
const MIN_BYTES: usize = 64;
/// The wait after an error such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);
/// Files open for other purposes.
const OTHER_FILES: u64 = 1024;

/// Connections to the listener, at most `max_connections` at a time.
pub fn incoming(
    listener: TcpListener,
    max_connections: usize,
) -> impl Stream<Item = io::Result<Accepted>> {
    let (sender, receiver) = mpsc::channel(16);
    tokio::spawn(async move {
        let places = Arc::new(Semaphore::new(max_connections));
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let _ = stream.set_nodelay(true);
                    let silence = Some(Box::pin(tokio::time::sleep(MAX_SILENCE)));
                    let connection = Accepted { stream, silence, num_read: 0, _place: place };
                    if sender.send(Ok(connection)).await.is_err() {
                        return;
                    }
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    });
    ReceiverStream::new(receiver)
}

/// Prepares for `num_connections`, many of which come at once, as far as the system allows it. The
/// queue of connections to be accepted has only 128 places otherwise, and often a process may have
/// only 1,024 files open unless it asks for more.
pub fn allow_connections(listener: &std::net::TcpListener, num_connections: usize) {
    let _ = listen(listener, i32::try_from(num_connections).unwrap_or(i32::MAX));
    let needed = (num_connections as u64).saturating_add(OTHER_FILES);
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < needed) {
        let current = Some(limit.maximum.map_or(needed, |maximum| needed.min(maximum)));
        // Where it is not possible, connections beyond the limit wait.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, ..limit });
    }
}

/// A connection with a deadline for its first bytes.
pub struct Accepted {
    stream: TcpStream,
    silence: Option<Pin<Box<Sleep>>>,
    num_read: usize,
    _place: OwnedSemaphorePermit,
}

impl Connected for Accepted {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Some(silence) = &mut self.silence {
            let is_over = silence.as_mut().poll(context).is_ready();
            self.num_read += buffer.filled().len() - before;
            if self.num_read >= MIN_BYTES {
                self.silence = None;
            } else if is_over {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        result
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
