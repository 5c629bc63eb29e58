//! The result of compiling a step for a target.

use std::fmt;

use hlo::counted;
use serde::{Serialize, Serializer};

use super::advice::MemoryAdvice;
use super::collective::{Collective, CollectivePhase, CollectiveSum};
use super::memory::{Memory, gib};
use super::pipeline::PipelineReport;

/// The output of `lockstep compile`.
#[derive(Clone, Debug, Serialize)]
pub struct CompileReport {
    /// The target, as it is written.
    pub target: String,
    /// Replicas of the step.
    pub num_devices: usize,
    /// `true` if the step fits in a device's memory.
    pub fits: bool,
    /// Memory of one device, in bytes.
    pub memory: Memory,
    /// Advice if the step does not fit, a line each.
    #[serde(serialize_with = "as_lines")]
    pub advice: MemoryAdvice,
    /// Every collective of the optimized program; empty if it did not compile.
    pub collectives: Vec<Collective>,
    /// The sums of these by kind, phase and group.
    pub collective_sums: Vec<CollectiveSum>,
    /// `true` if a collective is in a loop with an unknown trip count, which is counted as 1.
    pub has_unknown_loops: bool,
    /// Bytes of gradients that each device reduces per step: the operands of every all_reduce and
    /// reduce_scatter of the traced graph that is not of activations.
    pub gradient_bytes: u64,
    /// The fraction of all_reduced and reduce_scattered bytes in collectives that overlap with a
    /// matmul, without those of layers.
    pub overlapped_gradient_fraction: f64,
    /// The fraction of gathered bytes in all_gathers that overlap with a matmul, without those of
    /// layers; `None` if nothing is gathered.
    pub overlapped_gather_fraction: Option<f64>,
    /// The fraction of the bytes that replicas along `tensor` exchange in layers, in collectives
    /// that overlap with a matmul; `None` if there are none.
    pub overlapped_layer_fraction: Option<f64>,
    /// What the pipeline costs; `None` without one.
    pub pipeline: Option<PipelineReport>,
    /// FLOPs of a step on one device, counting every loop iteration.
    pub flops_per_device: u64,
    /// Estimated memory traffic of a step on one device, in bytes.
    pub traffic_bytes: u64,
    /// FLOPs per byte of estimated memory traffic.
    pub arithmetic_intensity: f64,
    /// Step time predicted by the cost model, in milliseconds: compute, the exposed part of
    /// collectives, and waiting for the slowest device.
    pub predicted_step_ms: f64,
    /// The part of it for compute.
    pub compute_ms: f64,
    /// The part of the compute that is in the backward pass, which collectives of gradients can
    /// overlap with.
    pub backward_ms: f64,
    /// All collectives, including those that are hidden behind compute.
    pub communication_ms: f64,
    /// The part of the collectives that the step waits for.
    pub exposed_ms: f64,
    /// Expected time that a device waits for the slowest.
    pub jitter_ms: f64,
    /// How far predicted steps on this chip were off, in words.
    pub accuracy: String,
    /// The fraction of the chip's peak that the predicted step reaches.
    pub predicted_utilization: f64,
    /// The XLA options that were set, by name.
    pub options: Vec<(String, String)>,
    /// The forms in which reduce_scatters were compiled, if there is a choice; everything else is
    /// of the chosen one.
    pub scatter_forms: Vec<ScatterForm>,
    /// Calls of cuDNN's attention, forward and backward, in the program's text; one in a loop
    /// counts once.
    pub num_cudnn_calls: usize,
    /// The step with cuDNN's attention, which it has, and with attention as ops; empty if it has no
    /// cuDNN's.
    pub attention_forms: Vec<AttentionForm>,
    /// Compile time in seconds, of all forms.
    pub compile_secs: f64,
}

fn as_lines<S: Serializer>(advice: &MemoryAdvice, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(advice.lines())
}

/// A form of the step's reduce_scatters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ScatterForm {
    /// Replicas of a line, if each is two collectives, along one dim of the torus each; 0 if it is
    /// one.
    pub scatter_line: usize,
    /// `true` if the report is about this form.
    pub is_chosen: bool,
    /// `true` if the step fits in a device's memory.
    pub fits: bool,
    /// Peak memory, in bytes.
    pub peak_bytes: u64,
    /// Intermediate values, in bytes.
    pub temporaries_bytes: u64,
    /// Predicted step time in milliseconds. If the compiler has refused the step, not of a
    /// schedule.
    pub predicted_step_ms: f64,
}

/// A form of the step's attention.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AttentionForm {
    /// `true` for calls of cuDNN, `false` for ops.
    pub is_by_cudnn: bool,
    /// `true` if the step fits in a device's memory.
    pub fits: bool,
    /// Peak memory, in bytes.
    pub peak_bytes: u64,
    /// Intermediate values, in bytes.
    pub temporaries_bytes: u64,
    /// Estimated memory traffic of a step, in bytes.
    pub traffic_bytes: u64,
    /// Predicted step time in milliseconds.
    pub predicted_step_ms: f64,
}

impl fmt::Display for AttentionForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = if self.is_by_cudnn { "by cuDNN" } else { "as ops" };
        let verdict = if self.fits { "" } else { ", does not fit" };
        let [temporaries, peak, traffic] =
            [self.temporaries_bytes, self.peak_bytes, self.traffic_bytes].map(gib);
        let ms = self.predicted_step_ms;
        write!(
            f,
            "{form}: temporaries {temporaries}, peak {peak}{verdict}, memory traffic {traffic}, \
             {ms:.2} ms"
        )
    }
}

impl fmt::Display for ScatterForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scatter_line {
            0 => f.write_str("one collective each: ")?,
            line => write!(f, "two each, across lines of {line} and along them: ")?,
        }
        let verdict = if self.fits { "" } else { ", does not fit" };
        let chosen = if self.is_chosen { "; chosen" } else { "" };
        let (temporaries, peak) = (gib(self.temporaries_bytes), gib(self.peak_bytes));
        let ms = self.predicted_step_ms;
        write!(f, "temporaries {temporaries}, peak {peak}{verdict}, {ms:.2} ms{chosen}")
    }
}

/// Collectives that differ only in their bytes.
struct Row<'r> {
    first: &'r Collective,
    count: u64,
    bytes: u64,
    matmuls: u64,
}

impl CompileReport {
    /// Adds what the step would take with attention as ops.
    pub fn compare_attention(&mut self, as_ops: &Self) {
        self.attention_forms = vec![self.attention_form(true), as_ops.attention_form(false)];
        self.compile_secs += as_ops.compile_secs;
    }

    fn attention_form(&self, is_by_cudnn: bool) -> AttentionForm {
        AttentionForm {
            is_by_cudnn,
            fits: self.fits,
            peak_bytes: self.memory.peak_bytes,
            temporaries_bytes: self.memory.temporaries_bytes,
            traffic_bytes: self.traffic_bytes,
            predicted_step_ms: self.predicted_step_ms,
        }
    }

    fn rows(&self) -> Vec<Row<'_>> {
        let mut rows: Vec<Row<'_>> = vec![];
        for collective in &self.collectives {
            let same = |row: &&mut Row<'_>| {
                let key = |c: &Collective| {
                    let groups = (c.group_size, c.num_groups, c.axes.clone());
                    (c.kind.clone(), c.phase, groups, c.is_overlapped(), c.asynchronous)
                };
                key(row.first) == key(collective)
            };
            let matmuls = (collective.overlapped_matmuls as u64).saturating_mul(collective.count);
            match rows.iter_mut().find(same) {
                Some(row) => {
                    row.count = row.count.saturating_add(collective.count);
                    row.bytes = row.bytes.saturating_add(collective.total_bytes());
                    row.matmuls = row.matmuls.saturating_add(matmuls);
                }
                None => rows.push(Row {
                    first: collective,
                    count: collective.count,
                    bytes: collective.total_bytes(),
                    matmuls,
                }),
            }
        }
        rows
    }
}

/// The human-readable report.
impl fmt::Display for CompileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Memory {
            parameters_bytes,
            optimizer_bytes,
            temporaries_bytes,
            gathered_bytes,
            peak_bytes,
            limit_bytes,
            ..
        } = self.memory;
        let replicas = counted(self.num_devices, "replica");
        writeln!(f, "target           {}, {replicas}", self.target)?;
        writeln!(
            f,
            "memory           parameters {}, optimizer {}, temporaries {}",
            gib(parameters_bytes),
            gib(optimizer_bytes),
            gib(temporaries_bytes)
        )?;
        if gathered_bytes > 0 {
            let bytes = gib(gathered_bytes);
            writeln!(f, "                 whole gathered parameters at once: {bytes}")?;
        }
        let verdict = if self.fits { "fits" } else { "does not fit" };
        writeln!(
            f,
            "                 peak {} of {}: {verdict}",
            gib(peak_bytes),
            gib(limit_bytes)
        )?;
        for line in self.advice.lines() {
            writeln!(f, "                 - {line}")?;
        }
        for Row { first, count, bytes, matmuls } in self.rows() {
            let Collective { kind, phase, group_size, num_groups, asynchronous, axes, .. } = first;
            let phase = match phase {
                CollectivePhase::Scatter | CollectivePhase::Other => String::new(),
                phase => format!(" ({phase})"),
            };
            let how = if *asynchronous { "asynchronous" } else { "synchronous" };
            let groups = counted(*num_groups, "group");
            let over = match &axes[..] {
                [] => String::new(),
                axes => format!(" over {}", axes.join(" and ")),
            };
            writeln!(
                f,
                "collectives      {count} {kind}{phase}, {} in all, {groups} of {group_size}{over}, \
                 {how}, beside {}",
                gib(bytes),
                counted(matmuls, "matmul")
            )?;
        }
        for (at, form) in self.scatter_forms.iter().enumerate() {
            let title = if at == 0 { "reduce_scatters" } else { "" };
            writeln!(f, "{title:<16} {form}")?;
            if form.is_chosen && form.scatter_line > 0 {
                let line = form.scatter_line;
                writeln!(f, "                 - train with --set parallel.scatter_line={line}")?;
            }
        }
        for (at, form) in self.attention_forms.iter().enumerate() {
            writeln!(f, "{:<16} {form}", if at == 0 { "attention" } else { "" })?;
        }
        if !self.collectives.is_empty() {
            let overlapped = 100.0 * self.overlapped_gradient_fraction;
            let gradients = gib(self.gradient_bytes);
            writeln!(
                f,
                "overlap          {overlapped:.0} % of the reduced bytes; gradients are {gradients}"
            )?;
            if let Some(fraction) = self.overlapped_gather_fraction {
                writeln!(f, "                 {:.0} % of the gathered bytes", 100.0 * fraction)?;
            }
            if let Some(fraction) = self.overlapped_layer_fraction {
                let percent = 100.0 * fraction;
                writeln!(
                    f,
                    "                 {percent:.0} % of the bytes that layers exchange over tensor"
                )?;
            }
            if self.has_unknown_loops {
                writeln!(
                    f,
                    "                 collectives of loops with unknown trip counts are counted \
                     once"
                )?;
            }
        }
        let pipeline = self.pipeline.iter().flat_map(PipelineReport::lines);
        for (at, line) in pipeline.enumerate() {
            writeln!(f, "{:<16} {line}", if at == 0 { "pipeline" } else { "" })?;
        }
        writeln!(
            f,
            "arithmetic       {:.3} TFLOP a device and step, {:.0} FLOP a byte",
            self.flops_per_device as f64 / 1e12,
            self.arithmetic_intensity
        )?;
        writeln!(
            f,
            "predicted        {:.2} ms a step, of which {:.2} waiting for collectives and {:.2} \
             for the slowest device; {:.0} % of the peak",
            self.predicted_step_ms,
            self.exposed_ms,
            self.jitter_ms,
            100.0 * self.predicted_utilization
        )?;
        writeln!(f, "accuracy         {}", self.accuracy)?;
        for (name, value) in &self.options {
            writeln!(f, "option           {name}={value}")?;
        }
        write!(f, "compiled in      {:.1} s", self.compile_secs)
    }
}
