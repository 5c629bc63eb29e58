//! `lockstep plan`: what the step takes from one device to a whole target, by the cost model.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use super::args::PlanArgs;
use super::compile::Lowered;
use super::figure::{self, Axis, Curve, Panel, Scale};
use super::print_line;
use crate::targets::{self, AllReduce, Row, ScalingPlan, Target};

pub fn run(args: &PlanArgs) -> Result<ExitCode> {
    let target: Target = args.target.parse()?;
    let plan = plan(args, &target)?;
    if let Some(path) = &args.plot {
        plot(path, &plan)?;
    }
    if args.json {
        print_line(&serde_json::to_string(&plan)?)?;
    } else if args.csv {
        print_line(plan.csv().trim_end())?;
    } else {
        print_line(&plan.table())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn plan(args: &PlanArgs, target: &Target) -> Result<ScalingPlan> {
    let mut steps = vec![];
    let mut refused = None;
    for num_devices in targets::sizes(target) {
        let lowered = Lowered::new(&args.config, target, num_devices);
        match lowered.and_then(|lowered| lowered.measure()) {
            Ok(step) => steps.push(step),
            // A batch that does not divide over this size may divide over others.
            Err(error) => refused = Some(error),
        }
    }
    let largest = steps.last().map_or(0, |step| step.num_devices);
    if let Some(error) = refused.filter(|_| largest < target.num_devices()) {
        return Err(error.context(format!("there is no step for all of {target}")));
    }
    Ok(ScalingPlan::new(target, &steps))
}

/// A curve's label, and its value in a row.
type Column<T> = (&'static str, fn(&T) -> f64);

/// What a step is made of by the number of devices, and below it an all_reduce on all of them by its bytes:
/// the lowest curve is the algorithm that wins.
fn plot(path: &Path, plan: &ScalingPlan) -> Result<()> {
    let of_step: [Column<Row>; 4] = [
        ("whole step", |row| row.step_ms),
        ("arithmetic", |row| row.compute_ms),
        ("collectives", |row| row.communication_ms),
        ("waited for", |row| row.exposed_ms),
    ];
    let curve = |(label, value): Column<Row>| Curve {
        label: label.to_owned(),
        points: plan.rows.iter().map(|row| (row.num_devices as f64, value(row))).collect(),
    };
    let steps = Panel {
        x: Axis { title: "devices", scale: Scale::Log(2.0), label: |count| format!("{count}") },
        y: Axis { title: "milliseconds", scale: Scale::Linear, label: milliseconds },
        curves: of_step.into_iter().map(curve).collect(),
    };
    let by_algorithm: [Column<AllReduce>; 3] = [
        ("ring", |all_reduce| all_reduce.ring_ms),
        ("tree", |all_reduce| all_reduce.tree_ms),
        ("hierarchical", |all_reduce| all_reduce.hierarchical_ms),
    ];
    let curve = |(label, value): Column<AllReduce>| Curve {
        label: label.to_owned(),
        points: plan.all_reduce.iter().map(|at| (at.bytes as f64, value(at))).collect(),
    };
    let algorithms = Panel {
        x: Axis { title: "bytes of an all_reduce", scale: Scale::Log(2.0), label: bytes },
        y: Axis { title: "milliseconds", scale: Scale::Log(10.0), label: milliseconds },
        curves: by_algorithm.into_iter().map(curve).collect(),
    };
    // Nothing is reduced on one device, and zero has no place on a logarithmic axis.
    let has_fabric = plan.all_reduce.iter().all(|at| at.ring_ms > 0.0);
    let panels = if has_fabric { vec![steps, algorithms] } else { vec![steps] };
    figure::save(path, &panels)
}

/// To three digits.
fn milliseconds(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value < 1.0 => format!("{value:.3}").trim_end_matches('0').to_owned(),
        value if value < 100.0 => format!("{value:.1}").trim_end_matches(".0").to_owned(),
        value => format!("{value:.0}"),
    }
}

/// `4 KiB`.
fn bytes(count: f64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.into_iter().find(|(size, _)| count >= f64::from(*size));
    match unit {
        Some((size, name)) => format!("{} {name}", count / f64::from(size)),
        None => format!("{count} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_short() {
        let times = [(0.0, "0"), (0.01, "0.01"), (0.125, "0.125"), (1.0, "1"), (12.5, "12.5")];
        for (value, text) in times {
            assert_eq!(milliseconds(value), text);
        }
        for (count, text) in [(1024.0, "1 KiB"), (3.0 * 1048576.0, "3 MiB"), (512.0, "512 B")] {
            assert_eq!(bytes(count), text);
        }
    }
}
