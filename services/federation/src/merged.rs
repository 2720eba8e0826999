//! Holds the sum of all hubs: the parts of each hub, and which hubs are heard. The hub followers write it; all
//! others read it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use muster_contract::lag::RollupLag;
use muster_contract::parts::PartsAnswer;
use muster_contract::subjects::ViewKey;
use muster_contract::view::SiteView;
use muster_contract::{HubName, SiteId, Timestamp};
use muster_domain::fold::{AppliedPart, BadPart, Merge, OtherHub};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::lease::Lease;

/// The merged parts of all hubs.
#[derive(Debug)]
struct MergedState {
    merge: Merge,
    /// The leases of the hubs that are heard.
    leases: BTreeMap<HubName, Lease>,
    /// The lag of the hubs whose rollup is behind its LEDGER, by their newest answers.
    lags: BTreeMap<HubName, RollupLag>,
}

/// The merged parts of all hubs, shared.
#[derive(Debug)]
pub struct Merged {
    now: RwLock<MergedState>,
    lease: Duration,
    /// Rises with every change.
    changes: watch::Sender<u64>,
    whole: watch::Sender<bool>,
}

/// The effect of an answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AppliedParts {
    /// Keys that it has settled.
    pub settled: BTreeSet<ViewKey>,
    /// Keys with further rows, and the number of rows received.
    pub rest: Vec<(ViewKey, u64)>,
    /// Those that make no sense, and why. A hub that says such is not heard.
    pub bad: Vec<(ViewKey, BadPart)>,
    /// Up to where the answer has read.
    pub read_to: u64,
}

impl AppliedParts {
    /// True where the answer says nothing of any key.
    pub fn is_nothing(&self) -> bool {
        self.settled.is_empty() && self.rest.is_empty() && self.bad.is_empty()
    }
}

impl Merged {
    /// Creates the state of hubs that were not read yet, with the lease after which a silent hub is not heard.
    pub fn new(hubs: impl IntoIterator<Item = HubName>, lease: Duration) -> Self {
        Self {
            now: RwLock::new(MergedState {
                merge: Merge::new(hubs),
                leases: BTreeMap::new(),
                lags: BTreeMap::new(),
            }),
            lease,
            changes: watch::Sender::new(0),
            whole: watch::Sender::new(false),
        }
    }

    /// Reads the merged state.
    pub fn read_merge<T>(&self, read: impl FnOnce(&Merge) -> T) -> T {
        read(&self.read().merge)
    }

    /// Removes and returns the views that may have changed since the last call.
    pub fn drain_changed(&self) -> BTreeSet<ViewKey> {
        self.write().merge.drain_changed()
    }

    /// Sets a hub's lag behind its LEDGER, from its newest answer.
    pub(crate) fn set_lag(&self, hub: &HubName, lag: Option<RollupLag>) {
        let mut now = self.write();
        match lag {
            Some(lag) => _ = now.lags.insert(hub.clone(), lag),
            None => _ = now.lags.remove(hub),
        }
    }

    /// The lag of the sums behind the hubs' LEDGERs: the sum of the facts and the earliest times over the hubs
    /// that are behind.
    pub fn lag(&self) -> Option<RollupLag> {
        let now = self.read();
        now.lags.values().copied().reduce(RollupLag::joined)
    }

    /// Applies a hub's parts. The hub then counts as heard, unless a part is invalid or its rollup says that it is
    /// behind.
    pub fn apply_parts(
        &self,
        hub: &HubName,
        answer: &PartsAnswer,
        at: Instant,
        heard_at: Timestamp,
    ) -> AppliedParts {
        let there = answer.parts.iter().map(|(key, part)| (key, Some(part)));
        let said = there.chain(answer.gone.iter().map(|key| (key, None)));
        let said: Vec<_> = said.filter_map(|(key, part)| Some((ViewKey::parse(key)?, part))).collect();
        let mut took = AppliedParts { read_to: answer.as_of.ledger_seq, ..AppliedParts::default() };
        self.change(|now| {
            for (key, part) in said {
                match now.merge.apply_parts(hub, answer.as_of, &key, part) {
                    Ok(AppliedPart::Whole) => _ = took.settled.insert(key),
                    Ok(AppliedPart::Rest(rows)) => took.rest.push((key, rows)),
                    Err(why) => took.bad.push((key, why)),
                }
            }
            if took.bad.is_empty() && !now.lags.contains_key(hub) {
                now.merge.record_heard(hub, heard_at);
                now.leases.entry(hub.clone()).or_insert(Lease::new(self.lease, at)).renew(at);
            }
        });
        took
    }

    /// Applies a hub's view of one of its sites, or removes the site.
    ///
    /// # Errors
    /// Another hub has the site already and keeps it.
    pub fn apply_site(&self, hub: &HubName, site: &SiteId, view: Option<&SiteView>) -> Result<(), OtherHub> {
        self.change(|now| now.merge.apply_site(hub, site, view))
    }

    /// A hub was read to its end.
    pub fn read_whole(&self, hub: &HubName) {
        let whole = self.change(|now| {
            now.merge.read_whole(hub);
            now.merge.unread().is_empty()
        });
        self.whole.send_if_modified(|told| !std::mem::replace(told, whole) && whole);
    }

    /// Ends the leases that are over; those hubs, and when to look again: none where no hub is heard.
    pub fn expire(&self, at: Instant) -> (Vec<HubName>, Option<Instant>) {
        let mut now = self.write();
        let MergedState { merge, leases, .. } = &mut *now;
        let silent: Vec<_> =
            leases.extract_if(.., |_, lease| !lease.holds(at)).map(|(name, _)| name).collect();
        silent.iter().for_each(|name| merge.record_unreachable(name));
        let next = leases.values().map(Lease::ends_at).min();
        drop(now);
        if !silent.is_empty() {
            self.notify_readers();
        }
        (silent, next)
    }

    /// Follows that something has changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Follows whether every hub was read once: until then nothing may be published.
    pub fn whole(&self) -> watch::Receiver<bool> {
        self.whole.subscribe()
    }

    fn change<T>(&self, change: impl FnOnce(&mut MergedState) -> T) -> T {
        let result = change(&mut self.write());
        self.notify_readers();
        result
    }

    fn notify_readers(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Each change is one call of a total function, so that a panic elsewhere leaves nothing that a lock could mend.
    fn read(&self) -> RwLockReadGuard<'_, MergedState> {
        self.now.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, MergedState> {
        self.now.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LEASE: Duration = Duration::from_secs(90);

    fn name(text: &str) -> HubName {
        text.parse().unwrap()
    }

    /// A hub's answer with two heard devices, one of which is known where `known` is 1.
    fn answer(known: u64) -> PartsAnswer {
        let nothing = json!({ "devices": 0, "of": 0, "missingReports": 0 });
        let standings = json!({ "verdict": "empty", "targets": 0, "leaving": 0, "counts": {},
            "converged": { "lo": 0, "hi": 0 }, "complete": nothing });
        let fleet = json!({ "kind": "TallyPart", "devices": { "fresh": 2 }, "standings": standings,
            "complete": { "devices": known, "of": 2, "missingReports": 0 } });
        let answer = json!({ "asOf": { "ledgerSeq": 7, "at": "2026-11-20T08:00:00Z" },
            "parts": { "fleet": fleet }, "gone": ["deployment.web"] });
        serde_json::from_value(answer).unwrap()
    }

    fn devices(merged: &Merged) -> (u64, u64) {
        let devices = merged.read_merge(Merge::fleet_view).tally.devices;
        (devices.fresh, devices.stale)
    }

    #[test]
    fn a_hub_counts_as_heard_from_its_answer_until_its_lease_ends() {
        let (north, south) = (name("north"), name("south"));
        let (merged, begun) = (Merged::new([north.clone(), south.clone()], LEASE), Instant::now());
        assert_eq!(merged.expire(begun), (Vec::new(), None));
        let took = merged.apply_parts(&north, &answer(2), begun, Timestamp::UNIX_EPOCH);
        assert_eq!(took.settled, ["deployment.web", "fleet"].map(|key| ViewKey::parse(key).unwrap()).into());
        merged.apply_parts(&south, &answer(1), begun + LEASE / 2, Timestamp::UNIX_EPOCH);
        assert_eq!(devices(&merged), (4, 0));

        assert_eq!(merged.expire(begun + LEASE / 2), (Vec::new(), Some(begun + LEASE)));
        assert_eq!(merged.expire(begun + LEASE), (vec![north.clone()], Some(begun + LEASE / 2 + LEASE)));
        assert_eq!(devices(&merged), (2, 2));
        assert_eq!(merged.expire(begun + LEASE).0, [], "it is said once");
        merged.apply_parts(&north, &answer(2), begun + LEASE, Timestamp::UNIX_EPOCH);
        assert_eq!(devices(&merged), (4, 0));
    }

    #[test]
    fn a_hub_with_inconsistent_parts_is_not_heard() {
        let (north, begun) = (name("north"), Instant::now());
        let merged = Merged::new([north.clone()], LEASE);
        let took = merged.apply_parts(&north, &answer(3), begun, Timestamp::UNIX_EPOCH);
        assert_eq!(took.bad, [(ViewKey::Fleet, BadPart::Counts)]);
        assert_eq!(merged.expire(begun), (Vec::new(), None));
        assert_eq!(devices(&merged), (0, 0));
    }

    #[test]
    fn it_is_whole_when_every_hub_was_read() {
        let (north, south) = (name("north"), name("south"));
        let merged = Merged::new([north.clone(), south.clone()], LEASE);
        let (whole, mut changes) = (merged.whole(), merged.changes());
        merged.read_whole(&north);
        assert!(!*whole.borrow());
        changes.mark_unchanged();
        merged.read_whole(&south);
        assert!(*whole.borrow() && changes.has_changed().unwrap());
    }

    #[test]
    fn a_hub_whose_rollup_lags_renews_no_lease_and_is_reported() {
        let (north, south, begun) = (name("north"), name("south"), Instant::now());
        let merged = Merged::new([north.clone(), south.clone()], LEASE);
        let at = |second| Timestamp::from_second(second).unwrap();
        merged.apply_parts(&north, &answer(2), begun, at(0));
        merged.set_lag(&north, Some(RollupLag { cut_off_since: Some(at(5)), ..RollupLag::default() }));
        merged.set_lag(&south, Some(RollupLag { cut_off_since: Some(at(3)), ..RollupLag::default() }));
        merged.apply_parts(&north, &answer(3), begun + LEASE / 2, at(40));
        assert_eq!(merged.lag().and_then(|lag| lag.cut_off_since), Some(at(3)));
        assert_eq!(merged.expire(begun + LEASE).0, std::slice::from_ref(&north), "nothing renewed it");
        merged.set_lag(&north, None);
        merged.set_lag(&south, None);
        assert_eq!(merged.lag(), None);
        merged.apply_parts(&north, &answer(4), begun + LEASE, at(90));
        assert!(merged.expire(begun + LEASE + LEASE / 2).0.is_empty());
    }
}
