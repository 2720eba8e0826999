//! Whether the hub receives at all: the pulse of each partition, and the facts about a pulse that stopped and resumed.
//!
//! A device is fresh only while an ingest listens to its partition. Ingest writes a [`PulseFact`] for each partition it owns, and
//! the rollup makes a missing pulse a [`HearingFact`], so that freshness stays a pure function of LEDGER. Pulses change no view.

use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decode::{Document, Violation};
use crate::ids::HubName;
use crate::limits::{
    PARTITIONS, PULSE_KEPT_BEYOND_LEASE, PULSES_PER_LEASE, UNHEARD_LISTED_MAX, UNPROVEN_BEYOND_LEASES,
    UNPROVEN_LEASES,
};
use crate::version::{ApiVersion, kind};

/// `muster.hub.<partition>`: the partition's owner hears its devices. Fenced like every fact of the owner, at most
/// [`PULSES_PER_LEASE`] in a lease, and kept only for [`PulseFact::kept_for`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PulseFact {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `PulseFact`
    pub kind: kind::PulseFact,
    /// The ingest that owns the partition, as in its [`Ownership`](crate::ownership::Ownership).
    pub owner: String,
    /// When the owner sent the pulse, by its own clock; for people. LEDGER's time of the message is the one that counts.
    pub at: Timestamp,
    /// Silence after which the owner calls a device stale. A pulse that is missing for as long has stopped.
    #[schemars(range(min = 1))]
    pub lease_seconds: u64,
    /// Every liveness fact of the partition is true as of this pulse: since the owner began to listen it has heard each
    /// device that LEDGER calls fresh, or has listened for a whole lease and written which ones are stale.
    pub current: bool,
    /// Since when no pulse of the partition was `current`, by the clock of the owner that published the first such pulse. Every
    /// owner takes the time over from the pulse before. Absent while `current`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unproven_since: Option<Timestamp>,
}

impl PulseFact {
    /// How long a partition may be without a `current` pulse under this lease before the hub counts as not hearing it. One lease is
    /// what a new owner needs if a device is silent; the other is for an owner that begins a second time.
    pub const fn unproven_max(lease: Duration) -> Duration {
        let leases = UNPROVEN_LEASES.saturating_mul(Self::lease_seconds(lease));
        Duration::from_secs(leases.saturating_add(UNPROVEN_BEYOND_LEASES.as_secs()))
    }

    /// Since when no pulse of the partition was `current`; `stored_at` is LEDGER's time of this pulse. `None` if it is current. An
    /// owner of an earlier release does not name the time.
    pub fn unproven_since(&self, stored_at: Timestamp) -> Option<Timestamp> {
        (!self.current).then(|| self.unproven_since.map_or(stored_at, |since| since.min(stored_at)))
    }

    /// How long LEDGER keeps a pulse under this lease, in whole seconds, as the server counts a time to live. It is as short as
    /// it can be: a partition without any pulse in LEDGER has had none for longer than its lease.
    pub const fn kept_for(lease: Duration) -> Duration {
        Duration::from_secs(Self::lease_seconds(lease).saturating_add(PULSE_KEPT_BEYOND_LEASE.as_secs()))
    }

    /// Pulses of one partition that LEDGER keeps at once under this lease, at most: those of [`Self::kept_for`] and the newest.
    pub const fn kept_max(lease: Duration) -> u64 {
        (Self::kept_for(lease).as_millis() / Self::interval(lease).as_millis()) as u64 + 1
    }

    /// A lease in whole seconds, rounded up.
    pub const fn lease_seconds(lease: Duration) -> u64 {
        lease.as_secs() + (lease.subsec_nanos() > 0) as u64
    }

    /// Least time between two pulses of a partition under this lease.
    pub const fn interval(lease: Duration) -> Duration {
        Duration::from_millis(lease.as_millis() as u64 / PULSES_PER_LEASE)
    }

    /// The lease that the pulse names.
    pub const fn lease(&self) -> Duration {
        Duration::from_secs(self.lease_seconds)
    }
}

impl Document for PulseFact {
    const KIND: &'static str = "PulseFact";

    fn check(&self) -> Result<(), Violation> {
        if self.lease_seconds == 0 {
            return Err(Violation::at("leaseSeconds", "a lease lasts at least one second"));
        }
        Ok(())
    }
}

/// Whether the hub listens to a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Hearing {
    /// No pulse for a lease, or none with `current` for more than two: none of the partition's devices is fresh.
    Stopped,
    /// A pulse with `current` came after a stop: the liveness facts of the partition hold again.
    Resumed,
}

/// `muster.hearing.<partition>`: the rollup alone writes it, on transitions, and re-asserts a stop before it ages out. A
/// partition without such a fact counts as heard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HearingFact {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `HearingFact`
    pub kind: kind::HearingFact,
    /// Stopped or resumed.
    pub state: Hearing,
    /// A stop began when LEDGER stored the last pulse; if the pulses went on without one that is `current`, when the first of them
    /// came; if LEDGER has none, when the rollup had read all of LEDGER. A resumption began when LEDGER stored the first pulse
    /// with `current`.
    pub since: Timestamp,
    /// The same stop, re-asserted before it ages out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reasserted: bool,
}

impl Document for HearingFact {
    const KIND: &'static str = "HearingFact";
}

/// A partition that the hub does not listen to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnheardPartition {
    /// The hub of the partition, in an answer about several hubs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubName>,
    /// Its number.
    #[schemars(range(max = PARTITIONS - 1))]
    pub partition: u16,
    /// Since when.
    pub since: Timestamp,
    /// The sequence in LEDGER of the [`HearingFact`]; only in the answer of `why`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger_seq: Option<u64>,
}

impl UnheardPartition {
    /// The same in words.
    pub fn words(&self) -> String {
        let hub = self.hub.as_ref().map_or_else(|| "the hub".to_owned(), |hub| format!("hub {hub}"));
        format!("{hub} has not listened to partition {} since {}", self.partition, self.since)
    }
}

/// Partitions that the hub does not listen to, if they have devices that the view or answer is about and that are not retired.
/// Their devices count as stale, or as never heard if nothing was ever received from them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HubHearing {
    /// Partitions that the hub does not listen to, by hub and number.
    #[schemars(length(max = UNHEARD_LISTED_MAX))]
    pub unheard: Vec<UnheardPartition>,
    /// The number of further partitions, in an answer about several hubs.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub omitted: u64,
}

impl HubHearing {
    /// The first of these partitions, and how many more there are.
    pub fn of(mut unheard: Vec<UnheardPartition>) -> Self {
        unheard.sort_unstable();
        let omitted = unheard.len().saturating_sub(UNHEARD_LISTED_MAX) as u64;
        unheard.truncate(UNHEARD_LISTED_MAX);
        Self { unheard, omitted }
    }

    /// True where every partition is heard.
    pub const fn is_whole(&self) -> bool {
        self.unheard.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pulse_is_kept_for_whole_seconds_beyond_its_lease() {
        for (lease_ms, kept_s, kept_max) in
            [(1_500, 12, 25), (3_000, 13, 14), (90_000, 100, 4), (90_500, 101, 4)]
        {
            let lease = Duration::from_millis(lease_ms);
            assert_eq!(PulseFact::kept_for(lease), Duration::from_secs(kept_s), "{lease_ms} ms");
            assert_eq!(PulseFact::kept_max(lease), kept_max, "{lease_ms} ms");
        }
    }

    #[test]
    fn a_partition_is_unproven_since_the_first_pulse_that_is_not_current() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let pulse = |current, unproven_since: Option<i64>| PulseFact {
            api_version: ApiVersion::V1,
            kind: kind::PulseFact::PulseFact,
            owner: "hub/1/a".to_owned(),
            at: at(100),
            lease_seconds: 90,
            current,
            unproven_since: unproven_since.map(at),
        };
        for (current, named, since) in [
            (true, None, None),
            (true, Some(40), None),
            (false, Some(40), Some(40)),
            // An owner of an earlier release.
            (false, None, Some(100)),
            // A clock that goes ahead.
            (false, Some(400), Some(100)),
        ] {
            assert_eq!(pulse(current, named).unproven_since(at(100)), since.map(at), "{current} {named:?}");
        }
        assert_eq!(PulseFact::unproven_max(Duration::from_secs(90)), Duration::from_secs(190));
    }

    #[test]
    fn a_lease_has_three_pulses() {
        assert_eq!(PulseFact::interval(Duration::from_secs(90)), Duration::from_secs(30));
        assert_eq!(PulseFact::interval(Duration::from_secs(1)), Duration::from_millis(333));
    }
}
