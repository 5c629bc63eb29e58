//! Finds the processes for which all others wait.

use std::time::Duration;

use crate::cluster::report::Phase;

/// A process as of its last report.
#[derive(Clone, Debug)]
pub struct Reported {
    /// Index in the job.
    pub process_index: usize,
    /// What it did.
    pub phase: Phase,
    /// In which step.
    pub step: u64,
    /// For how long.
    pub in_phase: Duration,
    /// The processes that it waited for, if it knew them.
    pub waits_for: Vec<usize>,
}

/// Why nothing goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standstill {
    /// These processes hold up the others.
    Stuck(Vec<usize>),
    /// All processes wait, and none differs from the others.
    Unexplained,
}

/// Finds who is stuck among the processes that are alive, if any is. `limit` is how long a phase
/// may last.
///
/// 1. Phases of a process alone (not `Compute`, in which a device may wait for others) that last
///    too long, while others wait or last too long as well.
/// 2. If all are computing or waiting: those that compute for too long while others wait.
/// 3. If all wait too long: those that others wait for, and that wait for nobody themselves.
/// 4. Those that wait for the coordinator, if others wait in a collective.
/// 5. Those in the earliest step.
pub fn standstill(alive: &[Reported], limit: impl Fn(Phase) -> Duration) -> Option<Standstill> {
    let is_over = |p: &&Reported| p.in_phase > limit(p.phase);
    let waits = |p: &&Reported| p.phase.waits_for_others() || !p.waits_for.is_empty();
    let computes = |p: &&Reported| p.phase == Phase::Compute && !waits(p);
    let is_alone = |p: &&Reported| !waits(p) && !computes(p);
    let num = |is: &dyn Fn(&&Reported) -> bool| alive.iter().filter(is).count();
    let among = |is: &dyn Fn(&&Reported) -> bool| {
        let found: Vec<usize> = alive.iter().filter(is).map(|p| p.process_index).collect();
        (!found.is_empty()).then_some(Standstill::Stuck(found))
    };
    if num(&is_over) == 0 {
        return None;
    }
    if num(&is_alone) > 0 {
        let others_wait = alive.len() == 1 || num(&|p| waits(p) || is_over(p)) > 1;
        return if others_wait { among(&|p| is_alone(p) && is_over(p)) } else { None };
    }
    let num_computing = num(&computes);
    if num_computing > 0 && num_computing < alive.len() {
        return among(&|p| computes(p) && is_over(p));
    }
    if num(&is_over) < alive.len() {
        return None;
    }
    let is_awaited = |p: &&Reported| {
        p.waits_for.is_empty() && alive.iter().any(|q| q.waits_for.contains(&p.process_index))
    };
    let asks = |p: &&Reported| p.phase == Phase::Coordinator;
    let earliest = alive.iter().map(|p| p.step).min()?;
    let is_behind = |p: &&Reported| p.step == earliest;
    let differing: [&dyn Fn(&&Reported) -> bool; 3] = [&is_awaited, &asks, &is_behind];
    let found = differing.into_iter().find(|is| (1..alive.len()).contains(&num(is)));
    match found {
        Some(is) => among(is),
        None if alive.len() == 1 => among(&|_| true),
        None => Some(Standstill::Unexplained),
    }
}
