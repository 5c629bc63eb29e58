//! Shades that stand for numbers, in maps and in tables.

/// Classes of the style sheet, from the lightest on.
const SHADES: [&str; 8] = ["h0", "h1", "h2", "h3", "h4", "h5", "h6", "h7"];

/// The class of a number from 0 to 1; beyond these it has the shade at the end. One that is no
/// number has none.
pub fn shade(share: f64) -> Option<&'static str> {
    // The conversion saturates.
    let place = (share * SHADES.len() as f64) as usize;
    (!share.is_nan()).then(|| SHADES[place.min(SHADES.len() - 1)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_shades() {
        let found = [-1.0, 0.0, 0.49, 0.5, 1.0, f64::INFINITY, f64::NAN].map(shade);
        assert_eq!(found[..3], [Some("h0"), Some("h0"), Some("h3")]);
        assert_eq!(found[3..], [Some("h4"), Some("h7"), Some("h7"), None]);
    }
}
