//! A fabric as `lockstep bench --collectives` has measured it.

use hlo::Algorithm;
use serde::{Deserialize, Serialize};

use super::{LineFit, Wire};

/// What a fabric file says that it is.
const FORMAT: &str = "lockstep fabric 1";
/// Another algorithm than the backend's own is taken only if it is faster by this factor: measured
/// times vary.
const BY_A_MARGIN: f64 = 1.05;

/// The contents of a fabric file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredFabric {
    /// `lockstep fabric 1`.
    pub format: String,
    /// The backend, as the plugin names it.
    pub platform: String,
    /// Number of devices, all of which took part.
    pub num_devices: usize,
    /// Number of processes.
    pub num_processes: usize,
    /// Number of neighbors that the hierarchical algorithm takes for one host.
    pub replicas_per_host: usize,
    /// A message between devices of a process, if one has several.
    pub host: Option<LineFit>,
    /// A message between processes, sent by each device at once, if there are several.
    pub network: Option<LineFit>,
    /// Collectives over all devices.
    pub collectives: Vec<MeasuredCollective>,
}

/// The devices of a measured collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CollectiveSpan {
    /// All of them.
    All,
    /// Those of a process, in each process at once.
    Host,
    /// Those in the same place of all processes, in each place at once.
    Network,
}

/// The times of a collective over sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredCollective {
    /// By StableHLO's name.
    pub kind: String,
    /// `direct`, or the algorithm by whose messages it is written.
    pub algorithm: String,
    /// Between which devices.
    pub span: CollectiveSpan,
    /// A line through the points; `None` if there are fewer than three.
    pub fit: Option<LineFit>,
    /// Ascending by size.
    pub points: Vec<MeasuredPoint>,
}

/// The time of a collective of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredPoint {
    /// Bytes that the group shares: those of an operand, of all_gather those of the result.
    pub bytes: u64,
    /// Median seconds.
    pub secs: f64,
    /// The fraction of this host's processors that were busy meanwhile, whoever used them.
    pub busy: Option<f64>,
}

impl MeasuredFabric {
    /// A fabric of which nothing is measured yet.
    pub fn new(platform: &str, num_devices: usize, num_processes: usize) -> Self {
        Self {
            format: FORMAT.to_owned(),
            platform: platform.to_owned(),
            num_devices,
            num_processes,
            replicas_per_host: num_devices / num_processes.max(1),
            host: None,
            network: None,
            collectives: vec![],
        }
    }

    /// From the contents of a fabric file.
    ///
    /// # Errors
    /// A text that is none, or has values that no measurement gives: the reason.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let found: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        found.check().map(|()| found)
    }

    fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("its format is {:?}, not {FORMAT:?}", self.format));
        }
        let [devices, processes] = [self.num_devices, self.num_processes];
        if devices == 0 || processes == 0 || !devices.is_multiple_of(processes) {
            return Err(format!("it has {devices} devices in {processes} processes"));
        }
        for (name, fit) in [("host", self.host), ("network", self.network)] {
            let Some(fit) = fit else { continue };
            for value in [fit.latency_secs.value, fit.secs_per_byte.value] {
                if !(0.0..1e3).contains(&value) {
                    return Err(format!("{name} has the time {value} s"));
                }
            }
            if fit.secs_per_byte.value == 0.0 {
                return Err(format!("in {name} bytes take no time"));
            }
        }
        for MeasuredCollective { kind, algorithm, points, .. } in &self.collectives {
            if algorithm != DIRECT && named(algorithm).is_none() {
                return Err(format!("{kind} has the unknown algorithm {algorithm:?}"));
            }
            let is_ascending = points.windows(2).all(|two| two[0].bytes < two[1].bytes);
            let has_times = points.iter().all(|point| point.secs > 0.0 && point.secs < 1e6);
            if !is_ascending || !has_times || points.first().is_some_and(|at| at.bytes == 0) {
                return Err(format!(
                    "the points of {kind} ({algorithm}) are not times of ascending sizes"
                ));
            }
        }
        Ok(())
    }

    /// The link between processes, as each device uses it while all do.
    pub fn network_wire(&self) -> Option<Wire> {
        self.network.as_ref().map(wire)
    }

    /// The link between devices of a process.
    pub fn host_wire(&self) -> Option<Wire> {
        self.host.as_ref().map(wire)
    }

    /// A collective over all devices, or a message between those of several processes, as the
    /// backend executes it.
    pub(super) fn direct(&self, kind: &str) -> Option<&MeasuredCollective> {
        let mut all = self.collectives.iter();
        all.find(|of| of.kind == kind && of.algorithm == DIRECT && of.span != CollectiveSpan::Host)
    }

    /// The fastest algorithm of an all_reduce over groups of so many devices, from how many bytes
    /// on each; `None` as the algorithm leaves it to the backend. Empty if such groups were not
    /// measured. A function of the measurements alone.
    pub fn all_reduces_by_size(&self, group_size: usize) -> Vec<(u64, Option<Algorithm>)> {
        let all = self.collectives.iter().filter(|of| of.kind == "all_reduce");
        let all: Vec<_> = all.filter(|of| !of.points.is_empty()).collect();
        let direct = all.iter().find(|of| of.algorithm == DIRECT);
        let Some(direct) = direct.filter(|_| group_size == self.num_devices) else {
            return vec![];
        };
        let mut changes: Vec<(u64, Option<Algorithm>)> = vec![];
        // Between two measured sizes a change is where their geometric mean is.
        let sizes: Vec<u64> = direct.points.iter().map(|point| point.bytes).collect();
        for (index, bytes) in sizes.iter().enumerate() {
            let secs = |of: &MeasuredCollective| {
                let margin = if of.algorithm == DIRECT { 1.0 } else { BY_A_MARGIN };
                margin * of.secs(*bytes as f64)
            };
            let best = all.iter().min_by(|a, b| secs(a).total_cmp(&secs(b)));
            let best = best.and_then(|of| named(&of.algorithm));
            if changes.last().is_none_or(|(_, last)| *last != best) {
                let from = match index {
                    0 => 0,
                    _ => (sizes[index - 1] as f64 * *bytes as f64).sqrt() as u64,
                };
                changes.push((from, best));
            }
        }
        changes
    }
}

/// What is written of an algorithm that the backend chooses.
pub const DIRECT: &str = "direct";

fn named(name: &str) -> Option<Algorithm> {
    Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name)
}

fn wire(fit: &LineFit) -> Wire {
    Wire { latency_secs: fit.latency_secs.value, bytes_per_sec: 1.0 / fit.secs_per_byte.value }
}

impl MeasuredCollective {
    /// The time of so many bytes: between measured sizes a straight line in logarithms, beyond them
    /// the time of the smallest, or in proportion to the largest.
    pub fn secs(&self, bytes: f64) -> f64 {
        let at = |point: &MeasuredPoint| (point.bytes as f64, point.secs);
        let above = self.points.iter().position(|point| point.bytes as f64 >= bytes);
        match above {
            None => self.points.last().map(at).map_or(f64::INFINITY, |(n, secs)| secs * bytes / n),
            Some(0) => self.points[0].secs,
            Some(index) => {
                let [(n, secs), (larger, longer)] =
                    [index - 1, index].map(|index| at(&self.points[index]));
                let part = (bytes / n).ln() / (larger / n).ln();
                secs * (longer / secs).powf(part)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collective(algorithm: &str, secs: impl Fn(f64) -> f64) -> MeasuredCollective {
        let points = (10..=24).step_by(2).map(|power| {
            let bytes = 1u64 << power;
            MeasuredPoint { bytes, secs: secs(bytes as f64), busy: None }
        });
        MeasuredCollective {
            kind: "all_reduce".to_owned(),
            algorithm: algorithm.to_owned(),
            span: CollectiveSpan::All,
            fit: None,
            points: points.collect(),
        }
    }

    fn fabric() -> MeasuredFabric {
        let collectives = vec![
            collective(DIRECT, |n| 1e-3 + 3.0 * 1e-8 * n),
            collective("ring", |n| 6e-3 + 1.5 * 1e-8 * n),
            // Within the margin of direct, so it is not worth a change.
            collective("tree", |n| 0.98e-3 + 4.0 * 1e-8 * n),
        ];
        MeasuredFabric { collectives, ..MeasuredFabric::new("cpu", 4, 4) }
    }

    #[test]
    fn the_fastest_algorithm_is_taken_where_it_is_faster_by_more_than_noise() {
        // They meet at 333 KB.
        assert_eq!(fabric().all_reduces_by_size(4), [(0, None), (1 << 19, Some(Algorithm::Ring))]);
        assert_eq!(fabric().all_reduces_by_size(2), [], "such groups were not measured");
    }

    #[test]
    fn times_between_and_beyond_measured_sizes() {
        let ring = collective("ring", |n| 1e-9 * n);
        for bytes in [1024.0, 3000.0, 1e6, 1e9] {
            assert!((ring.secs(bytes) / (1e-9 * bytes) - 1.0).abs() < 1e-9, "{bytes}");
        }
        assert_eq!(ring.secs(1.0), ring.secs(1024.0));
    }

    #[test]
    fn what_is_no_measurement_is_refused_with_a_reason() {
        let read = |text: &str| MeasuredFabric::parse(text.as_bytes());
        let text = serde_json::to_string(&fabric()).unwrap();
        assert_eq!(read(&text).unwrap(), fabric());
        for (from, to, expected) in [
            ("lockstep fabric 1", "lockstep fabric 2", "its format is \"lockstep fabric 2\""),
            ("\"num_devices\":4", "\"num_devices\":5", "5 devices in 4 processes"),
            ("\"ring\"", "\"star\"", "unknown algorithm \"star\""),
            ("\"bytes\":4096", "\"bytes\":1", "not times of ascending sizes"),
            ("\"num_processes\"", "\"processes\"", "missing field `num_processes`"),
        ] {
            assert!(text.contains(from), "{from}");
            let error = read(&text.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let flat = LineFit::default();
        let endless = MeasuredFabric { network: Some(flat), ..fabric() };
        let error = read(&serde_json::to_string(&endless).unwrap()).unwrap_err();
        assert!(error.contains("bytes take no time"), "{error}");
        assert!(read("[]").is_err() && read("").is_err());
    }
}
