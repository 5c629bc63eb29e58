//! Where checkpoints are: a directory, or a prefix in an object store.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::OBJECT_SCHEMES;

/// A place for checkpoints, or the place of one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Location {
    /// A directory.
    Path(PathBuf),
    /// A prefix in an object store.
    Url(ObjectUrl),
}

/// A URL `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`, and how it is
/// accessed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectUrl {
    url: String,
    options: Box<ObjectOptions>,
}

/// How an object store is accessed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectOptions {
    /// Settings with the names of environment variables in lower case, such as `aws_endpoint_url`.
    /// Others come from the environment.
    pub settings: BTreeMap<String, String>,
    /// Time limit of a connection attempt.
    pub connect_timeout: Duration,
    /// Time limit of one attempt of a request.
    pub request_timeout: Duration,
    /// Most retries of a request.
    pub max_retries: usize,
    /// Time after which a request is not retried any more.
    pub retry_timeout: Duration,
    /// The longest pause before a retry. The first one is 100 ms; pauses grow, with jitter.
    pub max_backoff: Duration,
    /// Larger files are uploaded in parts of this size. S3 needs at least 5 MiB.
    pub part_bytes: usize,
}

impl Default for ObjectOptions {
    fn default() -> Self {
        Self {
            settings: BTreeMap::new(),
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(60),
            max_retries: 10,
            retry_timeout: Duration::from_secs(180),
            max_backoff: Duration::from_secs(15),
            part_bytes: 16 << 20,
        }
    }
}

impl ObjectUrl {
    /// How the store is accessed.
    pub fn options(&self) -> &ObjectOptions {
        &self.options
    }

    /// The scheme, the bucket and the prefix in it.
    pub fn parts(&self) -> (&str, &str, &str) {
        let (scheme, rest) = self.url.split_once("://").unwrap_or_default();
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        (scheme, bucket, prefix)
    }
}

impl Location {
    /// The same place, accessed in another way. No effect on a local path.
    #[must_use]
    pub fn with_options(self, options: ObjectOptions) -> Self {
        match self {
            Self::Url(ObjectUrl { url, .. }) => {
                Self::Url(ObjectUrl { url, options: Box::new(options) })
            }
            path => path,
        }
    }

    /// A file or directory in it.
    #[must_use]
    pub fn join(&self, name: &str) -> Self {
        match self {
            Self::Path(path) => Self::Path(path.join(name)),
            Self::Url(ObjectUrl { url, options }) => {
                Self::Url(ObjectUrl { url: format!("{url}/{name}"), options: options.clone() })
            }
        }
    }

    /// The last part of the path.
    pub fn name(&self) -> &str {
        match self {
            Self::Path(path) => path.file_name().and_then(|name| name.to_str()).unwrap_or_default(),
            Self::Url(url) => url.url.rsplit('/').next().unwrap_or_default(),
        }
    }

    /// `true` if it is directly in `dir`. Local paths must exist.
    pub fn is_in(&self, dir: &Self) -> bool {
        match (self, dir) {
            (Self::Path(path), Self::Path(dir)) => {
                let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
                parent.is_some() && parent == dir.canonicalize().ok()
            }
            (Self::Url(url), Self::Url(dir)) => {
                url.url.rsplit_once('/').is_some_and(|(parent, _)| parent == dir.url)
            }
            _ => false,
        }
    }
}

impl From<&Path> for Location {
    fn from(path: &Path) -> Self {
        let is_url = |text: &&str| {
            text.split_once("://").is_some_and(|(scheme, _)| OBJECT_SCHEMES.contains(&scheme))
        };
        match path.to_str().filter(is_url) {
            Some(url) => {
                let (scheme, rest) = url.split_once("://").unwrap_or_default();
                let url = format!("{scheme}://{}", rest.trim_end_matches('/'));
                Self::Url(ObjectUrl { url, options: Box::default() })
            }
            None => Self::Path(path.to_owned()),
        }
    }
}

impl From<&PathBuf> for Location {
    fn from(path: &PathBuf) -> Self {
        path.as_path().into()
    }
}

impl From<PathBuf> for Location {
    fn from(path: PathBuf) -> Self {
        path.as_path().into()
    }
}

impl From<&str> for Location {
    fn from(text: &str) -> Self {
        Path::new(text).into()
    }
}

impl From<&Location> for Location {
    fn from(location: &Location) -> Self {
        location.clone()
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Url(url) => url.url.fmt(f),
        }
    }
}

/// Without the options, which may hold secrets.
impl fmt::Debug for ObjectUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_and_paths_are_told_apart() {
        let url = Location::from("s3://bucket/run/checkpoints//");
        assert_eq!(url.to_string(), "s3://bucket/run/checkpoints");
        let Location::Url(parts) = &url else { panic!("{url}") };
        assert_eq!(parts.parts(), ("s3", "bucket", "run/checkpoints"));
        let step = url.join("step_00000004");
        assert_eq!(
            (step.name(), step.is_in(&url), url.is_in(&url)),
            ("step_00000004", true, false)
        );
        assert!(!step.is_in(&Location::from("s3://bucket/run")));
        assert_eq!(Location::from("s3://").to_string(), "s3://");
        for path in ["run/checkpoints", "/run", "s3:/bucket", "ftp://host/run"] {
            assert_eq!(Location::from(path), Location::Path(path.into()));
        }
        let secret = ObjectOptions {
            settings: [("aws_secret_access_key".to_owned(), "hidden".to_owned())].into(),
            ..ObjectOptions::default()
        };
        assert!(!format!("{:?}", url.with_options(secret)).contains("hidden"));
    }
}
