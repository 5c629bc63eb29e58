//! The tables of the page.

use serde_json::Value;

use super::html::Html;
use super::levels::CurveValues;
use super::numbers::{count, duration, rough, shown};
use super::own_times::own_times;
use super::page::{run_heading, table, table_of_runs};
use super::percentiles::Percentiles;
use super::read::generation_starts;
use super::{Report, RunReport};
use crate::observe::GenerationStart;

/// Most rows of a table of evaluations.
const MAX_ROWS: usize = 24;

/// The numbers of steps that are no times.
pub fn numbers_of_steps(html: &mut Html, report: &Report) {
    for (number, run) in report.runs.iter().enumerate() {
        run_heading(html, report, number);
        let columns = run.percentiles.iter().filter(|column| !column.is_time());
        percentiles(html, columns, "last", |column| column.last);
    }
}

/// How long steps took, and what of it was waiting.
pub fn step_times(html: &mut Html, report: &Report) {
    html.own(
        "<p class=\"muted\">Milliseconds, without the first step, which warms up. Upload and \
         computing on the devices alone are not recorded.</p>\n",
    );
    for (number, run) in report.runs.iter().enumerate() {
        run_heading(html, report, number);
        let columns = run.percentiles.iter().filter(|column| column.is_time());
        percentiles(html, columns, "mean", |column| column.mean);
    }
}

fn percentiles<'a>(
    html: &mut Html,
    columns: impl Iterator<Item = &'a Percentiles>,
    name: &str,
    extra: fn(&Percentiles) -> f64,
) {
    let columns: Vec<_> = columns.collect();
    if columns.is_empty() {
        html.own("<p>Not recorded.</p>\n");
        return;
    }
    let heads = ["", "least", "median", "90 %", "99 %", "most", name];
    let row = |column: &&Percentiles| {
        let values = [column.min, column.p50, column.p90, column.p99, column.max, extra(column)];
        let name = std::iter::once((column.field.clone(), false));
        // A rate of learning and a loss are compared by their digits; times are not.
        let is_rough = column.is_time() || column.field == "examples_per_sec";
        let text = match column.is_count() {
            true => count,
            false if is_rough => rough,
            false => shown,
        };
        name.chain(values.map(|value| (text(value), true))).collect()
    };
    table(html, &heads, columns.iter().map(row));
}

/// The evaluations, or some of them.
pub fn evaluations(html: &mut Html, report: &Report) {
    for (number, run) in report.runs.iter().enumerate() {
        let Some(level) = run.curves.evals.first().filter(|level| !level.step.is_empty()) else {
            continue;
        };
        run_heading(html, report, number);
        let fields: Vec<_> = level.series.keys().map(String::as_str).collect();
        let heads: Vec<_> = std::iter::once("after step").chain(fields.iter().copied()).collect();
        let num = level.step.len();
        let stride = num.div_ceil(MAX_ROWS).max(1);
        // The last one is always there.
        let kept = (0..num).filter(|index| (num - 1 - index).is_multiple_of(stride));
        let rows = kept.map(|index| {
            let step = level.step.get(index).map_or(String::new(), u64::to_string);
            let values = level.series.values().map(|values| {
                let value = match values {
                    CurveValues::Exact(values) => values.get(index),
                    CurveValues::Ranges { mean, .. } => mean.get(index),
                };
                (value.map_or(String::new(), |value| shown(*value)), true)
            });
            std::iter::once((step, true)).chain(values).collect()
        });
        table(html, &heads, rows);
        if stride > 1 {
            let text = format!("{} of {num} evaluations; the chart has all.", num.div_ceil(stride));
            html.element("p", &[("class", "muted")], &text);
        }
    }
}

/// What is known of proofs and of skipped updates.
pub fn proofs(html: &mut Html, report: &Report) {
    let num = |run: &RunReport, field: &str| run.summary.get(field)?.as_f64().map(count);
    let row = |name: &str, value: &dyn Fn(&RunReport) -> Option<String>| {
        (name.to_owned(), report.runs.iter().map(value).collect())
    };
    let rows = [
        row("skipped updates", &|run| num(run, "num_skipped")),
        row("steps between proofs", &|run| match run.proof_every? {
            0 => Some("none".to_owned()),
            every => Some(every.to_string()),
        }),
        row("proofs, by the last process", &|run| num(run, "num_proofs")),
        row("params_fingerprint", &|run| {
            run.summary.get("params_fingerprint")?.as_str().map(str::to_owned)
        }),
    ];
    table_of_runs(html, report, rows.into_iter());
    html.own(
        "<p class=\"muted\">A run fails where a proof finds that replicas differ, so that one which \
         goes on has passed all proofs before. When each was made is not recorded.</p>\n",
    );
}

/// Processes, those that were slow, and attempts that failed.
pub fn processes(html: &mut Html, report: &Report) {
    let field = |run: &RunReport, field: &str| match run.summary.get(field)? {
        Value::String(text) => Some(text.clone()),
        value => value.as_f64().map(count),
    };
    let row = |name: &str, value: &dyn Fn(&RunReport) -> Option<String>| {
        (name.to_owned(), report.runs.iter().map(value).collect())
    };
    let failed = |run: &RunReport| run.summary.get("failed_generations")?.as_array().cloned();
    let rows = [
        row("processes", &|run| field(run, "num_processes")),
        row("replicas", &|run| field(run, "num_replicas")),
        row("continued from", &|run| match run.summary.get("resumed_from")? {
            Value::Null => Some("nothing".to_owned()),
            _ => field(run, "resumed_from"),
        }),
        row("failed attempts", &|run| Some(failed(run)?.len().to_string())),
        row("verdicts about slow processes", &|run| Some(run.slow_processes.len().to_string())),
    ];
    table_of_runs(html, report, rows.into_iter());
    for (number, run) in report.runs.iter().enumerate() {
        let (failed, starts) = (failed(run).unwrap_or_default(), generation_starts(&run.summary));
        if failed.is_empty() && run.slow_processes.is_empty() && starts.is_empty() {
            continue;
        }
        run_heading(html, report, number);
        rosters(html, &starts);
        if !failed.is_empty() {
            let text = |value: &Value| match value {
                Value::String(text) => text.clone(),
                value => value.to_string(),
            };
            let row = |attempt: &Value| {
                let fields = ["generation", "processes", "step", "reason"];
                fields.map(|field| (text(&attempt[field]), false)).into()
            };
            let heads = ["failed attempt", "processes", "step reported", "reason"];
            table(html, &heads, failed.iter().map(row));
        }
        if !run.slow_processes.is_empty() {
            let heads =
                ["slow process", "host", "its own time, of the others'", "since step", "cause"];
            let slow = run.slow_processes.iter().rev().take(MAX_ROWS).map(|slow| {
                vec![
                    (slow.process_index.to_string(), false),
                    (slow.host.clone(), false),
                    (shown(slow.factor), true),
                    (slow.since_step.to_string(), true),
                    (slow.cause.clone(), false),
                ]
            });
            table(html, &heads, slow);
        }
    }
    own_times(html, report);
    html.own("<p class=\"muted\">Steps that were taken again are not recorded.</p>\n");
}

/// How generations of processes began, with those who took part.
fn rosters(html: &mut Html, starts: &[GenerationStart]) {
    if starts.is_empty() {
        return;
    }
    let heads = [
        "generation",
        "after",
        "state from",
        "hosts",
        "processes",
        "first step",
        "agree",
        "join",
        "plugin",
        "programs",
        "state",
        "first launch",
    ];
    let rows = starts.iter().rev().take(MAX_ROWS).map(|start| {
        let numbers = [start.num_hosts, start.num_processes].map(|number| number.to_string());
        let secs = [
            Some(start.agree_secs),
            Some(start.join_secs),
            Some(start.plugin_secs),
            Some(start.programs_secs),
            Some(start.state_secs),
            start.first_step_secs,
        ];
        let secs = secs.map(|secs| secs.map_or(String::new(), duration));
        let state_from = match &*start.state_from {
            "memory" => "memory of supervisors",
            "start" => "none: start of the run",
            other => other,
        };
        let words = [&start.generation.to_string(), &start.after, state_from];
        let words = words.map(|text| (text.to_owned(), false));
        let numbers = numbers.into_iter().chain([start.step.to_string()]).chain(secs);
        words.into_iter().chain(numbers.map(|text| (text, true))).collect()
    });
    table(html, &heads, rows);
}

/// The resolved configurations, and how they differ.
pub fn configuration(html: &mut Html, report: &Report) {
    if report.runs.len() > 1 && report.runs.iter().all(|run| run.config.is_some()) {
        match report.config_differences.is_empty() {
            true => {
                html.own("<p>The recorded configurations are the same.</p>\n");
            }
            false => {
                html.own("<h3>Differences</h3>\n");
                let rows = report.config_differences.iter().map(|difference| {
                    let value = |value: &Option<String>| {
                        Some(value.clone().unwrap_or_else(|| "not set".to_owned()))
                    };
                    (difference.key.clone(), difference.values.iter().map(value).collect())
                });
                table_of_runs(html, report, rows);
            }
        }
    }
    for (number, run) in report.runs.iter().enumerate() {
        run_heading(html, report, number);
        match &run.config {
            Some(text) => html.element("pre", &[("tabindex", "0")], text.trim_end()).own("\n"),
            None => html.own("<p>Not recorded.</p>\n"),
        };
    }
}

/// Where the runs ran.
pub fn environment(html: &mut Html, report: &Report) {
    let fields = [
        "version",
        "backend",
        "device",
        "precision",
        "seed",
        "mesh",
        "num_params",
        "state_bytes_per_replica",
        "global_batch",
    ];
    let value = |run: &RunReport, field: &str| match run.summary.get(field)? {
        Value::String(text) => Some(text.clone()),
        Value::Null => None,
        Value::Object(axes) => {
            let axes = axes.iter().map(|(axis, size)| format!("{axis} {size}"));
            Some(axes.collect::<Vec<_>>().join(", "))
        }
        value => Some(value.to_string()),
    };
    let row =
        |field: &str| (field.to_owned(), report.runs.iter().map(|run| value(run, field)).collect());
    let dirs = report.runs.iter().map(|run| Some(run.dir.clone())).collect();
    let rows = fields.into_iter().map(row).chain([("directory".to_owned(), dirs)]);
    table_of_runs(html, report, rows);
    html.own("<p class=\"muted\">The names of hosts are not recorded.</p>\n");
}
