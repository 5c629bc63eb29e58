//! `lockstep plan`: predicted step times from one device to a whole target, by the cost model.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use hlo::counted;

use super::args::PlanArgs;
use super::compile::Steps;
use super::fabric::{measured_network, with_fabric};
use super::output::OutputFile;
use super::{in_words, picture, print_line, search};
use crate::config::Config;
use crate::figure::{self, Figure, Panel, PlotAxis, PlotCurve, Scale};
use crate::recipe::published;
use crate::targets::cost::Failures;
use crate::targets::{AllReduce, Row, ScalingPrediction, Scenario, Target};

pub fn run(args: &PlanArgs) -> Result<ExitCode> {
    let target: Target = args.target.parse()?;
    if args.search {
        return search::run(args, &target);
    }
    let file = picture::file(args.plot.as_deref(), args.overwrite)?;
    let plan = plan(args, &target)?;
    if let Some(file) = file {
        plot(file, &args.config.config, &plan)?;
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

fn plan(args: &PlanArgs, target: &Target) -> Result<ScalingPrediction> {
    let config_args = with_fabric(&args.config, args.fabric.as_deref())?;
    let config = Config::load(&config_args.config, &config_args.sets())?;
    let mut scenario = scenario(args);
    scenario.network =
        scenario.network.map_or_else(|| measured_network(&config.parallel), |n| Ok(Some(n)))?;
    let Steps { steps, refused, pipeline } = Steps::new(&config_args, target)?;
    let largest = steps.last().map_or(0, |step| step.num_devices);
    let refused = refused.filter(|_| largest < target.num_devices());
    match refused {
        Some(error) if steps.is_empty() => {
            Err(error.context(format!("there is no step for any part of {target}")))
        }
        refused => {
            let why = refused.map(|error| in_words(&error));
            let mut plan = ScalingPrediction::new(target, &steps, why.as_deref(), &scenario);
            if let Some((recipe, largest)) = published::largest_batch(&config) {
                plan.compare_batches(largest, &recipe.name);
            }
            if let Some(pipeline) = &pipeline {
                plan.describe_pipeline(pipeline);
            }
            Ok(plan)
        }
    }
}

/// The assumptions in the arguments besides the target.
fn scenario(args: &PlanArgs) -> Scenario {
    let failures = args.mtbf.map(|hours| Failures {
        device_mtbf_secs: 3600.0 * hours,
        save_secs: args.save_secs,
        restart_secs: args.restart_secs,
    });
    Scenario { network: args.network, what_if: args.what_if, failures, stragglers: args.stragglers }
}

/// A curve's name, and its value in a row.
type Column<T> = (&'static str, fn(&T) -> f64);

/// The parts of a step of the configuration `source` by the number of devices, and below them an
/// all_reduce on all devices by its bytes: the lowest curve is the algorithm that wins.
fn plot(file: OutputFile<'_>, source: &Path, plan: &ScalingPrediction) -> Result<()> {
    let of_step: [Column<Row>; 4] = [
        ("whole step", |row| row.step_ms),
        ("arithmetic", |row| row.compute_ms),
        ("collectives", |row| row.communication_ms),
        ("waited for", |row| row.exposed_ms + row.jitter_ms),
    ];
    let curve = |(name, value): Column<Row>| {
        let points = plan.rows.iter().map(|row| (row.num_devices as f64, value(row)));
        PlotCurve::new(name, points.collect())
    };
    let steps = Panel {
        title: "Time of a step".to_owned(),
        x: PlotAxis { title: "devices".into(), scale: Scale::Log(2.0), labels: figure::powers },
        y: PlotAxis { title: "time (ms)".into(), scale: Scale::Linear, labels: figure::numbers },
        curves: of_step.into_iter().map(curve).collect(),
    };
    let by_algorithm: [Column<AllReduce>; 3] = [
        ("ring", |all_reduce| all_reduce.ring_ms),
        ("tree", |all_reduce| all_reduce.tree_ms),
        ("hierarchical", |all_reduce| all_reduce.hierarchical_ms),
    ];
    let curve = |(name, value): Column<AllReduce>| {
        let points = plan.all_reduce.iter().map(|at| (at.bytes as f64, value(at)));
        PlotCurve::new(name, points.collect())
    };
    let num_devices = plan.rows.last().map_or(1, |row| row.num_devices);
    let algorithms = Panel {
        title: format!(
            "Time of one all_reduce over {}, by algorithm",
            counted(num_devices, "device")
        ),
        x: PlotAxis {
            title: "bytes of an all_reduce".into(),
            scale: Scale::Log(2.0),
            labels: figure::bytes,
        },
        y: PlotAxis { title: "time (ms)".into(), scale: Scale::Log(10.0), labels: figure::powers },
        curves: by_algorithm.into_iter().map(curve).collect(),
    };
    // One device reduces nothing, and a logarithmic axis has no zero.
    let has_fabric = plan.all_reduce.iter().all(|at| at.ring_ms > 0.0);
    let panels = if has_fabric { vec![steps, algorithms] } else { vec![steps] };
    let title = format!("{} on {}", picture::file_name(source), plan.target);
    let subtitle = "predicted by the cost model".to_owned();
    picture::save(file, &Figure { title, subtitle, key: None, panels })
}
