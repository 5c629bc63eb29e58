//! The result of compiling a step for a target.

use std::fmt;

use serde::Serialize;

use super::memory::{Memory, gib};
use super::schedule::Collective;

/// The output of `lockstep compile`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The target, as it is written.
    pub target: String,
    /// Replicas of the step.
    pub num_devices: usize,
    /// `true` if the step fits in a device's memory.
    pub fits: bool,
    /// Memory of one device, in bytes.
    pub memory: Memory,
    /// What to change if it does not fit.
    pub advice: Vec<String>,
    /// Every collective of the optimised program; empty if it did not compile.
    pub collectives: Vec<Collective>,
    /// Bytes of gradients that each device all_reduces per step.
    pub gradient_bytes: u64,
    /// The fraction of all_reduced bytes whose collective overlaps with a matmul.
    pub overlapped_gradient_fraction: f64,
    /// FLOPs of a step on one device, counting every loop iteration.
    pub flops_per_device: u64,
    /// FLOPs per byte of estimated memory traffic.
    pub arithmetic_intensity: f64,
    /// Step time predicted by the cost model, in milliseconds.
    pub predicted_step_ms: f64,
    /// The fraction of the chip's peak that the predicted step reaches.
    pub predicted_utilization: f64,
    /// The XLA options that were set, by name.
    pub options: Vec<(String, String)>,
    /// Compile time in seconds.
    pub compile_secs: f64,
}

/// Collectives that differ only in their bytes.
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

/// The human-readable report.
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
