//! The answers as a page of text and as a picture.

use std::fmt;
use std::path::Path;

use anyhow::Result;
use hlo::counted;
use serde::Serialize;

use crate::cli::output::OutputFile;
use crate::cli::picture;
use crate::cli::schedule::rate_curve;
use crate::figure::{self, Figure, Panel, PlotAxis, PlotCurve, Scale};
use crate::optim::schedule::Schedule;
use crate::targets::{Row, ScalingPrediction};

/// The output of `preflight`.
#[derive(Debug, Serialize)]
pub(super) struct Preflight {
    pub config: String,
    pub target: String,
    pub num_devices: usize,
    pub num_hosts: usize,
    pub global_batch: usize,
    pub step_ms: f64,
    /// The step of `lockstep plan`, which knows only the graph, for the whole target.
    pub plan_step_ms: Option<f64>,
    pub cost: RunCost,
    pub answers: PreflightAnswers,
}

/// The resources of the steps of a run.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct RunCost {
    pub num_steps: u64,
    pub hours: f64,
    pub device_hours: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct PreflightAnswers {
    pub memory: PreflightAnswer,
    pub communication: PreflightAnswer,
    pub recipe: PreflightAnswer,
    pub input: PreflightAnswer,
    pub cost: PreflightAnswer,
}

impl PreflightAnswers {
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &PreflightAnswer)> {
        [
            ("memory", &self.memory),
            ("communication", &self.communication),
            ("recipe", &self.recipe),
            ("input", &self.input),
            ("cost", &self.cost),
        ]
        .into_iter()
    }
}

/// The answer to one question.
#[derive(Debug, Serialize)]
pub(super) struct PreflightAnswer {
    pub verdict: PreflightVerdict,
    pub summary: String,
    pub details: Vec<String>,
    /// Advice if the verdict is no.
    pub changes: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PreflightVerdict {
    Yes,
    No,
    /// There is no limit to compare with.
    NotAsked,
}

impl PreflightVerdict {
    pub fn of(is_good: bool) -> Self {
        if is_good { Self::Yes } else { Self::No }
    }
}

impl fmt::Display for PreflightVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Yes => "yes",
            Self::No => "NO",
            Self::NotAsked => "-",
        })
    }
}

impl fmt::Display for Preflight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { config, target, num_devices, num_hosts, global_batch, step_ms, .. } = self;
        writeln!(
            f,
            "{config} on {target}: {}, {}, a batch of {global_batch}, {} a step (predicted)",
            counted(*num_devices, "device"),
            counted(*num_hosts, "host"),
            milliseconds(*step_ms),
        )?;
        writeln!(f)?;
        for (name, answer) in self.answers.iter() {
            writeln!(f, "{name:<14} {:<4} {}", answer.verdict, answer.summary)?;
            for line in &answer.details {
                writeln!(f, "{:20}{line}", "")?;
            }
            for line in &answer.changes {
                writeln!(f, "{:20}change: {line}", "")?;
            }
        }
        let no = self.answers.iter().filter(|(_, answer)| answer.verdict == PreflightVerdict::No);
        write!(f, "\n{}", summary(&no.map(|(name, _)| name).collect::<Vec<_>>()))
    }
}

fn summary(no: &[&str]) -> String {
    match no {
        [] => "ready, as far as can be said without the hardware".to_owned(),
        _ => format!("not ready: {}", no.join(", ")),
    }
}

/// With three digits.
pub fn milliseconds(ms: f64) -> String {
    if ms <= 0.0 {
        return "0 ms".to_owned();
    }
    let digits = (2 - ms.max(1e-3).log10().floor() as i32).clamp(0, 4) as usize;
    format!("{ms:.digits$} ms")
}

/// With thousands separated, and with decimals below 100.
pub fn number(value: f64) -> String {
    if value < 1.0 && value.fract() != 0.0 {
        return format!("{value:.2}");
    }
    if value < 100.0 && value.fract() != 0.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `3.5 hours`, `12 minutes`.
pub fn duration(hours: f64) -> String {
    match hours {
        _ if hours >= 48.0 => format!("{} days", number((hours / 2.4).round() / 10.0)),
        _ if hours >= 1.0 => format!("{hours:.1} hours"),
        _ if hours * 60.0 >= 1.0 => format!("{:.1} minutes", hours * 60.0),
        _ => format!("{:.1} seconds", hours * 3600.0),
    }
}

/// The predicted step by the number of devices, and the learning rates of the run.
pub(super) fn plot(
    file: OutputFile<'_>,
    page: &Preflight,
    schedule: &Schedule,
    scaling: &ScalingPrediction,
) -> Result<()> {
    let curve = |name: &str, value: fn(&Row) -> f64| {
        let points = scaling.rows.iter().map(|row| (row.num_devices as f64, value(row)));
        PlotCurve::new(name, points.collect())
    };
    let steps = Panel {
        title: "Predicted time of a step".to_owned(),
        x: PlotAxis { title: "devices".into(), scale: Scale::Log(2.0), labels: figure::powers },
        y: PlotAxis { title: "time (ms)".into(), scale: Scale::Linear, labels: figure::numbers },
        curves: vec![
            curve("whole step", |row| row.step_ms),
            curve("arithmetic", |row| row.compute_ms),
            curve("waited for", |row| row.exposed_ms),
        ],
    };
    let rates = Panel {
        title: format!("Learning rate at a batch of {}", page.global_batch),
        x: PlotAxis { title: "step".into(), scale: Scale::Whole, labels: figure::numbers },
        y: PlotAxis {
            title: "learning rate".into(),
            scale: Scale::Linear,
            labels: figure::numbers,
        },
        curves: vec![rate_curve(schedule)],
    };
    let answers = page.answers.iter().map(|(name, answer)| format!("{name}: {}", answer.verdict));
    picture::save(
        file,
        &Figure {
            title: format!("{} on {}", picture::file_name(Path::new(&page.config)), page.target),
            subtitle: answers.collect::<Vec<_>>().join(", "),
            key: None,
            panels: vec![steps, rates],
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let found = [0.123, 1.5, 99.96, 1234.4, 1e6, 12.0].map(number);
        assert_eq!(found, ["0.12", "1.5", "100.0", "1,234", "1,000,000", "12"]);
        let found = [0.0, 0.0123, 1.2345, 12.345, 1234.5].map(milliseconds);
        assert_eq!(found, ["0 ms", "0.0123 ms", "1.23 ms", "12.3 ms", "1234 ms"]);
        let found = [0.001, 0.5, 2.0, 72.0].map(duration);
        assert_eq!(found, ["3.6 seconds", "30.0 minutes", "2.0 hours", "3 days"]);
    }
}
