//! An authenticated connection to the coordinator.

use std::error::Error as _;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use prost::Message;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Status};

use super::error::Error;
use super::lock;
use crate::cluster::awake;
use crate::cluster::codec::ProstCodec;
use crate::cluster::coordinator::UNKNOWN_SESSION;
use crate::cluster::messages::{self as wire, Ask, Reply, method};
use crate::cluster::seal::{self, Direction};
use crate::cluster::secret::{Secret, random_bytes};

/// How the reason begins why a process ends that hears nothing of the coordinator.
pub const NO_ANSWER: &str = "no answer from the coordinator";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A single attempt to open a session.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
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
    /// Certificate authority of the coordinator's certificate, in PEM; `None`: without TLS.
    pub tls: Option<Vec<u8>>,
}

/// A session with the coordinator.
pub struct Connection {
    contact: Contact,
    channel: Channel,
    /// Of the worker or supervisor, in all sessions.
    caller: u64,
    open: Mutex<Arc<OpenSession>>,
}

struct OpenSession {
    number: u64,
    key: Secret,
    counter: AtomicU64,
}

/// Why a call has no answer.
#[derive(Clone, Debug)]
pub enum CallError {
    /// The connection failed: it may be tried again.
    Lost(String),
}

/// The threads on which all sessions of this process send and receive.
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
        let channel = channel(&contact)?;
        let mut pause = FIRST_PAUSE;
        let mut was_refused = false;
        loop {
            match timeout(OPEN_TIMEOUT, greet(&channel, &contact)).await {
                Ok(Ok(open)) => {
                    let caller = *random_bytes()?.first_chunk().unwrap_or(&[0; 8]);
                    let (caller, open) = (u64::from_le_bytes(caller), Mutex::new(open));
                    return Ok(Self { contact, channel, caller, open });
                }
                // The coordinator may have been replaced since its challenge.
                Ok(Err(Greeting::Final(Error::Unauthenticated { .. })))
                    if !std::mem::replace(&mut was_refused, true) => {}
                Ok(Err(Greeting::Final(error))) => return Err(error),
                Ok(Err(Greeting::Again(_))) | Err(_) if awake::now() - began + pause < deadline => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(MAX_PAUSE);
                }
                failed => {
                    let error = match failed {
                        Ok(Err(Greeting::Again(error))) => error,
                        _ => "no answer".to_owned(),
                    };
                    let (address, secs) = (contact.address, deadline.as_secs());
                    return Err(Error::Unreachable { address, secs, error });
                }
            }
        }
    }

    /// `host:port` of the coordinator.
    pub fn address(&self) -> &str {
        &self.contact.address
    }

    /// Asks once.
    pub async fn call(&self, ask: Ask, within: Duration) -> Result<Reply, CallError> {
        let open = lock(&self.open).clone();
        let counter = open.counter.fetch_add(1, Ordering::Relaxed);
        let request = wire::CallBody { ask: Some(ask), caller: self.caller };
        let sealed = seal::seal(&open.key, Direction::Request, open.number, counter, &request);
        let answer = unary::<_, wire::Sealed>(&self.channel, method::CALL, sealed);
        let sealed = match timeout(within, answer).await {
            Ok(Ok(sealed)) => sealed,
            Ok(Err(status)) => {
                // Another coordinator has taken its place.
                if status.message().contains(UNKNOWN_SESSION)
                    && let Ok(Ok(open)) = timeout(within, greet(&self.channel, &self.contact)).await
                {
                    *lock(&self.open) = open;
                }
                return Err(CallError::Lost(describe(&status)));
            }
            Err(_) => return Err(CallError::Lost(format!("no answer within {within:?}"))),
        };
        let is_answer = sealed.counter == counter
            && seal::is_sealed_with(&open.key, Direction::Response, &sealed);
        if !is_answer {
            return Err(CallError::Lost("an answer that is not authentic".to_owned()));
        }
        let response = wire::ReplyBody::decode(&*sealed.body);
        response
            .ok()
            .and_then(|response| response.answer)
            .ok_or_else(|| CallError::Lost("an answer of another version".to_owned()))
    }

    /// Asks until there is an answer. The coordinator may take `wait` for it; after `patience`
    /// without one, in which this process could run, that is an error.
    pub async fn insist(
        &self,
        ask: Ask,
        wait: Duration,
        patience: Duration,
    ) -> Result<Reply, Error> {
        let began = awake::now();
        let mut pause = FIRST_PAUSE;
        loop {
            match self.call(ask.clone(), wait + patience).await {
                Ok(answer) => return Ok(answer),
                Err(CallError::Lost(_)) if awake::now() - began + pause < wait + patience => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(MAX_PAUSE);
                }
                Err(CallError::Lost(error)) => {
                    return Err(Error::Ended(self.silence(patience, &error)));
                }
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

enum Greeting {
    Again(String),
    Final(Error),
}

impl From<Status> for Greeting {
    fn from(status: Status) -> Self {
        Self::Again(describe(&status))
    }
}

async fn greet(channel: &Channel, contact: &Contact) -> Result<Arc<OpenSession>, Greeting> {
    let Contact { address, job, secret, .. } = contact;
    let challenge: wire::Challenge =
        unary(channel, method::CHALLENGE, wire::AskChallenge {}).await?;
    let client_nonce = random_bytes().map_err(|error| Greeting::Final(error.into()))?.to_vec();
    let hello = seal::hello(secret, job, challenge.nonce, client_nonce);
    let key = seal::session_key(secret, &hello);
    let welcome: wire::Welcome = match unary(channel, method::HELLO, hello).await {
        Ok(welcome) => welcome,
        Err(status) if status.code() == Code::Unauthenticated => {
            let (address, why) = (address.clone(), status.message().to_owned());
            return Err(Greeting::Final(Error::Unauthenticated { address, why }));
        }
        Err(status) => return Err(status.into()),
    };
    match seal::welcome_is_true(&key, &welcome) {
        true => {
            let counter = AtomicU64::new(0);
            Ok(Arc::new(OpenSession { number: welcome.session, key, counter }))
        }
        false => Err(Greeting::Final(Error::Impostor { address: address.clone() })),
    }
}

fn channel(contact: &Contact) -> Result<Channel, Error> {
    let failed = |error: &dyn std::error::Error| Error::Connection {
        address: contact.address.clone(),
        error: with_sources(error),
    };
    let scheme = if contact.tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{}", contact.address));
    let mut endpoint = endpoint
        .map_err(|error| failed(&error))?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    if let Some(authority) = &contact.tls {
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority));
        endpoint = endpoint.tls_config(tls).map_err(|error| failed(&error))?;
    }
    Ok(endpoint.connect_lazy())
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
