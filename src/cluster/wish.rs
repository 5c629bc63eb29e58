//! What processes may wish for in the course of a run.

/// Something that all processes do after the same step, wished for by any of them at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wish {
    /// Save a checkpoint.
    Save,
    /// Save a checkpoint and end the run.
    Stop,
    /// Save a checkpoint and end this process: the run goes on in processes of other hosts.
    Regroup,
    /// As [`Self::Regroup`], while all hosts stay: a snapshot in their memory will do.
    Grow,
}

/// The outcome of processes that were stopped after the same step.
pub const INTERRUPTED: &str = "interrupted";
/// The outcome of processes that end because of [`Wish::Regroup`] or [`Wish::Grow`], and their exit
/// code.
pub const REGROUP: &str = "regroup";
/// Of no other end: `EX_TEMPFAIL`.
pub const REGROUP_CODE: u8 = 75;

/// `true` for the exit codes of processes that have done what they were to do: the run is done,
/// was stopped by a signal, or goes on elsewhere.
pub fn ends_well(exit_code: i32) -> bool {
    matches!(exit_code, 0 | 129 | 130 | 143) || exit_code == i32::from(REGROUP_CODE)
}

/// A wish, and when it is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgreedWish {
    /// Number of steps after which it is due: at the first launch boundary at or after it.
    pub step: u64,
    /// What is wished for.
    pub wish: Wish,
}

impl Wish {
    pub(super) fn code(self) -> u32 {
        match self {
            Self::Save => 1,
            Self::Stop => 2,
            Self::Regroup => 3,
            Self::Grow => 4,
        }
    }

    pub(super) fn from_code(code: u32) -> Option<Self> {
        let all = [Self::Save, Self::Stop, Self::Regroup, Self::Grow];
        all.into_iter().find(|wish| wish.code() == code)
    }
}
