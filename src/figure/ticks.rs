//! Ticks of axes and their labels.

/// Places at a distance of 1, 2 or 5 times a power of ten, `at_most` of these distances, from the
/// one before `low` to the one after `high`.
pub fn linear(low: f64, high: f64, at_most: usize) -> Vec<f64> {
    let step = distance(high - low, at_most);
    let (first, last) = ((low / step + 1e-9).floor(), (high / step - 1e-9).ceil());
    // A distance that rounding swallows has no places.
    let is_short = last - first < 2.0 * at_most as f64 + 2.0;
    if !is_short {
        return vec![low, high];
    }
    (0..=(last - first) as usize).map(|index| (first + index as f64) * step).collect()
}

/// The next number of two digits.
pub fn above(value: f64) -> f64 {
    let unit = 10f64.powf(value.log10().floor() - 1.0);
    (value / unit - 1e-9).ceil() * unit
}

/// Places from 0 at such a distance, at least `least`, and `high`, in place of one that is close to
/// it.
pub fn ending(high: f64, at_most: usize, least: f64) -> Vec<f64> {
    let step = distance(high, at_most).max(least);
    let count = ((high / step).ceil() as usize).min(2 * at_most);
    let places = (0..count).map(|index| index as f64 * step);
    let mut places: Vec<_> =
        places.filter(|place| *place == 0.0 || high - place > 0.35 * step).collect();
    places.push(high);
    places
}

/// 1, 2 or 5 times a power of ten: `at_most` of them are as long as `length`.
fn distance(length: f64, at_most: usize) -> f64 {
    let least = length / at_most as f64;
    let power = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    steps.into_iter().find(|step| *step >= least * (1.0 - 1e-9)).unwrap_or(least)
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

/// `low`, `high` and, between them, powers of `base`, `at_most` of them. Where there are fewer than
/// three powers of ten, twice and five times these too.
pub fn logarithmic(low: f64, high: f64, base: f64, at_most: usize) -> Vec<f64> {
    let exponent = |value: f64| value.ln() / base.ln();
    let first = (exponent(low) - 1e-9).floor() as i32;
    let last = (exponent(high) + 1e-9).floor() as i32;
    let is_inside = |place: &f64| (low * (1.0 + 1e-9)..high * (1.0 - 1e-9)).contains(place);
    let powers: Vec<_> = (first..=last).map(|power| base.powi(power)).collect();
    let inside: Vec<_> = powers.iter().copied().filter(is_inside).collect();
    let inside = match base == 10.0 && inside.len() < 3 {
        true => {
            let all = powers.iter().flat_map(|power| [1.0, 2.0, 5.0].map(|factor| factor * power));
            all.filter(is_inside).collect()
        }
        false => {
            let stride = (inside.len() + 1).div_ceil(at_most).max(1);
            inside.into_iter().skip(stride - 1).step_by(stride).collect::<Vec<_>>()
        }
    };
    [vec![low], inside, vec![high]].concat()
}

/// Labels of the ticks of one axis: as many decimals as tell them apart, the same for all of them,
/// and with an exponent where they are very small or very large.
pub fn numbers(ticks: &[f64]) -> Vec<String> {
    let largest = ticks.iter().map(|tick| tick.abs()).fold(0.0, f64::max);
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
        let cases: &[(f64, f64, &[&str])] = &[
            (0.0, 6.3e-4, &["0", "1e-4", "2e-4", "3e-4", "4e-4", "5e-4", "6e-4", "7e-4"]),
            (0.0, 0.315, &["0", "0.05", "0.10", "0.15", "0.20", "0.25", "0.30", "0.35"]),
            (0.0, 0.002, &["0", "0.0005", "0.0010", "0.0015", "0.0020"]),
            (0.0, 1e30, &["0", "2e29", "4e29", "6e29", "8e29", "1e30"]),
            (
                0.0,
                1.3e-38,
                &["0", "2e-39", "4e-39", "6e-39", "8e-39", "1e-38", "1.2e-38", "1.4e-38"],
            ),
            (
                0.953,
                0.981,
                &["0.950", "0.955", "0.960", "0.965", "0.970", "0.975", "0.980", "0.985"],
            ),
            (-0.3, 0.8, &["-0.4", "-0.2", "0", "0.2", "0.4", "0.6", "0.8"]),
            (-3.0, -1.0, &["-3.0", "-2.5", "-2.0", "-1.5", "-1.0"]),
        ];
        for (low, high, expected) in cases {
            assert_eq!(numbers(&linear(*low, *high, 7)), *expected, "{low} to {high}");
        }
        let cases: &[(f64, &[&str])] = &[
            (659.0, &["0", "100", "200", "300", "400", "500", "600", "659"]),
            (620.0, &["0", "100", "200", "300", "400", "500", "620"]),
            (999_999.0, &["0", "200000", "400000", "600000", "800000", "999999"]),
            (1.0, &["0", "1"]),
            (3.0, &["0", "1", "2", "3"]),
        ];
        for (high, expected) in cases {
            assert_eq!(numbers(&ending(*high, 7, 1.0)), *expected, "up to {high}");
        }
        assert_eq!(
            [83.3, 0.1601, 1.0, 99.9].map(above).map(|end| end.to_string()),
            ["84", "0.17", "1", "100"]
        );
    }

    /// Not endless, and at least two.
    #[test]
    fn every_axis_has_ticks() {
        for (low, high) in [(0.0, 1e-150), (0.0, 1e150), (-1e150, 1e150), (1e17, 1e17 + 16.0)] {
            let places = linear(low, high, 7);
            assert!((2..20).contains(&places.len()), "{low} to {high}: {places:?}");
            assert!(
                places[0] <= low && places[places.len() - 1] >= high * (1.0 - 1e-9),
                "{places:?}"
            );
        }
        for high in [1e-150, 0.5, 1e18, 1e150] {
            assert!((2..20).contains(&ending(high, 7, 1.0).len()), "{high}");
        }
        for base in [2.0, 10.0] {
            let (low, high) = around(1e-150, 1e150, base);
            assert!((2..20).contains(&logarithmic(low, high, base, 8).len()), "{base}");
        }
    }

    #[test]
    fn a_logarithmic_axis_has_powers_and_its_ends_are_around_the_values() {
        let cases: &[(f64, f64, f64, &[&str])] = &[
            (0.0031, 412.0, 10.0, &["0.002", "0.01", "0.1", "1", "10", "100", "500"]),
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
        assert_eq!(bytes(&sizes).last().unwrap(), "4 GiB");
        assert_eq!(bytes(&[512.0, 3.0 * 1048576.0]), ["512 B", "3 MiB"]);
    }
}
