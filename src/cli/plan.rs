//! `lockstep plan`: predicted step times from one device to a whole target, by the cost model.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use hlo::counted;

use super::args::PlanArgs;
use super::compile::{Steps, say_outer_steps};
use super::fabric::{measured_network, with_fabric};
use super::output::OutputFile;
use super::report::{RunFiles, generation_starts};
use super::{in_words, picture, print_line, search, stragglers};
use crate::config::Config;
use crate::figure::{self, Figure, Panel, PlotAxis, PlotCurve, Scale};
use crate::observe::{GenerationStart, Summary};
use crate::recipe::published;
use crate::targets::cost::{DeviceLayout, Failures, RegionLinks};
use crate::targets::{AllReduce, Arrangement, Row, ScalingPrediction, Scenario, Target};

pub fn run(args: &PlanArgs) -> Result<ExitCode> {
    let has_config = !args.config.config.as_os_str().is_empty();
    let target: Target = match (&args.target, &args.stragglers) {
        (Some(target), _) if has_config => target.parse()?,
        (None, Some(dir)) if !has_config => return of_run_alone(args, dir),
        _ => bail!(
            "--stragglers DIR stands either alone, for the machines of the run, or with both CONFIG \
             and --target"
        ),
    };
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

/// What slow processes cost on the machines of a run.
fn of_run_alone(args: &PlanArgs, dir: &Path) -> Result<ExitCode> {
    let others = [
        ("--network", args.network.is_some()),
        ("--fabric", args.fabric.is_some()),
        ("--what-if", args.what_if.is_some()),
        ("--mtbf", args.mtbf.is_some()),
        ("--plot", args.plot.is_some()),
        ("--set, --unset or --backend", !args.config.sets().is_empty()),
    ];
    if let Some((name, _)) = others.into_iter().find(|(_, is_given)| *is_given) {
        bail!("{name} is for a plan: name CONFIG and --target too");
    }
    let table = stragglers::RecordedProcesses::read(dir)?.table();
    match args.json {
        true => print_line(&serde_json::to_string(&table)?)?,
        false => print_line(&table.table())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn plan(args: &PlanArgs, target: &Target) -> Result<ScalingPrediction> {
    let recorded =
        args.stragglers.as_deref().map(stragglers::RecordedProcesses::read).transpose()?;
    let config_args = with_fabric(&args.config, args.fabric.as_deref())?;
    let config = Config::load(&config_args.config, &config_args.sets())?;
    say_outer_steps(&config);
    let (mut scenario, failures) = scenario(args)?;
    if scenario.network.is_none() {
        scenario.network = measured_network(&config.parallel)?;
    }
    check_regions(&scenario, target)?;
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
            if let Some(words) = failures {
                plan.describe_failures(words);
            }
            if let Some(recorded) = &recorded {
                plan.add_stragglers(target, &recorded.stragglers);
            }
            Ok(plan)
        }
    }
}

/// The assumptions in the arguments besides the target, and where those about failures are from.
fn scenario(args: &PlanArgs) -> Result<(Scenario, Option<String>)> {
    let failures = args.mtbf.map(|hours| failures(args, hours)).transpose()?;
    let (failures, words) = failures.unzip();
    let assumed_repair = args.spares.map(|_| REPAIR_HOURS);
    let scenario = Scenario {
        network: args.network,
        what_if: args.what_if,
        failures,
        repair_secs: args.repair_hours.or(assumed_repair).map(|hours| 3600.0 * hours),
        num_spares: args.spares.map(|number| number as usize),
    };
    Ok((scenario, words))
}

/// Regions need hosts or slices in each.
fn check_regions(scenario: &Scenario, target: &Target) -> Result<()> {
    let layout = DeviceLayout::of(target);
    let regions = scenario.what_if.and_then(|change| change.regions(layout.network()));
    let num_groups = layout.first(target.num_devices()).num_groups;
    match regions {
        Some(RegionLinks { num_regions, .. }) if num_regions > num_groups => bail!(
            "{target} has {}, too few for {num_regions} regions: --target with more, or regions=N \
             of --what-if",
            match target.arrangement {
                Arrangement::Hosts { .. } => counted(num_groups, "host"),
                Arrangement::Slices { .. } => counted(num_groups, "slice"),
            }
        ),
        _ => Ok(()),
    }
}

/// Checkpoints stall a run for so long, and a restart takes so long, if nothing is known of either:
/// assumptions.
const SAVE_SECS: f64 = 10.0;
const RESTART_SECS: f64 = 300.0;
/// A failed host is repaired, or another one is there, after so long, if `--spares` is given
/// without a time: an assumption.
const REPAIR_HOURS: f64 = 24.0;

/// What failures cost, and where that is from.
fn failures(args: &PlanArgs, mtbf_hours: f64) -> Result<(Failures, String)> {
    let measured = args.run.as_deref().map(MeasuredFailures::of).transpose()?;
    let run = args.run.as_ref().map(|dir| dir.display().to_string()).unwrap_or_default();
    let choose = |given: Option<f64>, measured: Option<f64>, assumed: f64| match (given, measured) {
        (Some(secs), _) => (secs, "as given".to_owned()),
        (None, Some(secs)) => (secs, format!("measured in {run}")),
        (None, None) => (assumed, "an assumption".to_owned()),
    };
    let (stall, restart) =
        measured.as_ref().map_or((None, None), |run| (run.stall_secs, run.restart_secs));
    if args.run.is_some() && stall.is_none() && args.save_secs.is_none() {
        bail!("{run} has no checkpoint that a run waited for: give --save-secs, or another --run");
    }
    if args.run.is_some() && restart.is_none() && args.restart_secs.is_none() {
        bail!("{run} has no first step: give --restart-secs, or another --run");
    }
    let (save_secs, save) = choose(args.save_secs, stall, SAVE_SECS);
    let (restart_secs, from) = choose(args.restart_secs, restart, RESTART_SECS);
    let note = match &measured {
        Some(measured) if args.restart_secs.is_none() => measured.note(),
        Some(_) => String::new(),
        None => "; --run DIR takes both from a run".to_owned(),
    };
    let words = format!(
        "failures: a checkpoint stalls the run for {save_secs:.3} s ({save}), and a restart takes \
         {restart_secs:.1} s ({from}){note}"
    );
    Ok((Failures { device_mtbf_secs: 3600.0 * mtbf_hours, save_secs, restart_secs }, words))
}

/// What a run recorded of what failures cost.
struct MeasuredFailures {
    /// Seconds for which a checkpoint stalled it, on average.
    stall_secs: Option<f64>,
    /// Seconds from a failure that was noticed to the next step, the median; without supervisors
    /// from the start of the last process to its first step.
    restart_secs: Option<f64>,
    /// What the restart was.
    restart: MeasuredRestart,
}

impl MeasuredFailures {
    /// Reads the `summary.json` of a run's directory.
    fn of(dir: &Path) -> Result<Self> {
        let run = RunFiles::read(dir, dir.display().to_string())?;
        if run.summary.is_empty() {
            bail!("{} has no {} that can be read", dir.display(), Summary::FILE);
        }
        // A time of 0 would have checkpoints without end.
        let positive = |secs: f64| (secs.is_finite() && secs > 0.0).then_some(secs.max(1e-3));
        let per_checkpoint = |secs: f64| {
            let saved = run.number("num_checkpoints").filter(|saved| *saved >= 1.0)?;
            positive(secs / saved)
        };
        let mut recoveries: Vec<f64> = generation_starts(&run.summary)
            .iter()
            .filter(|start| start.after == "failure")
            .filter_map(recovery_secs)
            .collect();
        recoveries.sort_by(f64::total_cmp);
        let recovery = recoveries.get(recoveries.len() / 2).copied().and_then(positive);
        let was_continued = run.summary.get("resumed_from").is_some_and(|from| !from.is_null());
        Ok(Self {
            stall_secs: run.number("checkpoint_wait_secs").and_then(per_checkpoint),
            restart_secs: recovery.or(run.number("first_step_secs").and_then(positive)),
            restart: match (recovery, was_continued) {
                (Some(_), _) => MeasuredRestart::Recovery(recoveries.len()),
                (None, true) => MeasuredRestart::Continuation,
                (None, false) => MeasuredRestart::Start,
            },
        })
    }

    /// What the measured restart leaves out.
    fn note(&self) -> String {
        match self.restart {
            MeasuredRestart::Recovery(number) => format!(
                ", the median of {} in `generation_starts`; that a failure is noticed takes time \
                 besides",
                counted(number, "recovery")
            ),
            MeasuredRestart::Continuation => {
                "; that a failure is noticed takes time besides".to_owned()
            }
            MeasuredRestart::Start => {
                "; that run was not continued from a checkpoint: its restart \
                                       reads none, and that a failure is noticed takes time besides"
                    .to_owned()
            }
        }
    }
}

/// What a measured restart was.
enum MeasuredRestart {
    /// So many recoveries of a job under supervisors.
    Recovery(usize),
    /// The start of a process that continued from a checkpoint.
    Continuation,
    /// The first start of a run.
    Start,
}

/// From a failure that was noticed to the next step, if that was taken.
fn recovery_secs(start: &GenerationStart) -> Option<f64> {
    let GenerationStart { agree_secs, join_secs, plugin_secs, .. } = *start;
    let before = agree_secs + join_secs + plugin_secs;
    Some(before + start.programs_secs + start.state_secs + start.first_step_secs?)
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
