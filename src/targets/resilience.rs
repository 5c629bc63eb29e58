//! What spares bring, and what a link costs that dies: `lockstep plan --repair-hours` and
//! `--what-if reroute=...`.
//!
//! A host with `d` devices fails when any of them does, and a spare takes its place while it is
//! repaired. With `N` devices, a mean time `M` between failures of one and a repair of `R`, the
//! hosts in repair are a Poisson variable of mean `m = N R / M` (the queue M/M/infinity: Gross and
//! Harris, "Fundamentals of Queueing Theory", section 2.5). A run with `k` spares has all of its
//! hosts for `P(X <= k)` of the time.

use hlo::counted;
use serde::Serialize;

use super::cost::{Failures, WhatIf};
use super::row::Row;
use super::{Arrangement, Target};

/// A number of spares.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SpareRow {
    /// Hosts or slices besides those that train.
    pub num_spares: usize,
    /// The share of the time in which as many are there as train.
    pub available: f64,
    /// The share of the time that is left for steps that are not lost.
    pub goodput: f64,
    /// The same for each device that is paid for: spares included.
    pub per_device: f64,
}

/// Numbers of spares for a whole target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SpareTable {
    /// What is replaced: `host` or `slice`.
    pub unit: &'static str,
    /// How many train.
    pub num_units: usize,
    /// Mean number of those in repair.
    pub mean_in_repair: f64,
    /// One row for each number of spares: 0, powers of two, and the best.
    pub rows: Vec<SpareRow>,
    /// The number of spares with the most goodput for each device.
    pub best: usize,
}

impl SpareTable {
    /// Compares spares for failures that each take `repair_secs` to repair.
    pub(super) fn of(target: &Target, failures: &Failures, repair_secs: f64) -> Self {
        let (unit, num_units) = match target.arrangement {
            Arrangement::Slices { num_slices, .. } => ("slice", num_slices),
            Arrangement::Hosts { num_hosts, .. } => ("host", num_hosts),
        };
        let num_devices = target.num_devices();
        let mean_in_repair = repair_secs / failures.mtbf_secs(num_devices);
        let goodput = failures.goodput(num_devices);
        // The largest number of spares that can be of use: as many as train.
        let mut all = vec![];
        let (mut log_of_one, mut available) = (-mean_in_repair, 0.0f64);
        for num_spares in 0..=num_units {
            if num_spares > 0 {
                log_of_one += (mean_in_repair / num_spares as f64).ln();
            }
            available = (available + log_of_one.exp()).min(1.0);
            let share = num_units as f64 / (num_units + num_spares) as f64;
            let goodput = goodput * available;
            let per_device = goodput * share;
            all.push(SpareRow { num_spares, available, goodput, per_device });
        }
        let best = all.iter().rev().max_by(|a, b| a.per_device.total_cmp(&b.per_device));
        let best = best.map_or(0, |row| row.num_spares);
        let is_shown = |row: &SpareRow| {
            let is_power = row.num_spares == 0 || row.num_spares.is_power_of_two();
            row.num_spares == best || (is_power && row.num_spares <= 4 * best.max(1))
        };
        let rows = all.into_iter().filter(is_shown).collect();
        Self { unit, num_units, mean_in_repair, rows, best }
    }

    /// A human-readable table.
    pub(super) fn table(&self) -> String {
        let titles = ["spares", "available", "goodput", "per device"];
        let mut out = titles.map(|title| format!("{title:>12}")).concat() + "\n";
        for row in &self.rows {
            out += &format!(
                "{:>12}{:>12.4}{:>12.4}{:>12.4}\n",
                row.num_spares, row.available, row.goodput, row.per_device
            );
        }
        out + &format!(
            "spares of {}: {:.2} are in repair on average; the most goodput for each device, \
             spares included: {}. Failures are independent, and a run without enough {}s waits",
            counted(self.num_units, self.unit),
            self.mean_in_repair,
            counted(self.best, "spare"),
            self.unit
        )
    }
}

/// A link of one device that dies. The step waits for its traffic until that has another way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DeadLink {
    /// Seconds until the traffic has another way.
    pub reroute_secs: f64,
    /// The step in which the link dies, in milliseconds.
    pub stalled_step_ms: f64,
    /// How many steps could have been taken in that time.
    pub steps: f64,
    /// Mean hours after which a link dies, if that is known.
    pub link_mtbf_hours: Option<f64>,
    /// The share of the time that is lost to dead links then.
    pub lost: Option<f64>,
}

impl DeadLink {
    /// For the step of a row, whose devices have a link each.
    pub(super) fn of(change: &WhatIf, row: &Row) -> Option<Self> {
        let reroute_secs = change.reroute_secs()?;
        let stalled_step_ms = row.step_ms + 1e3 * reroute_secs;
        // Of the time between two deaths, the wait is added.
        let lost = |mtbf_secs: f64| {
            let between = mtbf_secs / row.num_devices as f64;
            reroute_secs / (between + reroute_secs)
        };
        Some(Self {
            reroute_secs,
            stalled_step_ms,
            steps: stalled_step_ms / row.step_ms,
            link_mtbf_hours: change.link_mtbf_secs().map(|secs| secs / 3600.0),
            lost: change.link_mtbf_secs().map(lost),
        })
    }

    /// In words.
    pub(super) fn words(&self) -> String {
        let often = match self.link_mtbf_hours.zip(self.lost) {
            Some((hours, lost)) => format!(
                "; with {hours} h between deaths of each link, {:.4} % of the time is lost",
                100.0 * lost
            ),
            None => "; link_mtbf=HOURSh says what share of the time that is".to_owned(),
        };
        format!(
            "a dead link, rerouted in {} s: the step in which it dies takes {:.2} ms, as long as \
             {:.2} steps{often}. That the other links then carry more is not counted",
            self.reroute_secs, self.stalled_step_ms, self.steps
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spares_are_there_as_often_as_the_poisson_distribution_says() {
        let target: Target = "gpu:h100:128x8".parse().unwrap();
        let failures =
            Failures { device_mtbf_secs: 5e4 * 3600.0, save_secs: 10.0, restart_secs: 300.0 };
        // 1024 devices, each once in 50,000 h, two days of repair: 0.98304 in repair.
        let table = SpareTable::of(&target, &failures, 48.0 * 3600.0);
        let m: f64 = 1024.0 * 48.0 / 5e4;
        assert!((table.mean_in_repair - m).abs() < 1e-9, "{table:?}");
        let of = |num_spares: usize| {
            *table.rows.iter().find(|row| row.num_spares == num_spares).unwrap()
        };
        assert!((of(0).available - (-m).exp()).abs() < 1e-12, "{table:?}");
        assert!((of(1).available - (-m).exp() * (1.0 + m)).abs() < 1e-12, "{table:?}");
        let whole = failures.goodput(1024);
        assert!((of(1).per_device - whole * of(1).available * 128.0 / 129.0).abs() < 1e-12);
        assert!(table.rows.iter().all(|row| row.per_device <= of(table.best).per_device));
        assert!(table.best > 1 && of(table.best).goodput < whole, "{table:?}");
        // Nothing is in repair, so that no spare pays for itself.
        assert_eq!(SpareTable::of(&target, &failures, 1e-3).best, 0);
    }
}
