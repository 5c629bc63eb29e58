//! What was measured, beside the formulas, as Markdown and as a picture.

use std::fmt::Write;

use lockstep::figure::{self, Figure, Panel, PictureFormat, PlotAxis, PlotCurve, Scale};
use lockstep::targets::cost::{LineFit, MeasuredCollective, MeasuredFabric, MeasuredPoint};

use crate::formulas::Ports;
use crate::links::Outcome;
use crate::{Cell, PER_HOST};

/// Cells that used more of the processors are left out: they measure these.
const MAX_BUSY: f64 = 0.5;
/// What is compared with 15 %.
const CLOSE: f64 = 0.15;
const ALGORITHMS: [&str; 4] = ["direct", "ring", "tree", "hierarchical"];

fn all_reduce<'a>(fabric: &'a MeasuredFabric, algorithm: &str) -> Option<&'a MeasuredCollective> {
    let is_it = |of: &&MeasuredCollective| of.kind == "all_reduce" && of.algorithm == algorithm;
    fabric.collectives.iter().find(is_it)
}

/// The line of a message between processes.
fn message(cell: &Cell) -> Option<LineFit> {
    let mut all = cell.fabric.collectives.iter();
    let series = all.find(|of| of.kind == "collective_permute")?;
    LineFit::of(&series.points.iter().map(|at| (at.bytes as f64, at.secs)).collect::<Vec<_>>())
}

fn ports(cell: &Cell) -> Option<Ports> {
    let fit = message(cell)?;
    let [alpha, beta] = [fit.latency_secs.value, fit.secs_per_byte.value];
    Some(Ports { p: cell.num_processes, alpha, beta })
}

pub fn page(all: &[Cell]) -> String {
    let mut text = String::new();
    let cells: Vec<Cell> = all.iter().filter(|cell| cell.own_busy <= MAX_BUSY).cloned().collect();
    let cells = &cells[..];
    links(&mut text, cells);
    residuals(&mut text, cells);
    crossovers(&mut text, cells);
    automatic(&mut text, cells);
    for cell in all.iter().filter(|cell| cell.own_busy > MAX_BUSY) {
        let _ = writeln!(
            text,
            "\nLeft out: {} processes at {:.0} Mb/s and {:.0} ms used {:.0} % of the processors.",
            cell.num_processes,
            cell.megabits_per_sec[0],
            cell.delay_ms[0],
            100.0 * cell.own_busy
        );
    }
    text
}

// Writing to a String cannot fail.

fn links(text: &mut String, cells: &[Cell]) {
    text.push_str(
        "| processes | Mb/s: asked, one connection, fitted | ms one way: asked, one connection | \
         alpha, ms | alpha / beta |\n|---:|---|---|---|---:|\n",
    );
    for cell in cells {
        let Some(fit) = message(cell) else { continue };
        let [asked, found] = cell.megabits_per_sec;
        let [delay, found_delay] = cell.delay_ms;
        let megabits = |secs_per_byte: f64| 8.0 / secs_per_byte / 1e6;
        let [alpha, beta] = [fit.latency_secs, fit.secs_per_byte];
        let _ = writeln!(
            text,
            "| `{}` | {asked:.0}, {found:.1}, {:.1} ({:.1} to {:.1}) | {delay:.0}, {found_delay:.2} \
             | {:.2} ({:.2} to {:.2}) | {:.0} KB |",
            cell.num_processes,
            megabits(beta.value),
            megabits(beta.high),
            megabits(beta.low),
            1e3 * alpha.value,
            1e3 * alpha.low,
            1e3 * alpha.high,
            fit.half_performance_bytes() / 1e3
        );
    }
    text.push('\n');
}

/// Measured over predicted, less one.
fn errors(cell: &Cell, algorithm: &str, secs: impl Fn(Ports, f64) -> f64) -> Vec<(u64, f64)> {
    let Some((ports, series)) = ports(cell).zip(all_reduce(&cell.fabric, algorithm)) else {
        return vec![];
    };
    let error = |at: &MeasuredPoint| (at.bytes, at.secs / secs(ports, at.bytes as f64) - 1.0);
    series.points.iter().map(error).collect()
}

fn residuals(text: &mut String, cells: &[Cell]) {
    text.push_str(
        "| processes, Mb/s, ms | algorithm | within 15 % | median | furthest | plain model: within \
         15 %, median |\n|---|---|---:|---:|---:|---:|\n",
    );
    let mut sums = [0; 2];
    for cell in cells {
        for algorithm in ALGORITHMS {
            let found =
                errors(cell, algorithm, |ports, n| ports.all_reduce(algorithm, n, PER_HOST));
            let plain = errors(cell, algorithm, Ports::plain);
            if found.is_empty() {
                continue;
            }
            let num_close = |of: &[(u64, f64)]| of.iter().filter(|at| at.1.abs() <= CLOSE).count();
            let furthest = found.iter().max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()));
            let furthest = furthest.map_or(String::new(), |(bytes, error)| {
                format!("{:+.0} % at {} KiB", 100.0 * error, bytes >> 10)
            });
            sums = [sums[0] + num_close(&found), sums[1] + found.len()];
            let _ = writeln!(
                text,
                "| `{}, {:.0}, {:.0}` | {algorithm} | {} of {} | {:+.0} % | {furthest} | {} of {}, \
                 {:+.0} % |",
                cell.num_processes,
                cell.megabits_per_sec[0],
                cell.delay_ms[0],
                num_close(&found),
                found.len(),
                100.0 * median(&found),
                num_close(&plain),
                plain.len(),
                100.0 * median(&plain)
            );
        }
    }
    let [close, all] = sums;
    let _ = writeln!(text, "\n{close} of {all} points are within 15 %.\n");
}

fn median(errors: &[(u64, f64)]) -> f64 {
    let mut errors: Vec<f64> = errors.iter().map(|at| at.1).collect();
    errors.sort_by(f64::total_cmp);
    errors.get(errors.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The size from which `b` is faster than `a`, between measured sizes.
fn crossover(a: &MeasuredCollective, b: &MeasuredCollective) -> Option<f64> {
    let common = a.points.iter().filter_map(|at| {
        let other = b.points.iter().find(|other| other.bytes == at.bytes)?;
        Some((at.bytes as f64, (other.secs / at.secs).ln()))
    });
    let common: Vec<_> = common.collect();
    common.windows(2).find_map(|two| {
        let [(n, slower), (larger, faster)] = [two[0], two[1]];
        let part = slower / (slower - faster);
        (slower >= 0.0 && faster < 0.0).then(|| n * (larger / n).powf(part))
    })
}

fn crossovers(text: &mut String, cells: &[Cell]) {
    text.push_str("| processes, Mb/s, ms | | formulas | measured |\n|---|---|---:|---:|\n");
    for cell in cells {
        let Some(ports) = ports(cell) else { continue };
        for [a, b] in [["tree", "ring"], ["direct", "ring"], ["direct", "tree"]] {
            let series = all_reduce(&cell.fabric, a).zip(all_reduce(&cell.fabric, b));
            let found = series.and_then(|(a, b)| crossover(a, b));
            let expected = ports.crossover(a, b, PER_HOST).filter(|n| *n <= 4.2e6);
            if (expected, found) == (None, None) {
                continue;
            }
            let size =
                |n: Option<f64>| n.map_or("none".to_owned(), |n| format!("{:.0} KB", n / 1e3));
            let _ = writeln!(
                text,
                "| `{}, {:.0}, {:.0}` | {b} instead of {a} from | {} | {} |",
                cell.num_processes,
                cell.megabits_per_sec[0],
                cell.delay_ms[0],
                size(expected),
                size(found)
            );
        }
    }
    text.push('\n');
}

/// What `"auto"` takes with the cell's fabric file, beside the best.
fn automatic(text: &mut String, cells: &[Cell]) {
    let (mut worst, mut num_points) = (1.0f64, 0);
    text.push_str("| processes, Mb/s, ms | `\"auto\"` with this fabric |\n|---|---|\n");
    for cell in cells {
        let changes = cell.fabric.all_reduces_by_size(cell.num_processes);
        let words: Vec<_> = changes
            .iter()
            .map(|(from, algorithm)| {
                let name = algorithm.map_or("direct", |algorithm| algorithm.name());
                if *from == 0 { name.to_owned() } else { format!("{name} from {} KB", from / 1000) }
            })
            .collect();
        let _ = writeln!(
            text,
            "| `{}, {:.0}, {:.0}` | {} |",
            cell.num_processes,
            cell.megabits_per_sec[0],
            cell.delay_ms[0],
            words.join(", ")
        );
        let Some(direct) = all_reduce(&cell.fabric, "direct") else { continue };
        for point in &direct.points {
            let chosen = changes.iter().rev().find(|(from, _)| *from <= point.bytes);
            let chosen = chosen.and_then(|(_, algorithm)| *algorithm);
            let chosen = chosen.map_or("direct", |algorithm| algorithm.name());
            let secs = |algorithm: &str| {
                let series = all_reduce(&cell.fabric, algorithm)?;
                Some(series.points.iter().find(|at| at.bytes == point.bytes)?.secs)
            };
            let best = ALGORITHMS.into_iter().filter_map(secs).fold(f64::INFINITY, f64::min);
            if let Some(secs) = secs(chosen) {
                worst = worst.max(secs / best);
                num_points += 1;
            }
        }
    }
    let _ = writeln!(
        text,
        "\nOf {num_points} sizes, the worst choice takes {:.2} times as long as the best.",
        worst
    );
}

/// Times over sizes, measured as dots and predicted as lines, for the cells with most processes.
pub fn picture(cells: &[Cell]) -> Option<Outcome<Vec<u8>>> {
    let panels: Vec<Panel> = cells.iter().filter_map(panel).collect();
    if panels.is_empty() {
        return None;
    }
    let figure = Figure {
        title: "all_reduce over limited links".to_owned(),
        subtitle: "dots: measured; lines: formulas with alpha and beta of a single message"
            .to_owned(),
        key: None,
        panels,
    };
    Some(figure.draw(PictureFormat::Svg).map_err(Into::into))
}

fn panel(cell: &Cell) -> Option<Panel> {
    if cell.num_processes != 4 {
        return None;
    }
    let ports = ports(cell)?;
    let mut curves = vec![];
    for (number, algorithm) in ALGORITHMS.into_iter().enumerate() {
        let Some(series) = all_reduce(&cell.fabric, algorithm) else { continue };
        let look = |line, has_dots| Some(figure::Look { number: Some(number), line, has_dots });
        let predicted = series.points.iter().map(|at| {
            let n = at.bytes as f64;
            (n, 1e3 * ports.all_reduce(algorithm, n, PER_HOST))
        });
        curves.push(PlotCurve {
            look: look(figure::Line::Solid, false),
            ..PlotCurve::new("", predicted.collect())
        });
        let measured = series.points.iter().map(|at| (at.bytes as f64, 1e3 * at.secs));
        curves.push(PlotCurve {
            look: look(figure::Line::Thin, true),
            ..PlotCurve::new(algorithm, measured.collect())
        });
    }
    Some(Panel {
        title: format!(
            "{} processes, {:.0} Mb/s, {:.0} ms",
            cell.num_processes, cell.megabits_per_sec[0], cell.delay_ms[0]
        ),
        x: PlotAxis { title: "bytes".into(), scale: Scale::Log(4.0), labels: figure::bytes },
        y: PlotAxis { title: "ms".into(), scale: Scale::Log(10.0), labels: figure::powers },
        curves,
    })
}
