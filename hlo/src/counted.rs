//! Counts in messages.

use std::fmt::Display;

/// A count with its noun, in the singular for 1. `noun` is the singular.
///
/// ```
/// assert_eq!(hlo::counted(1, "replica"), "1 replica");
/// assert_eq!(hlo::counted(4, "process"), "4 processes");
/// assert_eq!(hlo::counted(0, "leaf"), "0 leaves");
/// assert_eq!(hlo::counted(2, "boundary"), "2 boundaries");
/// ```
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    if count == N::from(1) {
        return format!("1 {noun}");
    }
    let irregular = [("leaf", "leaves"), ("ry", "ries")].into_iter().find_map(|(one, many)| {
        noun.strip_suffix(one).map(|before| format!("{count} {before}{many}"))
    });
    irregular.unwrap_or_else(|| match noun.ends_with(['s', 'x']) || noun.ends_with("ch") {
        true => format!("{count} {noun}es"),
        false => format!("{count} {noun}s"),
    })
}
