//! The stages in which a process drains.

use std::fmt;

/// The purpose of a task; a drain stops the stages in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Accepts new work.
    Intake,
    /// Does the accepted work.
    Work,
    /// Publishes results and waits until they are confirmed.
    Publish,
    /// Serves health and metrics: last, so that they can be read during the drain.
    Serve,
}

impl Stage {
    /// All stages, in the order in which they are drained.
    pub const ALL: [Self; 4] = [Self::Intake, Self::Work, Self::Publish, Self::Serve];
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Intake => "intake",
            Self::Work => "work",
            Self::Publish => "publish",
            Self::Serve => "serve",
        })
    }
}
