//! The numbers that are shown.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::observe::event::eval_field;
use crate::observe::{EvalResult, RunEvent};

/// The numbers of a process, by their names in the files of a run.
#[derive(Clone, Debug)]
pub(super) struct Readings {
    process_index: usize,
    /// What is the same in the whole run.
    run: Vec<(&'static str, String)>,
    gauges: BTreeMap<String, f64>,
    /// Sums over what this process has done.
    counters: BTreeMap<String, f64>,
    last_checkpoint: Option<Instant>,
}

impl Readings {
    pub fn new(process_index: usize) -> Self {
        let (gauges, counters) = (BTreeMap::new(), BTreeMap::new());
        Self { process_index, run: vec![], gauges, counters, last_checkpoint: None }
    }

    pub fn update(&mut self, event: &RunEvent) {
        match event {
            RunEvent::Started(info) => {
                self.run = vec![
                    ("version", info.version.to_owned()),
                    ("backend", info.backend.clone()),
                    ("device", info.device.clone()),
                ];
                self.set("steps", info.progress.num_steps as f64);
                self.set("planned_steps", info.planned_steps as f64);
                self.set("failed_generations", info.failed_generations.len() as f64);
            }
            RunEvent::Launch(launch) => {
                for step in &launch.steps {
                    self.set("steps", (step.step + 1) as f64);
                    for (metric, value) in step.values.iter().filter(|(of, _)| of.is_written) {
                        self.set(metric.name, value);
                        if let Some(stem) = metric.name.strip_suffix("_ms") {
                            self.add(&format!("{stem}_secs"), value / 1e3);
                        }
                    }
                }
            }
            RunEvent::Evaluated { eval, took, .. } => {
                self.set(&eval_field(EvalResult::LOSS), eval.eval.loss);
                for (name, value) in &eval.eval.metrics {
                    self.set(&eval_field(name), *value);
                }
                self.set("eval_step", eval.step as f64);
                self.add_time("evaluation_secs", *took);
            }
            RunEvent::LockstepProved { took, .. } => {
                self.add("num_proofs", 1.0);
                self.add_time("proof_secs", *took);
            }
            RunEvent::CheckpointSaved(saved) => {
                self.last_checkpoint = Some(Instant::now());
                self.set("checkpoint_steps", saved.num_steps as f64);
                self.add("num_checkpoints", 1.0);
                self.add_time("checkpoint_wait_secs", saved.waited);
                self.add_time("checkpoint_write_secs", saved.written);
            }
            RunEvent::UpdateSkipped { .. }
            | RunEvent::ProcessSlow(_)
            | RunEvent::Message(_)
            | RunEvent::StepsEnded
            | RunEvent::Ended(_) => {}
        }
    }

    fn set(&mut self, name: &str, value: f64) {
        match self.gauges.get_mut(name) {
            Some(gauge) => *gauge = value,
            None => drop(self.gauges.insert(name.to_owned(), value)),
        }
    }

    fn add(&mut self, name: &str, value: f64) {
        *self.counters.entry(name.to_owned()).or_default() += value;
    }

    fn add_time(&mut self, name: &str, time: Duration) {
        self.add(name, time.as_secs_f64());
    }

    /// All of them in the text format of OpenMetrics 1.0.
    pub fn render(mut self) -> String {
        if let Some(last) = self.last_checkpoint {
            self.set("checkpoint_age_secs", last.elapsed().as_secs_f64());
        }
        let labels = [("process".into(), self.process_index.to_string().into())];
        let mut registry = Registry::with_prefix_and_labels("lockstep", labels.into_iter());
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        // Writing into a text does not fail.
        let _ = text::encode(&mut text, &registry);
        text
    }
}

impl Collector for Readings {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let run = Info::new(self.run.clone());
        run.encode(encoder.encode_descriptor("run", "The run.", None, MetricType::Info)?)?;
        for (name, value) in &self.gauges {
            let help = format!("`{name}` at the last step, as in the files of the run.");
            let encoder = encoder.encode_descriptor(name, &help, None, MetricType::Gauge)?;
            ConstGauge::new(*value).encode(encoder)?;
        }
        for (name, value) in &self.counters {
            let help = format!("`{name}` of this process, as in the files of the run.");
            let encoder = encoder.encode_descriptor(name, &help, None, MetricType::Counter)?;
            ConstCounter::new(*value).encode(encoder)?;
        }
        Ok(())
    }
}
