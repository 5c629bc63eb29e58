//! The time that each process itself took, over the steps of a run.

use std::fmt::Write;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::Report;
use super::html::Html;
use super::numbers::rough;
use super::page::{run_heading, table};
use super::shades::shade;
use crate::config::open_regular;
use crate::figure::{self, PlacedAxis, PlotAxis, Scale};
use crate::observe::{ProcessTimes, ProcessTimesFile};

/// Most records that are kept, half as many at least of a longer file: neighbours are joined.
const MAX_RECORDS: usize = 256;
/// Most processes: a line that is no record could have one for each byte.
const MAX_PROCESSES: usize = 16_384;
/// Most rows of a map, and of its table, and most cells of all maps of the page.
const MAX_ROWS: usize = 64;
const MAX_CELLS: usize = 16_384;
/// The times between which shades differ, as shares of all times in order. A first step, which
/// warms up, would leave one shade for all others.
const SHADED: [f64; 2] = [0.05, 0.95];
/// Times that differ by less than this share are alike: the map would show noise.
const ALIKE: f64 = 0.2;
/// The map's width, where its rows begin and end, and the most height of them.
const WIDTH: f64 = 720.0;
const SPAN: (f64, f64) = (92.0, 706.0);
const HEIGHT: f64 = 320.0;

/// A line of the file.
#[derive(Deserialize)]
struct TimesLine {
    step: u64,
    num_steps: u64,
    own_ms: Vec<Option<f64>>,
}

/// Reads the times in the directory of a run; none if it has none.
///
/// # Errors
/// A file that cannot be read.
pub fn read(dir: &Path, notes: &mut Vec<String>) -> Result<Vec<ProcessTimes>> {
    let path = dir.join(ProcessTimesFile::FILE);
    if !path.exists() {
        return Ok(vec![]);
    }
    let failed = || format!("cannot read {}", path.display());
    let file = BufReader::new(open_regular(&path).with_context(failed)?);
    read_lines(file, notes).with_context(failed)
}

fn read_lines(file: impl BufRead, notes: &mut Vec<String>) -> std::io::Result<Vec<ProcessTimes>> {
    let mut records: Vec<ProcessTimes> = vec![];
    let mut num_damaged = 0_u64;
    for line in file.split(b'\n') {
        let line = line?;
        if line.trim_ascii().is_empty() {
            continue;
        }
        let read = serde_json::from_slice::<TimesLine>(&line).ok();
        let is_sound = |line: &TimesLine| {
            line.own_ms.len() <= MAX_PROCESSES
                && line.step < u64::MAX
                && (1..=line.step + 1).contains(&line.num_steps)
        };
        let Some(TimesLine { step, num_steps, own_ms }) = read.filter(is_sound) else {
            num_damaged += 1;
            continue;
        };
        let own_ms = own_ms.into_iter().map(|ms| ms.unwrap_or(f64::NAN)).collect();
        records.retain(|record| record.step < step);
        records.push(ProcessTimes { step, num_steps, own_ms, spread: vec![] });
        if records.len() >= MAX_RECORDS {
            records = records.chunks(2).map(join).collect();
        }
    }
    if num_damaged > 0 {
        let file = ProcessTimesFile::FILE;
        notes.push(format!("{file}: {num_damaged} damaged lines were left out"));
    }
    Ok(records)
}

/// The means over the steps of records in a row.
fn join(records: &[ProcessTimes]) -> ProcessTimes {
    let num_processes = records.iter().map(|record| record.own_ms.len()).max().unwrap_or(0);
    ProcessTimes {
        step: records.last().map_or(0, |record| record.step),
        num_steps: records.iter().map(|record| record.num_steps).sum(),
        own_ms: (0..num_processes).map(|process| mean(records, process)).collect(),
        spread: vec![],
    }
}

/// The mean of a process over all steps of records; NaN if none is known.
fn mean(records: &[ProcessTimes], process: usize) -> f64 {
    let known = times_of(records, process).filter(|(_, ms)| ms.is_finite());
    let sums = known.fold((0.0, 0.0), |(sum, steps), (record, ms)| {
        let num_steps = record.num_steps as f64;
        (sum + ms * num_steps, steps + num_steps)
    });
    sums.0 / sums.1
}

/// The records that have a process, and its times.
fn times_of(
    records: &[ProcessTimes],
    process: usize,
) -> impl Iterator<Item = (&ProcessTimes, f64)> {
    records.iter().filter_map(move |record| Some((record, *record.own_ms.get(process)?)))
}

/// A map for each run that has recorded the times.
pub fn own_times(html: &mut Html, report: &Report) {
    if report.runs.iter().all(|run| run.process_times.is_empty()) {
        html.own(
            "<p class=\"muted\">The own times of processes are recorded in runs of several \
             processes, at each lockstep proof.</p>\n",
        );
        return;
    }
    for (number, run) in report.runs.iter().enumerate() {
        let records = &run.process_times;
        if records.is_empty() {
            continue;
        }
        run_heading(html, report, number);
        let num_processes = records.iter().map(|record| record.own_ms.len()).max().unwrap_or(0);
        let mut slowest: Vec<usize> = (0..num_processes).collect();
        let means: Vec<f64> = slowest.iter().map(|process| mean(records, *process)).collect();
        slowest.sort_by(|a, b| means[*b].total_cmp(&means[*a]));
        let num_cells = MAX_CELLS / report.runs.len();
        let max_rows = (num_cells / records.len()).clamp(1, MAX_ROWS);
        slowest.truncate(max_rows);
        let mut shown = slowest.clone();
        shown.sort_unstable();
        map(html, records, &shown, &means);
        if num_processes > max_rows {
            let text = format!(
                "Of {num_processes} processes the {max_rows} that took longest are shown; --json \
                 has all."
            );
            html.element("p", &[("class", "muted")], &text);
        }
        let heads = ["process", "own time of a step, mean (ms)", "least", "most", "up to step"];
        let rows = slowest.iter().map(|process| {
            let known = || times_of(records, *process).filter(|(_, ms)| ms.is_finite());
            let least = known().map(|(_, ms)| ms).fold(f64::NAN, f64::min);
            let most = known().max_by(|a, b| a.1.total_cmp(&b.1));
            let (step, most) = most
                .map_or((String::new(), f64::NAN), |(record, ms)| (record.step.to_string(), ms));
            let numbers = [rough(means[*process]), rough(least), rough(most), step];
            let numbers = numbers.map(|text| (text, true));
            [(format!("process {process}"), false)].into_iter().chain(numbers).collect()
        });
        table(html, &heads, rows);
    }
}

/// The time at a share of all times in order; NaN if there are none.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = (share * sorted.len().saturating_sub(1) as f64).round() as usize;
    sorted.get(place).copied().unwrap_or(f64::NAN)
}

/// A row for each of these processes, from the first step to the last.
fn map(html: &mut Html, records: &[ProcessTimes], shown: &[usize], means: &[f64]) {
    let all = records.iter().flat_map(|record| record.own_ms.iter().copied());
    let mut sorted: Vec<f64> = all.filter(|ms| ms.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let [low, high] = SHADED.map(|share| quantile(&sorted, share));
    let high = high.max(low * (1.0 + ALIKE));
    let axis = PlotAxis { title: "step".into(), scale: Scale::Whole, labels: figure::numbers };
    let last = records.last().map_or(0, |record| record.step + 1) as f64;
    let axis = PlacedAxis::new(&axis, [last].into_iter(), 6);
    let at = |step: u64| {
        let across = SPAN.0 + axis.share(step as f64) * (SPAN.1 - SPAN.0);
        (across * 10.0).round() / 10.0
    };
    let row_height = (HEIGHT / shown.len().max(1) as f64).clamp(5.0, 20.0);
    let bottom = row_height * shown.len() as f64;
    let view = format!("0 0 {WIDTH} {}", bottom + 38.0);
    let label = "Own time of each process by step; the table below has its numbers";
    html.open("figure", &[("class", "still")]).open("figcaption", &[]);
    html.element("b", &[], "own time of each process").text(" ");
    let text = format!(
        "without waiting for others; from {} ms or less (light) to {} ms or more (dark)",
        rough(low),
        rough(high)
    );
    html.element("span", &[("class", "about")], &text).close("figcaption");
    html.open("svg", &[("viewBox", &view), ("role", "img"), ("aria-label", label)]);
    // Of narrow rows not each has a name.
    let every = (13.0 / row_height).ceil() as usize;
    for (row, process) in shown.iter().enumerate() {
        let top = row_height * row as f64;
        if row.is_multiple_of(every) {
            let y = (top + row_height / 2.0 + 4.0).to_string();
            let place = [("x", "84"), ("y", &*y), ("text-anchor", "end")];
            html.element("text", &place, &format!("process {process}"));
        }
        html.open("g", &[]);
        let title = format!("process {process}: {} ms", rough(means[*process]));
        html.element("title", &[], &title);
        for (shade, path) in cells(records, *process, (low, high), &at, (top, row_height)) {
            html.open("path", &[("class", &format!("heat {shade}")), ("d", &path)]).close("path");
        }
        html.close("g");
    }
    for (step, text) in &axis.ticks {
        let (x, y) = (at(*step as u64).to_string(), (bottom + 16.0).to_string());
        html.element("text", &[("x", &x), ("y", &y), ("text-anchor", "middle")], text);
    }
    let (x, y) = (((SPAN.0 + SPAN.1) / 2.0).to_string(), (bottom + 34.0).to_string());
    html.element("text", &[("x", &x), ("y", &y), ("text-anchor", "middle")], "step");
    html.close("svg").close("figure").own("\n");
}

/// The cells of a process as a path for each shade.
fn cells(
    records: &[ProcessTimes],
    process: usize,
    (low, high): (f64, f64),
    at: &impl Fn(u64) -> f64,
    (top, height): (f64, f64),
) -> Vec<(&'static str, String)> {
    let mut paths: Vec<(&str, String)> = vec![];
    for (record, ms) in times_of(records, process) {
        // Where all times are 0, none is long.
        let share = if ms > low { (ms - low) / (high - low) } else { ms * 0.0 };
        let Some(shade) = shade(share) else { continue };
        let (from, to) = (at(record.step + 1 - record.num_steps), at(record.step + 1));
        let place = paths.iter().position(|(other, _)| *other == shade);
        let place = place.unwrap_or_else(|| {
            paths.push((shade, String::new()));
            paths.len() - 1
        });
        // Writing to a String cannot fail.
        let _ = write!(paths[place].1, "M{from} {top}H{to}v{height}H{from}z");
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: impl Iterator<Item = String>) -> (Vec<ProcessTimes>, Vec<String>) {
        let (text, mut notes) = (lines.collect::<String>(), vec![]);
        (read_lines(text.as_bytes(), &mut notes).unwrap(), notes)
    }

    fn line(step: u64, own: &str) -> String {
        format!("{{\"step\":{step},\"num_steps\":10,\"own_ms\":[{own}]}}\n")
    }

    #[test]
    fn a_long_file_becomes_few_means_over_all_steps() {
        let lines = (0..10_000_u64).map(|number| line(10 * number + 9, &format!("{number},2.5")));
        let (records, notes) = read(lines);
        assert!(notes.is_empty() && (128..256).contains(&records.len()), "{}", records.len());
        assert_eq!(records.iter().map(|record| record.num_steps).sum::<u64>(), 100_000);
        assert_eq!(records.last().unwrap().step, 99_999);
        assert!((mean(&records, 0) - 4999.5).abs() < 1e-6 && mean(&records, 1) == 2.5);
    }

    #[test]
    fn damaged_lines_are_left_out_and_others_count_once() {
        let no_steps = "{\"step\":5,\"num_steps\":0,\"own_ms\":[1]}\n";
        let too_many = "{\"step\":5,\"num_steps\":7,\"own_ms\":[1]}\n";
        let lines = [
            line(9, "1,null"),
            line(19, "3"),
            line(19, "5,4"),
            no_steps.to_owned(),
            too_many.to_owned(),
            "{\"st".to_owned(),
        ];
        let (records, notes) = read(lines.into_iter());
        assert_eq!(records.iter().map(|record| record.step).collect::<Vec<_>>(), [9, 19]);
        assert_eq!((mean(&records, 0), mean(&records, 1)), (3.0, 4.0));
        assert!(mean(&records, 2).is_nan());
        assert!(notes[0].contains("3 damaged lines"), "{notes:?}");
    }

    #[test]
    fn cells_have_the_shade_of_their_time() {
        let (records, _) = read([line(9, "1"), line(19, "2"), line(29, "null")].into_iter());
        let at = |step: u64| step as f64;
        let found = cells(&records, 0, (1.0, 2.0), &at, (0.0, 5.0));
        let expected = [("h0", "M0 0H10v5H0z".to_owned()), ("h7", "M10 0H20v5H10z".to_owned())];
        assert_eq!(found, expected);
        let (zeros, _) = read([line(9, "0")].into_iter());
        assert_eq!(cells(&zeros, 0, (0.0, 0.0), &at, (0.0, 5.0))[0].0, "h0");
    }
}
