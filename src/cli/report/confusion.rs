//! What the last evaluation predicts for the examples of each class.

use super::html::Html;
use super::numbers::percent;
use super::page::run_heading;
use super::shades::shade;
use super::{Report, RunReport};
use crate::cli::plot::printable;
use crate::observe::ConfusionMatrix;

/// The share of a row whose shade a mistake has at least.
const LEAST_MISTAKE: f64 = 0.25;

/// The matrix that a run has recorded, if it is one.
fn recorded(run: &RunReport) -> Option<ConfusionMatrix> {
    let found: ConfusionMatrix =
        serde_json::from_value(run.summary.get("confusion")?.clone()).ok()?;
    let num = found.counts.len();
    let is_square = found.counts.iter().all(|row| row.len() == num);
    let is_named = found.classes.is_empty() || found.classes.len() == num;
    let is_one = (2..=ConfusionMatrix::MAX_CLASSES).contains(&num) && is_square && is_named;
    is_one.then_some(found)
}

/// The matrices of runs that classify. The others have none, and nothing is said about it.
pub fn confusion(html: &mut Html, report: &Report) {
    for (number, run) in report.runs.iter().enumerate() {
        let Some(found) = recorded(run) else { continue };
        run_heading(html, report, number);
        let steps = found.step.saturating_add(1);
        let text = format!(
            "Examples of each class (rows) by the class that is predicted (columns), in the \
             evaluation after {steps} steps. The darker, the larger the share of the row."
        );
        html.element("p", &[("class", "muted")], &text);
        matrix(html, &found);
    }
}

fn matrix(html: &mut Html, found: &ConfusionMatrix) {
    let name = |class: usize| match found.classes.get(class) {
        Some(name) => printable(name),
        None => class.to_string(),
    };
    html.own("<div class=\"scroll\" tabindex=\"0\"><table class=\"matrix\"><thead><tr>");
    html.element("th", &[("scope", "col")], "class");
    for class in 0..found.counts.len() {
        html.element("th", &[("scope", "col"), ("class", "number")], &name(class));
    }
    html.element("th", &[("scope", "col"), ("class", "number")], "right");
    html.own("</tr></thead><tbody>");
    for (class, row) in found.counts.iter().enumerate() {
        html.own("<tr>").element("th", &[("scope", "row")], &name(class));
        // A summary that somebody has written by hand may say anything.
        let total: f64 = row.iter().map(|count| *count as f64).sum();
        for (predicted, count) in row.iter().enumerate() {
            // A single mistake is to be seen beside thousands that are right.
            let least = if class == predicted { 0.0 } else { LEAST_MISTAKE };
            let share = (*count as f64 / total).max(least);
            let right = if class == predicted { " right" } else { "" };
            let shade = shade(share).filter(|_| *count > 0);
            let class = shade.map(|shade| format!("heat {shade}{right}"));
            let attributes: Vec<_> = class.iter().map(|class| ("class", &**class)).collect();
            html.element("td", &attributes, &count.to_string());
        }
        let right = row.get(class).map_or(0.0, |count| *count as f64) / total;
        let right = if total > 0.0 { percent(right) } else { String::new() };
        html.element("td", &[("class", "number")], &right).own("</tr>");
    }
    html.own("</tbody></table></div>\n");
}
