//! The numbers of a step that the host knows. Each is declared here and nowhere else; those that
//! the program computes are in [`COMPUTED_METRICS`](crate::step::COMPUTED_METRICS).

use std::time::Duration;

use super::StepResult;
use crate::observe::{Metric, MetricValues, StepMetrics};

/// Where the time of a launch went.
#[derive(Clone, Copy)]
pub(super) struct LaunchTimes {
    /// Steps that were launched, including those after one that stops the run.
    pub num_steps: usize,
    /// From the end of the previous launch to the end of this one.
    pub total: Duration,
    /// From the end of the previous launch until this one was launched: zero if it was launched
    /// ahead.
    pub delay: Duration,
    /// The same until the plugin had taken it, which may run it on this thread meanwhile.
    pub taken_after: Duration,
    /// The part of `delay` in which the loop waited for its batch.
    pub input: Duration,
    /// The host's work to launch it.
    pub host: Duration,
    /// Time that the loop waited for its batch.
    pub data_wait: Duration,
    /// Time that this process waited for others in collectives, if it is known.
    pub collective_wait: Option<Duration>,
}

/// What the host knows about a step.
pub(super) struct HostStep<'a> {
    pub result: &'a StepResult,
    pub times: LaunchTimes,
    /// When its numbers were known, in seconds since 1970-01-01 UTC.
    pub time: f64,
    pub global_batch: usize,
    /// NaN if the data has no end.
    pub steps_per_epoch: f64,
    /// The batch that the noise of gradients suggests, if it has been measured.
    pub noise_scale: Option<f64>,
}

/// A metric, and its value; `None` in a run that cannot know it.
struct HostMetric {
    metric: Metric,
    value: fn(&HostStep<'_>) -> Option<f64>,
}

/// Those that stand before what the program computes.
const PLACE: &[HostMetric] = &[
    HostMetric { metric: Metric::number("time"), value: |step| Some(step.time) },
    HostMetric {
        metric: Metric::number("epoch"),
        value: |step| Some(step.num_steps() as f64 / step.steps_per_epoch),
    },
    HostMetric {
        metric: Metric::count("examples"),
        value: |step| Some((step.num_steps() * step.global_batch as u64) as f64),
    },
    HostMetric { metric: Metric::number("lr"), value: |step| Some(step.result.lr) },
];

/// Those that stand after it.
const TIMES: &[HostMetric] = &[
    HostMetric { metric: Metric::number(Metric::NOISE_SCALE), value: |step| step.noise_scale },
    HostMetric { metric: Metric::number("step_ms"), value: |step| Some(step.ms(step.times.total)) },
    HostMetric {
        metric: Metric::number("launch_delay_ms").summed_as("launch_delay_secs"),
        value: |step| Some(step.ms(step.times.delay)),
    },
    HostMetric { metric: Metric::number("host_ms"), value: |step| Some(step.ms(step.times.host)) },
    HostMetric {
        metric: Metric::number("data_wait_ms"),
        value: |step| Some(step.ms(step.times.data_wait)),
    },
    HostMetric {
        metric: Metric::number("collective_wait_ms").summed_as("collective_wait_secs"),
        value: |step| step.times.collective_wait.map(|wait| step.ms(wait)),
    },
    HostMetric {
        metric: Metric::number("examples_per_sec"),
        value: |step| Some(step.global_batch as f64 / step.ms(step.times.total) * 1e3),
    },
];

impl HostStep<'_> {
    /// All metrics of the step.
    pub fn metrics(&self) -> StepMetrics {
        let place = self.values(PLACE);
        let values = place.chain(self.result.metrics.iter()).chain(self.values(TIMES));
        StepMetrics { step: self.result.step, values: values.collect::<MetricValues>() }
    }

    fn values(
        &self,
        metrics: &'static [HostMetric],
    ) -> impl Iterator<Item = (&'static Metric, f64)> {
        metrics.iter().filter_map(|host| Some((&host.metric, (host.value)(self)?)))
    }

    /// Steps taken at its end.
    fn num_steps(&self) -> u64 {
        self.result.step + 1
    }

    /// The part of a launch's time that is this step's, in milliseconds.
    fn ms(&self, of_launch: Duration) -> f64 {
        of_launch.as_secs_f64() * 1e3 / self.times.num_steps as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::COMPUTED_METRICS;

    #[test]
    fn a_line_has_the_same_fields_in_the_same_order_and_the_docs_have_them_all() {
        let names = COMPUTED_METRICS.iter().map(|computed| &computed.metric);
        let result = StepResult {
            step: 3,
            metrics: names.zip([0.5, 2.0, 8.0, 1.0, 0.0]).collect(),
            lr: 0.1,
            ..StepResult::default()
        };
        let ms = Duration::from_millis;
        let times = LaunchTimes {
            num_steps: 2,
            total: ms(10),
            delay: ms(4),
            taken_after: ms(4),
            input: ms(0),
            host: ms(2),
            data_wait: ms(0),
            collective_wait: Some(ms(6)),
        };
        let line_of = |times, noise_scale| {
            let (result, time, global_batch, steps_per_epoch) = (&result, 7.0, 64, 8.0);
            let step = HostStep { result, times, time, global_batch, steps_per_epoch, noise_scale };
            serde_json::to_string(&step.metrics()).unwrap()
        };
        let line = |times| line_of(times, None);
        let expected = "{\"step\":3,\"time\":7.0,\"epoch\":0.5,\"examples\":256,\"lr\":0.1,\
                        \"loss\":0.5,\"grad_norm\":2.0,\"num_skipped\":1,\"step_ms\":5.0,\
                        \"launch_delay_ms\":2.0,\"host_ms\":1.0,\"data_wait_ms\":0.0,\
                        \"collective_wait_ms\":3.0,\"examples_per_sec\":12800.0}";
        assert_eq!(line(times), expected);
        let alone = line(LaunchTimes { collective_wait: None, ..times });
        assert_eq!(alone, expected.replace("\"collective_wait_ms\":3.0,", ""));

        let with_noise = line_of(times, Some(0.5));
        let expected = expected.replace("\"step_ms\"", "\"noise_scale\":0.5,\"step_ms\"");
        assert_eq!(with_noise, expected);

        let docs = include_str!("../../docs/outputs.md");
        let host = PLACE.iter().chain(TIMES).map(|host| &host.metric);
        let computed = COMPUTED_METRICS.iter().map(|computed| &computed.metric);
        for metric in host.chain(computed).filter(|metric| metric.is_written) {
            for field in [Some(metric.name), metric.total_secs].into_iter().flatten() {
                let row = format!("\n| `{field}` | ");
                assert!(docs.contains(&row), "docs/outputs.md: no row for `{field}`");
            }
        }
    }
}
