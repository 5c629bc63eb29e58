//! Which steps are launched together.

use std::ops::Range;

/// The launches of the given steps of a run, as ranges of steps. A launch never runs past the end
/// or past a multiple of one of `stops` (0 for none). It has `steps_per_launch` steps if that many
/// are left before the next such place, else one step.
///
/// ```
/// use lockstep::train::launches;
/// let sizes = |stops: &[u64]| launches(0..10, 4, stops).map(|l| l.end - l.start).collect::<Vec<_>>();
/// assert_eq!(sizes(&[]), [4, 4, 1, 1]);
/// assert_eq!(sizes(&[5, 0]), [4, 1, 4, 1]);
/// assert_eq!(sizes(&[3]), [1; 10]);
/// ```
pub fn launches(
    steps: Range<u64>,
    steps_per_launch: u64,
    stops: &[u64],
) -> impl Iterator<Item = Range<u64>> + Send + use<> {
    let every: Vec<_> = stops.iter().copied().filter(|every| *every > 0).collect();
    let Range { mut start, end: total_steps } = steps;
    std::iter::from_fn(move || {
        let next_stop = |every: &u64| (start / every + 1).saturating_mul(*every);
        let stop = every.iter().map(next_stop).min().unwrap_or(total_steps).min(total_steps);
        if start >= total_steps {
            return None;
        }
        let size = if stop - start >= steps_per_launch { steps_per_launch } else { 1 };
        let launch = start..start + size;
        start = launch.end;
        Some(launch)
    })
}
