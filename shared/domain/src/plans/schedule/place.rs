//! The order of candidates. It rejects none.

use std::cmp::Reverse;

use muster_contract::DeviceKey;

/// The rank of a candidate within its update domain, by its fields in order; the lowest is the best.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub(super) has_disruption: bool,
    pub(super) score: Reverse<u64>,
    pub(super) hash: u64,
    pub(super) node: DeviceKey,
}

/// The place of a candidate among those of all update domains, by its fields in order; the lowest is the best.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) has_disruption: bool,
    /// Instances of the plan in its update domain.
    pub(super) domain_count: u64,
    pub(super) rank: Rank,
    pub(super) domain: String,
}

impl Place {
    pub(super) fn new(rank: Rank, domain_count: u64, domain: &str) -> Self {
        Self { has_disruption: rank.has_disruption, domain_count, rank, domain: domain.to_owned() }
    }
}
