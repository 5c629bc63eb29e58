//! A report of one screen: the culprits, what is being done, and what all processes are doing, in
//! groups.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::verdict::{Verdict, grouped, lasting};
use super::{Last, Watchdog};
use crate::cluster::report::Phase;

/// Lines for verdicts, and for groups of processes.
const MAX_LINES: usize = 10;
/// Ranges of process indices in a line.
const MAX_RANGES: usize = 6;

/// Processes that do the same.
#[derive(Default)]
struct Group {
    processes: Vec<usize>,
    /// How long all of them have done it.
    lasted: Option<Duration>,
}

impl Watchdog {
    /// The state of the job at `now`, in at most 25 lines of any number of processes. `action` says
    /// what is being done.
    pub fn screen(&self, now: Instant, action: &str) -> String {
        let verdicts = self.verdicts(now);
        let mut lines: Vec<String> =
            verdicts.iter().take(MAX_LINES).map(Verdict::to_string).collect();
        if let Some(more @ 1..) = verdicts.len().checked_sub(MAX_LINES) {
            let indices = verdicts[MAX_LINES..].iter().filter_map(|verdict| verdict.who());
            let indices: Vec<usize> = indices.map(|who| who.process_index).collect();
            lines.push(format!("and {} more: processes {}", grouped(more), ranges(&indices)));
        }
        if verdicts.is_empty() {
            lines.push("no process is dead, stuck or slow".to_owned());
        }
        lines.push(format!("now: {action}"));
        lines.extend(self.table(now));
        lines.join("\n") + "\n"
    }

    fn table(&self, now: Instant) -> Vec<String> {
        let mut groups = BTreeMap::<(&str, u64), Group>::new();
        for (index, last) in self.last.iter().enumerate() {
            let (what, lasted) = self.doing(last, now);
            let group = groups.entry((what, last.reported.step)).or_default();
            group.processes.push(index);
            group.lasted = Some(group.lasted.map_or(lasted, |least| least.min(lasted)));
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        // The smallest groups are those that differ.
        groups.sort_by_key(|((_, step), group)| (group.processes.len(), *step));
        let num_shown = if groups.len() > MAX_LINES { MAX_LINES - 1 } else { groups.len() };
        let mut lines: Vec<String> = vec![];
        let rest = groups.drain(num_shown / 2..groups.len() - num_shown.div_ceil(2));
        let rest: Vec<usize> = rest.flat_map(|(_, group)| group.processes).collect();
        for ((what, step), Group { processes, lasted }) in groups {
            let count = num_processes(processes.len());
            let lasted = lasting(lasted.unwrap_or_default());
            let indices = ranges(&processes);
            lines.push(format!("{count:>16}  {what:24} step {step:<8} for {lasted:12} {indices}"));
        }
        if !rest.is_empty() {
            let count = num_processes(rest.len());
            lines.push(format!("{count:>16}  in other phases or steps"));
        }
        lines
    }

    fn doing(&self, last: &Last, now: Instant) -> (&'static str, Duration) {
        let silent = now.saturating_duration_since(last.heard);
        match last.reported.phase {
            _ if last.has_left => ("have finished", silent),
            _ if silent > self.limits.dead_after => ("no heartbeat", silent),
            Phase::Collective => ("wait in a collective", last.reported.in_phase),
            Phase::Coordinator => ("wait for the coordinator", last.reported.in_phase),
            phase => (phase.name(), last.reported.in_phase),
        }
    }
}

fn num_processes(count: usize) -> String {
    match count {
        1 => "1 process".to_owned(),
        count => format!("{} processes", grouped(count)),
    }
}

/// Sorted numbers as ranges: `0, 2 to 5, 9`.
fn ranges(indices: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = vec![];
    for index in indices {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => ranges.push((*index, *index)),
        }
    }
    let num_left_out = ranges.len().saturating_sub(MAX_RANGES);
    let mut texts: Vec<String> = ranges
        .iter()
        .take(MAX_RANGES)
        .map(|(first, last)| match last - first {
            0 => first.to_string(),
            _ => format!("{first} to {last}"),
        })
        .collect();
    if num_left_out > 0 {
        texts.push("...".to_owned());
    }
    texts.join(", ")
}
