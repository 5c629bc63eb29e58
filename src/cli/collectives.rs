//! `lockstep bench --collectives`: times of collectives over sizes, and what the links are.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use hlo::counted;

use super::args::BenchArgs;
use super::output::OutputFile;
use super::{cluster, print_line};
use crate::config::Config;
use crate::targets::cost::{
    CollectiveSpan, FittedValue, LineFit, MeasuredCollective, MeasuredFabric,
};
use crate::train::{self, CollectivesOptions};

/// Collectives need devices, and none of what a configuration says of a run.
const NO_RUN: &str = "model = { name = \"mlp\" }\ndata = { source = \"synthetic\" }\n\
                      train = { batch_per_replica = 1, steps = 1 }\noptimizer = { name = \"sgd\" }\n\
                      schedule = { name = \"constant\", peak = 0.1 }";
/// What a fabric file begins with.
const HEAD: &[u8] = b"{\"format\":\"lockstep fabric ";
/// An Ethernet frame, to compare sizes with.
const FRAME_BYTES: f64 = 1500.0;

/// The fabric file that is asked for.
pub fn file(args: &BenchArgs) -> Option<OutputFile<'_>> {
    args.to.as_deref().map(|path| OutputFile {
        option: "--to",
        path,
        overwrite: args.overwrite,
        is_own: |head| head.starts_with(HEAD),
    })
}

pub fn run(args: &BenchArgs, file: Option<OutputFile<'_>>) -> Result<ExitCode> {
    let sets = args.config.sets();
    let mut config = match args.config.config.as_os_str().is_empty() {
        true => Config::parse(NO_RUN, Path::new("bench"), &sets)?,
        false => Config::load(&args.config.config, &sets)?,
    };
    config.compile.cache &= args.warm;
    let member = cluster::join(&config)?;
    let options = CollectivesOptions {
        member: member.as_ref(),
        max_launches: args.steps as usize,
        max_bytes: args.max_bytes.get(),
    };
    let measured = train::bench_collectives(&config, &options);
    let is_first = cluster::leave_after(member, &measured);
    let fabric = measured?;
    if is_first {
        let json = serde_json::to_string(&fabric)?;
        if let Some(file) = file {
            file.write(format!("{json}\n").as_bytes())?;
        }
        print_line(if args.json { json } else { describe(&fabric) }.trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(fabric: &MeasuredFabric) -> String {
    let MeasuredFabric { platform, num_devices, num_processes, .. } = fabric;
    let mut text = format!(
        "{} in {} on {platform}, f32; times in ms\n",
        counted(*num_devices, "device"),
        if *num_processes == 1 {
            "1 process".to_owned()
        } else {
            format!("{num_processes} processes")
        }
    );
    let name = |of: &MeasuredCollective| match of.span {
        CollectiveSpan::All => format!("{} {}", of.kind, of.algorithm),
        CollectiveSpan::Host => "message in a process".to_owned(),
        CollectiveSpan::Network => "message between processes".to_owned(),
    };
    let most = fabric.collectives.iter().max_by_key(|of| of.points.len());
    let sizes: Vec<u64> =
        most.map(|of| of.points.iter().map(|at| at.bytes).collect()).unwrap_or_default();
    let sizes: Vec<_> = sizes.iter().map(|bytes| format!("{:>9}", size(*bytes))).collect();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{:27}{}", "", sizes.concat());
    for of in &fabric.collectives {
        let _ = write!(text, "{:27}", name(of));
        for point in &of.points {
            let _ = write!(text, "{:>9}", milliseconds(point.secs));
        }
        text.push('\n');
    }
    let _ = writeln!(
        text,
        "\nfitted, with 95 % intervals{:10}latency, us{:24}GB/s{:16}residual",
        "", "", ""
    );
    for of in &fabric.collectives {
        let Some(fit) = &of.fit else { continue };
        let _ = writeln!(
            text,
            "{:27}{:>31}{:>31}{:>10.1} %",
            name(of),
            interval(&fit.latency_secs, |secs| 1e6 * secs),
            interval(&inverse(&fit.secs_per_byte), |bytes| bytes / 1e9),
            100.0 * fit.relative_residual
        );
    }
    text.push('\n');
    for (what, fit) in [("in a process", fabric.host), ("between processes", fabric.network)] {
        let Some(fit) = fit else { continue };
        text += &links(what, &fit);
    }
    let busiest = fabric.collectives.iter().flat_map(|of| &of.points).filter_map(|at| at.busy);
    let _ = writeln!(
        text,
        "processors of this host were up to {:.0} % busy meanwhile; where they are most of the \
         time, it is they that are measured",
        100.0 * busiest.fold(0.0, f64::max)
    );
    text
}

/// What the size of half performance says.
fn links(what: &str, fit: &LineFit) -> String {
    let half = fit.half_performance_bytes();
    format!(
        "links {what}: alpha {:.1} us, beta {:.4} us/KB; alpha / beta is {}, where half of the \
         time is latency: a bucket should be several times larger (a frame of Ethernet is {:.0} \
         times smaller)\n",
        1e6 * fit.latency_secs.value,
        1e9 * fit.secs_per_byte.value,
        size(half as u64),
        half / FRAME_BYTES
    )
}

fn inverse(of: &FittedValue) -> FittedValue {
    FittedValue { value: 1.0 / of.value, low: 1.0 / of.high, high: 1.0 / of.low }
}

fn interval(of: &FittedValue, scale: impl Fn(f64) -> f64) -> String {
    let digits = |value: f64| match scale(value) {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 1.0 => format!("{value:.1}"),
        value => format!("{value:.3}"),
    };
    format!("{} ({} to {})", digits(of.value), digits(of.low), digits(of.high))
}

fn milliseconds(secs: f64) -> String {
    match 1e3 * secs {
        ms if ms >= 100.0 => format!("{ms:.0}"),
        ms if ms >= 1.0 => format!("{ms:.2}"),
        ms => format!("{ms:.4}"),
    }
}

/// `64 KiB`.
fn size(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.into_iter().find(|(unit, _)| bytes >= *unit);
    unit.map_or(format!("{bytes} B"), |(unit, name)| {
        let number = bytes as f64 / unit as f64;
        if number < 9.95 { format!("{number:.1} {name}") } else { format!("{number:.0} {name}") }
    })
}
