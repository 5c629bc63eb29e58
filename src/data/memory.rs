//! How much memory there is, and how much of it data may take.

use sysinfo::{ProcessesToUpdate, System, get_current_pid};

/// The system's figures for its memory, in bytes.
pub(crate) struct SystemMemory {
    /// All of it.
    pub host_total: u64,
    /// That of the swap.
    pub host_swap: u64,
    /// What may still be allocated.
    pub host_available: u64,
    /// The limit of the control group of this process, and what its processes have allocated. Pages
    /// of files that it has read count as free.
    pub group: Option<(u64, u64)>,
}

impl SystemMemory {
    /// The figures of this moment; `None` if the system does not give them.
    pub fn now() -> Option<Self> {
        let mut system = System::new().ok()?;
        system.refresh_memory();
        let pid = get_current_pid().ok()?;
        system.refresh_processes(ProcessesToUpdate::Some(&[pid]), false);
        let limits = system.process(pid).and_then(sysinfo::Process::cgroup_limits);
        Some(Self {
            host_total: system.total_memory(),
            host_swap: system.total_swap(),
            host_available: system.available_memory(),
            group: limits.map(|limits| (limits.total_memory, limits.rss)),
        })
    }

    /// The limit of the control group, if it has less than the host, and what is free below both.
    pub fn in_group(&self) -> Option<(u64, u64)> {
        let (limit, used) = self.group.filter(|(limit, _)| *limit < self.host_total)?;
        Some((limit, limit.saturating_sub(used).min(self.host_available)))
    }
}

/// Half of the memory that is free, so that there is room for the rest of a run.
pub(super) fn memory_budget() -> u64 {
    let free = SystemMemory::now()
        .map(|memory| memory.in_group().map_or(memory.host_available, |(_, free)| free));
    // Without an answer, what every machine has that this program is for.
    free.map_or(1 << 30, |free| free / 2)
}
