//! A changed network: what a prediction becomes with more latency or another bandwidth, with
//! regions far from each other, with fewer bytes of gradients, or with a link that dies.

use std::str::FromStr;

use super::{RegionLinks, Wire};

/// A change of the network between hosts or slices, and of what is sent: `alpha=+20ms,beta=x0.5`.
///
/// ```
/// use lockstep::targets::cost::{WhatIf, Wire};
///
/// let change: WhatIf = "alpha=+20us,beta=x0.5".parse()?;
/// let changed = change.apply(Wire { latency_secs: 1e-5, bytes_per_sec: 1e9 });
/// assert!((changed.latency_secs - 3e-5).abs() < 1e-12);
/// // Half the time per byte.
/// assert_eq!(changed.bytes_per_sec, 2e9);
/// # Ok::<(), lockstep::targets::cost::WhatIfError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WhatIf {
    network: LinkChange,
    /// The number of regions, and how the network between them differs from that within one.
    regions: Option<(usize, LinkChange)>,
    compression: f64,
    encode_secs_per_byte: f64,
    reroute_secs: Option<f64>,
    link_mtbf_secs: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct LinkChange {
    latency: Change,
    secs_per_byte: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Add(f64),
    Multiply(f64),
}

/// A text that is no change of a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no change of a network: {reason}; write keys with commas between them: alpha=+20us \
     (also ns, ms, s) or alpha=x2 for the latency of a hop, beta=x0.5 for the time of a byte or \
     bandwidth=x2 for its inverse; alpha:region, beta:region and bandwidth:region for the hops \
     between regions only, regions=N for their number (2); r=4 for a fourth of the bytes of \
     gradients, encode=30ms/GB for what encoding and decoding them takes; reroute=10s for a link \
     that dies, link_mtbf=50000h for how often each does. Factors are from 0.000001 to 1000000, \
     and at most 1000 s are added"
)]
pub struct WhatIfError {
    text: String,
    reason: String,
}

const NONE: LinkChange = LinkChange { latency: Change::Add(0.0), secs_per_byte: 1.0 };

impl LinkChange {
    fn apply(self, wire: Wire) -> Wire {
        let latency_secs = match self.latency {
            Change::Add(secs) => wire.latency_secs + secs,
            Change::Multiply(factor) => wire.latency_secs * factor,
        };
        Wire { latency_secs, bytes_per_sec: wire.bytes_per_sec / self.secs_per_byte }
    }

    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "alpha" => {
                self.latency = match value.strip_prefix('+') {
                    Some(added) => Change::Add(seconds(added)?),
                    None => Change::Multiply(factor(value)?),
                }
            }
            "beta" => self.secs_per_byte = factor(value)?,
            "bandwidth" => self.secs_per_byte = 1.0 / factor(value)?,
            _ => return None,
        }
        Some(())
    }
}

impl WhatIf {
    /// The changed network within a region.
    pub fn apply(&self, wire: Wire) -> Wire {
        self.network.apply(wire)
    }

    /// The network between regions, if that within one is `wire`.
    pub fn regions(&self, wire: Wire) -> Option<RegionLinks> {
        let (num_regions, change) = self.regions?;
        Some(RegionLinks { num_regions, wire: change.apply(wire) })
    }

    /// How many times as many bytes of gradients would be sent without compression.
    pub fn compression(&self) -> f64 {
        self.compression
    }

    /// Seconds in which a device encodes and decodes so many bytes of gradients.
    pub fn encode_secs(&self, bytes: f64) -> f64 {
        self.encode_secs_per_byte * bytes
    }

    /// Seconds for which the traffic of a link that dies waits for another way.
    pub fn reroute_secs(&self) -> Option<f64> {
        self.reroute_secs
    }

    /// Mean seconds after which a device's link dies.
    pub fn link_mtbf_secs(&self) -> Option<f64> {
        self.link_mtbf_secs
    }

    /// Whether the links differ from those without the change.
    pub fn changes_links(&self) -> bool {
        self.network != NONE || self.regions.is_some()
    }

    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match (key, key.split_once(':')) {
            (_, Some((key, "region"))) => {
                self.regions.get_or_insert((2, NONE)).1.set(key, value)?
            }
            ("regions", _) => {
                let number = value.parse().ok().filter(|number| (2..=1024).contains(number))?;
                self.regions.get_or_insert((2, NONE)).0 = number;
            }
            ("r", _) => {
                self.compression =
                    value.parse().ok().filter(|ratio| (1.0..=1e6).contains(ratio))?;
            }
            ("encode", _) => {
                self.encode_secs_per_byte = seconds(value.strip_suffix("/GB")?)? / 1e9;
            }
            ("reroute", _) => self.reroute_secs = Some(seconds(value)?),
            ("link_mtbf", _) => {
                let hours = value.strip_suffix('h')?.parse().ok();
                let hours = hours.filter(|hours: &f64| (1e-3..=1e9).contains(hours))?;
                self.link_mtbf_secs = Some(3600.0 * hours);
            }
            _ => self.network.set(key, value)?,
        }
        Some(())
    }
}

impl FromStr for WhatIf {
    type Err = WhatIfError;

    fn from_str(text: &str) -> Result<Self, WhatIfError> {
        let mut found = Self {
            network: NONE,
            regions: None,
            compression: 1.0,
            encode_secs_per_byte: 0.0,
            reroute_secs: None,
            link_mtbf_secs: None,
        };
        let refused = |reason: String| WhatIfError { text: text.to_owned(), reason };
        let mut seen: Vec<&str> = vec![];
        for part in text.split(',').map(str::trim) {
            let set = part.split_once('=').and_then(|(key, value)| {
                found.set(key, value)?;
                Some(key)
            });
            let key = set.ok_or_else(|| refused(format!("{part:?} is not understood")))?;
            if seen.contains(&key) {
                return Err(refused(format!("{key} is there twice")));
            }
            seen.push(key);
        }
        let needs = [
            ("encode", "r", "encode is the time that r costs: write r too"),
            ("link_mtbf", "reroute", "link_mtbf says how often reroute is waited for: write both"),
        ];
        for (key, other, reason) in needs {
            if seen.contains(&key) && !seen.contains(&other) {
                return Err(refused(reason.to_owned()));
            }
        }
        if seen.contains(&"regions") && !seen.iter().any(|key| key.ends_with(":region")) {
            let reason = "regions are of use only with a change between them, such as alpha:region";
            return Err(refused(reason.to_owned()));
        }
        Ok(found)
    }
}

fn factor(text: &str) -> Option<f64> {
    let value = text.strip_prefix('x')?.parse().ok()?;
    (1e-6..=1e6).contains(&value).then_some(value)
}

fn seconds(text: &str) -> Option<f64> {
    let units = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let (number, unit) =
        units.into_iter().find_map(|(name, secs)| Some((text.strip_suffix(name)?, secs)))?;
    let secs = number.parse::<f64>().ok()? * unit;
    (0.0..=1e3).contains(&secs).then_some(secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_and_anything_else_is_refused() {
        let wire = Wire { latency_secs: 1e-3, bytes_per_sec: 1e9 };
        for (text, latency_secs, bytes_per_sec) in [
            ("alpha=+20ms", 21e-3, 1e9),
            ("alpha=x2", 2e-3, 1e9),
            ("bandwidth=x0.5", 1e-3, 5e8),
            ("beta=x2,alpha=+1s", 1.001, 5e8),
        ] {
            let changed = text.parse::<WhatIf>().unwrap().apply(wire);
            assert!((changed.latency_secs - latency_secs).abs() < 1e-12, "{text}: {changed:?}");
            assert!((changed.bytes_per_sec - bytes_per_sec).abs() < 1.0, "{text}: {changed:?}");
        }
        let far: WhatIf = "alpha=+1ms,alpha:region=+60ms,bandwidth:region=x0.5".parse().unwrap();
        let RegionLinks { num_regions, wire: between } = far.regions(far.apply(wire)).unwrap();
        assert!(num_regions == 2 && (between.latency_secs - 62e-3).abs() < 1e-12, "{between:?}");
        assert_eq!((far.apply(wire).bytes_per_sec, between.bytes_per_sec), (1e9, 5e8));
        let sent: WhatIf = "r=4,encode=30ms/GB,reroute=10us,link_mtbf=100h".parse().unwrap();
        assert_eq!((sent.compression(), sent.regions(wire)), (4.0, None));
        assert!((sent.encode_secs(2e9) - 0.06).abs() < 1e-12);
        assert!((sent.reroute_secs().unwrap() - 1e-5).abs() < 1e-15);
        assert_eq!(sent.link_mtbf_secs(), Some(3.6e5));
        for text in [
            "",
            "alpha:city=+1s",
            "alpha:region=60ms",
            "regions=2",
            "regions=1,alpha:region=x2",
            "r=0.5",
            "r=x4",
            "encode=1ms/GB",
            "r=2,encode=1ms",
            "link_mtbf=10h",
            "reroute=1h",
            "alpha=x2,alpha=x3",
            "alpha",
            "alpha=20ms",
            "alpha=+20",
            "alpha=+-1s",
            "beta=x0",
            "beta=xNaN",
            "beta=+1s",
            "gamma=x2",
        ] {
            assert!(text.parse::<WhatIf>().is_err(), "{text}");
        }
    }
}
