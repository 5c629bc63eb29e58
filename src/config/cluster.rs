//! `[cluster]`: the processes of a run, and how they find each other.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::address::HostPort;
use super::error::require;
use super::key::{KeyInfo, OnResume};
use super::keys::{Reader, Section};
use super::sections::AutoOr;

/// `[cluster]`. A run of one process uses none of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct ClusterConfig {
    /// The coordinator through which the processes find each other. If no `lockstep launch` runs
    /// it, process 0 does.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("values" = "`HOST:PORT`", "absent" = "as the environment says"))]
    pub coordinator: Option<String>,
    /// Number of processes; `"auto"` is as the environment says, or 1. It must divide the replicas
    /// of the mesh.
    #[schemars(range(min = 1, max = MAX_PROCESSES), extend("unit" = "processes"))]
    pub num_processes: AutoOr<usize>,
    /// Index of this process, below `num_processes`; `"auto"` is as the environment says.
    pub process_index: AutoOr<usize>,
    /// A file with the token that the processes share: at least 32 hexadecimal digits, the same in
    /// all. Without it nobody is answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("values" = "path", "absent" = "the environment variable `LOCKSTEP_TOKEN`"))]
    pub token_file: Option<PathBuf>,
    /// The connections of host collectives, the same in all processes: `"tls"` encrypts what they
    /// carry. With `"plain"` only the handshake is TLS, so that no others than processes of the job
    /// get in, but who is on the way can read and change values: for private networks.
    pub links: LinkSecurity,
    /// The network interface of each host, such as `"eth1"`, through which the other processes
    /// connect to it: for host collectives and copies of snapshots on the fastest network. The
    /// coordinator listens at its own address.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("values" = "name", "absent" = "the one on the way to the coordinator"))]
    pub interface: Option<String>,
    /// What is done about a host with a slow process: `"warn"` names it. `"replace"` also gives its
    /// place to a spare, if one waits (`lockstep launch --spares`), after a checkpoint. The host is
    /// a spare from then on. See [Several machines](cluster.md#slow-processes).
    pub on_slow: OnSlow,
    /// A PEM file with the authority that has signed the coordinator's certificate, if it has one.
    /// Without, the coordinator proves by TLS that it has the token, as all others do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("values" = "path", "absent" = "no certificate"))]
    pub tls_ca: Option<PathBuf>,
    /// A PEM file with the coordinator's certificate, in process 0 if it runs the coordinator. It
    /// must have the host of `coordinator` as a name or an address.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("values" = "path", "absent" = "none"))]
    pub tls_certificate: Option<PathBuf>,
    /// A PEM file with the private key of `tls_certificate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("values" = "path", "absent" = "none"))]
    pub tls_key: Option<PathBuf>,
    /// Time within which all processes must have started.
    #[schemars(extend("exclusiveMinimum" = 0, "maximum" = MAX_TIMEOUT_SECS, "unit" = "seconds"))]
    #[default(300.0)]
    pub join_timeout_secs: f64,
    /// Time without a report after which a process counts as dead, if process 0 runs the
    /// coordinator. Each process sends four reports in that time. Above 8 s, other limits are
    /// longer in proportion; see [Limits](cluster.md#limits).
    #[schemars(extend(
        "minimum" = MIN_DEAD_AFTER_SECS, "maximum" = MAX_DEAD_AFTER_SECS, "unit" = "seconds"
    ))]
    #[default(8.0)]
    pub dead_after_secs: f64,
}

/// What protects the connections of host collectives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LinkSecurity {
    /// TLS.
    #[default]
    Tls,
    /// TLS for the handshake only.
    Plain,
}

/// What is done about a host with a slow process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnSlow {
    /// It is named.
    #[default]
    Warn,
    /// A spare takes its place.
    Replace,
}

/// The longest `join_timeout_secs`.
const MAX_TIMEOUT_SECS: f64 = 1e6;
/// The shortest `dead_after_secs`.
const MIN_DEAD_AFTER_SECS: f64 = 0.04;
/// The longest `dead_after_secs`.
const MAX_DEAD_AFTER_SECS: f64 = 14_400.0;

/// The most processes that a run may have.
const MAX_PROCESSES: i64 = 1 << 17;

impl Section for ClusterConfig {
    const NAME: &'static str = "cluster";
    const ABOUT: &str = "\
        The processes of a run. A run of one process needs none of these keys, and under \
        `lockstep launch`, Slurm, Kubernetes or on a TPU slice they follow from the \
        environment. See [Cluster](cluster.md).";

    fn keys(_choice: &str) -> Vec<KeyInfo> {
        KeyInfo::shared::<Self>(OnResume::Same)
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
        if let (AutoOr::Value(index), AutoOr::Value(count)) =
            (keys.process_index, keys.num_processes)
        {
            let allowed = format!("less than num_processes, {count}");
            reader.errors.check(require(index < count, "process_index", index, &allowed));
        }
        Some(keys)
    }
}
