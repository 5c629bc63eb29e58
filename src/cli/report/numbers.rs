//! Numbers for people.

/// A quantity with four decimals, as results are compared; very small and very large ones with four
/// digits.
pub fn shown(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => "not finite".to_owned(),
        0.0 | 1e-3..1e6 => format!("{value:.4}"),
        _ => format!("{value:.3e}"),
    }
}

/// A time or a rate with four digits.
pub fn rough(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => "not finite".to_owned(),
        size if size >= 1000.0 => count(value),
        size => {
            let decimals = (3 - size.max(1.0).log10().floor() as i32).max(0) as usize;
            format!("{value:.decimals$}")
        }
    }
}

/// A share of the time.
pub fn percent(share: f64) -> String {
    match share {
        _ if !share.is_finite() => "?".to_owned(),
        0.0005..0.1 => format!("{:.1} %", share * 100.0),
        _ => format!("{:.0} %", share * 100.0),
    }
}

/// `3.52 s`, `12 min 5 s`, `3 h 7 min`.
pub fn duration(secs: f64) -> String {
    let whole = secs.round() as u64;
    match secs {
        _ if !secs.is_finite() => "?".to_owned(),
        _ if secs < 10.0 => format!("{secs:.2} s"),
        _ if secs < 120.0 => format!("{secs:.1} s"),
        _ if secs < 7200.0 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// With thousands separated.
pub fn count(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        let found = [0.98611, 2.0, 0.0, 2e-5, -1.5, 1234567.0, f64::NAN].map(shown);
        let expected =
            ["0.9861", "2.0000", "0.0000", "2.000e-5", "-1.5000", "1.235e6", "not finite"];
        assert_eq!(found, expected);
        assert_eq!([0.5, 12.345, 24118.579].map(rough), ["0.500", "12.35", "24,119"]);
        assert_eq!([0.0, 0.0123, 0.456, 1.0].map(percent), ["0 %", "1.2 %", "46 %", "100 %"]);
        let found = [0.123, 59.96, 725.0, 11220.0].map(duration);
        assert_eq!(found, ["0.12 s", "60.0 s", "12 min 5 s", "3 h 7 min"]);
        assert_eq!([1437.0, 85002.0, 7.0].map(count), ["1,437", "85,002", "7"]);
    }
}
