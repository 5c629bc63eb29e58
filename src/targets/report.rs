//! What compiling for a target found.

use std::fmt;

use serde::Serialize;

use super::memory::{Memory, gib};
use super::schedule::Collective;

/// The answer of `lockstep compile`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The target, as it is written.
    pub target: String,
    /// Replicas of the step.
    pub num_devices: usize,
    /// Does the step fit into a device's memory?
    pub fits: bool,
    /// Bytes on one device.
    pub memory: Memory,
    /// What to change where it does not fit.
    pub advice: Vec<String>,
    /// Every collective of the optimised program; none where it did not compile.
    pub collectives: Vec<Collective>,
    /// Bytes of the gradients that a step all_reduces on each device.
    pub gradient_bytes: u64,
    /// Of the bytes that the program all_reduces, the share that runs beside a matmul.
    pub overlapped_gradient_fraction: f64,
    /// FLOPs of a step on one device, loops multiplied out.
    pub flops_per_device: u64,
    /// FLOPs for each byte of estimated memory traffic.
    pub arithmetic_intensity: f64,
    /// Milliseconds of a step by the cost model.
    pub predicted_step_ms: f64,
    /// The share of the chip's peak that such a step uses.
    pub predicted_utilization: f64,
    /// The XLA options that were set, by name.
    pub options: Vec<(String, String)>,
    /// Seconds that compiling took.
    pub compile_secs: f64,
}

/// Collectives that are alike in all but their bytes.
struct Row<'r> {
    first: &'r Collective,
    count: usize,
    bytes: u64,
    matmuls: usize,
}

impl Report {
    fn rows(&self) -> Vec<Row<'_>> {
        let mut rows: Vec<Row<'_>> = vec![];
        for collective in &self.collectives {
            let same = |row: &&mut Row<'_>| {
                let key = |c: &Collective| {
                    (c.kind.clone(), c.group_size, c.num_groups, c.is_overlapped(), c.asynchronous)
                };
                key(row.first) == key(collective)
            };
            match rows.iter_mut().find(same) {
                Some(row) => {
                    row.count += 1;
                    row.bytes += collective.bytes;
                    row.matmuls += collective.overlapped_matmuls;
                }
                None => rows.push(Row {
                    first: collective,
                    count: 1,
                    bytes: collective.bytes,
                    matmuls: collective.overlapped_matmuls,
                }),
            }
        }
        rows
    }
}

/// The report for people.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Memory {
            parameters_bytes,
            optimizer_bytes,
            temporaries_bytes,
            peak_bytes,
            limit_bytes,
        } = self.memory;
        writeln!(f, "target           {}, {} replicas", self.target, self.num_devices)?;
        writeln!(
            f,
            "memory           parameters {}, optimizer {}, temporaries {}",
            gib(parameters_bytes),
            gib(optimizer_bytes),
            gib(temporaries_bytes)
        )?;
        let verdict = if self.fits { "fits" } else { "does not fit" };
        writeln!(
            f,
            "                 peak {} of {}: {verdict}",
            gib(peak_bytes),
            gib(limit_bytes)
        )?;
        for advice in &self.advice {
            writeln!(f, "                 - {advice}")?;
        }
        for Row { first, count, bytes, matmuls } in self.rows() {
            let Collective { kind, group_size, num_groups, asynchronous, .. } = first;
            let how = if *asynchronous { "asynchronous" } else { "synchronous" };
            let groups = if *num_groups == 1 { "group" } else { "groups" };
            writeln!(
                f,
                "collectives      {count} {kind}, {} in all, {num_groups} {groups} of {group_size}, {how}, \
                 beside {matmuls} matmuls",
                gib(bytes)
            )?;
        }
        if !self.collectives.is_empty() {
            let overlapped = 100.0 * self.overlapped_gradient_fraction;
            let gradients = gib(self.gradient_bytes);
            writeln!(
                f,
                "overlap          {overlapped:.0} % of the bytes; gradients are {gradients}"
            )?;
        }
        writeln!(
            f,
            "arithmetic       {:.3} TFLOP a device and step, {:.0} FLOP a byte",
            self.flops_per_device as f64 / 1e12,
            self.arithmetic_intensity
        )?;
        writeln!(
            f,
            "predicted        {:.2} ms a step, {:.0} % of the peak",
            self.predicted_step_ms,
            100.0 * self.predicted_utilization
        )?;
        for (name, value) in &self.options {
            writeln!(f, "option           {name}={value}")?;
        }
        write!(f, "compiled in      {:.1} s", self.compile_secs)
    }
}
