//! The state of a placement by LEDGER. It decides nothing: rules of plans read it.

use jiff::SignedDuration;
use muster_contract::canonical::Digest;
use muster_contract::limits::LEASE;
use muster_contract::retry::Retry;
use muster_contract::rollout::Retries;
use muster_contract::view::{Freshness, Standing};
use muster_contract::{DeviceKey, InstanceName, Timestamp};

use crate::fold::DeviceHearing;
use crate::rollout::Line;

/// Time after the withdrawal of an order at which a node that is heard, and has reported nothing of the instance, does not run it. It is
/// longer than the hub's lease, a request of the planner to the publisher, and the lag of its LEDGER together, so the node was heard after the withdrawal.
pub(super) const UNREPORTED_GONE_AFTER: SignedDuration = SignedDuration::from_mins(2);
const _: () = assert!(UNREPORTED_GONE_AFTER.as_secs().unsigned_abs() > LEASE.as_secs() + 25);

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
    /// The withdrawal of the last order for the instance, if LEDGER has one.
    pub withdrawal: Option<WithdrawalEvidence>,
    /// Time at which the node was last heard.
    pub last_heard_at: Option<Timestamp>,
    /// Whether the node is retired: it gets no order.
    pub is_retired: bool,
    /// Attempts of the node after errors.
    pub retries: &'a [Retry],
    /// Why the publisher does not change the node's desired state as the last request asked; absent if it did, or none was made.
    pub refusal: Option<&'a str>,
}

/// The withdrawal of an order by LEDGER.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WithdrawalEvidence {
    /// Time at which LEDGER stored the document that withdrew the order.
    pub stored_at: Timestamp,
    /// The same time, or that at which the node was heard again after it.
    pub heard_since: Timestamp,
    /// Whether the node has reported that it removed the instance, by that document or a later one.
    pub is_removed: bool,
}

/// The times of an instance on a node by PLANS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlansTimes {
    /// Begin of the last operation that ordered the instance.
    pub ordered_at: Timestamp,
    /// Begin of the DELETE, or end of the RELOCATE, that withdrew the order.
    pub withdrawn_at: Timestamp,
}

/// A source of evidence. It is pure: one reading of LEDGER.
pub trait PlansEvidence {
    /// An instance on a node.
    fn placement(&self, node: &DeviceKey, instance: &InstanceName) -> PlacementEvidence<'_>;
}

impl<'a> PlacementEvidence<'a> {
    /// The evidence of a line of the fold, or of a node without that line.
    pub fn of(desired: Option<Digest>, line: Option<Line<'a>>, heard: Option<DeviceHearing>) -> Self {
        let Some(line) = line else {
            let is_known = heard.is_none_or(|heard| heard.freshness != Freshness::Stale && heard.is_complete);
            let last_heard_at = heard.and_then(|heard| heard.last_heard_at);
            return Self { desired, is_known, last_heard_at, ..Self::default() };
        };
        let is_known = line.known && line.freshness == Freshness::Fresh;
        Self {
            desired,
            standing: Some(line.standing),
            is_leaving: line.leaving,
            is_known,
            withdrawal: None,
            last_heard_at: line.last_heard_at,
            is_retired: false,
            retries: line.retries,
            refusal: None,
        }
    }

    /// The same evidence, not known to be current.
    #[must_use]
    pub const fn outdated(self) -> Self {
        Self { is_known: false, is_retired: false, withdrawal: None, ..self }
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

    /// Whether the node is known to run the instance no more, by the times at which PLANS ordered and withdrew it last.
    ///
    /// Without a report of the removal, the node may have just begun with the order, or the order may be on its way to LEDGER. A
    /// node that is heard for some time after the withdrawal has the newer document, and has reported what it had begun.
    /// A person vouches for a node that is retired.
    pub fn is_gone(&self, plans: PlansTimes, now: Timestamp) -> bool {
        if self.desired.is_some() {
            return false;
        }
        // A report of an earlier removal says nothing about an order that LEDGER does not show yet. PLANS kept ordering the instance
        // until it withdrew it, and a planner may have sent that order again after a person had retired the node for a while.
        let ended_at = plans.ordered_at.max(plans.withdrawn_at);
        let is_removed = |by: WithdrawalEvidence| by.is_removed && by.stored_at >= ended_at;
        if self.is_retired || self.withdrawal.is_some_and(is_removed) {
            return true;
        }
        let since = self.withdrawal.map_or(plans.withdrawn_at, |by| by.heard_since.max(plans.withdrawn_at));
        let is_over = since.checked_add(UNREPORTED_GONE_AFTER).is_ok_and(|end| end <= now);
        self.standing.is_none() && self.is_known && is_over
    }

    /// Whether the instance may run, for the choice of instances to keep.
    pub fn is_running(&self) -> bool {
        self.standing == Some(Standing::Installed) && self.desired.is_some()
    }
}
