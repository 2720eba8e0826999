//! The direction of a change of counts: a fact retracts the old contribution of a row and adds the new one.

use std::ops::{AddAssign, SubAssign};

/// Whether a contribution is added to the counts or retracted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delta {
    Add,
    Retract,
}

impl Delta {
    pub(super) fn apply<N: AddAssign + SubAssign>(self, count: &mut N, amount: N) {
        match self {
            Self::Add => *count += amount,
            Self::Retract => *count -= amount,
        }
    }
}
