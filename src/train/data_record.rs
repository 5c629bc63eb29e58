//! The data of a run, as checkpoints record them: they are compared when a run is continued, and
//! among its processes.

use super::Error;
use super::processes::Processes;
use crate::checkpoint::{DataRecord, SplitRecord};
use crate::data::{Source, Splits};

/// The key under which the processes of a run exchange their records.
const WHAT: &str = "data";

/// The record of a run's data. All processes have the same.
///
/// # Errors
/// Data that cannot be read, or that are not those of the first process.
pub(super) fn record(splits: &Splits, processes: Processes<'_>) -> Result<DataRecord, Error> {
    let of = |source: &dyn Source| {
        let fingerprint = source.fingerprint()?.map(|hash| format!("{hash:032x}"));
        Ok::<_, Error>(SplitRecord { num_examples: source.num_examples(), fingerprint })
    };
    let own = DataRecord { train: of(&*splits.train)?, eval: of(&*splits.eval)? };
    let all = processes.gather(WHAT, own.clone())?;
    match all.iter().position(|other| *other != all[0]) {
        None => Ok(own),
        Some(process_index) => {
            let [first, other] = [&all[0], &all[process_index]];
            let (part, first, other) = match first.train == other.train {
                true => ("evaluation", &first.eval, &other.eval),
                false => ("training", &first.train, &other.train),
            };
            let counts = match (other.num_examples, first.num_examples) {
                (other, first) if other == first => "as many examples, but others".to_owned(),
                (other, first) => format!("{other} examples instead of {first}"),
            };
            let reason = format!(
                "process {process_index} has other {part} data than process 0 ({counts}); all \
                 processes must read the same data: copy them anew, or name a directory that all \
                 hosts share"
            );
            Err(Error::OtherProcess { reason })
        }
    }
}

/// How the data of a run differ from those of the checkpoint that it continues from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataChange {
    /// The two have the same fingerprint.
    None,
    /// As many examples, but there is no fingerprint of them.
    Unknown,
    /// Another number of examples, or others.
    Other,
}

impl DataChange {
    /// Compares what a checkpoint has recorded, if anything, with the data of this run.
    pub fn of(saved: Option<&SplitRecord>, now: &SplitRecord) -> Self {
        match saved {
            None => Self::Unknown,
            Some(saved) if saved.num_examples != now.num_examples => Self::Other,
            Some(saved) => match (&saved.fingerprint, &now.fingerprint) {
                (Some(saved), Some(now)) if saved == now => Self::None,
                (Some(_), Some(_)) => Self::Other,
                _ => Self::Unknown,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_neither_equal_nor_different() {
        let split = |num_examples, fingerprint: Option<&str>| SplitRecord {
            num_examples,
            fingerprint: fingerprint.map(str::to_owned),
        };
        let now = split(9, Some("a"));
        for (saved, expected) in [
            (None, DataChange::Unknown),
            (Some(split(9, Some("a"))), DataChange::None),
            (Some(split(9, Some("b"))), DataChange::Other),
            (Some(split(8, Some("a"))), DataChange::Other),
            (Some(split(9, None)), DataChange::Unknown),
            (Some(split(8, None)), DataChange::Other),
        ] {
            assert_eq!(DataChange::of(saved.as_ref(), &now), expected, "{saved:?}");
        }
    }
}
