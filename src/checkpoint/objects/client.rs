//! Requests to an object store.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::{Deref, Range};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, ObjectStoreExt, RetryConfig};
use tokio::runtime::{Builder, Runtime};

use super::{ObjectUrl, step_of};

/// Small requests that are sent at the same time.
const MAX_REQUESTS: usize = 16;

/// The objects below a prefix.
pub struct ObjectClient {
    prefix: Path,
    store: Arc<dyn ObjectStore>,
    /// The same store.
    pub parts: Arc<dyn MultipartStore>,
    /// Time limit of a request with its retries.
    limit: Duration,
}

/// Without the store, which holds secrets.
impl fmt::Debug for ObjectClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObjectClient").field(&self.prefix).finish()
    }
}

/// The entries directly below a prefix.
pub struct Listing {
    /// The names of files and their sizes.
    pub files: BTreeMap<String, u64>,
    /// The names of folders.
    pub folders: Vec<String>,
}

/// The folder of a checkpoint, complete or not.
pub struct StepFolder {
    pub step: u64,
    pub name: String,
    /// The names of files and their sizes.
    pub files: BTreeMap<String, u64>,
}

/// A request that is under way.
pub struct ObjectRequest<T>(Receiver<io::Result<T>>);

impl<T> ObjectRequest<T> {
    /// Waits for the answer; requests have time limits.
    pub fn wait(self) -> io::Result<T> {
        let lost = |_| io::Error::other("the request was dropped");
        self.0.recv().map_err(lost).and_then(|answer| answer)
    }
}

/// The threads that requests run on, for as long as the process lives.
fn runtime() -> io::Result<&'static Runtime> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let start = || {
        // An error means that the program has already chosen another one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(2).thread_name("object-store").enable_all();
        builder.build().map_err(|error| error.to_string())
    };
    RUNTIME.get_or_init(start).as_ref().map_err(|error| io::Error::other(error.clone()))
}

impl ObjectClient {
    /// Reads the environment and prepares requests; sends none.
    pub fn connect(url: &ObjectUrl) -> io::Result<Self> {
        let _ = runtime()?;
        let options = url.options();
        let retry = RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(100).min(options.max_backoff),
                max_backoff: options.max_backoff,
                ..BackoffConfig::default()
            },
            max_retries: options.max_retries,
            retry_timeout: options.retry_timeout,
        };
        let millis = |time: Duration| format!("{} ms", time.as_millis());
        let timeouts = [
            (ClientConfigKey::Timeout, millis(options.request_timeout)),
            (ClientConfigKey::ConnectTimeout, millis(options.connect_timeout)),
        ];
        let invalid = |error: object_store::Error| {
            io::Error::new(io::ErrorKind::InvalidInput, describe(&error))
        };
        let (scheme, bucket, prefix) = url.parts();
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if bucket.is_empty() || !bucket.bytes().all(is_known) {
            let reason =
                format!("{bucket:?} is not the name of a bucket; write {scheme}://BUCKET/PREFIX");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        macro_rules! build {
            ($builder:expr, $key:ty) => {{
                let mut builder = $builder.with_retry(retry);
                for (key, value) in timeouts {
                    builder = builder.with_config(<$key>::Client(key), value);
                }
                for (key, value) in &options.settings {
                    builder = builder.with_config(key.parse::<$key>().map_err(invalid)?, value);
                }
                let store = Arc::new(builder.build().map_err(invalid)?);
                (store.clone() as Arc<dyn ObjectStore>, store as Arc<dyn MultipartStore>)
            }};
        }
        let (store, parts) = match scheme {
            "s3" => {
                build!(AmazonS3Builder::from_env().with_bucket_name(bucket), AmazonS3ConfigKey)
            }
            "gs" => build!(
                GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket),
                GoogleConfigKey
            ),
            _ => build!(
                MicrosoftAzureBuilder::from_env().with_container_name(bucket),
                AzureConfigKey
            ),
        };
        // The last attempt may begin at the end of the time for retries.
        let limit = options.retry_timeout + options.request_timeout + options.max_backoff;
        Ok(Self { prefix: Path::from(prefix), store, parts, limit })
    }

    /// The path of an object below the prefix.
    pub fn path(&self, name: &str) -> Path {
        let parts = name.split('/').filter(|part| !part.is_empty());
        parts.fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// Starts a request.
    pub fn start<T: Send + 'static>(
        &self,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> io::Result<ObjectRequest<T>> {
        let (send, receive) = sync_channel(1);
        let limit = self.limit;
        runtime()?.spawn(async move {
            let answer = match tokio::time::timeout(limit, request).await {
                Ok(answer) => {
                    answer.map_err(|error| io::Error::new(kind(&error), describe(&error)))
                }
                Err(_) => {
                    let reason = format!("there was no answer within {} s", limit.as_secs_f64());
                    Err(io::Error::new(io::ErrorKind::TimedOut, reason))
                }
            };
            // Nobody waits for a request that was given up.
            let _ = send.send(answer);
        });
        Ok(ObjectRequest(receive))
    }

    /// Lists what is directly below a folder.
    pub fn list(&self, folder: &str) -> io::Result<Listing> {
        self.start_list(folder)?.wait()
    }

    fn start_list(&self, folder: &str) -> io::Result<ObjectRequest<Listing>> {
        let (store, path) = (self.store.clone(), self.path(folder));
        self.start(async move {
            let found = store.list_with_delimiter(Some(&path)).await?;
            let name = |path: &Path| path.filename().unwrap_or_default().to_owned();
            let files = found.objects.iter().map(|file| (name(&file.location), file.size));
            let folders = found.common_prefixes.iter().map(name);
            Ok(Listing { files: files.collect(), folders: folders.collect() })
        })
    }

    /// The folders of checkpoints.
    pub fn steps(&self) -> io::Result<Vec<StepFolder>> {
        let folders = self.list("")?.folders.into_iter();
        let folders: Vec<_> = folders.filter_map(|name| Some((step_of(&name)?, name))).collect();
        let mut found = vec![];
        for batch in folders.chunks(MAX_REQUESTS) {
            let started = batch.iter().map(|(_, name)| self.start_list(name));
            let started: Vec<_> = started.collect::<Result<_, _>>()?;
            for ((step, name), files) in batch.iter().zip(started) {
                let (step, name) = (*step, name.clone());
                found.push(StepFolder { step, name, files: files.wait()?.files });
            }
        }
        Ok(found)
    }

    /// Reads a whole object.
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let (store, path) = (self.store.clone(), self.path(name));
        let read = self.start(async move { store.get(&path).await?.bytes().await })?;
        Ok(read.wait()?.into())
    }

    /// Reads a range of an object.
    pub fn read_range(
        &self,
        name: &str,
        range: Range<u64>,
    ) -> io::Result<impl Deref<Target = [u8]> + use<>> {
        let (store, path) = (self.store.clone(), self.path(name));
        self.start(async move { store.get_range(&path, range).await })?.wait()
    }

    /// Puts an object with one request, in place of an earlier one.
    pub fn put(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        let (store, path) = (self.store.clone(), self.path(name));
        let put = self.start(async move { store.put(&path, bytes.into()).await })?;
        put.wait().map(drop)
    }

    /// Deletes objects, in no particular order. Those that are gone already do not count as errors.
    pub fn delete(&self, names: impl IntoIterator<Item = String>) -> io::Result<()> {
        let delete = |name: String| {
            let (store, path) = (self.store.clone(), self.path(&name));
            self.start(async move {
                match store.delete(&path).await {
                    Err(object_store::Error::NotFound { .. }) => Ok(()),
                    deleted => deleted,
                }
            })
        };
        let names: Vec<_> = names.into_iter().collect();
        for batch in names.chunks(MAX_REQUESTS) {
            let started: Vec<_> = batch.iter().cloned().map(delete).collect::<Result<_, _>>()?;
            started.into_iter().try_for_each(ObjectRequest::wait)?;
        }
        Ok(())
    }
}

fn kind(error: &object_store::Error) -> io::ErrorKind {
    match error {
        object_store::Error::NotFound { .. } => io::ErrorKind::NotFound,
        object_store::Error::PermissionDenied { .. }
        | object_store::Error::Unauthenticated { .. } => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::Other,
    }
}

/// The failure, and the settings that may help.
fn describe(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    // Causes that the text does not show yet.
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    let lower = text.to_lowercase();
    let hint = HINTS.iter().find(|(words, _)| words.iter().any(|word| lower.contains(word)));
    text + hint.map_or("", |(_, hint)| hint)
}

/// Words of errors in lower case, and what to do. The first that matches counts.
const HINTS: [(&[&str], &str); 7] = [
    (
        &["nosuchbucket", "containernotfound"],
        "; there is no such bucket: create it, or change the URL",
    ),
    (
        &["403 forbidden", "401 unauthorized"],
        "; check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, \
         GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY) \
         and what they are allowed to do",
    ),
    (
        &["metadata", "credential"],
        "; set the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, \
         GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY)",
    ),
    (&["redirect"], "; set AWS_REGION to the bucket's region"),
    (&["account must be specified"], "; set AZURE_STORAGE_ACCOUNT_NAME"),
    (
        &["builder error", "scheme is not allowed"],
        "; for an endpoint without TLS, set AWS_ALLOW_HTTP=true",
    ),
    (
        &["connect", "dns", "timed out"],
        "; check the network, and AWS_ENDPOINT_URL if it is not Amazon's S3",
    ),
];
