//! What this machine tells of why a process may be slow: throttled GPUs, processor time that is
//! withheld. It stands beside the verdict about a slow process.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::doctor::GpuNotes;
use crate::config::Backend;

/// A smaller share of the time is not mentioned.
const NOTABLE: f64 = 0.05;
/// Where the system mounts the groups of processes.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Looks at the machine again and again.
pub struct MachineNotes {
    gpus: Option<GpuNotes>,
    quota: Option<Quota>,
}

impl MachineNotes {
    /// For processes with devices of this backend.
    pub fn new(backend: &Backend) -> Self {
        let gpus = (*backend == Backend::Cuda).then(GpuNotes::new).flatten();
        Self { gpus, quota: Quota::of_this_process() }
    }

    /// What is notable now, in a line; empty if nothing is.
    pub fn now(&mut self) -> String {
        let gpus = self.gpus.iter().flat_map(GpuNotes::now);
        let withheld = self.quota.as_mut().and_then(Quota::withheld);
        let quota = withheld.filter(|share| *share >= NOTABLE).map(|share| {
            format!(
                "a quota of its cgroup withholds processors for {:.0} % of the time",
                100.0 * share
            )
        });
        let load = pressure(&fs::read_to_string("/proc/pressure/cpu").unwrap_or_default());
        let load = load.filter(|share| *share >= NOTABLE).map(|share| {
            format!("something waits for a processor {:.0} % of the time", 100.0 * share)
        });
        gpus.chain(quota).chain(load).collect::<Vec<_>>().join(", ")
    }
}

/// The group of processes that this one is in, which may have a quota of processor time.
struct Quota {
    stat: PathBuf,
    before: (Instant, f64),
}

impl Quota {
    /// `None` without such groups, or in the one of the whole system.
    fn of_this_process() -> Option<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let stat = cgroup_of_processors(&groups)?.join("cpu.stat");
        let throttled = throttled_secs(&fs::read_to_string(&stat).ok()?)?;
        Some(Self { stat, before: (Instant::now(), throttled) })
    }

    /// The share of the time since the last call in which the group was kept from the processors.
    fn withheld(&mut self) -> Option<f64> {
        let now = Instant::now();
        let throttled = throttled_secs(&fs::read_to_string(&self.stat).ok()?)?;
        let (since, before) = std::mem::replace(&mut self.before, (now, throttled));
        let secs = now.duration_since(since).as_secs_f64();
        // The time is summed over processors.
        (secs > 0.0).then(|| ((throttled - before) / secs).clamp(0.0, 1.0))
    }
}

/// The directory of the group that `/proc/self/cgroup` names for processors: that of version 1 if
/// there is one, as in hybrid systems.
fn cgroup_of_processors(groups: &str) -> Option<PathBuf> {
    let rows = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        Some((fields.next()?, fields.next()?.trim_start_matches('/')))
    });
    let rows: Vec<_> = rows.collect();
    let of_version_1 = rows.iter().find(|(names, _)| names.split(',').any(|name| name == "cpu"));
    let (names, path) = of_version_1.or_else(|| rows.iter().find(|(names, _)| names.is_empty()))?;
    Some(Path::new(CGROUPS).join(names).join(path))
}

/// The seconds for which a group was kept from the processors, of its `cpu.stat`.
fn throttled_secs(stat: &str) -> Option<f64> {
    stat.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        let per_sec = match name {
            "throttled_usec" => 1e6,
            // Of version 1.
            "throttled_time" => 1e9,
            _ => return None,
        };
        Some(value.trim().parse::<f64>().ok()? / per_sec)
    })
}

/// The share of the last 10 s in which some task waited for a processor, of `/proc/pressure/cpu`.
fn pressure(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some avg10="))?;
    Some(some.split(' ').next()?.parse::<f64>().ok()? / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_both_versions_is_found() {
        let dir = |groups| cgroup_of_processors(groups).map(|dir| dir.display().to_string());
        let both = "9:name=systemd:/a\n4:cpu,cpuacct:/jobs/7\n0::/b\n";
        assert_eq!(dir(both).as_deref(), Some("/sys/fs/cgroup/cpu,cpuacct/jobs/7"));
        assert_eq!(dir("0::/slice/7\n").as_deref(), Some("/sys/fs/cgroup/slice/7"));
        assert_eq!(dir("3:cpuset:/\n"), None);
    }

    #[test]
    fn throttled_time_and_pressure_are_read() {
        let version_2 = "usage_usec 5\nnr_throttled 3\nthrottled_usec 1500000\n";
        assert_eq!(throttled_secs(version_2), Some(1.5));
        assert_eq!(throttled_secs("nr_periods 0\nthrottled_time 250000000\n"), Some(0.25));
        assert_eq!(throttled_secs("usage_usec 5\n"), None);
        let text = "some avg10=98.47 avg60=90.23 total=3\nfull avg10=0.00 avg60=0.00 total=0\n";
        assert_eq!(pressure(text), Some(0.9847));
        assert_eq!(pressure(""), None);
    }
}
