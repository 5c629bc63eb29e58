//! The sections of the state: what a leaf is for, by its path. No other code takes paths apart.

use std::fmt;

use hlo::Tree;

use super::{NUM_SKIPPED, STEP, ema_path};

/// A part of the state, whose leaves have a path of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StateSection {
    /// Parameters.
    Params,
    /// Running means that training observes and evaluation uses.
    ModelState,
    /// The optimizer's state, in kinds: `KIND.NAME` for each parameter that has one.
    OptState,
    /// What the sums of gradients keep from step to step, in kinds as the optimizer's state; see
    /// [`Synchronize`](crate::parallel::Synchronize).
    Comm,
    /// The counters of steps and of skipped updates.
    Counters,
}

impl StateSection {
    /// The sections with leaves under their names.
    const NAMED: [StateSection; 4] = [Self::Params, Self::ModelState, Self::OptState, Self::Comm];

    /// The first name of its leaves' paths. Counters stand alone.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Params => "params",
            Self::ModelState => "model_state",
            Self::OptState => "opt_state",
            Self::Comm => "comm",
            Self::Counters => "counters",
        }
    }

    /// The path in the state of the leaf with this name in the section.
    pub fn path(self, name: impl fmt::Display) -> String {
        format!("{self}.{name}")
    }

    /// The section of the leaf with this path in the state, and the leaf's name there.
    ///
    /// ```
    /// use lockstep::step::StateSection;
    ///
    /// assert_eq!(StateSection::of("params.head.bias"), Some((StateSection::Params, "head.bias")));
    /// assert_eq!(StateSection::of("step"), Some((StateSection::Counters, "step")));
    /// assert_eq!(StateSection::of("head.bias"), None);
    /// ```
    pub fn of(path: &str) -> Option<(Self, &str)> {
        if [STEP, NUM_SKIPPED].contains(&path) {
            return Some((Self::Counters, path));
        }
        let (first, name) = path.split_once('.')?;
        Self::NAMED
            .into_iter()
            .find(|section| section.name() == first)
            .map(|section| (section, name))
    }

    /// The name of the parameter that a leaf of the state belongs to, if it belongs to one.
    ///
    /// ```
    /// use lockstep::step::StateSection;
    ///
    /// assert_eq!(StateSection::parameter("opt_state.momentum.head.bias"), Some("head.bias"));
    /// assert_eq!(StateSection::parameter("num_skipped"), None);
    /// ```
    pub fn parameter(path: &str) -> Option<&str> {
        match Self::of(path)? {
            (Self::Params, name) => Some(name),
            (Self::OptState | Self::Comm, name) => name.split_once('.').map(|(_, name)| name),
            (Self::ModelState | Self::Counters, _) => None,
        }
    }

    /// The name of the parameter that a leaf of the state holds, or the running mean of.
    pub(super) fn value_of_parameter(path: &str) -> Option<&str> {
        let mean = ema_path("");
        match Self::of(path)? {
            (Self::Params, name) => Some(name),
            (Self::OptState, _) => path.strip_prefix(&*mean),
            _ => None,
        }
    }

    /// The leaves of this section among those of a state, by their names.
    pub fn leaves<T: Clone>(self, state: &Tree<T>) -> Tree<T> {
        state.subtree(self.name())
    }

    /// Leaves by their names in this section, by their paths in the state.
    pub fn paths<T>(self, leaves: Tree<T>) -> Tree<T> {
        leaves.prefixed(self.name())
    }
}

impl fmt::Display for StateSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
