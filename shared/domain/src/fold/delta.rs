//! Changes of counts: a fact retracts the old contribution of a row and adds the new one.

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

/// Combines counts in the same places. Inlined, it is a loop of known length.
#[inline(always)]
pub(super) fn combine(own: &mut [u32], others: &[u32], how: impl Fn(u32, u32) -> u32) {
    assert_eq!(own.len(), others.len());
    for at in 0..own.len() {
        own[at] = how(own[at], others[at]);
    }
}
