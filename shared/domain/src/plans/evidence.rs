//! The state of a placement by LEDGER. It decides nothing: rules of plans read it.

use muster_contract::canonical::Digest;
use muster_contract::retry::Retry;
use muster_contract::rollout::Retries;
use muster_contract::view::{Freshness, Standing};
use muster_contract::{DeviceKey, InstanceName, Timestamp};

use crate::rollout::Line;

/// An instance on a node, by LEDGER.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlacementEvidence<'a> {
    /// Digest of the order that the node's desired state has for the instance; absent if it has none.
    pub desired: Option<Digest>,
    /// The node's report: `None` if LEDGER has none, or the node has removed it.
    pub standing: Option<Standing>,
    /// Whether the row of the report is of an instance that the node removes.
    pub is_leaving: bool,
    /// Whether the node is heard and no missing report can be newer.
    pub is_known: bool,
    /// Time at which the node was last heard.
    pub last_heard_at: Option<Timestamp>,
    /// Whether the node is retired: it gets no order.
    pub is_retired: bool,
    /// Attempts of the node after errors.
    pub retries: &'a [Retry],
}

/// A source of evidence. It is pure: one reading of LEDGER.
pub trait PlansEvidence {
    /// An instance on a node.
    fn placement(&self, node: &DeviceKey, instance: &InstanceName) -> PlacementEvidence<'_>;
}

impl<'a> PlacementEvidence<'a> {
    /// The evidence of a line of the fold, or of a node without that line. A node that was never heard runs nothing.
    pub fn of(
        desired: Option<Digest>,
        line: Option<Line<'a>>,
        heard: Option<(Freshness, Option<Timestamp>)>,
    ) -> Self {
        let Some(line) = line else {
            let is_known = heard.is_none_or(|(freshness, _)| freshness != Freshness::Stale);
            let last_heard_at = heard.and_then(|(_, at)| at);
            return Self { desired, is_known, last_heard_at, ..Self::default() };
        };
        let is_known = line.known && line.freshness == Freshness::Fresh;
        Self {
            desired,
            standing: Some(line.standing),
            is_leaving: line.leaving,
            is_known,
            last_heard_at: line.last_heard_at,
            is_retired: false,
            retries: line.retries,
        }
    }

    /// The same evidence, not known to be current.
    #[must_use]
    pub const fn outdated(self) -> Self {
        Self { is_known: false, ..self }
    }

    /// Whether the node runs the instance by an order.
    pub fn runs(&self, order: Digest) -> bool {
        self.is_reported(order, Standing::Installed)
    }

    /// Whether the node could not carry out an order, and makes no further attempt that these rules allow.
    pub fn failed(&self, order: Digest, allowed: Option<&Retries>) -> bool {
        self.is_reported(order, Standing::Failed)
            && !allowed.is_some_and(|allowed| allowed.allow(self.retries))
    }

    /// The attempt of a node that could not carry out an order and tries again.
    pub fn tries_again(&self, order: Digest) -> Option<&Retry> {
        self.retries.first().filter(|_| self.is_reported(order, Standing::Failed))
    }

    /// The last error of the node's attempts, with its number.
    pub fn last_error(&self) -> Option<String> {
        let Retry { attempt, last_error, .. } = self.retries.first()?;
        let words = [&last_error.code, &last_error.message].map(String::as_str);
        let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
        Some(format!("attempt {attempt}: {}", words.join(": ")))
    }

    /// Whether the node has stopped the instance by an order to stop it: its components are then `pending`.
    pub fn is_stopped(&self, order: Digest) -> bool {
        self.is_reported(order, Standing::Pending)
    }

    /// Whether the node is known to have this standing under an order.
    fn is_reported(&self, order: Digest, standing: Standing) -> bool {
        self.desired == Some(order) && !self.is_leaving && self.is_known && self.standing == Some(standing)
    }

    /// Whether the node is known to have removed the instance.
    pub fn is_gone(&self) -> bool {
        let is_removed =
            self.standing.is_none() || self.is_leaving && self.standing == Some(Standing::Removed);
        self.desired.is_none() && self.is_known && is_removed
    }

    /// Whether the instance may run, for the choice of instances to keep.
    pub fn is_running(&self) -> bool {
        self.standing == Some(Standing::Installed) && self.desired.is_some()
    }
}
