//! Ticks of axes and their labels.

/// Places from 0 to `high` at a distance of 1, 2 or 5 times a power of ten, `at_most` of them and
/// 0; whole numbers only if so asked.
pub fn linear(high: f64, at_most: usize, is_whole: bool) -> Vec<f64> {
    let least = high / at_most as f64;
    let power = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = steps.into_iter().find(|step| *step >= least * (1.0 - 1e-9)).unwrap_or(least);
    let step = if is_whole { step.max(1.0) } else { step };
    let count = (high / step * (1.0 + 1e-9)).floor() as usize;
    (0..=count).map(|index| index as f64 * step).collect()
}

/// The ends of a logarithmic axis around these values: powers of `base`, or of ten also twice and
/// five times these; never the same.
pub fn around(low: f64, high: f64, base: f64) -> (f64, f64) {
    let round = |value: f64, up: bool| {
        let power = base.powf((value.ln() / base.ln() + 1e-9).floor());
        let factors: &[f64] = if base == 10.0 { &[1.0, 2.0, 5.0, 10.0] } else { &[1.0, base] };
        let mut places = factors.iter().map(|factor| factor * power);
        match up {
            true => places.find(|place| *place >= value * (1.0 - 1e-9)).unwrap_or(value),
            false => places.rfind(|place| *place <= value * (1.0 + 1e-9)).unwrap_or(value),
        }
    };
    match (round(low, false), round(high, true)) {
        (low, high) if low < high => (low, high),
        (low, _) => (low, low * base),
    }
}

/// Powers of `base` from `low` to `high`, `at_most` of them. Where there are fewer than three
/// powers of ten, twice and five times these too.
pub fn logarithmic(low: f64, high: f64, base: f64, at_most: usize) -> Vec<f64> {
    let exponent = |value: f64| value.ln() / base.ln();
    let first = (exponent(low) - 1e-9).floor() as i32;
    let last = (exponent(high) + 1e-9).floor() as i32;
    let is_inside = |place: &f64| (low * (1.0 - 1e-9)..=high * (1.0 + 1e-9)).contains(place);
    let powers = (first..=last).map(|power| base.powi(power));
    let powers: Vec<_> = powers.filter(is_inside).collect();
    if base == 10.0 && powers.len() < 3 {
        let places = (first..=last).flat_map(|power| [1.0, 2.0, 5.0].map(|f| f * base.powi(power)));
        return places.filter(is_inside).collect();
    }
    let stride = powers.len().div_ceil(at_most).max(1);
    powers.into_iter().step_by(stride).collect()
}

/// Labels of the ticks of one axis: as many decimals as tell them apart, the same for all of them,
/// and with an exponent where they are very small or very large.
pub fn numbers(ticks: &[f64]) -> Vec<String> {
    let largest = ticks.iter().copied().fold(0.0, f64::max);
    let is_plain = largest == 0.0 || (1e-3..1e7).contains(&largest);
    let is_written = |decimals: usize| {
        let factor = 10f64.powi(decimals as i32);
        ticks.iter().all(|tick| (tick * factor - (tick * factor).round()).abs() < 1e-6)
    };
    let decimals = (0..9).find(|decimals| is_written(*decimals)).unwrap_or(9);
    let label = |tick: &f64| match *tick {
        0.0 => "0".to_owned(),
        tick if is_plain => format!("{tick:.decimals$}"),
        tick => with_exponent(tick),
    };
    ticks.iter().map(label).collect()
}

/// Labels of the ticks of a logarithmic axis: each with its own decimals.
pub fn powers(ticks: &[f64]) -> Vec<String> {
    ticks.iter().flat_map(|tick| numbers(&[*tick])).collect()
}

/// `2.5e-4`.
fn with_exponent(value: f64) -> String {
    let text = format!("{value:.5e}");
    match text.split_once('e') {
        Some((digits, power)) if digits.contains('.') => {
            format!("{}e{power}", digits.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// Labels in `4 KiB`.
pub fn bytes(ticks: &[f64]) -> Vec<String> {
    let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let label = |count: &f64| match units.iter().find(|(size, _)| *count >= *size as f64) {
        Some((size, name)) => format!("{} {name}", count / *size as f64),
        None => format!("{count} B"),
    };
    ticks.iter().map(label).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_their_labels_short_and_distinct() {
        let cases: &[(f64, bool, &[&str])] = &[
            (6.3e-4, false, &["0", "1e-4", "2e-4", "3e-4", "4e-4", "5e-4", "6e-4"]),
            (0.315, false, &["0", "0.05", "0.10", "0.15", "0.20", "0.25", "0.30"]),
            (1.05, false, &["0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
            (1e30, false, &["0", "2e29", "4e29", "6e29", "8e29", "1e30"]),
            (1.3e-38, false, &["0", "2e-39", "4e-39", "6e-39", "8e-39", "1e-38", "1.2e-38"]),
            (659.0, true, &["0", "100", "200", "300", "400", "500", "600"]),
            (999_999.0, true, &["0", "200000", "400000", "600000", "800000"]),
            (1.0, true, &["0", "1"]),
            (3.0, true, &["0", "1", "2", "3"]),
            (25e8, true, &["0", "5e8", "1e9", "1.5e9", "2e9", "2.5e9"]),
        ];
        for (high, is_whole, expected) in cases {
            assert_eq!(numbers(&linear(*high, 8, *is_whole)), *expected, "up to {high}");
        }
    }

    #[test]
    fn a_logarithmic_axis_has_powers_and_its_ends_are_around_the_values() {
        let cases: &[(f64, f64, f64, &[&str])] = &[
            (0.0031, 412.0, 10.0, &["0.01", "0.1", "1", "10", "100"]),
            (3.1, 3.4, 10.0, &["2", "5"]),
            (7.0, 7.0, 10.0, &["5", "10"]),
            (2e-5, 3e-4, 10.0, &["2e-5", "5e-5", "1e-4", "2e-4", "5e-4"]),
            (1.0, 1.0, 2.0, &["1", "2"]),
            (1.0, 12.0, 2.0, &["1", "2", "4", "8", "16"]),
        ];
        for (low, high, base, expected) in cases {
            let (low, high) = around(*low, *high, *base);
            let labels = powers(&logarithmic(low, high, *base, 8));
            assert_eq!(labels, *expected, "{low} to {high}");
        }
        let sizes = logarithmic(1024.0, 2f64.powi(32), 2.0, 8);
        assert_eq!(bytes(&sizes)[..4], ["1 KiB", "8 KiB", "64 KiB", "512 KiB"]);
        assert_eq!(bytes(&[512.0, 3.0 * 1048576.0]), ["512 B", "3 MiB"]);
    }
}
