//! The section of the page about the program of a step.

use serde_json::Value;

use super::html::Html;
use super::numbers::{count, percent};
use super::page::{run_heading, table, table_of_runs};
use super::{Report, RunReport};
use crate::observe::StepProgram;

/// The program that a run has recorded.
fn recorded(run: &RunReport) -> Option<StepProgram> {
    serde_json::from_value(run.summary.get("program")?.clone()).ok()
}

/// What a step computes, keeps and sends.
pub fn program(html: &mut Html, report: &Report) {
    let programs: Vec<_> = report.runs.iter().map(recorded).collect();
    if programs.iter().all(Option::is_none) {
        html.own("<p>Not recorded.</p>\n");
        return;
    }
    let row = |name: &str, value: &dyn Fn(&RunReport, &StepProgram) -> Option<String>| {
        let runs = report.runs.iter().zip(&programs);
        let values = runs.map(|(run, program)| value(run, program.as_ref()?));
        (name.to_owned(), values.collect())
    };
    // A summary that somebody has written by hand may say anything.
    let flops_per_sec = |run: &RunReport, program: &StepProgram| {
        let step_ms = run.summary.get("median_step_ms").and_then(Value::as_f64)?;
        let secs = Some(step_ms / 1e3).filter(|secs| *secs > 0.0)?;
        Some(program.flops as f64 / secs)
    };
    let rows = [
        row("FLOPs of a replica in a step", &|_, program| Some(count(program.flops as f64))),
        row("FLOPs per second, at the median step", &|run, program| {
            flops_per_sec(run, program).map(count)
        }),
        row("share of what the chip can", &|run, program| {
            let peak = program.peak_flops_per_sec.filter(|peak| *peak > 0.0)?;
            Some(percent(flops_per_sec(run, program)? / peak))
        }),
        row("bytes of the state of a replica", &|run, _| {
            run.summary.get("state_bytes_per_replica")?.as_f64().map(count)
        }),
        row("bytes of temporaries", &|_, program| {
            program.temporary_bytes.map(|bytes| count(bytes as f64))
        }),
        row("most bytes at once, by the compiler", &|_, program| {
            program.peak_bytes.map(|bytes| count(bytes as f64))
        }),
        row("most bytes of a device, by the plugin", &|run, _| {
            run.summary.get("peak_device_bytes")?.as_f64().map(count)
        }),
        row("most bytes of the host, by the first process", &|run, _| {
            run.summary.get("peak_process_bytes")?.as_f64().map(count)
        }),
        row("bytes per second from other processes", &|run, _| {
            run.summary.get("link_bytes_per_sec")?.as_f64().map(count)
        }),
    ];
    table_of_runs(html, report, rows.into_iter());
    html.own(
        "<p class=\"muted\">FLOPs are those of matrix products and convolutions, with what the \
         backward pass computes again.</p>\n",
    );
    for (number, program) in programs.iter().enumerate() {
        let Some(program) = program else { continue };
        run_heading(html, report, number);
        collectives(html, program);
        if !program.ticks.is_empty() {
            let ticks = program.ticks.join("\n");
            html.element("pre", &[("tabindex", "0")], &ticks).own("\n");
        }
    }
}

fn collectives(html: &mut Html, program: &StepProgram) {
    if program.collectives.is_empty() {
        html.own("<p>Replicas send nothing in a step.</p>\n");
        return;
    }
    let heads = ["what replicas send", "times a step", "bytes", "sent by each replica"];
    let rows = program.collectives.iter().map(|collective| {
        let number = |value: u64| (count(value as f64), true);
        vec![
            (collective.name.clone(), false),
            number(collective.count),
            number(collective.bytes),
            number(collective.sent_bytes),
        ]
    });
    table(html, &heads, rows);
}
