//! Networks between hosts by name, to plan for one that the target does not have by default.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use super::Wire;

/// A network between hosts or slices, as `plan --network` takes it: a name, then options.
///
/// ```
/// use lockstep::targets::cost::NamedNetwork;
///
/// let network: NamedNetwork = "ib-hdr:oversubscription=2".parse()?;
/// assert_eq!((network.bytes_per_sec, network.oversubscription), (25e9, 2.0));
/// assert!("ib-hdr:oversubscription=0.5".parse::<NamedNetwork>().is_err());
/// # Ok::<(), lockstep::targets::cost::NetworkError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct NamedNetwork {
    /// The name.
    pub name: &'static str,
    /// Bandwidth of one port in one direction after line coding, in bytes/s.
    pub bytes_per_sec: f64,
    /// Latency of a hop between two hosts, with the software on both, in seconds.
    pub latency_secs: f64,
    /// The fraction of the bandwidth that one flow after another reaches.
    pub share: f64,
    /// Ports down over ports up of the first switch: 1 is a full fat tree.
    pub oversubscription: f64,
    /// Devices that share a port: 1 is a port for each.
    pub devices_per_port: usize,
    /// Whether packets of one flow take all paths of several planes of two tiers each.
    pub is_multipath: bool,
}

/// A text that names no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a network: {reason}")]
pub struct NetworkError {
    text: String,
    reason: String,
}

/// NCCL's own model of a hop over a network card, `src/graph/tuning.cc`, hardware latencies,
/// protocol Simple: 14 microseconds. It is a hop of a collective, with its copies and flags, not of
/// a packet: that takes 1 to 5.
const RDMA_SECS: f64 = 14e-6;
/// A hop through the kernels of both hosts: an assumption, from round trips of 50 to 100
/// microseconds over Ethernet.
const TCP_SECS: f64 = 50e-6;
/// RDMA leaves 0.8 of a port (`fabric.rs`), and so do the published runs over TCP with 10 to 50
/// Gb/s.
const SHARE: f64 = 0.8;
/// Packets of one flow over all paths: no two large flows meet on one link while others are idle.
/// Equal-cost multipath, which hashes flows to links, loses 5 to 40 % to such collisions at full
/// load (Hopps, RFC 2992; Al-Fares et al., "Hedera", NSDI 2010); a scenario, not a measurement.
const SPRAYED_SHARE: f64 = 0.9;

/// Names, bandwidths in Gb/s after line coding, and whether RDMA is used. InfiniBand: 4 lanes,
/// InfiniBand Trade Association, roadmap; SDR to QDR lose a fifth to 8b/10b, FDR to NDR 3 % to
/// 64b/66b, which the names of EDR and later do not count.
const NETWORKS: [(&str, f64, bool); 16] = [
    ("ib-sdr", 8.0, true),
    ("ib-ddr", 16.0, true),
    ("ib-qdr", 32.0, true),
    ("ib-fdr", 54.54, true),
    ("ib-edr", 100.0, true),
    ("ib-hdr", 200.0, true),
    ("ib-ndr", 400.0, true),
    ("ib-xdr", 800.0, true),
    ("roce-v2-100", 100.0, true),
    ("roce-v2-200", 200.0, true),
    ("roce-v2-400", 400.0, true),
    ("roce-v2-800", 800.0, true),
    ("ethernet-10", 10.0, false),
    ("ethernet-25", 25.0, false),
    ("ethernet-50", 50.0, false),
    ("ethernet-100", 100.0, false),
];

impl NamedNetwork {
    /// All names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NETWORKS.iter().map(|(name, ..)| *name)
    }

    /// One that was measured, as each device uses it: nothing is deducted.
    pub fn measured(wire: Wire) -> Self {
        Self {
            name: "measured",
            bytes_per_sec: wire.bytes_per_sec,
            latency_secs: wire.latency_secs,
            share: 1.0,
            oversubscription: 1.0,
            devices_per_port: 1,
            is_multipath: false,
        }
    }

    /// One device's share of it.
    pub fn wire(&self) -> Wire {
        // Two tiers instead of three: one hop of switches less, of about a microsecond there and
        // back.
        let latency_secs =
            if self.is_multipath { self.latency_secs - 1e-6 } else { self.latency_secs };
        let shared_by = self.oversubscription * self.devices_per_port as f64;
        Wire { latency_secs, bytes_per_sec: self.bytes_per_sec * self.share / shared_by }
    }
}

impl FromStr for NamedNetwork {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let error = |reason: String| NetworkError { text: text.to_owned(), reason };
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let known = NETWORKS.iter().find(|network| network.0 == name);
        let Some((name, gbits_per_sec, is_rdma)) = known else {
            let names: Vec<_> = Self::names().collect();
            return Err(error(format!("write one of {}", names.join(", "))));
        };
        let mut network = Self {
            name,
            bytes_per_sec: gbits_per_sec * 1e9 / 8.0,
            latency_secs: if *is_rdma { RDMA_SECS } else { TCP_SECS },
            share: SHARE,
            oversubscription: 1.0,
            devices_per_port: 1,
            is_multipath: false,
        };
        for option in parts {
            match option.split_once('=') {
                Some(("oversubscription", value)) => {
                    network.oversubscription = value
                        .parse()
                        .ok()
                        .filter(|ratio: &f64| (1.0..=1e3).contains(ratio))
                        .ok_or_else(|| {
                            error(format!(
                                "oversubscription is a ratio from 1 to 1000, not {value:?}"
                            ))
                        })?;
                }
                Some(("devices_per_port", value)) => {
                    network.devices_per_port = value
                        .parse()
                        .ok()
                        .filter(|devices: &usize| (1..=64).contains(devices))
                        .ok_or_else(|| {
                            error(format!(
                                "devices_per_port is a number from 1 to 64, not {value:?}"
                            ))
                        })?;
                }
                None if option == "multipath" && *is_rdma => {
                    (network.is_multipath, network.share) = (true, SPRAYED_SHARE);
                }
                None if option == "multipath" => {
                    return Err(error(
                        "multipath sprays packets of RDMA: use it with ib-* or roce-v2-*"
                            .to_owned(),
                    ));
                }
                _ => {
                    return Err(error(format!(
                        "{option:?} is no option: there are oversubscription=RATIO, \
                         devices_per_port=N and multipath"
                    )));
                }
            }
        }
        Ok(network)
    }
}

impl fmt::Display for NamedNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        if self.oversubscription > 1.0 {
            write!(f, ":oversubscription={}", self.oversubscription)?;
        }
        if self.devices_per_port > 1 {
            write!(f, ":devices_per_port={}", self.devices_per_port)?;
        }
        if self.is_multipath {
            f.write_str(":multipath")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_and_written() {
        for name in NamedNetwork::names() {
            let network: NamedNetwork = name.parse().unwrap();
            assert_eq!(network.to_string(), name);
            assert!(network.wire().bytes_per_sec < network.bytes_per_sec);
        }
        let text = "roce-v2-400:oversubscription=3:devices_per_port=8:multipath";
        let network: NamedNetwork = text.parse().unwrap();
        assert_eq!(network.to_string(), text);
        let share = network.wire().bytes_per_sec;
        assert!((share - 50e9 * 0.9 / 24.0).abs() < 1.0, "{share}");
    }

    #[test]
    fn what_is_no_network_is_refused_with_a_reason() {
        for (text, expected) in [
            ("", "write one of ib-sdr, "),
            ("infiniband", "roce-v2-800"),
            ("ib-hdr:oversubscription=0", "from 1 to 1000"),
            ("ib-hdr:oversubscription=inf", "from 1 to 1000"),
            ("ib-hdr:oversubscription=NaN", "from 1 to 1000"),
            ("ib-hdr:devices_per_port=0", "from 1 to 64"),
            ("ethernet-10:multipath", "sprays packets of RDMA"),
            ("ib-hdr:", "is no option"),
        ] {
            let error = text.parse::<NamedNetwork>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
