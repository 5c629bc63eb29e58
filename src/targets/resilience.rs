//! What spares bring, and what a link costs that dies: `lockstep plan --spares`, `--repair-hours`
//! and `--what-if reroute=...`.
//!
//! A host with `d` devices fails when any of them does, and a spare takes its place while it is
//! repaired. With `N` devices, a mean time `M` between failures of one and a repair of `R`, the
//! hosts in repair are a Poisson variable of mean `m = N R / M` (the queue M/M/infinity: Gross and
//! Harris, "Fundamentals of Queueing Theory", section 2.5). A run of `U` hosts with `k` spares has
//! all of them for `P(X <= k)` of the time. With `G` for the share of the time that is left by
//! restarts, lost steps and checkpoints ([`Failures::goodput`]), its goodput is
//!
//! ```text
//! G P(X <= k)                                       where a run without enough hosts waits
//! G (1 - E[(X - k)+] / U) - P(X >= k) N r / M       where it goes on with those that are left
//! E[(X - k)+] = m - sum over j < k of P(X > j)
//! ```
//! The last term of the second is another restart of `r` for each host that comes back and is
//! missed: it was there for a failure that found `k` or more in repair.

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
    /// Devices of the spares, which compute nothing until a host is lost.
    pub idle_devices: usize,
    /// The share of the time that is left for steps that are not lost, if the run waits while hosts
    /// are missing.
    pub goodput: f64,
    /// The same for each device that is paid for: spares included.
    pub per_device: f64,
    /// The goodput if the run goes on with the hosts that are left: `lockstep launch --hosts
    /// MIN:MAX`.
    pub elastic_goodput: f64,
    /// Hours of a day that are lost, if the run waits.
    pub lost_hours: f64,
    /// Hours of a day that are lost, if the run goes on with the hosts that are left.
    pub elastic_lost_hours: f64,
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
    /// The number of spares that was asked for.
    pub asked: Option<usize>,
    /// Hours until a failed one is repaired.
    pub repair_hours: f64,
    /// One row for each number of spares: 0, powers of two, the best, and the one asked for.
    pub rows: Vec<SpareRow>,
    /// The number of spares with the most goodput for each device.
    pub best: usize,
}

impl SpareTable {
    /// Compares spares for failures that each take `repair_secs` to repair. `asked` is a number
    /// that has a row in any case.
    pub(super) fn of(
        target: &Target,
        failures: &Failures,
        repair_secs: f64,
        asked: Option<usize>,
    ) -> Self {
        let (unit, num_units) = match target.arrangement {
            Arrangement::Slices { num_slices, .. } => ("slice", num_slices),
            Arrangement::Hosts { num_hosts, .. } => ("host", num_hosts),
        };
        let num_devices = target.num_devices();
        let mean_in_repair = repair_secs / failures.mtbf_secs(num_devices);
        let whole = failures.goodput(num_devices);
        let restarts = failures.restart_secs / failures.mtbf_secs(num_devices);
        // The largest number of spares that can be of use: as many as train.
        let mut all = vec![];
        let (mut log_of_one, mut available) = (-mean_in_repair, 0.0f64);
        let mut missing = mean_in_repair;
        for num_spares in 0..=num_units.max(asked.unwrap_or(0)) {
            let before = available;
            if num_spares > 0 {
                log_of_one += (mean_in_repair / num_spares as f64).ln();
                missing = (missing - (1.0 - before)).max(0.0);
            }
            available = (available + log_of_one.exp()).min(1.0);
            let share = num_units as f64 / (num_units + num_spares) as f64;
            let goodput = whole * available;
            let elastic = whole * (1.0 - missing / num_units as f64) - (1.0 - before) * restarts;
            let elastic_goodput = elastic.clamp(0.0, 1.0);
            all.push(SpareRow {
                num_spares,
                available,
                idle_devices: num_spares * (num_devices / num_units.max(1)),
                goodput,
                per_device: goodput * share,
                elastic_goodput,
                lost_hours: 24.0 * (1.0 - goodput),
                elastic_lost_hours: 24.0 * (1.0 - elastic_goodput),
            });
        }
        let best = all.iter().rev().max_by(|a, b| a.per_device.total_cmp(&b.per_device));
        let best = best.map_or(0, |row| row.num_spares);
        let is_shown = |row: &SpareRow| {
            let is_power = row.num_spares == 0 || row.num_spares.is_power_of_two();
            row.num_spares == best
                || Some(row.num_spares) == asked
                || (is_power && row.num_spares <= 4 * best.max(1))
        };
        let rows = all.into_iter().filter(is_shown).collect();
        let repair_hours = repair_secs / 3600.0;
        Self { unit, num_units, mean_in_repair, asked, repair_hours, rows, best }
    }

    /// A human-readable table.
    pub(super) fn table(&self) -> String {
        let titles = [
            "spares",
            "idle devices",
            "available",
            "goodput",
            "per device",
            "lost h/day",
            "MIN:MAX",
            "lost h/day",
        ];
        let mut out = titles.map(|title| format!("{title:>13}")).concat() + "\n";
        for row in &self.rows {
            out += &format!(
                "{:>13}{:>13}{:>13.4}{:>13.4}{:>13.4}{:>13.3}{:>13.4}{:>13.3}\n",
                row.num_spares,
                row.idle_devices,
                row.available,
                row.goodput,
                row.per_device,
                row.lost_hours,
                row.elastic_goodput,
                row.elastic_lost_hours
            );
        }
        out += &format!(
            "spares of {}, a repair in {} h: {:.2} are in repair on average; the most goodput for \
             each device, spares included: {}. Failures are independent, and a run without enough \
             {}s waits; MIN:MAX is one that goes on with those that are left (`lockstep launch \
             --hosts MIN:MAX`)",
            counted(self.num_units, self.unit),
            self.repair_hours,
            self.mean_in_repair,
            counted(self.best, "spare"),
            self.unit
        );
        let of = |number: usize| self.rows.iter().find(|row| row.num_spares == number);
        if let Some((without, with)) = of(0).zip(self.asked.and_then(of)) {
            out += &format!(
                "\n{}: the price is {} that compute nothing until a {} is lost, {:.2} % of all \
                 that are paid for; failures then cost {:.3} h of a day, without spares {:.3} h, \
                 or {:.3} h with MIN:MAX",
                counted(with.num_spares, "spare"),
                counted(with.idle_devices, "device"),
                self.unit,
                1e2 * with.num_spares as f64 / (self.num_units + with.num_spares) as f64,
                with.lost_hours,
                without.lost_hours,
                without.elastic_lost_hours
            );
        }
        out
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
        let table = SpareTable::of(&target, &failures, 48.0 * 3600.0, Some(3));
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
        // Without spares, the hosts in repair are missing, and each restarts the run once more.
        let restarts = 300.0 / failures.mtbf_secs(1024);
        let elastic = whole * (1.0 - m / 128.0) - restarts;
        assert!((of(0).elastic_goodput - elastic).abs() < 1e-12, "{table:?}");
        // Of three, by the sum over those that are missing.
        let poisson = |x: i32| (-m + f64::from(x) * m.ln()).exp() / factorial(x);
        let missing: f64 = (4..60).map(|x| f64::from(x - 3) * poisson(x)).sum();
        let many: f64 = (3..60).map(poisson).sum();
        let elastic = whole * (1.0 - missing / 128.0) - many * restarts;
        assert!((of(3).elastic_goodput - elastic).abs() < 1e-9, "{table:?} {elastic}");
        assert_eq!(of(3).idle_devices, 24);
        assert!((of(3).lost_hours - 24.0 * (1.0 - of(3).goodput)).abs() < 1e-12, "{table:?}");
        // Nothing is in repair, so that no spare pays for itself.
        assert_eq!(SpareTable::of(&target, &failures, 1e-3, None).best, 0);
    }

    fn factorial(x: i32) -> f64 {
        (1..=x).map(f64::from).product()
    }

    /// Hosts that fail and are repaired at random times: a run has all, or goes on with the others.
    #[test]
    fn the_share_of_the_time_is_that_of_a_simulation() {
        let target: Target = "gpu:h100:16x8".parse().unwrap();
        // Restarts cost nothing here, and nothing is lost: what is left is the hosts.
        let failures =
            Failures { device_mtbf_secs: 1e4 * 3600.0, save_secs: 1e-9, restart_secs: 0.0 };
        let table = SpareTable::of(&target, &failures, 48.0 * 3600.0, Some(1));
        let mut state = 9u64;
        let mut exponential = |mean: f64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            -mean * (((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64).ln()
        };
        // Hours: a failure of any of 128 devices every 78 h.
        let (mut now, mut repaired): (f64, Vec<f64>) = (0.0, vec![]);
        let (mut whole, mut part) = (0.0, 0.0);
        for _ in 0..200_000 {
            let next = now + exponential(1e4 / 128.0);
            while now < next {
                let in_repair = repaired.len();
                let until = repaired.iter().copied().fold(next, f64::min);
                whole += if in_repair <= 1 { until - now } else { 0.0 };
                part += (until - now) * (17.0 - in_repair as f64).min(16.0) / 16.0;
                now = until;
                repaired.retain(|at| *at > now);
            }
            repaired.push(now + exponential(48.0));
        }
        let row = table.rows.iter().find(|row| row.num_spares == 1).unwrap();
        assert!((whole / now / row.goodput - 1.0).abs() < 0.01, "{} {row:?}", whole / now);
        assert!((part / now / row.elastic_goodput - 1.0).abs() < 0.01, "{} {row:?}", part / now);
    }
}
