//! A changed network: what a prediction becomes with more latency or another bandwidth.

use std::str::FromStr;

use super::Wire;

/// A change of the network between hosts or slices: `alpha=+20ms,beta=x0.5`.
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
    "{0:?} is no change of a network: write alpha=+20us (also ns, ms, s) or alpha=x2 for the \
     latency of a hop, beta=x0.5 for the time of a byte or bandwidth=x2 for its inverse, separated \
     by commas; factors are from 0.000001 to 1000000, and at most 1000 s are added"
)]
pub struct WhatIfError(String);

impl WhatIf {
    /// The changed network.
    pub fn apply(&self, wire: Wire) -> Wire {
        let latency_secs = match self.latency {
            Change::Add(secs) => wire.latency_secs + secs,
            Change::Multiply(factor) => wire.latency_secs * factor,
        };
        Wire { latency_secs, bytes_per_sec: wire.bytes_per_sec / self.secs_per_byte }
    }
}

impl FromStr for WhatIf {
    type Err = WhatIfError;

    fn from_str(text: &str) -> Result<Self, WhatIfError> {
        let mut found = Self { latency: Change::Add(0.0), secs_per_byte: 1.0 };
        let read = |found: &mut Self, part: &str| -> Option<()> {
            match part.trim().split_once('=')? {
                ("alpha", value) if value.starts_with('+') => {
                    found.latency = Change::Add(seconds(value.strip_prefix('+')?)?);
                }
                ("alpha", value) => found.latency = Change::Multiply(factor(value)?),
                ("beta", value) => found.secs_per_byte = factor(value)?,
                ("bandwidth", value) => found.secs_per_byte = 1.0 / factor(value)?,
                _ => return None,
            }
            Some(())
        };
        let parts = text.split(',').try_for_each(|part| read(&mut found, part));
        parts.map(|()| found).ok_or_else(|| WhatIfError(text.to_owned()))
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
        for text in [
            "",
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
