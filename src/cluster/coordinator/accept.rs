//! Accepts connections of those who have the token of the job, and closes others.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::listen;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::codegen::tokio_stream::Stream;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use crate::cluster::token_tls::{self, ACCEPTED};

/// A handshake takes no longer than this.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The wait after an error such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);
/// Files open for other purposes.
const OTHER_FILES: u64 = 1024;

/// Connections to the listener of those who have the token, at most `max_connections` at a time,
/// and as many handshakes: the oldest one is given up for one more. `refuse` is told of others.
pub fn incoming(
    listener: TcpListener,
    config: Arc<ServerConfig>,
    max_connections: usize,
    refuse: impl Fn(SocketAddr, &str) + Send + Sync + 'static,
) -> impl Stream<Item = io::Result<Accepted>> {
    let (sender, receiver) = mpsc::channel(16);
    let acceptor = TlsAcceptor::from(config);
    let refuse = Arc::new(refuse);
    tokio::spawn(async move {
        let places = Arc::new(Semaphore::new(max_connections));
        let mut pending: VecDeque<AbortHandle> = VecDeque::new();
        while !sender.is_closed() {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = sender.closed() => break,
            };
            let Ok((stream, peer)) = accepted else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            if pending.len() >= max_connections {
                pending.retain(|handshake| !handshake.is_finished());
            }
            if pending.len() >= max_connections
                && let Some(oldest) = pending.pop_front()
            {
                oldest.abort();
            }
            let (acceptor, refuse) = (acceptor.clone(), Arc::clone(&refuse));
            let (sender, places) = (sender.clone(), Arc::clone(&places));
            let handshake = tokio::spawn(async move {
                match timeout(HANDSHAKE_TIMEOUT, shake_hands(&acceptor, stream)).await {
                    Ok(Ok(stream)) => {
                        let Ok(_place) = places.acquire_owned().await else { return };
                        let _ = sender.send(Ok(Accepted { stream, _place })).await;
                    }
                    Ok(Err(error)) if token_tls::is_of_tls(&error) => {
                        refuse(peer, &format!("it {}", token_tls::describe(&error)));
                    }
                    // It has gone, as those do that only ask whether somebody listens.
                    Ok(Err(_)) => {}
                    Err(_) => refuse(peer, "it was silent for too long"),
                }
            });
            pending.push_back(handshake.abort_handle());
        }
    });
    ReceiverStream::new(receiver)
}

async fn shake_hands(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
) -> io::Result<TlsStream<TcpStream>> {
    stream.set_nodelay(true)?;
    let mut stream = acceptor.accept(stream).await?;
    stream.write_all(&[ACCEPTED]).await?;
    stream.flush().await?;
    Ok(stream)
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

/// A connection of one who has the token.
pub struct Accepted {
    stream: TlsStream<TcpStream>,
    _place: OwnedSemaphorePermit,
}

impl Connected for Accepted {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
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
