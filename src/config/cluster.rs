//! `[cluster]`: the processes of a run, and how they find each other.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::address::HostPort;
use super::error::{Range, require};
use super::keys::{Reader, Section, field_names};
use super::sections::AutoOr;

/// `[cluster]`. A run of one process uses none of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterConfig {
    /// The coordinator, `HOST:PORT`. Default: as the environment says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coordinator: Option<String>,
    /// Where processes exchange values. Default `builtin`.
    pub store: StoreUrl,
    /// Number of processes. Default: as the environment says, or 1.
    pub num_processes: AutoOr<usize>,
    /// Index of this process, from 0. Default: as the environment says.
    pub process_index: AutoOr<usize>,
    /// A file with the token that all processes share. Default: the environment variable
    /// `LOCKSTEP_TOKEN`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// PEM file with the authority that has signed the coordinator's certificate. Default: no TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_ca: Option<PathBuf>,
    /// PEM file with the certificate of the coordinator, for process 0 if it runs the coordinator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_certificate: Option<PathBuf>,
    /// PEM file with the key of the certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// Seconds within which all processes must have started. Default 300.
    pub join_timeout_secs: f64,
    /// Seconds between two reports of a process to the coordinator. Default 2.
    pub heartbeat_secs: f64,
}

/// Where the processes of a run exchange values, and find the coordinator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum StoreUrl {
    /// The coordinator keeps them.
    #[default]
    Builtin,
    /// An etcd cluster, with these endpoints, `HOST:PORT`.
    Etcd(Vec<String>),
}

impl TryFrom<String> for StoreUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text == "builtin" {
            return Ok(Self::Builtin);
        }
        // Without the text: it may hold a password.
        let wrong = || "a store is \"builtin\" or \"etcd://HOST:PORT[,HOST:PORT...]\"".to_owned();
        let endpoints = text.strip_prefix("etcd://").ok_or_else(wrong)?;
        let endpoints: Vec<_> = endpoints.split(',').map(str::to_owned).collect();
        match endpoints.iter().all(|endpoint| endpoint.parse::<HostPort>().is_ok()) {
            true => Ok(Self::Etcd(endpoints)),
            false => Err(wrong()),
        }
    }
}

impl From<StoreUrl> for String {
    fn from(store: StoreUrl) -> Self {
        match store {
            StoreUrl::Builtin => "builtin".to_owned(),
            StoreUrl::Etcd(endpoints) => format!("etcd://{}", endpoints.join(",")),
        }
    }
}

impl std::str::FromStr for StoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.to_owned().try_into()
    }
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            coordinator: None,
            store: StoreUrl::Builtin,
            num_processes: AutoOr::Auto,
            process_index: AutoOr::Auto,
            token_file: None,
            tls_ca: None,
            tls_certificate: None,
            tls_key: None,
            join_timeout_secs: 300.0,
            heartbeat_secs: 2.0,
        }
    }
}

/// The longest `join_timeout_secs`.
pub(super) const MAX_TIMEOUT_SECS: f64 = 1e6;
/// The shortest `heartbeat_secs`.
pub(super) const MIN_HEARTBEAT_SECS: f64 = 0.01;
/// The longest `heartbeat_secs`.
pub(super) const MAX_HEARTBEAT_SECS: f64 = 3600.0;

/// The most processes that a run may have.
pub(super) const MAX_PROCESSES: i64 = 1 << 17;

impl Section for ClusterConfig {
    const NAME: &'static str = "cluster";

    fn keys(_choice: &str) -> Vec<&'static str> {
        field_names::<Self>().to_vec()
    }

    fn range(_choice: &str, key: &str) -> Option<Range> {
        (key == "num_processes").then_some(1..=MAX_PROCESSES)
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let keys: Self = reader.keys()?;
        if let Some(address) = &keys.coordinator {
            let allowed = "HOST:PORT";
            reader.errors.check(require(
                address.parse::<HostPort>().is_ok(),
                "coordinator",
                address,
                allowed,
            ));
        }
        let (timeout, heartbeat) = (keys.join_timeout_secs, keys.heartbeat_secs);
        let is_time = timeout > 0.0 && timeout <= MAX_TIMEOUT_SECS;
        let allowed = format!("above 0, to {MAX_TIMEOUT_SECS}");
        reader.errors.check(require(is_time, "join_timeout_secs", timeout, &allowed));
        let is_time = (MIN_HEARTBEAT_SECS..=MAX_HEARTBEAT_SECS).contains(&heartbeat);
        let allowed = format!("{MIN_HEARTBEAT_SECS} to {MAX_HEARTBEAT_SECS}");
        reader.errors.check(require(is_time, "heartbeat_secs", heartbeat, &allowed));
        if let (AutoOr::Value(index), AutoOr::Value(count)) =
            (keys.process_index, keys.num_processes)
        {
            let allowed = format!("less than num_processes, {count}");
            reader.errors.check(require(index < count, "process_index", index, &allowed));
        }
        Some(keys)
    }
}
