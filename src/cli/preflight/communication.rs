//! Do the collectives hide behind the arithmetic, and what makes them?

use hlo::counted;

use super::page::{PreflightAnswer, PreflightVerdict, milliseconds, number};
use crate::cli::args::ConfigArgs;
use crate::cli::compile::TargetStep;
use crate::config::BatchSize;
use crate::targets::{CompileReport, Row, ScalingPrediction, Scenario, Target};

/// The largest fraction of a step that waiting for collectives may take.
const MAX_EXPOSED: f64 = 0.1;
/// Larger batches that are tried where the step waits for collectives.
const LARGER: [usize; 4] = [2, 4, 8, 16];
/// Statistics of fewer examples are noise; the recipe checker warns about them.
const MIN_NORM_GROUP: usize = 8;
/// Another setting helps if it cuts the step's waiting time to at most this fraction.
const HELPS: f64 = 0.7;

/// `report` is of the compiled step, `rows` are predictions for it on parts of the target.
pub(super) fn answer(
    config: &ConfigArgs,
    target: &Target,
    report: &CompileReport,
    step: &TargetStep,
    rows: &ScalingPrediction,
) -> PreflightAnswer {
    let exposed = report.exposed_ms / report.predicted_step_ms;
    let is_hidden = exposed <= MAX_EXPOSED;
    let mut details = vec![format!(
        "arithmetic {}, of which {} in the backward pass; collectives {}, of which {} are hidden; \
         {} for the slowest device",
        milliseconds(report.compute_ms),
        milliseconds(report.backward_ms),
        milliseconds(report.communication_ms),
        milliseconds((report.communication_ms - report.exposed_ms).max(0.0)),
        milliseconds(report.jitter_ms),
    )];
    let whole = rows.of(target.num_devices());
    // The two differ only in the communication that is hidden.
    details.extend(whole.map(|row| {
        format!(
            "the schedule is the compiled one; `lockstep plan`, which knows only the graph, \
             predicts {} a step",
            milliseconds(row.step_ms)
        )
    }));
    details.extend(report.collective_sums.iter().map(|sum| {
        format!(
            "{} {} ({}) over groups of {}, {:.1} MB: {}, {} beside matmuls",
            number(sum.count as f64),
            sum.kind,
            sum.phase,
            sum.group_size,
            sum.bytes as f64 / 1e6,
            milliseconds(sum.predicted_ms),
            number(sum.overlapped_count as f64),
        )
    }));
    let trials = Trials { config, target, step, exposed_ms: report.exposed_ms, whole };
    let changes = if is_hidden { vec![] } else { trials.changes(rows) };
    let summary = format!(
        "waits {} of {} for collectives ({:.0} %)",
        milliseconds(report.exposed_ms),
        milliseconds(report.predicted_step_ms),
        100.0 * exposed
    );
    PreflightAnswer { verdict: PreflightVerdict::of(is_hidden), summary, details, changes }
}

/// Other settings, and what is predicted for them.
struct Trials<'a> {
    config: &'a ConfigArgs,
    target: &'a Target,
    step: &'a TargetStep,
    /// Milliseconds that the compiled step waits for collectives.
    exposed_ms: f64,
    /// The prediction for the whole target from the step's graph.
    whole: Option<&'a Row>,
}

impl Trials<'_> {
    /// Settings that help, first those that change the run least.
    fn changes(&self, rows: &ScalingPrediction) -> Vec<String> {
        let with_caveat = |change: String, exposed: f64| {
            format!(
                "{change} (predicted to wait {:.0} %; ask again, because memory and recipe depend \
                 on it)",
                100.0 * exposed
            )
        };
        let found = [self.unrolled(), self.smaller_norm_group(), self.larger_batch()];
        let mut changes: Vec<_> = found
            .into_iter()
            .flatten()
            .map(|(set, exposed)| with_caveat(format!("--set {set}"), exposed))
            .collect();
        changes.extend(fewer_devices(&rows.rows, self.target.num_devices()));
        if changes.is_empty() {
            changes.push(format!(
                "a larger model, or devices with faster links: with {} times the batch, the step \
                 is still predicted to wait for more than {:.0} %",
                LARGER[LARGER.len() - 1],
                100.0 * MAX_EXPOSED
            ));
        }
        changes
    }

    /// The predicted step with another setting.
    fn predicted(&self, set: &str) -> Option<Row> {
        let sets = [set.to_owned()];
        let step = TargetStep::new(self.config, &sets, self.target, self.target.num_devices());
        let measured = step.and_then(|step| step.measure()).ok()?;
        let scenario = Scenario { network: self.step.network, ..Scenario::default() };
        ScalingPrediction::new(self.target, &[measured], None, &scenario).rows.into_iter().next()
    }

    /// The setting and the part that the step waits for, if that is less than now by enough.
    fn helps(&self, set: String) -> Option<(String, f64)> {
        let row = self.predicted(&set)?;
        let now = self.whole?;
        let is_less = row.exposed_ms <= HELPS * now.exposed_ms && row.step_ms < now.step_ms;
        is_less.then_some((set, row.exposed_ms / row.step_ms))
    }

    /// Unrolled blocks: their collectives overlap with those of other blocks.
    fn unrolled(&self) -> Option<(String, f64)> {
        let model = toml::Value::try_from(&self.step.loaded.config.model).ok()?;
        let is_scanned = model.get("scan_layers").and_then(toml::Value::as_bool) == Some(true);
        is_scanned.then(|| self.helps("model.scan_layers=false".to_owned())).flatten()
    }

    /// The largest group of batch norm, on fewer replicas than now, with which the step waits for
    /// less.
    fn smaller_norm_group(&self) -> Option<(String, f64)> {
        let group = self.step.loaded.config.model.batch_norm_group()?;
        let microbatch = self.step.run.batch.microbatch();
        let smaller = norm_groups(group, microbatch, self.target.num_devices());
        smaller.into_iter().find_map(|group| self.helps(format!("model.batch_norm_group={group}")))
    }

    /// The least larger batch with which the step is predicted to wait for little.
    fn larger_batch(&self) -> Option<(String, f64)> {
        let (key, now) = match self.step.loaded.config.train.batch {
            BatchSize::Global(batch) => ("train.global_batch", batch),
            BatchSize::PerReplica(batch) => ("train.batch_per_replica", batch),
        };
        // The compiled schedule exposes some communication that the graph would let it hide. That
        // is not hidden then either.
        let more_ms = (self.exposed_ms - self.whole?.exposed_ms).max(0.0);
        LARGER.into_iter().find_map(|factor| {
            let set = format!("{key}={}", now.checked_mul(factor)?);
            let row = self.predicted(&set)?;
            let exposed = (row.exposed_ms + more_ms) / (row.step_ms + more_ms);
            (exposed <= MAX_EXPOSED).then_some((set, exposed))
        })
    }
}

/// A smaller part of the target on which the step is predicted to wait for little.
fn fewer_devices(rows: &[Row], num_devices: usize) -> Option<String> {
    let shares = rows.iter().map(|row| (row.num_devices, row.exposed_ms / row.step_ms));
    let (fewer, exposed) = most_hidden(shares, num_devices)?;
    Some(format!(
        "a smaller target: on {} the step is predicted to wait {:.0} %",
        counted(fewer, "device"),
        100.0 * exposed
    ))
}

/// The most devices, fewer than `all`, that wait for little.
fn most_hidden(shares: impl Iterator<Item = (usize, f64)>, all: usize) -> Option<(usize, f64)> {
    let enough = shares.filter(|(num_devices, share)| *num_devices < all && *share <= MAX_EXPOSED);
    enough.max_by_key(|(num_devices, _)| *num_devices)
}

/// Smaller groups that lie on fewer replicas, largest first.
fn norm_groups(group: usize, microbatch: usize, num_replicas: usize) -> Vec<usize> {
    let replicas = (1..num_replicas).rev().filter(|count| num_replicas.is_multiple_of(*count));
    let groups = replicas.map(|count| count * microbatch);
    groups.filter(|smaller| *smaller < group && *smaller >= MIN_NORM_GROUP).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_target_has_fewer_devices() {
        let shares = [(1, 0.0), (2, 0.05), (4, 0.09), (8, 0.3)];
        assert_eq!(most_hidden(shares.into_iter(), 8), Some((4, 0.09)));
        // The compiled step waits although this is predicted.
        assert_eq!(most_hidden(shares.into_iter(), 4), Some((2, 0.05)));
        assert_eq!(most_hidden(shares.into_iter().take(1), 1), None);
    }

    #[test]
    fn smaller_norm_groups_lie_on_fewer_replicas_and_are_no_noise() {
        assert_eq!(norm_groups(256, 16, 32), [128, 64, 32, 16]);
        assert_eq!(norm_groups(32, 4, 32), [16, 8]);
        assert!(norm_groups(16, 16, 32).is_empty());
    }
}
