//! How large a job is: the hosts that it may have, and those of a generation.

use super::messages as wire;

/// How many hosts and processes a job may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobSize {
    /// A generation has at least so many hosts.
    pub min_hosts: usize,
    /// It has at most so many.
    pub max_hosts: usize,
    /// Hosts beyond these, which wait until one is lost.
    pub num_spares: usize,
    /// Processes of the largest number of hosts.
    pub full_processes: usize,
    /// Hosts are left out until the number of processes is a multiple of it: the mesh has other
    /// axes than `data`, of a fixed size.
    pub multiple_of: usize,
}

/// The place of a host in a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPlace {
    /// Index of its first process.
    pub first_process: usize,
    /// Processes on all hosts.
    pub num_processes: usize,
    /// Hosts.
    pub num_hosts: usize,
}

impl JobSize {
    /// A job that always has so many hosts and processes.
    pub fn fixed(num_hosts: usize, num_processes: usize) -> Self {
        Self {
            min_hosts: num_hosts,
            max_hosts: num_hosts,
            num_spares: 0,
            full_processes: num_processes,
            multiple_of: 1,
        }
    }

    /// `true` if supervisors that were told this belong together. Those with another number of
    /// processes may.
    pub fn is_same_job(&self, other: &Self) -> bool {
        let hosts = |size: &Self| (size.min_hosts, size.max_hosts, size.num_spares);
        hosts(self) == hosts(other)
            && (self.is_elastic() || self.full_processes == other.full_processes)
    }

    /// `true` if generations may have different hosts.
    pub fn is_elastic(&self) -> bool {
        self.min_hosts < self.max_hosts
    }

    /// `true` if a host can be done without, or another takes its place.
    pub fn is_flexible(&self) -> bool {
        self.is_elastic() || self.num_spares > 0
    }

    /// The hosts of a generation, of those that are there, in order, with these numbers of
    /// processes each: the first of them, as many as may be. `None`: too few.
    pub fn num_used(&self, num_local: &[usize]) -> Option<usize> {
        let most = num_local.len().min(self.max_hosts);
        let num_processes = |num_hosts: usize| num_local[..num_hosts].iter().sum::<usize>();
        let fits = |num_hosts: &usize| {
            let number = num_processes(*num_hosts);
            number > 0 && number.is_multiple_of(self.multiple_of.max(1))
        };
        (self.min_hosts.max(1)..=most).rev().find(fits)
    }

    /// The numbers of processes that generations may have after one with `num_processes`, on hosts
    /// with `num_local` each: one host fewer, one more, two fewer, half. `None`: this host waits to
    /// take part.
    pub fn next_sizes(&self, num_processes: Option<usize>, num_local: usize) -> Vec<usize> {
        let full = self.full_processes;
        let now = num_processes.unwrap_or(full);
        let around = [
            now.saturating_sub(num_local),
            now + num_local,
            now.saturating_sub(2 * num_local),
            now / 2,
        ];
        let first = num_processes.is_none().then_some(full);
        let around = around.into_iter().filter(|_| self.is_elastic());
        let least = self.min_hosts * num_local;
        let mut sizes: Vec<usize> = vec![];
        for size in first.into_iter().chain(around) {
            let size = size - size % self.multiple_of.max(1);
            let is_possible = (least.max(1)..=full).contains(&size);
            if is_possible && Some(size) != num_processes && !sizes.contains(&size) {
                sizes.push(size);
            }
        }
        sizes
    }

    /// As `--hosts` and `--spares`.
    pub fn describe(&self) -> String {
        let Self { min_hosts, max_hosts, num_spares, full_processes, .. } = self;
        let hosts = match self.is_elastic() {
            true => format!("{min_hosts}:{max_hosts}"),
            false => max_hosts.to_string(),
        };
        let spares = match num_spares {
            0 => String::new(),
            number => format!(" --spares {number}"),
        };
        format!("--hosts {hosts}{spares} with {full_processes} processes in all")
    }

    pub(super) fn to_row(self) -> wire::SizeRow {
        wire::SizeRow {
            min_hosts: index(self.min_hosts),
            max_hosts: index(self.max_hosts),
            num_spares: index(self.num_spares),
            full_processes: index(self.full_processes),
            multiple_of: index(self.multiple_of),
        }
    }
}

impl From<&wire::SizeRow> for JobSize {
    fn from(row: &wire::SizeRow) -> Self {
        Self {
            min_hosts: row.min_hosts as usize,
            max_hosts: row.max_hosts as usize,
            num_spares: row.num_spares as usize,
            full_processes: row.full_processes as usize,
            multiple_of: row.multiple_of as usize,
        }
    }
}

impl HostPlace {
    pub(super) fn to_row(self) -> wire::PlaceRow {
        wire::PlaceRow {
            first_process: index(self.first_process),
            num_processes: index(self.num_processes),
            num_hosts: index(self.num_hosts),
        }
    }
}

impl From<&wire::PlaceRow> for HostPlace {
    fn from(row: &wire::PlaceRow) -> Self {
        Self {
            first_process: row.first_process as usize,
            num_processes: row.num_processes as usize,
            num_hosts: row.num_hosts as usize,
        }
    }
}

pub(super) fn index(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_has_as_many_hosts_as_fit() {
        let size = JobSize {
            min_hosts: 2,
            max_hosts: 4,
            num_spares: 1,
            full_processes: 8,
            multiple_of: 1,
        };
        let used = |hosts: &[usize]| size.num_used(hosts);
        assert_eq!((used(&[2]), used(&[2; 2]), used(&[2; 3])), (None, Some(2), Some(3)));
        assert_eq!((used(&[2; 4]), used(&[2; 6]), used(&[])), (Some(4), Some(4), None));
        // A mesh of which each copy has four processes.
        let size = JobSize { multiple_of: 4, ..size };
        let used = |hosts: &[usize]| size.num_used(hosts);
        assert_eq!((used(&[2; 3]), used(&[2; 4]), used(&[1; 3])), (Some(2), Some(4), None));
        assert_eq!((used(&[1, 2, 1, 2]), used(&[1, 2, 2, 2])), (Some(3), None));
        assert_eq!(JobSize::fixed(3, 6).num_used(&[2; 2]), None);
        assert_eq!(JobSize::fixed(1, 4).num_used(&[4]), Some(1));
    }

    #[test]
    fn the_next_generation_has_a_host_more_or_less() {
        let size = JobSize {
            min_hosts: 2,
            max_hosts: 8,
            num_spares: 1,
            full_processes: 16,
            multiple_of: 1,
        };
        let next = |size: &JobSize, now| size.next_sizes(now, 2);
        assert_eq!(next(&size, Some(16)), [14, 12, 8]);
        assert_eq!(next(&size, Some(10)), [8, 12, 6, 5]);
        assert_eq!(next(&size, Some(4)), [6]);
        assert_eq!(next(&size, None), [16, 14, 12, 8]);
        let of_four = JobSize { multiple_of: 4, ..size };
        assert_eq!(next(&of_four, Some(16)), [12, 8]);
        assert_eq!(next(&JobSize::fixed(2, 4), Some(4)), [0; 0]);
        assert_eq!(next(&JobSize { num_spares: 1, ..JobSize::fixed(2, 4) }, None), [4]);
    }
}
