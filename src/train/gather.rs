//! Whole leaves of a state that is spread over several processes.

use std::collections::HashMap;

use hlo::{LeafSpec, Literal};

use super::programs::{Callable, compile_late};
use super::{Error, Trainer};
use crate::pjrt::Arg;
use crate::step::{self, GATHERED};

/// Programs that gather a leaf on every replica, by what the leaf is. Leaves are gathered one after
/// the other, so that only one is whole at a time.
#[derive(Default)]
pub(super) struct Gathers(HashMap<String, Callable>);

impl Trainer {
    /// The whole value of a leaf. All processes must call it for the same leaves in the same order,
    /// if a leaf is spread over them.
    ///
    /// # Errors
    /// If the state has no such leaf, or a launch or a transfer fails.
    pub(super) fn gather_leaf(&self, path: &str, gathers: &mut Gathers) -> Result<Literal, Error> {
        let (Some(spec), Some(leaf)) = (self.state.specs().get(path), self.state.get(path)) else {
            return Ok(self.state.gather(path)?.wait()?);
        };
        if self.state.is_here(spec) {
            return Ok(self.state.gather(path)?.wait()?);
        }
        let key = format!("{spec}");
        let program = match gathers.0.remove(&key) {
            Some(program) => program,
            None => self.compile_gather(spec)?,
        };
        let mut results = program.call([Arg::Borrow(leaf)], |_| None)?.results;
        let whole = results.take(GATHERED)?.first_to_host()?.wait()?;
        drop(results);
        gathers.0.insert(key, program);
        Ok(whole)
    }

    fn compile_gather(&self, spec: &LeafSpec) -> Result<Callable, Error> {
        let graph = step::trace_gather(*self.state.mesh(), spec)?;
        compile_late(&self.client, &self.settings, self.lowering.lower(graph, "gather"))
    }
}
