//! The page: one file with everything in it. Its policy forbids the browser any request.

use std::collections::BTreeSet;

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use super::chart::{self, Chart};
use super::html::Html;
use super::levels::Curves;
use super::numbers::{count, duration, percent, shown};
use super::{Report, RunReport, confusion, layers, program, sections};

/// By this an earlier page is recognized.
const MARK: &str = "<meta name=\"generator\" content=\"lockstep report\">";
/// Styles and scripts are in the page, and nothing else may be loaded from anywhere.
const POLICY: &str = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
                      style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; \
                      form-action 'none'\">";
/// The same for a page that asks its server for newer ones.
const SERVED_POLICY: &str = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src \
                             'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src \
                             'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n\
                             <noscript><meta http-equiv=\"refresh\" content=\"30\"></noscript>";
const FOLLOW: &str = include_str!("follow.js");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Is this the beginning of a page that was written here?
pub fn is_page(head: &[u8]) -> bool {
    memchr::memmem::find(head, MARK.as_bytes()).is_some()
}

/// What the script reads.
#[derive(Serialize)]
struct PageData<'a> {
    runs: Vec<RunCurves<'a>>,
    charts: &'a [Chart],
}

#[derive(Serialize)]
struct RunCurves<'a> {
    name: &'a str,
    curves: &'a Curves,
}

/// A part of the page, with its place in the list on top.
type Section = (&'static str, &'static str, fn(&mut Html, &Report));

/// In this order. Charts of a section stand first.
const SECTIONS: [Section; 9] = [
    ("result", "Result", result),
    ("time", "Where the time went", time),
    ("curves", "Learning", learning),
    ("steps", "A step's time", sections::step_times),
    ("lockstep", "Proofs and skipped updates", sections::proofs),
    ("processes", "Processes and restarts", sections::processes),
    ("program", "The program", program::program),
    ("config", "Configuration", sections::configuration),
    ("environment", "Environment", sections::environment),
];

/// The whole page. One that is served has a version, and loads itself again when there is another.
///
/// # Errors
/// Data that are no JSON.
pub fn page(report: &Report, version: Option<&str>) -> Result<String> {
    let charts = chart::charts(&report.runs);
    let names: Vec<_> = report.runs.iter().map(|run| &*run.name).collect();
    let title = names.join(", ");
    let mut html = Html::new();
    html.own("<!doctype html>\n");
    let served = version.map(|version| ("data-version", version));
    let attributes: Vec<_> = [("lang", "en")].into_iter().chain(served).collect();
    html.open("html", &attributes).own("<head><meta charset=\"utf-8\">\n");
    let policy = if version.is_some() { SERVED_POLICY } else { POLICY };
    html.own(MARK).own("\n").own(policy).own("\n");
    html.own("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    html.element("title", &[], &format!("{title} - lockstep report"));
    html.own("<style>").own(STYLE).own("</style></head>\n<body>\n");
    html.own("<a class=\"skip\" href=\"#result\">To the result</a>\n<header>");
    html.element("h1", &[], &title);
    html.own("<button class=\"theme\" id=\"theme\" type=\"button\" data-script hidden></button>");
    html.own("<nav aria-label=\"Sections\">");
    for (id, heading, _) in SECTIONS {
        html.element("a", &[("href", &format!("#{id}"))], heading);
    }
    html.own("</nav></header>\n<main>\n");
    tools(&mut html, &report.runs);
    for (id, heading, body) in SECTIONS {
        html.open("section", &[("aria-labelledby", id)]);
        html.element("h2", &[("id", id)], heading);
        let own: Vec<_> = charts.iter().filter(|chart| section_of(chart) == id).collect();
        if !own.is_empty() {
            html.own("<div class=\"charts\">");
            own.iter().for_each(|chart| figure(&mut html, chart, &report.runs));
            html.own("</div>\n");
        }
        body(&mut html, report);
        html.own("</section>\n");
    }
    let program = env!("CARGO_PKG_VERSION");
    html.own("</main>\n");
    html.element("footer", &[], &format!("Written by lockstep {program}. --json has all of this."));
    let runs = report.runs.iter();
    let runs = runs.map(|run| RunCurves { name: &run.name, curves: &run.curves }).collect();
    html.data("data", &PageData { runs, charts: &charts })?;
    html.own("\n<script>").own(SCRIPT).own("</script>\n");
    if version.is_some() {
        html.own("<script>").own(FOLLOW).own("</script>\n");
    }
    html.own("</body></html>\n");
    Ok(html.into_string())
}

/// The section that a chart stands in.
fn section_of(chart: &Chart) -> &'static str {
    match &*chart.id {
        id if id.ends_with("_ms") || id == "examples_per_sec" => "steps",
        "num_skipped" => "lockstep",
        _ => "curves",
    }
}

/// The choices for all charts. They need the script.
fn tools(html: &mut Html, runs: &[RunReport]) {
    html.own(
        "<div class=\"tools\" data-script hidden role=\"toolbar\" aria-label=\"All charts\">\
         <label>x <select id=\"x\"><option value=\"step\">step</option>\
         <option value=\"examples\">examples</option><option value=\"time\">time</option></select>\
         </label><label>smoothing of the loss <select id=\"smooth\"><option value=\"0\">none\
         </option><option value=\"0.9\" selected>0.9</option><option value=\"0.99\">0.99</option>\
         <option value=\"0.999\">0.999</option></select></label>\
         <label><input type=\"checkbox\" id=\"log\"> log axis</label>\
         <button id=\"reset\" type=\"button\" disabled>reset zoom</button>",
    );
    if runs.len() > 1 {
        for (number, run) in runs.iter().enumerate() {
            let number_text = number.to_string();
            let attributes =
                [("type", "button"), ("data-run", &*number_text), ("aria-pressed", "true")];
            html.open("button", &attributes);
            chip(html, number);
            html.text(&run.name).close("button");
        }
    }
    html.own("</div>\n");
}

/// A spot in the color of a run.
fn chip(html: &mut Html, number: usize) {
    html.element("span", &[("class", &format!("chip c{}", number % 6))], "");
}

/// The heading of what belongs to one run, where there are several.
pub fn run_heading(html: &mut Html, report: &Report, number: usize) {
    if report.runs.len() > 1 {
        html.open("h3", &[]);
        chip(html, number);
        html.text(&report.runs[number].name).close("h3");
    }
}

fn figure(html: &mut Html, chart: &Chart, runs: &[RunReport]) {
    let class = if chart.smooth { "wide" } else { "" };
    html.open("figure", &[("data-chart", &chart.id), ("class", class)]);
    html.open("figcaption", &[]).element("b", &[], &chart.title).text(" ");
    html.element("span", &[("class", "about")], chart.about).close("figcaption");
    chart::draw(html, chart, runs);
    html.close("figure").own("\n");
}

/// Cells of a row: text, and whether it is a number.
pub type PageCell = (String, bool);

/// A table with a heading for each column.
pub fn table(html: &mut Html, heads: &[&str], rows: impl Iterator<Item = Vec<PageCell>>) {
    html.own("<div class=\"scroll\"><table>");
    if !heads.is_empty() {
        html.own("<thead><tr>");
        for (number, head) in heads.iter().enumerate() {
            let class = if number > 0 { "number" } else { "" };
            html.element("th", &[("scope", "col"), ("class", class)], head);
        }
        html.own("</tr></thead>");
    }
    html.own("<tbody>");
    for row in rows {
        html.own("<tr>");
        for (number, (text, is_number)) in row.into_iter().enumerate() {
            match (number, is_number) {
                (0, _) => html.element("th", &[("scope", "row")], &text),
                (_, true) => html.element("td", &[("class", "number")], &text),
                (_, false) => html.element("td", &[("class", "long")], &text),
            };
        }
        html.own("</tr>");
    }
    html.own("</tbody></table></div>\n");
}

/// A table with a column for each run.
pub fn table_of_runs(
    html: &mut Html,
    report: &Report,
    rows: impl Iterator<Item = (String, Vec<Option<String>>)>,
) {
    let names = report.runs.iter().map(|run| &*run.name);
    let heads: Vec<_> = std::iter::once("").chain(names).collect();
    let heads = if report.runs.len() > 1 { &heads[..] } else { &[] };
    table(
        html,
        heads,
        rows.map(|(name, values)| {
            let cells = values.into_iter().map(|value| {
                let is_number = value.as_ref().is_some_and(|value| value.len() < 24);
                (value.unwrap_or_else(|| "not recorded".to_owned()), is_number)
            });
            std::iter::once((name, false)).chain(cells).collect()
        }),
    );
}

fn result(html: &mut Html, report: &Report) {
    for (number, run) in report.runs.iter().enumerate() {
        run_heading(html, report, number);
        html.element("p", &[], &run.trained);
    }
    let summary = |run: &RunReport, field: &str| run.summary.get(field).cloned();
    let text = |value: Value| match value {
        Value::String(text) => Some(text),
        value => value.as_f64().map(shown),
    };
    let mut rows: Vec<(String, Vec<Option<String>>)> = vec![];
    let mut row = |name: &str, value: &dyn Fn(&RunReport) -> Option<String>| {
        let values: Vec<_> = report.runs.iter().map(value).collect();
        if values.iter().any(Option::is_some) {
            rows.push((name.to_owned(), values));
        }
    };
    row("status", &|run| text(summary(run, "status")?));
    row("steps", &|run| {
        let (steps, planned) = (run.summary.get("steps")?, run.summary.get("planned_steps")?);
        Some(format!("{steps} of {planned}"))
    });
    row("final_loss", &|run| text(summary(run, "final_loss")?));
    let is_eval = |name: &&String| name.starts_with("eval_") && *name != "eval_step";
    let fields = report.runs.iter().flat_map(|run| run.summary.keys().filter(is_eval));
    for field in fields.collect::<BTreeSet<_>>() {
        row(field, &|run| text(summary(run, field)?));
    }
    let best = |run: &RunReport, field: &str| run.summary.get("best_eval")?.get(field).cloned();
    row("best_eval: after step", &|run| Some(best(run, "step")?.to_string()));
    let names = report.runs.iter().filter_map(|run| run.summary.get("best_eval")?.as_object());
    let names = names.flat_map(|best| best.keys()).filter(is_eval);
    for field in names.collect::<BTreeSet<_>>() {
        row(&format!("best_eval: {field}"), &|run| text(best(run, field)?));
    }
    row("goodput", &|run| run.goodput.share.map(percent));
    row("examples_per_sec", &|run| summary(run, "examples_per_sec")?.as_f64().map(count));
    row("median_step_ms", &|run| text(summary(run, "median_step_ms")?));
    row("wall time of the last process", &|run| summary(run, "wall_secs")?.as_f64().map(duration));
    table_of_runs(html, report, rows.into_iter());
    for (number, run) in report.runs.iter().enumerate() {
        run_heading(html, report, number);
        html.own("<ul class=\"verdicts\">");
        for verdict in &run.verdicts {
            let word = verdict.kind.word();
            html.open("li", &[("class", word)]).element("b", &[], word);
            html.element("span", &[], &verdict.text).close("li");
        }
        html.own("</ul>\n");
    }
}

fn time(html: &mut Html, report: &Report) {
    html.own(
        "<p class=\"muted\">Goodput is the share of the time in which steps were computed that \
         count: without the start, waits, repeated steps, and what lies between steps.</p>\n",
    );
    for (number, run) in report.runs.iter().enumerate() {
        run_heading(html, report, number);
        let goodput = &run.goodput;
        let known = |share: Option<f64>| share.map_or("not recorded".to_owned(), percent);
        html.open("p", &[("class", "share")]).text(&known(goodput.share)).text(" ");
        let total = goodput.total_secs.map_or("not recorded".to_owned(), duration);
        let after = known(goodput.share_after_start);
        let text = format!("goodput of {total}; {after} of the time after the first launch");
        html.element("small", &[], &text).close("p");
        bar(html, run);
        let rows = goodput.parts.iter().enumerate().map(|(number, part)| {
            let share = part.secs.zip(goodput.total_secs.filter(|total| *total > 0.0));
            let share = share.map_or(String::new(), |(secs, total)| percent(secs / total));
            let secs = part.secs.map_or("not recorded".to_owned(), duration);
            (number, [part.what.to_owned(), secs, share, part.note.clone()])
        });
        html.own(
            "<div class=\"scroll\"><table class=\"parts\"><thead><tr><th scope=\"col\">what</th>",
        );
        html.own("<th scope=\"col\" class=\"number\">time</th><th scope=\"col\" class=\"number\">");
        html.own("share</th><th scope=\"col\">what that is</th></tr></thead><tbody>");
        for (number, [what, secs, share, note]) in rows {
            html.own("<tr>").open("th", &[("scope", "row")]);
            html.element("span", &[("class", &format!("chip p{number}"))], "");
            html.text(&what).close("th");
            html.element("td", &[("class", "number")], &secs);
            html.element("td", &[("class", "number")], &share);
            html.element("td", &[("class", "long why")], &note).own("</tr>");
        }
        html.own("</tbody></table></div>\n");
    }
}

/// The parts of the time as one bar.
fn bar(html: &mut Html, run: &RunReport) {
    let Some(total) = run.goodput.total_secs.filter(|total| *total > 0.0) else { return };
    let label = "The parts of the time; the table below has them";
    let view = [("viewBox", "0 0 1000 10"), ("preserveAspectRatio", "none"), ("role", "img")];
    html.open("svg", &[&view[..], &[("class", "bar"), ("aria-label", label)]].concat());
    let mut from = 0.0;
    for (number, part) in run.goodput.parts.iter().enumerate() {
        let Some(secs) = part.secs else { continue };
        let width = 1000.0 * secs / total;
        let class = format!("p{number}");
        let (x, w) = (format!("{from:.2}"), format!("{width:.2}"));
        let attributes =
            [("class", &*class), ("x", &x), ("width", &w), ("y", "0"), ("height", "10")];
        html.open("rect", &attributes);
        html.element("title", &[], &format!("{}: {}", part.what, duration(secs))).close("rect");
        from += width;
    }
    html.close("svg").own("\n");
}

fn learning(html: &mut Html, report: &Report) {
    sections::numbers_of_steps(html, report);
    layers::layers(html, report);
    sections::evaluations(html, report);
    confusion::confusion(html, report);
}
