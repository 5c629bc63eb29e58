//! A connection to the coordinator, by TLS of those who have the token.

use std::error::Error as _;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use prost::Message;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::Status;
use tonic::client::Grpc;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};

use super::error::Error;
use super::lock;
use crate::cluster::awake;
use crate::cluster::codec::ProstCodec;
use crate::cluster::messages::{self as wire, Ask, Reply};
use crate::cluster::secret::{Secret, random_bytes};
use crate::cluster::token_tls::{self, ACCEPTED, TokenTls};
use crate::config::HostPort;

/// How the reason begins why a process ends that hears nothing of the coordinator.
pub const NO_ANSWER: &str = "no answer from the coordinator";
/// A single attempt to connect, with its handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// An idle connection is tested after this long, and closed if the test has no answer.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(8);

/// Which coordinator, and how to prove that one belongs to its job.
#[derive(Clone, Debug)]
pub struct Contact {
    /// `host:port` of the coordinator.
    pub address: String,
    /// Name of the job.
    pub job: String,
    /// The secret of the job.
    pub secret: Secret,
    /// Certificate authority of the coordinator's certificate, in PEM; `None`: it shows the key
    /// that follows from the secret.
    pub tls: Option<Vec<u8>>,
}

/// A session with the coordinator.
pub struct Connection {
    address: String,
    channel: Channel,
    /// Of the worker or supervisor, in all connections.
    caller: u64,
}

/// Why a call has no answer.
#[derive(Clone, Debug)]
pub enum CallError {
    /// The connection failed: it may be tried again.
    Lost(String),
}

/// How long calls are lost before that is an error.
pub struct Patience {
    limit: Duration,
    began: Duration,
    pause: Duration,
}

impl Patience {
    /// From now on, by the clock that stands still while this process is stopped.
    pub fn new(limit: Duration) -> Self {
        Self { limit, began: awake::now(), pause: FIRST_PAUSE }
    }

    /// Waits a moment after a call was lost; an error when there were such for too long.
    pub async fn after(&mut self, connection: &Connection, error: &str) -> Result<(), Error> {
        let silent = awake::now() - self.began;
        if silent + self.pause >= self.limit {
            return Err(Error::Ended(connection.silence(silent, error)));
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        Ok(())
    }
}

/// The thread on which all sessions of this process send and receive: one only, so that what an
/// answer means is done before anything else is received.
pub fn runtime() -> io::Result<&'static Runtime> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lockstep-session")
            .enable_all()
            .build()
            .inspect(|runtime| drop(runtime.spawn(awake::keep())))
            .map_err(|error| error.to_string())
    });
    runtime.as_ref().map_err(|error| io::Error::other(error.as_str()))
}

impl Connection {
    /// Opens a session, trying again until `deadline` while the coordinator does not answer.
    pub async fn open(contact: Contact, deadline: Duration) -> Result<Self, Error> {
        let began = awake::now();
        let address = contact.address.clone();
        let dialer = Dialer::new(&contact)?;
        let channel = dialer.channel(&contact)?;
        let caller = u64::from_le_bytes(*random_bytes()?.first_chunk().unwrap_or(&[0; 8]));
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match timeout(CONNECT_TIMEOUT, dialer.dial()).await {
                Ok(Ok(stream)) => {
                    *lock(&dialer.first) = Some(stream);
                    return Ok(Self { address, channel, caller });
                }
                Ok(Err(error)) if token_tls::is_stranger(&error) => {
                    return Err(Error::Unauthenticated {
                        address,
                        why: token_tls::describe(&error),
                    });
                }
                Ok(Err(error)) => token_tls::describe(&error),
                Err(_) => "no answer".to_owned(),
            };
            if awake::now() - began + pause >= deadline {
                return Err(Error::Unreachable { address, secs: deadline.as_secs(), error });
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// `host:port` of the coordinator.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Asks once.
    pub async fn call(&self, ask: Ask, within: Duration) -> Result<Reply, CallError> {
        let request = wire::CallBody { ask: Some(ask), caller: self.caller };
        let answer = unary::<_, wire::ReplyBody>(&self.channel, wire::CALL, request);
        match timeout(within, answer).await {
            Ok(Ok(response)) => response
                .answer
                .ok_or_else(|| CallError::Lost("an answer of another version".to_owned())),
            Ok(Err(status)) => Err(CallError::Lost(describe(&status))),
            Err(_) => Err(CallError::Lost(format!("no answer within {within:?}"))),
        }
    }

    /// Asks until there is an answer. The coordinator may take `wait` for it; after `patience`
    /// without one, in which this process could run, that is an error.
    pub async fn insist(
        &self,
        ask: Ask,
        wait: Duration,
        patience: Duration,
    ) -> Result<Reply, Error> {
        let limit = wait + patience;
        let mut left = Patience::new(limit);
        loop {
            match self.call(ask.clone(), limit).await {
                Ok(answer) => return Ok(answer),
                Err(CallError::Lost(error)) => left.after(self, &error).await?,
            }
        }
    }

    /// The coordinator has not answered for this long.
    pub fn silence(&self, silent: Duration, error: &str) -> String {
        format!(
            "{NO_ANSWER} at {} for {} s ({error})",
            self.address(),
            silent.as_secs_f64().round()
        )
    }
}

/// Connects a channel to the coordinator, as often as it must.
#[derive(Clone)]
struct Dialer {
    address: String,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    /// The connection with which the session was opened.
    first: Arc<Mutex<Option<TlsStream<TcpStream>>>>,
}

impl Dialer {
    fn new(contact: &Contact) -> Result<Self, Error> {
        let Contact { address, job, secret, tls: authority } = contact;
        let failed = |error: String| Error::Connection { address: address.clone(), error };
        let config = TokenTls::new(secret, job)?.client(authority.as_deref());
        let config = config.map_err(|error| failed(error.to_string()))?;
        let name = match authority {
            None => token_tls::no_name(),
            Some(_) => {
                let parsed: Result<HostPort, _> = address.parse();
                let host = parsed.map_err(|_| failed("it must be HOST:PORT".to_owned()))?;
                ServerName::try_from(host.host().to_owned())
                    .map_err(|error| failed(error.to_string()))?
            }
        };
        Ok(Self { address: address.clone(), config, name, first: Arc::default() })
    }

    fn channel(&self, contact: &Contact) -> Result<Channel, Error> {
        let endpoint = Endpoint::from_shared(format!("http://{}", contact.address));
        let endpoint = endpoint
            .map_err(|error| Error::Connection {
                address: contact.address.clone(),
                error: with_sources(&error),
            })?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true);
        Ok(endpoint.connect_with_connector_lazy(self.clone()))
    }

    async fn dial(&self) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let connector = TlsConnector::from(self.config.clone());
        let mut stream = connector.connect(self.name.clone(), stream).await?;
        match stream.read_u8().await? {
            ACCEPTED => Ok(stream),
            _ => Err(io::Error::other("it runs another version of this program")),
        }
    }
}

impl Service<Uri> for Dialer {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let dialer = self.clone();
        Box::pin(async move {
            let first = lock(&dialer.first).take();
            match first {
                Some(stream) => Ok(TokioIo::new(stream)),
                None => dialer.dial().await.map(TokioIo::new),
            }
        })
    }
}

async fn unary<M1, M2>(channel: &Channel, path: &'static str, message: M1) -> Result<M2, Status>
where
    M1: Message + 'static,
    M2: Message + Default + 'static,
{
    let mut grpc =
        Grpc::new(channel.clone()).max_decoding_message_size(wire::MAX_RESPONSE_BYTES + 4096);
    grpc.ready().await.map_err(|error| Status::unavailable(with_sources(&error)))?;
    let path = PathAndQuery::from_static(path);
    let response = grpc.unary(tonic::Request::new(message), path, ProstCodec::<M1, M2>::default());
    Ok(response.await?.into_inner())
}

/// The message of a status, and what caused it.
fn describe(status: &Status) -> String {
    match status.source() {
        Some(source) => with_sources(source),
        None => status.message().to_owned(),
    }
}

/// An error, and what caused it.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let part = error.to_string();
        if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
        source = error.source();
    }
    text
}
