//! A deployment on a device as rollouts read it: from a line of a view, or from the fold without building such a line.

use muster_contract::query::StandingLine;
use muster_contract::retry::Retry;
use muster_contract::view::{Freshness, Standing};
use muster_contract::{Generation, Timestamp};

/// A deployment on a device.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// Its state by the last report.
    pub standing: Standing,
    /// Whether the device is heard.
    pub freshness: Freshness,
    /// Whether no missing report can be newer.
    pub known: bool,
    /// Whether the device is no longer a target.
    pub leaving: bool,
    /// Generation at which the device got its content.
    pub target_generation: Option<Generation>,
    /// Time of the last report, or of the content if that is later.
    pub changed_at: Option<Timestamp>,
    /// Time at which the device was last heard.
    pub last_heard_at: Option<Timestamp>,
    /// Running attempts after errors.
    pub retries: &'a [Retry],
}

impl<'a> From<&'a StandingLine> for Line<'a> {
    fn from(line: &'a StandingLine) -> Self {
        Self {
            standing: line.standing,
            freshness: line.freshness,
            known: line.known,
            leaving: line.leaving,
            target_generation: line.target_generation,
            changed_at: line.changed_at,
            last_heard_at: line.last_heard_at,
            retries: line.report.as_ref().map_or(&[], |report| &report.retries),
        }
    }
}
