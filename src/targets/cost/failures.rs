//! Failures: a synchronous run stops when any of its devices fails, and goes back to its last
//! checkpoint.
//!
//! With exponential times between failures of mean `M` (`mtbf` of one device over their number), a
//! checkpoint that stalls the run for `d` and a restart that takes `r`, Daly, "A higher order
//! estimate of the optimum checkpoint interval for restart dumps" (2006), has the expected time of
//! a run of useful time `T`, cut in intervals of `w`:
//!
//! ```text
//! M e^(r/M) (e^((w+d)/M) - 1) T / w
//! ```
//! and the interval that is shortest, to a higher order than `sqrt(2 d M)` of Young, "A first order
//! approximation to the optimum checkpoint interval" (1974):
//!
//! ```text
//! w = sqrt(2 d M) (1 + sqrt(d / (2 M)) / 3 + d / (18 M)) - d    for d < 2 M, otherwise M
//! ```

/// How often a device fails, and what a failure costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failures {
    /// Mean time between failures of one device, in seconds.
    pub device_mtbf_secs: f64,
    /// Time for which a checkpoint stalls the run, in seconds.
    pub save_secs: f64,
    /// Time from a failure to the first new step, in seconds.
    pub restart_secs: f64,
}

impl Failures {
    /// Mean time between failures of `num_devices` together, in seconds.
    pub fn mtbf_secs(&self, num_devices: usize) -> f64 {
        self.device_mtbf_secs / num_devices.max(1) as f64
    }

    /// Daly's interval between checkpoints, in seconds of useful time.
    pub fn interval_secs(&self, num_devices: usize) -> f64 {
        let (mtbf, save) = (self.mtbf_secs(num_devices), self.save_secs);
        if save >= 2.0 * mtbf {
            return mtbf;
        }
        let more = 1.0 + (save / (2.0 * mtbf)).sqrt() / 3.0 + save / (18.0 * mtbf);
        (2.0 * save * mtbf).sqrt() * more - save
    }

    /// The fraction of the time that is useful at that interval.
    pub fn goodput(&self, num_devices: usize) -> f64 {
        self.goodput_at(self.interval_secs(num_devices), num_devices)
    }

    /// The fraction of the time that is useful with checkpoints after every `interval_secs`.
    pub fn goodput_at(&self, interval_secs: f64, num_devices: usize) -> f64 {
        let mtbf = self.mtbf_secs(num_devices);
        let spent = mtbf
            * (self.restart_secs / mtbf).exp()
            * ((interval_secs + self.save_secs) / mtbf).exp_m1();
        if spent > 0.0 { interval_secs / spent } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILURES: Failures =
        Failures { device_mtbf_secs: 5e4 * 3600.0, save_secs: 10.0, restart_secs: 300.0 };

    #[test]
    fn dalys_interval_is_about_the_best_and_close_to_youngs() {
        for num_devices in [8, 1024, 16_384] {
            let best = FAILURES.goodput(num_devices);
            let interval = FAILURES.interval_secs(num_devices);
            for factor in [0.5, 0.9, 1.1, 2.0] {
                let other = FAILURES.goodput_at(factor * interval, num_devices);
                assert!(other < best + 1e-6, "{num_devices} {factor}: {other} {best}");
            }
            let young = (2.0 * FAILURES.save_secs * FAILURES.mtbf_secs(num_devices)).sqrt();
            assert!((interval / young - 1.0).abs() < 0.05, "{interval} {young}");
        }
    }

    /// Runs with failures at random times.
    #[test]
    fn the_goodput_is_that_of_a_simulation() {
        let num_devices = 16_384;
        let (mtbf, interval) =
            (FAILURES.mtbf_secs(num_devices), FAILURES.interval_secs(num_devices));
        let mut state = 7u64;
        let mut until_failure = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            -mtbf * (((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64).ln()
        };
        let (mut now, mut useful) = (0.0, 0.0);
        let mut left = until_failure();
        while useful < 2e5 * interval {
            let work = interval + FAILURES.save_secs;
            if left > work {
                (now, useful, left) = (now + work, useful + interval, left - work);
                continue;
            }
            now += left;
            left = until_failure();
            // A restart can fail as well.
            while left < FAILURES.restart_secs {
                now += left;
                left = until_failure();
            }
            (now, left) = (now + FAILURES.restart_secs, left - FAILURES.restart_secs);
        }
        let predicted = FAILURES.goodput(num_devices);
        assert!((useful / now / predicted - 1.0).abs() < 0.01, "{} {predicted}", useful / now);
    }

    #[test]
    fn more_devices_leave_less_and_nothing_is_above_one() {
        let goodputs: Vec<_> = (0..=24).map(|power| FAILURES.goodput(1 << power)).collect();
        assert!(goodputs.windows(2).all(|pair| pair[1] <= pair[0]), "{goodputs:?}");
        assert!(goodputs.iter().all(|goodput| (0.0..=1.0).contains(goodput)), "{goodputs:?}");
    }
}
