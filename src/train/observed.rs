//! Which steps are observed more closely, and what their program returns of them.

use std::sync::Arc;

use hlo::{LeafSpec, Tree, row_paths, rows};

use crate::config::ObserveConfig;
use crate::observe::{HistogramBuckets, StepLayers};
use crate::step::{StateSection, StepDiagnostics};

/// The steps that another program takes, which measures more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObservedSteps {
    /// Steps between norms of each parameter; 0 for none.
    pub layers_every: u64,
    /// `true` if the values of each parameter are counted, too.
    pub has_histograms: bool,
    /// Steps between measurements of the noise of gradients; 0 for none.
    pub noise_every: u64,
}

impl ObservedSteps {
    pub(super) fn new(config: &ObserveConfig) -> Self {
        Self {
            layers_every: config.layers_every,
            has_histograms: config.layers_every > 0 && config.tensorboard,
            noise_every: config.noise_scale_every,
        }
    }

    /// What their program measures; `None` if there are no such steps.
    pub(super) fn diagnostics(self) -> Option<StepDiagnostics> {
        let (layers, noise) = (self.layers_every > 0, self.noise_every > 0);
        let diagnostics = StepDiagnostics { layers, histograms: self.has_histograms, noise };
        (diagnostics != StepDiagnostics::default()).then_some(diagnostics)
    }

    /// `true` if norms of each parameter are recorded of this step, from 0.
    pub(super) fn has_layers(self, step: u64) -> bool {
        is_last_of(self.layers_every, step)
    }

    /// `true` if the noise of the gradient is measured in this step.
    pub(super) fn has_noise(self, step: u64) -> bool {
        is_last_of(self.noise_every, step)
    }

    /// `true` if this step is one of them.
    pub(super) fn is_observed(self, step: u64) -> bool {
        self.has_layers(step) || self.has_noise(step)
    }

    /// The numbers of steps after a multiple of which a launch ends.
    pub(super) fn stops(self) -> [u64; 2] {
        [self.layers_every, self.noise_every]
    }
}

/// `true` if a step, from 0, is the last of `every` steps.
fn is_last_of(every: u64, step: u64) -> bool {
    every > 0 && (step + 1).is_multiple_of(every)
}

/// The parameters as files name them, and where a program has their norms.
pub(super) struct LayerRows {
    names: Arc<[String]>,
    places: Vec<usize>,
}

impl LayerRows {
    /// Of the leaves of a state.
    pub fn new(leaves: &Tree<LeafSpec>) -> Self {
        let params = StateSection::Params.leaves(leaves);
        let in_program = params.iter().flat_map(|(path, spec)| row_paths(path, spec));
        let in_program: Vec<_> = in_program.collect();
        let names: Arc<[String]> = rows(&params).paths().map(str::to_owned).collect();
        let place = |name: &String| in_program.iter().position(|other| other == name);
        Self { places: names.iter().filter_map(place).collect(), names }
    }

    /// The norms of a step, from those that its program has: `[3, rows]`; and the counts, from
    /// `[rows, buckets]`, if it has them.
    pub fn layers(&self, step: u64, norms: &[f64], counts: &[f64]) -> StepLayers {
        let mut of_kind = norms.chunks(self.names.len().max(1)).map(|norms| {
            let norm = |place: &usize| norms.get(*place).copied().unwrap_or(f64::NAN);
            self.places.iter().map(norm).collect()
        });
        let mut next = || of_kind.next().unwrap_or_default();
        let (param_norm, grad_norm, update_norm) = (next(), next(), next());
        let of_row = |place: &usize| counts.chunks(HistogramBuckets::COUNT).nth(*place);
        let counts = self.places.iter().filter_map(of_row).flatten();
        let counts = counts.map(|count| *count as u32).collect();
        StepLayers { step, names: self.names.clone(), param_norm, grad_norm, update_norm, counts }
    }
}

#[cfg(test)]
mod tests {
    use hlo::DType;

    use super::*;

    #[test]
    fn norms_have_the_names_of_rows_in_the_order_of_the_model() {
        let leaf = |path: &str, num: usize| {
            let leaf = LeafSpec::replicated(DType::F32, &[3]);
            (format!("params.{path}"), if num == 0 { leaf } else { leaf.stacked(&[num]) })
        };
        let leaves = [leaf("embed", 0), leaf("blocks.*.a", 2), leaf("blocks.*.b", 2)];
        let rows = LayerRows::new(&leaves.into_iter().collect());
        let norms: Vec<_> = (0..15).map(f64::from).collect();
        let of_row = |row: u32| [f64::from(row); HistogramBuckets::COUNT];
        let counts: Vec<_> = (0..5).flat_map(of_row).collect();
        let layers = rows.layers(7, &norms, &counts);
        let names = ["embed", "blocks.0.a", "blocks.0.b", "blocks.1.a", "blocks.1.b"];
        assert_eq!(layers.names[..], names);
        assert_eq!(layers.param_norm, [0.0, 1.0, 3.0, 2.0, 4.0]);
        assert_eq!(layers.grad_norm, [5.0, 6.0, 8.0, 7.0, 9.0]);
        let counts = layers.counts.chunks(HistogramBuckets::COUNT).map(|counts| counts[74]);
        assert_eq!(counts.collect::<Vec<_>>(), [0, 1, 3, 2, 4]);
        assert_eq!(layers.update_norm, [10.0, 11.0, 13.0, 12.0, 14.0]);
    }

    #[test]
    fn the_last_of_so_many_steps_is_observed() {
        let observed = ObservedSteps { layers_every: 3, noise_every: 4, has_histograms: false };
        let steps: Vec<_> = (0..9).filter(|step| observed.is_observed(*step)).collect();
        assert_eq!(steps, [2, 3, 5, 7, 8]);
        assert!(observed.has_noise(3) && !observed.has_layers(3));
        assert_eq!(ObservedSteps::default().diagnostics(), None);
        assert!(!ObservedSteps::default().is_observed(0));
    }
}
