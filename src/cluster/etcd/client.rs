//! A client of etcd's v3 API. All calls block, have a deadline, and try the endpoints in turn while
//! none answers.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use prost::Message;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::messages::{self as wire, method};
use crate::cluster::codec::ProstCodec;
use crate::cluster::session::{describe, runtime, with_sources};

/// One attempt at one endpoint.
const ATTEMPT: Duration = Duration::from_secs(3);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_millis(500);
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// A response holds the values of all processes.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// Why a call to etcd failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// No endpoint answers.
    #[error(
        "no etcd answered at {endpoints} within {secs} s, for {what} ({error}); check that etcd \
         runs there, that this is its client port (2379 by default) without TLS, and that no \
         firewall blocks it"
    )]
    Unreachable {
        /// All that were tried, `HOST:PORT`.
        endpoints: String,
        /// What was asked for.
        what: String,
        /// The deadline.
        secs: u64,
        /// The last error.
        error: String,
    },
    /// etcd has answered, with an error.
    #[error("etcd at {endpoint} refused {what}: {message}")]
    Refused {
        /// `HOST:PORT`.
        endpoint: String,
        /// What was asked for.
        what: String,
        /// What etcd says.
        message: String,
        /// The kind of error.
        code: Code,
    },
    /// The address cannot be used, or there are no threads.
    #[error("cannot use etcd at {endpoint}: {error}")]
    Setup {
        /// `HOST:PORT`.
        endpoint: String,
        /// What is wrong.
        error: String,
    },
}

/// A client of an etcd cluster. Clones share its connections.
#[derive(Clone)]
pub struct Etcd {
    shared: Arc<Shared>,
    deadline: Duration,
}

struct Shared {
    endpoints: Vec<(String, Channel)>,
    /// The endpoint that answered last.
    current: AtomicUsize,
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Etcd({})", self.endpoints())
    }
}

/// A key with its value.
pub type KeyAndValue = (Vec<u8>, Vec<u8>);

impl Etcd {
    /// A client of the etcd cluster with these endpoints, `HOST:PORT`, without TLS. Connects with
    /// the first call. A call fails after `deadline`.
    ///
    /// # Errors
    /// An endpoint that cannot be used.
    pub fn new(endpoints: &[String], deadline: Duration) -> Result<Self, EtcdError> {
        let setup = |endpoint: &str, error: String| EtcdError::Setup {
            endpoint: endpoint.to_owned(),
            error,
        };
        if endpoints.is_empty() {
            return Err(setup("no endpoint", "give at least one HOST:PORT".to_owned()));
        }
        let runtime = runtime().map_err(|error: io::Error| setup("", error.to_string()))?;
        let _guard = runtime.enter();
        let channels = endpoints.iter().map(|endpoint| {
            let channel = channel(endpoint);
            let channel = channel.map_err(|error| setup(endpoint, with_sources(&error)))?;
            Ok((endpoint.clone(), channel))
        });
        let endpoints = channels.collect::<Result<_, EtcdError>>()?;
        let shared = Arc::new(Shared { endpoints, current: AtomicUsize::new(0) });
        Ok(Self { shared, deadline })
    }

    /// The same client with another deadline for its calls.
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { deadline, ..self.clone() }
    }

    /// All endpoints, for messages.
    pub fn endpoints(&self) -> String {
        let names: Vec<_> = self.shared.endpoints.iter().map(|(name, _)| name.as_str()).collect();
        names.join(", ")
    }

    /// `HOST:PORT` of the first endpoint.
    pub fn first_endpoint(&self) -> &str {
        &self.shared.endpoints[0].0
    }

    /// The value of a key, if it is set.
    ///
    /// # Errors
    /// If etcd does not answer, or refuses. Likewise for all other calls.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, EtcdError> {
        let request = wire::RangeRequest { key: key.to_vec(), range_end: vec![] };
        let response: wire::RangeResponse = self.call("reading a key", method::RANGE, request)?;
        Ok(response.kvs.into_iter().next().map(|found| found.value))
    }

    /// The keys that begin with `prefix`, without it, and their values, in order of keys.
    ///
    /// # Errors
    /// See [`Self::get`].
    pub fn list(&self, prefix: &[u8]) -> Result<Vec<KeyAndValue>, EtcdError> {
        let request = wire::RangeRequest { key: prefix.to_vec(), range_end: end_of(prefix) };
        let response: wire::RangeResponse = self.call("reading keys", method::RANGE, request)?;
        let strip = |key: Vec<u8>| key.get(prefix.len()..).unwrap_or_default().to_vec();
        Ok(response.kvs.into_iter().map(|found| (strip(found.key), found.value)).collect())
    }

    /// Sets a key, which ends with `lease` unless that is 0.
    ///
    /// # Errors
    /// See [`Self::get`].
    pub fn put(&self, key: &[u8], value: &[u8], lease: i64) -> Result<(), EtcdError> {
        let request = wire::PutRequest { key: key.to_vec(), value: value.to_vec(), lease };
        self.call("setting a key", method::PUT, request).map(|_: wire::PutResponse| ())
    }

    /// Sets a key unless it is set. `false` if it is, to another value: a repeated call is no
    /// difference.
    ///
    /// # Errors
    /// See [`Self::get`].
    pub fn create(&self, key: &[u8], value: &[u8], lease: i64) -> Result<bool, EtcdError> {
        let put = wire::PutRequest { key: key.to_vec(), value: value.to_vec(), lease };
        let request = wire::TxnRequest {
            compare: vec![wire::Compare::is_absent(key)],
            success: vec![wire::RequestOp { request: Some(wire::TxnOp::Put(put)) }],
        };
        let response: wire::TxnResponse = self.call("creating a key", method::TXN, request)?;
        // The answer to an earlier attempt may have been lost.
        Ok(response.succeeded || self.get(key)?.is_some_and(|found| found == value))
    }

    /// Removes a key. `false` if it was not set.
    ///
    /// # Errors
    /// See [`Self::get`].
    pub fn delete(&self, key: &[u8]) -> Result<bool, EtcdError> {
        self.delete_range(key, vec![])
    }

    /// Removes all keys that begin with `prefix`.
    ///
    /// # Errors
    /// See [`Self::get`].
    pub fn delete_all(&self, prefix: &[u8]) -> Result<(), EtcdError> {
        self.delete_range(prefix, end_of(prefix)).map(|_| ())
    }

    fn delete_range(&self, key: &[u8], range_end: Vec<u8>) -> Result<bool, EtcdError> {
        let request = wire::DeleteRangeRequest { key: key.to_vec(), range_end };
        let response: wire::DeleteRangeResponse =
            self.call("removing keys", method::DELETE_RANGE, request)?;
        Ok(response.deleted > 0)
    }

    /// Makes a lease that ends `ttl` (whole seconds) after it was last kept alive. `id` 0: etcd
    /// chooses. Returns the id.
    ///
    /// # Errors
    /// See [`Self::get`].
    pub fn grant(&self, ttl: Duration, id: i64) -> Result<i64, EtcdError> {
        let ttl = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX).max(1);
        let request = wire::LeaseGrantRequest { ttl, id };
        match self.call("a lease", method::LEASE_GRANT, request) {
            // An earlier attempt has arrived.
            Err(EtcdError::Refused { code: Code::FailedPrecondition, .. }) if id != 0 => Ok(id),
            response => response.map(|response: wire::LeaseGrantResponse| response.id),
        }
    }

    /// Keeps a lease alive. `false` if it has ended.
    ///
    /// # Errors
    /// See [`Self::get`].
    pub fn keep_alive(&self, lease: i64) -> Result<bool, EtcdError> {
        let request = wire::LeaseKeepAliveRequest { id: lease };
        let send = |channel, request| stream::<_, wire::LeaseKeepAliveResponse>(channel, request);
        self.send("keeping a lease alive", request, send).map(|response| response.ttl > 0)
    }

    /// Ends a lease, and with it its keys.
    ///
    /// # Errors
    /// See [`Self::get`].
    pub fn revoke(&self, lease: i64) -> Result<(), EtcdError> {
        let request = wire::LeaseRevokeRequest { id: lease };
        match self.call("ending a lease", method::LEASE_REVOKE, request) {
            Err(EtcdError::Refused { code: Code::NotFound, .. }) => Ok(()),
            response => response.map(|_: wire::LeaseRevokeResponse| ()),
        }
    }

    fn call<Q, A>(&self, what: &str, path: &'static str, request: Q) -> Result<A, EtcdError>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        self.send(what, request, move |channel, request| unary(channel, path, request))
    }

    /// Tries the endpoints in turn until one answers.
    fn send<Q, A, F>(
        &self,
        what: &str,
        request: Q,
        send: impl Fn(Channel, Q) -> F + Send + 'static,
    ) -> Result<A, EtcdError>
    where
        Q: Clone + Send + 'static,
        A: Send + 'static,
        F: Future<Output = Result<A, Status>> + Send,
    {
        let (shared, deadline, what) = (Arc::clone(&self.shared), self.deadline, what.to_owned());
        let endpoints = self.endpoints();
        let sending = async move {
            let (began, mut pause) = (Instant::now(), FIRST_PAUSE);
            let first = shared.current.load(Ordering::Relaxed);
            for attempt in first.. {
                let index = attempt % shared.endpoints.len();
                let (endpoint, channel) = &shared.endpoints[index];
                let left = deadline.saturating_sub(began.elapsed()).max(FIRST_PAUSE);
                let error = match timeout(left.min(ATTEMPT), send(channel.clone(), request.clone()))
                    .await
                {
                    Ok(Ok(answer)) => {
                        shared.current.store(index, Ordering::Relaxed);
                        return Ok(answer);
                    }
                    Ok(Err(status)) if is_refusal(&status) => {
                        let (endpoint, message) = (endpoint.clone(), describe(&status));
                        return Err(EtcdError::Refused {
                            endpoint,
                            what,
                            message,
                            code: status.code(),
                        });
                    }
                    Ok(Err(status)) => format!("{endpoint}: {}", describe(&status)),
                    Err(_) => format!("{endpoint}: no answer"),
                };
                if began.elapsed() + pause >= deadline {
                    let secs = deadline.as_secs();
                    return Err(EtcdError::Unreachable { endpoints, what, secs, error });
                }
                // All were tried.
                if (attempt + 1 - first).is_multiple_of(shared.endpoints.len()) {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(MAX_PAUSE);
                }
            }
            Err(setup_error("the attempts are exhausted"))
        };
        let (sender, receiver) = mpsc::sync_channel(1);
        let runtime = runtime().map_err(|error| setup_error(&error.to_string()))?;
        runtime.spawn(async move {
            let _ = sender.send(sending.await);
        });
        receiver.recv().unwrap_or_else(|_| Err(setup_error("its threads have ended")))
    }
}

fn setup_error(error: &str) -> EtcdError {
    EtcdError::Setup { endpoint: "any endpoint".to_owned(), error: error.to_owned() }
}

/// `true` if another attempt would be answered alike.
fn is_refusal(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Unauthenticated
            | Code::ResourceExhausted
    )
}

/// The first key after all that begin with `prefix`.
fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // All keys.
    vec![0]
}

fn channel(address: &str) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE);
    Ok(endpoint.connect_lazy())
}

async fn ready(channel: Channel) -> Result<Grpc<Channel>, Status> {
    let mut grpc = Grpc::new(channel).max_decoding_message_size(MAX_RESPONSE_BYTES);
    grpc.ready().await.map_err(|error| Status::unavailable(with_sources(&error)))?;
    Ok(grpc)
}

async fn unary<Q, A>(channel: Channel, path: &'static str, request: Q) -> Result<A, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let path = PathAndQuery::from_static(path);
    let mut grpc = ready(channel).await?;
    let response = grpc.unary(Request::new(request), path, ProstCodec::<Q, A>::default());
    Ok(response.await?.into_inner())
}

/// Sends one message of the stream of keep-alives, and waits for the answer to it.
async fn stream<Q, A>(channel: Channel, request: Q) -> Result<A, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let path = PathAndQuery::from_static(method::LEASE_KEEP_ALIVE);
    let mut grpc = ready(channel).await?;
    let requests = Request::new(tokio_stream::once(request));
    let response = grpc.streaming(requests, path, ProstCodec::<Q, A>::default());
    let answer = response.await?.into_inner().message().await?;
    answer.ok_or_else(|| Status::unavailable("the stream has ended"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_after_all_keys_with_its_prefix() {
        assert_eq!(end_of(b"/a/"), b"/a0");
        assert_eq!(end_of(&[1, 255]), [2]);
        assert_eq!(end_of(&[255]), [0]);
    }
}
