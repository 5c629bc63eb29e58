//! Schedules as text: every step as CSV, a choice of steps as a table, and a plot for the terminal.

use std::iter;
use std::ops::RangeInclusive;

use hlo::counted;

use super::Column;
use super::check::wrapped_to;
use crate::config::{Config, Peak, Scaling};
use crate::figure::braille::{BrailleCell, Dots};

/// Approximate number of rows, without boundaries.
const NUM_ROWS: u64 = 16;
/// Most characters of a plot, and fewest.
const PLOT_COLUMNS: RangeInclusive<usize> = 10..=72;
/// Characters before a plot.
const LABEL_COLUMNS: usize = 13;
/// Characters of a step or an epoch in the table, and of a rate.
const STEP_COLUMNS: usize = 10;
const RATE_COLUMNS: usize = 14;
const PLOT_ROWS: usize = 10;

/// A header, and a line a step. Where a run has ended before the longest one, its rate is empty.
pub fn csv(columns: &[Column]) -> impl Iterator<Item = String> {
    let names: Vec<_> = columns.iter().map(|column| column.name.as_str()).collect();
    let header = format!("step,{}", names.join(","));
    let rows = (0..longest(columns)).map(|step| {
        let rates = columns.iter().map(|column| match step < column.run.total_steps() {
            true => exact(column.schedule.lr(step)),
            false => String::new(),
        });
        let rates: Vec<_> = rates.collect();
        format!("{step},{}", rates.join(","))
    });
    iter::once(header).chain(rows)
}

/// The shortest digits that identify the number, as in `metrics.jsonl`.
fn exact(rate: f64) -> String {
    serde_json::Number::from_f64(rate).map_or_else(|| rate.to_string(), |rate| rate.to_string())
}

/// The arithmetic of each schedule, rates at telling steps, and a plot of each, in lines of at most
/// `width` characters if that is 40 or more. Schedules that do not stand side by side have several
/// tables.
pub fn table(config: &Config, columns: &[Column], width: usize) -> Vec<String> {
    let mut lines = vec![];
    for column in columns {
        lines.extend(wrapped_to(width, "", &describe_run(column)));
        lines.extend(wrapped_to(width, "    ", &describe_peak(config, column)));
    }
    let side_by_side = (width.saturating_sub(STEP_COLUMNS) / RATE_COLUMNS).max(1);
    for part in columns.chunks(side_by_side) {
        lines.push(String::new());
        lines.extend(rates(part, columns.len() == 1));
    }
    for column in columns {
        lines.push(String::new());
        lines.extend(plot(column, width.saturating_sub(LABEL_COLUMNS)));
    }
    lines
}

/// Rates at telling steps, side by side.
fn rates(columns: &[Column], has_epochs: bool) -> Vec<String> {
    let epochs = columns.iter().find_map(|column| column.run.steps_per_epoch());
    let epochs = epochs.filter(|_| has_epochs);
    let mut header = format!("{:>STEP_COLUMNS$}", "step");
    if epochs.is_some() {
        header += &format!("{:>STEP_COLUMNS$}", "epoch");
    }
    header.extend(columns.iter().map(|column| format!("{:>RATE_COLUMNS$}", column.name)));
    let mut lines = vec![header];
    for step in telling_steps(columns) {
        let mut line = format!("{step:>STEP_COLUMNS$}");
        if let Some(epochs) = epochs {
            line += &format!("{:>STEP_COLUMNS$.2}", step as f64 / epochs as f64);
        }
        for column in columns {
            let rate = (step < column.run.total_steps()).then(|| column.schedule.lr(step));
            line += &format!("{:>RATE_COLUMNS$}", rate.map_or(String::new(), short));
        }
        lines.push(line);
    }
    lines
}

fn describe_run(column: &Column) -> String {
    let batch = counted(column.run.global_batch(), "example");
    let replicas =
        column.num_batch_shards.map(|number| format!(" on {}", counted(number, "replica")));
    let epoch = column.run.steps_per_epoch();
    let epoch = epoch.map(|steps| format!(", {} per epoch", counted(steps, "step")));
    format!(
        "{}: {} of {batch}{}{}",
        column.name,
        counted(column.run.total_steps(), "step"),
        replicas.unwrap_or_default(),
        epoch.unwrap_or_default()
    )
}

fn describe_peak(config: &Config, column: &Column) -> String {
    let batch = column.run.global_batch();
    let from = match config.schedule.peak {
        Peak::Rate(_) => String::new(),
        Peak::Scaled { base_lr, base_batch, scaling } => match scaling {
            Scaling::Linear => format!(" = {base_lr} * {batch} / {base_batch}"),
            Scaling::Sqrt => format!(" = {base_lr} * sqrt({batch} / {base_batch})"),
            Scaling::None => " whatever the batch".to_owned(),
        },
    };
    let name = config.schedule.shape.name();
    let (peak, warmup) = (short(column.schedule.peak()), column.schedule.warmup_steps());
    format!("{name}, peak {peak}{from}, warm-up of {}", counted(warmup, "step"))
}

/// A rate to six digits.
pub fn short(rate: f64) -> String {
    let fixed = (1e-3..1e6).contains(&rate) || rate == 0.0;
    let text = if fixed { format!("{rate:.6}") } else { format!("{rate:.5e}") };
    match fixed {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Steps at even distances, the ends of warm-ups, and both sides of each boundary.
fn telling_steps(columns: &[Column]) -> Vec<u64> {
    let total = longest(columns);
    let mut steps: Vec<u64> = (0..=NUM_ROWS)
        .map(|row| (u128::from(total) * u128::from(row) / u128::from(NUM_ROWS)) as u64)
        .collect();
    for column in columns {
        let (schedule, last) = (&column.schedule, column.run.total_steps().saturating_sub(1));
        let warmup = (schedule.warmup_steps() > 0).then(|| schedule.warmup_steps());
        for place in schedule.boundaries().iter().copied().chain(warmup) {
            steps.extend([place.saturating_sub(1), place]);
        }
        steps.push(last);
    }
    steps.retain(|step| *step < total);
    steps.sort_unstable();
    steps.dedup();
    steps
}

fn longest(columns: &[Column]) -> u64 {
    columns.iter().map(|column| column.run.total_steps()).max().unwrap_or(0)
}

/// The rate over the steps in braille dots, two across and four down in each of at most
/// `num_columns` characters.
fn plot(column: &Column, num_columns: usize) -> Vec<String> {
    let num_columns = num_columns.clamp(*PLOT_COLUMNS.start(), *PLOT_COLUMNS.end());
    let (width, height) = (num_columns * 2, PLOT_ROWS * 4);
    let last = column.run.total_steps().saturating_sub(1);
    let at = |dot: usize| (u128::from(last) * dot as u128 / (width - 1) as u128) as u64;
    let rates: Vec<_> = (0..width).map(|dot| column.schedule.lr(at(dot))).collect();
    let top = rates.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let mut dots = Dots::new(num_columns, PLOT_ROWS);
    let place = |dot: usize| {
        let level = ((rates[dot] / top) * (height - 1) as f64).round() as usize;
        (dot, (height - 1).saturating_sub(level))
    };
    // From the previous one, so that the curve has no gaps.
    (0..width).for_each(|dot| dots.line(place(dot.saturating_sub(1)), place(dot), None));
    let label = |row: usize| match row {
        0 => short(top),
        row if row + 1 == PLOT_ROWS => "0".to_owned(),
        _ => String::new(),
    };
    let rows = dots.rows().enumerate().map(|(row, cells)| {
        let dots: String = cells.iter().map(BrailleCell::letter).collect();
        format!("{:>12} {}", label(row), dots.trim_end())
    });
    let steps = format!("{:>12} 0{:>width$}", column.name, last, width = num_columns - 1);
    rows.chain([steps]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_printed_as_metrics_record_them() {
        for rate in [0.1 + 0.2, 1e-7, 3.2, 1.0, 5e-324] {
            assert_eq!(exact(rate), serde_json::to_string(&rate).unwrap());
        }
    }

    #[test]
    fn rates_are_short_and_never_lost() {
        let rates = [(0.1, "0.1"), (0.0, "0"), (3.2, "3.2"), (2e-4, "2.00000e-4"), (1.0, "1")];
        for (rate, expected) in rates {
            assert_eq!(short(rate), expected);
        }
    }

    #[test]
    fn lines_fit_forty_columns() {
        let text = "model = { name = \"mlp\" }\ndata = \
                    { source = \"synthetic\", num_examples = 60000000 }\ntrain = \
                    { batch_per_replica = 8, epochs = 3 }\noptimizer = \
                    { name = \"sgd\" }\nschedule = \
                    { name = \"cosine\", base_lr = 0.123456, base_batch = 2048, warmup_epochs = 0.5 }";
        let config = Config::parse(text, std::path::Path::new("/a.toml"), &[]).unwrap();
        for replicas in [&[][..], &[8], &[8, 64, 512, 4096]] {
            let columns = super::super::columns(&config, replicas).unwrap();
            for width in [40, 60, 100] {
                let lines = table(&config, &columns, width);
                let longest = lines.iter().map(|line| line.chars().count()).max().unwrap();
                assert!(longest <= width, "{width}: {lines:#?}");
                assert!(width > 80 || longest > width - 14, "{width}: {lines:#?}");
            }
            let shown = table(&config, &columns, 40).join("\n");
            assert!(columns.iter().all(|column| shown.contains(&column.name)), "{shown}");
        }
    }
}
