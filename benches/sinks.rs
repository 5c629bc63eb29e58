//! `sinks [--steps N]`: processor time of all sinks of a run for each step, by thread. Steps are
//! made up: they have the metrics of real ones, and come every 3 ms, so that what follows a clock
//! costs what it does in a run. With stderr on a terminal the block is drawn, elsewhere lines are
//! written.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::time::{Duration, Instant};

use lockstep::observe::{
    LaunchMetrics, LaunchSpans, Metric, ProgressForm, Prometheus, RunEnd, RunEvent, RunInfo,
    SinkChoice, Sinks, StepMetrics, StepTrace, TraceChoice, Waiting, can_draw, set_progress,
};

const PAUSE: Duration = Duration::from_millis(3);

static METRICS: [Metric; 13] = [
    Metric::number("time"),
    Metric::number("epoch"),
    Metric::count("examples"),
    Metric::number("lr"),
    Metric::number(Metric::LOSS).on_terminal(4),
    Metric::number("grad_norm"),
    Metric::count("num_skipped"),
    Metric::number("step_ms"),
    Metric::number("launch_delay_ms"),
    Metric::number("host_ms"),
    Metric::number("data_wait_ms"),
    Metric::number("collective_wait_ms"),
    Metric::number("examples_per_sec"),
];

/// Nanoseconds that each thread has run, by name.
fn ran() -> Result<BTreeMap<String, u64>, Box<dyn Error>> {
    let mut ran = BTreeMap::new();
    for task in fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        let name = fs::read_to_string(task.join("comm"))?.trim().to_owned();
        let times = fs::read_to_string(task.join("schedstat"))?;
        let time: u64 = times.split_whitespace().next().ok_or("no time")?.parse()?;
        *ran.entry(name).or_default() += time;
    }
    Ok(ran)
}

/// Takes steps with these sinks, and prints what each thread took for one.
fn measure(name: &str, choice: SinkChoice<'_>, steps: u64) -> Result<(), Box<dyn Error>> {
    let info = RunInfo { planned_steps: steps, global_batch: 64, ..RunInfo::default() };
    let mut sinks = Sinks::start(choice, info)?;
    let _waiting = Waiting::on("the bench");
    let before = ran()?;
    let mut last_end = Instant::now();
    for step in 0..steps {
        std::thread::sleep(PAUSE);
        let end = Instant::now();
        let value = 1.234_567_891 + step as f64 / 7.0;
        let values = METRICS.iter().map(|metric| (metric, value)).collect();
        let spans = LaunchSpans {
            data: last_end..last_end,
            host: last_end..end,
            whole: last_end..end,
            compute: last_end..end,
            waits: vec![],
            waited_for: vec![(1, Duration::from_micros(100))],
            ops: vec![],
        };
        sinks.send(&RunEvent::Launch(LaunchMetrics {
            steps: vec![StepMetrics { step, values }],
            num_steps: 1,
            duration: end - last_end,
            elapsed_secs: 1.0,
            spans: Some(Box::new(spans)),
            ..LaunchMetrics::default()
        }));
        last_end = end;
    }
    let after = ran()?;
    let of = |name: &str| {
        let at = |ran: &BTreeMap<String, u64>| ran.get(name).copied().unwrap_or(0);
        at(&after).saturating_sub(at(&before)) as f64 / 1e3 / steps as f64
    };
    let threads = after.keys().map(|name| format!("{name} {:.1}", of(name)));
    let all: f64 = after.keys().map(|name| of(name)).sum();
    println!("{name}: {all:.1} us a step ({})", threads.collect::<Vec<_>>().join(", "));
    sinks.send(&RunEvent::StepsEnded);
    sinks.send(&RunEvent::Ended(RunEnd::default()));
    match sinks.flush().into_iter().next() {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--steps");
    let steps = arguments.nth(1).map_or(Ok(2000), |steps| steps.parse())?;
    if can_draw() {
        set_progress(ProgressForm::Block);
    }
    let quiet = || SinkChoice { is_quiet: true, ..SinkChoice::default() };
    measure("none", quiet(), steps)?;
    measure("terminal", SinkChoice::default(), steps)?;
    let (lines, all) = (tempfile::tempdir()?, tempfile::tempdir()?);
    measure("metrics.jsonl", SinkChoice { out: Some(lines.path()), ..quiet() }, steps)?;
    let traced = TraceChoice {
        out: all.path().to_owned(),
        steps: 100..110,
        process_index: 0,
        replicas: vec![0],
        collectives: vec![],
    };
    let choice = SinkChoice {
        out: Some(all.path()),
        is_quiet: false,
        has_layers: true,
        has_process_times: true,
        has_tensorboard: true,
        trace: Some(StepTrace::new(traced)),
        prometheus: Some(Prometheus::listen("127.0.0.1", 0, 0)?),
    };
    measure("all", choice, steps)
}
