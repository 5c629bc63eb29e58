//! How much memory data may take.

/// Half of the memory that is free, so that there is room for the rest of a run.
pub fn memory_budget() -> u64 {
    let available = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    // Without an answer, what every machine has that this program is for.
    available.map_or(1 << 30, |kib| kib * 1024 / 2)
}
