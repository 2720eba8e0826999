//! The frame of a rendered answer: the time at which a person sees it, the width of the terminal, and whether the answer may be
//! old.

use muster_contract::Timestamp;

/// A moment and a width.
#[derive(Debug, Clone, Copy)]
pub struct Frame {
    /// The moment; ages are counted from it.
    pub now: Timestamp,
    /// The time of an answer about the past; ages of silence are counted from it.
    pub then: Option<Timestamp>,
    /// Columns of the terminal; none where the text goes to no terminal and nothing is to be cut.
    pub width: Option<usize>,
    /// Whether the rollup lags behind LEDGER: then no footer calls anything fresh.
    pub lags: bool,
}

impl From<Timestamp> for Frame {
    fn from(now: Timestamp) -> Self {
        Self { now, then: None, width: None, lags: false }
    }
}

impl Frame {
    /// The moment to which ages of silence are counted.
    pub(crate) fn silent_to(&self) -> Timestamp {
        self.then.unwrap_or(self.now)
    }
}
