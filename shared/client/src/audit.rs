//! The audit of a hub: checks that every report of every device is accounted for, and that every view has the content of its digest.
//!
//! The rules are pure; [`gathered`] reads the accounts from the query service and the views from the bucket.

mod gather;

use muster_contract::defined::{CountedPart, DefinedView};
use muster_contract::fact::Account;
use muster_contract::groups::GroupView;
use muster_contract::incident::HubIncident;
use muster_contract::lag::RollupLag;
use muster_contract::pulse::HubHearing;
use muster_contract::query::DeviceLine;
use muster_contract::subjects::ViewKey;
use muster_contract::validity::valid_until;
use muster_contract::view::{AsOf, Counts, DeploymentView, FleetView, SiteView, Split, content_digest};
use muster_contract::{DeviceKey, Epoch, SeqRanges, Timestamp};
use serde::Serialize;
use serde_json::Value;

pub use gather::gathered;

/// The outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Audit {
    /// Every device and every view is explained, and there is at least one device.
    pub explained: bool,
    /// The position of the accounts in LEDGER.
    pub as_of: AsOf,
    /// The sums of all devices that are not retired.
    pub totals: ReportTotals,
    /// The devices, ordered by site and name.
    pub devices: Vec<DeviceAudit>,
    /// The views.
    pub views: Vec<ViewAudit>,
    /// Incidents of the hub within a day.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub incidents: Vec<HubIncident>,
    /// Partitions that the hub does not listen to: reports of their devices do not come in.
    #[serde(skip_serializing_if = "HubHearing::is_whole")]
    pub hub: HubHearing,
    /// The lag between the rollup and LEDGER: the accounts may be out of date.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollup: Option<RollupLag>,
    /// The fill of LEDGER, if it has a bound and the credentials may read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ledger: Option<LedgerFill>,
}

/// The fill of LEDGER. The verdict does not depend on it, but a full LEDGER evicts its oldest facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerFill {
    /// Bytes it holds.
    pub bytes: u64,
    /// Bytes it may hold.
    pub bytes_max: u64,
    /// The same in percent.
    pub percent: u64,
}

/// The accounting in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportTotals {
    /// Highest known report number.
    pub head: u64,
    /// Held as facts.
    pub received: u64,
    /// Declared as coalesced into others.
    pub coalesced: u64,
    /// Held in quarantine.
    pub quarantined: u64,
    /// Missing so far.
    pub missing: u64,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceAudit {
    /// The device.
    #[serde(flatten)]
    pub key: DeviceKey,
    /// Its epoch; none if it was never heard.
    pub epoch: Option<Epoch>,
    /// Its numbers.
    #[serde(flatten)]
    pub sums: ReportTotals,
    /// The numbers of the missing reports.
    pub missing_seqs: SeqRanges,
    /// The verdict.
    pub verdict: DeviceVerdict,
}

/// The verdict on the accounting of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum DeviceVerdict {
    /// Every report is accounted for.
    Explained,
    /// It is retired: its missing reports no longer count.
    Retired,
    /// It was never heard, so there is nothing to account for.
    NeverHeard,
    /// Reports are missing so far.
    NotInYet,
    /// Quarantine holds messages of it without a readable number: they may be any of its reports.
    Unread,
    /// The numbers contradict each other: a defect of the hub.
    DoesNotAddUp,
}

/// One view of the bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ViewAudit {
    /// Its key.
    pub key: String,
    /// The verdict.
    pub verdict: ViewVerdict,
}

/// The verdict on a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ViewVerdict {
    /// Its digest matches its content, and its counts add up.
    Right,
    /// The query service has it, the bucket does not.
    Absent,
    /// It cannot be read as a view.
    NoView,
    /// Nobody has renewed it in time: the rollup that wrote it may be dead.
    Expired,
    /// Its digest does not match its content.
    WrongDigest,
    /// Its counts do not add up to its targets, or its bounds are not bounds.
    WrongCounts,
}

impl Audit {
    /// The audit of devices and views.
    pub fn of(as_of: AsOf, devices: &[DeviceLine], views: Vec<ViewAudit>) -> Self {
        let devices: Vec<_> = devices.iter().map(DeviceAudit::of).collect();
        let counted = devices.iter().filter(|line| line.verdict != DeviceVerdict::Retired);
        let totals = counted.fold(ReportTotals::default(), |totals, line| totals.plus(line.sums));
        let explained = !devices.is_empty()
            && devices.iter().all(|line| line.verdict.is_explained())
            && views.iter().all(|view| view.verdict == ViewVerdict::Right);
        Self {
            explained,
            as_of,
            totals,
            devices,
            views,
            incidents: Vec::new(),
            hub: HubHearing::default(),
            rollup: None,
            ledger: None,
        }
    }

    /// The same with the incidents of the hub. A replaced LEDGER leaves the audit unexplained.
    #[must_use]
    pub fn with_incidents(self, incidents: Vec<HubIncident>) -> Self {
        let explained = self.explained && !incidents.iter().any(HubIncident::is_ledger_replaced);
        Self { explained, incidents, ..self }
    }

    /// The same with the partitions that the hub does not listen to: then nothing is explained.
    #[must_use]
    pub fn with_hub(self, hub: HubHearing) -> Self {
        Self { explained: self.explained && hub.is_whole(), hub, ..self }
    }

    /// The same with the lag between the rollup and LEDGER: then nothing is explained.
    #[must_use]
    pub fn with_lag(self, rollup: Option<RollupLag>) -> Self {
        Self { explained: self.explained && rollup.is_none(), rollup, ..self }
    }

    /// LEDGER was replaced within a day.
    pub fn is_ledger_replaced(&self) -> bool {
        self.incidents.iter().any(HubIncident::is_ledger_replaced)
    }
}

impl DeviceAudit {
    fn of(line: &DeviceLine) -> Self {
        let Account { received, coalesced, quarantined, missing } = &line.account;
        let sums = ReportTotals {
            head: line.head,
            received: *received,
            coalesced: *coalesced,
            quarantined: *quarantined,
            missing: missing.count(),
        };
        Self {
            key: line.key.clone(),
            epoch: line.epoch,
            sums,
            missing_seqs: missing.clone(),
            verdict: sums.verdict(line.retired, line.epoch.is_some(), line.unread > 0),
        }
    }
}

impl ReportTotals {
    fn plus(self, other: Self) -> Self {
        Self {
            head: self.head.saturating_add(other.head),
            received: self.received.saturating_add(other.received),
            coalesced: self.coalesced.saturating_add(other.coalesced),
            quarantined: self.quarantined.saturating_add(other.quarantined),
            missing: self.missing.saturating_add(other.missing),
        }
    }

    /// Wider than the numbers, which devices choose: a sum that overflowed could add up by accident.
    const fn adds_up(self) -> bool {
        let Self { head, received, coalesced, quarantined, missing } = self;
        head as u128 == received as u128 + coalesced as u128 + quarantined as u128 + missing as u128
    }

    const fn verdict(self, retired: bool, heard: bool, unread: bool) -> DeviceVerdict {
        if retired {
            DeviceVerdict::Retired
        } else if !self.adds_up() {
            DeviceVerdict::DoesNotAddUp
        } else if self.missing > 0 {
            DeviceVerdict::NotInYet
        } else if unread {
            DeviceVerdict::Unread
        } else if heard {
            DeviceVerdict::Explained
        } else {
            DeviceVerdict::NeverHeard
        }
    }
}

impl DeviceVerdict {
    const fn is_explained(self) -> bool {
        matches!(self, Self::Explained | Self::Retired | Self::NeverHeard)
    }
}

/// The verdict on the bytes under a key at one moment.
pub fn view_verdict_at(key: &ViewKey, bytes: &[u8], now: Timestamp) -> ViewVerdict {
    match view_verdict(key, bytes) {
        ViewVerdict::Right if valid_until(bytes).is_some_and(|until| until < now) => ViewVerdict::Expired,
        verdict => verdict,
    }
}

/// The verdict on the bytes under a key at any moment.
pub fn view_verdict(key: &ViewKey, bytes: &[u8]) -> ViewVerdict {
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return ViewVerdict::NoView };
    let Some(sound) = counts_are_sound(key, &value) else { return ViewVerdict::NoView };
    if value["digest"] != content_digest(&value).to_string() {
        ViewVerdict::WrongDigest
    } else if sound {
        ViewVerdict::Right
    } else {
        ViewVerdict::WrongCounts
    }
}

fn counts_are_sound(key: &ViewKey, value: &Value) -> Option<bool> {
    use serde::Deserialize as _;
    let (targets, counts, bounded) = match key {
        ViewKey::Deployment(id) => {
            let view = DeploymentView::deserialize(value).ok().filter(|view| view.deployment == *id)?;
            let bounds = view.converged;
            (view.targets, view.counts, bounds.lo <= bounds.hi && bounds.hi <= view.targets)
        }
        ViewKey::Site(site) => {
            let view = SiteView::deserialize(value).ok().filter(|view| view.site == *site)?;
            (view.tally.targets, view.tally.counts, true)
        }
        ViewKey::Fleet => {
            let view = FleetView::deserialize(value).ok()?;
            (view.tally.targets, view.tally.counts, true)
        }
        ViewKey::Group(label, value_of) => {
            let view = GroupView::deserialize(value).ok()?;
            let named = (&view.label, &view.value) == (label, value_of);
            (view.tally.targets, view.tally.counts, named)
        }
        ViewKey::Defined(name) => {
            let view = DefinedView::deserialize(value).ok().filter(|view| view.name == *name)?;
            let CountedPart::Standings(total) = view.total else { return Some(true) };
            (total.targets, total.counts, true)
        }
    };
    Some(bounded && total(&counts) == targets)
}

fn total(counts: &Counts) -> u64 {
    counts.values().copied().map(Split::total).sum()
}

#[cfg(test)]
mod tests {
    use muster_contract::pulse::UnheardPartition;

    use super::*;

    fn sums(head: u64, received: u64, coalesced: u64, quarantined: u64, missing: u64) -> ReportTotals {
        ReportTotals { head, received, coalesced, quarantined, missing }
    }

    #[test]
    fn the_verdict_on_a_device_follows_from_its_numbers() {
        for (numbers, retired, heard, expected) in [
            (sums(60, 43, 12, 5, 0), false, true, DeviceVerdict::Explained),
            (sums(60, 43, 12, 2, 3), false, true, DeviceVerdict::NotInYet),
            (sums(60, 43, 12, 2, 0), false, true, DeviceVerdict::DoesNotAddUp),
            (sums(60, 61, 0, 0, 0), false, true, DeviceVerdict::DoesNotAddUp),
            (sums(u64::MAX, 1, 0, 0, u64::MAX - 1), false, true, DeviceVerdict::NotInYet),
            (sums(0, u64::MAX, 1, 0, 0), false, true, DeviceVerdict::DoesNotAddUp),
            (sums(60, 10, 0, 0, 0), true, true, DeviceVerdict::Retired),
            (sums(0, 0, 0, 0, 0), false, true, DeviceVerdict::Explained),
            (sums(0, 0, 0, 0, 0), false, false, DeviceVerdict::NeverHeard),
        ] {
            assert_eq!(numbers.verdict(retired, heard, false), expected, "{numbers:?}");
        }
        for heard in [false, true] {
            assert_eq!(sums(0, 0, 0, 0, 0).verdict(false, heard, true), DeviceVerdict::Unread);
        }
    }

    #[test]
    fn a_view_is_right_only_with_its_own_digest_and_sound_counts() {
        let good: Value = serde_json::from_slice(include_bytes!(
            "../../../schemas/examples/good/DeploymentView.failing.json"
        ))
        .unwrap();
        let key = ViewKey::parse(&format!("deployment.{}", good["deployment"].as_str().unwrap())).unwrap();
        let verdict = |change: &dyn Fn(&mut Value)| {
            let mut value = good.clone();
            change(&mut value);
            view_verdict(&key, value.to_string().as_bytes())
        };
        let signed = |value: &mut Value| value["digest"] = content_digest(value).to_string().into();
        assert_eq!(verdict(&|_| ()), ViewVerdict::Right);
        assert_eq!(verdict(&|value| value["targets"] = 7.into()), ViewVerdict::WrongDigest);
        assert_eq!(
            verdict(&|value| {
                value["targets"] = 7.into();
                signed(value);
            }),
            ViewVerdict::WrongCounts
        );
        assert_eq!(
            verdict(&|value| {
                value["converged"]["lo"] = 6.into();
                signed(value);
            }),
            ViewVerdict::WrongCounts
        );
        assert_eq!(
            verdict(&|value| {
                value["newer"] = true.into();
                signed(value);
            }),
            ViewVerdict::Right
        );
        assert_eq!(verdict(&|value| value["deployment"] = "web".into()), ViewVerdict::NoView);
        assert_eq!(view_verdict(&key, b"{}"), ViewVerdict::NoView);
    }

    #[test]
    fn a_view_that_nobody_renewed_in_time_is_not_right() {
        let bytes = include_bytes!("../../../schemas/examples/good/DeploymentView.failing.json");
        let good: Value = serde_json::from_slice(bytes).unwrap();
        let key = ViewKey::parse(&format!("deployment.{}", good["deployment"].as_str().unwrap())).unwrap();
        let until: Timestamp = "2026-11-24T08:00:00Z".parse().unwrap();
        let marked = muster_contract::validity::valid_to(good.to_string().as_bytes(), until);
        let second = std::time::Duration::from_secs(1);
        assert_eq!(view_verdict_at(&key, &marked, until), ViewVerdict::Right);
        assert_eq!(view_verdict_at(&key, &marked, until + second), ViewVerdict::Expired);
        assert_eq!(view_verdict_at(&key, bytes, until + second), ViewVerdict::Right, "of an older release");
    }

    #[test]
    fn nothing_is_explained_by_accounts_that_may_be_old() {
        let as_of = AsOf { ledger_seq: 1, at: Timestamp::UNIX_EPOCH };
        let two = include_bytes!("../../../schemas/examples/good/DevicesAnswer.two.json");
        let mut devices =
            serde_json::from_slice::<muster_contract::query::DevicesAnswer>(two).unwrap().devices;
        devices.iter_mut().for_each(|device| device.retired = true);
        let audit = Audit::of(as_of, &devices, Vec::new());
        assert!(audit.explained && audit.clone().with_lag(None).explained);
        let lag = RollupLag { cut_off_since: Some(as_of.at), ..RollupLag::default() };
        assert!(!audit.clone().with_lag(Some(lag)).explained);
        let unheard = UnheardPartition { hub: None, partition: 5, since: as_of.at, ledger_seq: None };
        assert!(!audit.with_hub(HubHearing::of(vec![unheard])).explained);
    }

    #[test]
    fn sums_of_wild_claims_stop_at_the_end() {
        let wild = sums(u64::MAX, 0, 0, 0, u64::MAX);
        assert_eq!(wild.plus(wild), wild);
    }

    #[test]
    fn an_audit_of_nothing_explains_nothing() {
        let as_of = AsOf { ledger_seq: 0, at: muster_contract::Timestamp::UNIX_EPOCH };
        assert!(!Audit::of(as_of, &[], Vec::new()).explained);
    }
}
