//! What limits scaling, and what would help, in words. Settings are named only if the prediction
//! with them is better.

use hlo::counted;

use super::Chip;
use super::cost::{DeviceLayout, Timeline, WhatIf, all_reduce};
use super::row::Row;
use super::scaling::Measured;

/// The fraction of exposed communication from which it is reported.
const NOTICEABLE: f64 = 0.1;
/// Other buckets are named if the step waits at most this fraction of the time with them.
const BETTER: f64 = 0.9;

/// What is predicted, and for what.
pub(super) struct Found<'a> {
    pub chip: &'a Chip,
    pub layout: &'a DeviceLayout,
    pub what_if: Option<&'a WhatIf>,
    pub steps: &'a [Measured],
}

/// The limit of scaling that the rows of these steps show.
pub(super) fn finding(found: &Found<'_>, rows: &[Row]) -> String {
    let waits = |row: &Row, share: f64| row.exposed_ms > share * row.step_ms;
    let Some(at) = rows.iter().position(|row| waits(row, NOTICEABLE)) else {
        return format!(
            "up to {} the step hardly waits for collectives",
            counted(rows.last().map_or(1, |row| row.num_devices), "device")
        );
    };
    let (Some(step), Some(row)) = (found.steps.get(at), rows.get(at)) else {
        return String::new();
    };
    let why = reason(found, step, row, at > 0);
    let largest = found.steps.last().zip(rows.last()).filter(|(_, row)| waits(row, NOTICEABLE));
    let buckets = largest.and_then(|(step, row)| other_buckets(found, step, row));
    let buckets = buckets.unwrap_or_default();
    let dominated = rows.iter().find(|row| waits(row, 0.5));
    let dominated = dominated.map_or(String::new(), |row| {
        format!("; from {} devices on it waits longer than it computes", row.num_devices)
    });
    format!(
        "from {} on the step waits for more than a tenth of its time: {why}{dominated}{buckets}",
        counted(row.num_devices, "device")
    )
}

fn reason(found: &Found<'_>, step: &Measured, row: &Row, has_fewer: bool) -> String {
    let fabric = found.layout.first(step.num_devices);
    let (bytes, gathered) = (step.timeline.gradient_bytes(), step.timeline.gathered_bytes());
    let secs = all_reduce(&fabric, bytes as f64).0;
    let latency = all_reduce(&fabric, 0.0).0;
    let early = step.timeline.gradient_bytes_by(0.99);
    if latency > secs / 2.0 {
        let what_helps =
            if has_fewer { "fewer devices help" } else { "more examples on each device help" };
        format!("the hops take longer than the bytes: {what_helps}")
    } else if row.communication_ms > row.compute_ms {
        format!(
            "{} take longer than the arithmetic: more examples on each device help",
            megabytes(bytes, gathered)
        )
    } else if fabric.num_groups > 1 && early * 2 > bytes {
        format!("the network between groups of {} is slow", counted(fabric.group.size(), "device"))
    } else if gathered > 0 {
        format!("of {} not all overlap with the arithmetic", megabytes(bytes, gathered))
    } else if early * 2 > bytes {
        format!(
            "the collectives take {:.2} ms, and the arithmetic that is left when they can begin \
             hides {:.2} of these: more examples on each device help",
            row.communication_ms,
            row.communication_ms - row.exposed_ms
        )
    } else {
        let late = bytes - early;
        format!(
            "{:.0} of {:.0} MB of gradients are there only when the arithmetic ends",
            late as f64 / 1e6,
            bytes as f64 / 1e6
        )
    }
}

/// The buckets with which the largest step is predicted to wait least, if that is enough less. What
/// is best for a few devices is not for many.
fn other_buckets(found: &Found<'_>, step: &Measured, row: &Row) -> Option<String> {
    let exposed_ms = |timeline: &Timeline| {
        1e3 * timeline.step_if(&step.work, found.chip, found.layout, found.what_if).exposed_secs
    };
    let others = step.other_buckets.iter().map(|(bytes, other)| (*bytes, exposed_ms(other)));
    let (bytes, waited) = others.min_by(|a, b| a.1.total_cmp(&b.1))?;
    (waited <= BETTER * row.exposed_ms).then(|| {
        format!(
            "; on {} it is predicted to wait {waited:.2} ms instead of {:.2} with \
             parallel.bucket_bytes={bytes}",
            counted(row.num_devices, "device"),
            row.exposed_ms
        )
    })
}

fn megabytes(reduced: u64, gathered: u64) -> String {
    let mb = |bytes: u64| format!("{:.0} MB", bytes as f64 / 1e6);
    match gathered {
        0 => format!("{} of gradients", mb(reduced)),
        _ => format!("{} of gradients and {} of gathered parameters", mb(reduced), mb(gathered)),
    }
}
