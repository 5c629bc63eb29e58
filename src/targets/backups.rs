//! The table of `lockstep plan --stragglers`: what backup workers would bring.

use hlo::counted;
use serde::Serialize;

use super::cost::Stragglers;
use super::row::Row;

/// A simulated step with a number of backups.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BackupRow {
    /// Devices besides those of the prediction.
    pub num_backups: usize,
    /// Mean time of a step in milliseconds.
    pub mean_ms: f64,
    /// The time that 99 of 100 steps do not exceed, in milliseconds.
    pub p99_ms: f64,
    /// Examples per second that are used.
    pub examples_per_sec: f64,
    /// The same for each device, backups included.
    pub per_device: f64,
}

/// Simulated steps with 0, 1, 2, ... backups.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BackupSimulation {
    /// Devices that contribute gradients to a step.
    pub num_devices: usize,
    /// The distribution of step times, and the simulation.
    pub stragglers: Stragglers,
    /// One row for each number of backups.
    pub rows: Vec<BackupRow>,
    /// The fewest backups with the most examples per second for each device.
    pub best: usize,
}

impl BackupSimulation {
    /// Simulates the step of a row. The global batch stays that of its devices: the gradients of
    /// the slowest are dropped.
    pub(super) fn of(stragglers: &Stragglers, row: &Row) -> Self {
        let num_devices = row.num_devices;
        let steps = stragglers.simulate(num_devices, row.compute_ms / 1e3, row.exposed_ms / 1e3);
        let rows: Vec<_> = steps
            .into_iter()
            .map(|step| {
                let examples_per_sec = row.global_batch as f64 / step.mean_secs;
                BackupRow {
                    num_backups: step.num_backups,
                    mean_ms: 1e3 * step.mean_secs,
                    p99_ms: 1e3 * step.p99_secs,
                    examples_per_sec,
                    per_device: examples_per_sec / (num_devices + step.num_backups) as f64,
                }
            })
            .collect();
        let best = rows.iter().rev().max_by(|a, b| a.per_device.total_cmp(&b.per_device));
        let best = best.map_or(0, |row| row.num_backups);
        Self { num_devices, stragglers: *stragglers, rows, best }
    }

    /// A human-readable table.
    pub(super) fn table(&self) -> String {
        let titles = ["backups", "mean ms", "p99 ms", "examples/s", "per device"];
        let mut out = titles.map(|title| format!("{title:>12}")).concat() + "\n";
        for row in &self.rows {
            out += &format!(
                "{:>12}{:>12.2}{:>12.2}{:>12.0}{:>12.2}\n",
                row.num_backups, row.mean_ms, row.p99_ms, row.examples_per_sec, row.per_device
            );
        }
        out + &format!(
            "backup workers, simulated on {} devices and backups: {}\nmost examples/s for each \
             device, backups included: {}. Lockstep runs no backup workers (data.late = \"skip\" \
             leaves out late batches, not slow devices): this is what they would bring",
            self.num_devices,
            self.stragglers.words(),
            counted(self.best, "backup")
        )
    }
}
