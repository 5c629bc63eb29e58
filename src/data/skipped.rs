//! Examples that could not be decoded and were skipped.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::Error;

/// The broken examples of a source, each counted once however often it was read.
#[derive(Debug, Default)]
pub struct Skipped(Mutex<BTreeMap<u64, String>>);

/// How many the report names: a folder full of them would fill the screen.
const MAX_NAMED: usize = 10;

impl Skipped {
    pub(super) fn note(&self, example: u64, error: &Error) {
        let mut errors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        errors.entry(example).or_insert_with(|| error.to_string());
    }

    /// Number of broken examples so far.
    pub fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Their number, and the first of them with their errors; `None` if there are none.
    pub fn report(&self) -> Option<String> {
        let errors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if errors.is_empty() {
            return None;
        }
        let mut report = format!("broken examples left out: {}", errors.len());
        for error in errors.values().take(MAX_NAMED) {
            report.push_str("\n  ");
            report.push_str(error);
        }
        if errors.len() > MAX_NAMED {
            report.push_str(&format!("\n  and {} more", errors.len() - MAX_NAMED));
        }
        Some(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_once_and_some_are_named() {
        let skipped = Skipped::default();
        assert_eq!((skipped.count(), skipped.report()), (0, None));
        for example in (0..12).chain(0..12) {
            let path = format!("{example:02}.jpg").into();
            skipped.note(example, &Error::Image { path, reason: "cut off".to_owned() });
        }
        let report = skipped.report().unwrap();
        assert!(report.starts_with("broken examples left out: 12\n"), "{report}");
        assert!(report.contains("09.jpg: cut off") && !report.contains("10.jpg"), "{report}");
        assert!(report.ends_with("and 2 more"), "{report}");
    }
}
