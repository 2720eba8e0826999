//! The law of the site views and the fleet view: each counts the devices as the facts in LEDGER describe them, the sites
//! together are the fleet, and verdicts and bounds are those of the standings ([`Verdicts`]). After every fact that a rollup
//! folds, its view of the fact's site is checked, and the fleet's if counts or standings changed; the views of changed
//! deployments are checked after every [`DEPLOYMENTS_EVERY`] facts, all views after every [`WHOLE_EVERY`], and at LEDGER's end.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::fact::{Fact, Hearing, Liveness};
use muster_contract::partition::partition_of;
use muster_contract::subjects::LedgerSubject;
use muster_contract::view::{Freshness, Split, Tally};
use muster_contract::{DeviceKey, Generation, SiteId};
use muster_domain::fold::Fleet;

use super::hostile::rogue;
use super::hub::StoredFact;
use super::law::{Lawful, must};
use super::verdicts::Verdicts;

/// Facts from one check of all views to the next.
const WHOLE_EVERY: u64 = 64;
/// Facts from one check of the deployments that have changed to the next: their views cost the most.
const DEPLOYMENTS_EVERY: u64 = 8;

/// The devices of a site by their state, and their targets.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counted {
    devices: Split,
    targets: Split,
}

impl Counted {
    fn of_device(device: &Described, is_unheard: bool) -> Self {
        let mut counted = Self::default();
        let (_, is_retired, targets) = device.desired.unwrap_or((Generation::FIRST, false, 0));
        if !is_retired {
            let freshness = device.freshness(is_unheard);
            *counted.devices.get_mut(freshness) = 1;
            *counted.targets.get_mut(freshness) = targets;
        }
        counted
    }

    fn of_view(tally: &Tally) -> Self {
        let mut targets = Split::default();
        for split in tally.counts.values() {
            targets.fresh += split.fresh;
            targets.stale += split.stale;
            targets.never += split.never;
        }
        Self { devices: tally.devices, targets }
    }

    fn add(&mut self, other: &Self) {
        for (sum, more) in [(&mut self.devices, other.devices), (&mut self.targets, other.targets)] {
            sum.fresh += more.fresh;
            sum.stale += more.stale;
            sum.never += more.never;
        }
    }

    fn remove(&mut self, other: &Self) {
        for (sum, less) in [(&mut self.devices, other.devices), (&mut self.targets, other.targets)] {
            sum.fresh -= less.fresh;
            sum.stale -= less.stale;
            sum.never -= less.never;
        }
    }
}

/// The views that a fact may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AffectedViews {
    Nothing,
    Device(DeviceKey),
    Everything,
}

/// One device as its facts describe it.
#[derive(Debug, Default)]
struct Described {
    has_reported: bool,
    liveness: Option<(u64, Liveness)>,
    /// The generation of its newest desired state, whether that retires it, and the number of its targets.
    desired: Option<(Generation, bool, u64)>,
}

impl Described {
    fn apply(&mut self, fact: &Fact) {
        match fact {
            Fact::Status(_) | Fact::Device(_) | Fact::Quarantine(_) => self.has_reported = true,
            Fact::Liveness(fact) => {
                let epoch = fact.epoch.get();
                if self.liveness.is_none_or(|(known, _)| known <= epoch) {
                    self.liveness = Some((epoch, fact.state));
                }
            }
            Fact::Desired(fact) if self.desired.is_none_or(|(known, ..)| known < fact.generation) => {
                self.desired = Some((fact.generation, fact.retired, fact.deployments.len() as u64));
            }
            _ => {}
        }
    }

    fn freshness(&self, is_unheard: bool) -> Freshness {
        match self.liveness {
            None if !self.has_reported => Freshness::Never,
            Some((_, Liveness::Fresh)) if !is_unheard => Freshness::Fresh,
            _ => Freshness::Stale,
        }
    }
}

/// A site as the facts of its devices describe it.
#[derive(Debug, Default)]
struct Site {
    devices: BTreeMap<DeviceKey, Described>,
    /// All of them together.
    counted: Counted,
    /// The counts of its view at the last check.
    seen: Counted,
}

/// A naive account of the facts that a rollup has folded.
#[derive(Debug, Default)]
pub(crate) struct Recount {
    sites: BTreeMap<SiteId, Site>,
    unheard: BTreeSet<u16>,
    verdicts: Verdicts,
    facts: u64,
}

impl Recount {
    /// Counts a fact.
    pub(crate) fn apply(&mut self, said: &StoredFact) -> AffectedViews {
        self.facts += 1;
        if let (LedgerSubject::Hearing(partition), Fact::Hearing(fact)) = (&said.subject, &said.fact) {
            match fact.state {
                Hearing::Stopped => _ = self.unheard.insert(*partition),
                Hearing::Resumed => _ = self.unheard.remove(partition),
            }
            self.count_anew();
            self.verdicts.forget();
            return AffectedViews::Everything;
        }
        let Some(key) = said.subject.device() else { return AffectedViews::Nothing };
        let is_unheard = self.unheard.contains(&partition_of(key));
        let site = self.sites.entry(key.site.clone()).or_default();
        if let Some(device) = site.devices.get(key) {
            site.counted.remove(&Counted::of_device(device, is_unheard));
        }
        let device = site.devices.entry(key.clone()).or_default();
        device.apply(&said.fact);
        site.counted.add(&Counted::of_device(device, is_unheard));
        AffectedViews::Device(key.clone())
    }

    fn count_anew(&mut self) {
        for site in self.sites.values_mut() {
            site.counted = Counted::default();
            for (key, device) in &site.devices {
                site.counted.add(&Counted::of_device(device, self.unheard.contains(&partition_of(key))));
            }
        }
    }

    /// Checks the views that the last fact may have changed, of a rollup that has folded the same facts; returns the number of
    /// views checked.
    pub(crate) fn check(&mut self, fleet: &Fleet, affected: &AffectedViews) -> Lawful<u64> {
        match affected {
            AffectedViews::Nothing => Ok(0),
            AffectedViews::Device(key) => {
                let has_changed = self.verdicts.read(fleet, key);
                if self.facts.is_multiple_of(WHOLE_EVERY) {
                    return self.check_all(fleet);
                }
                let Some(site) = self.sites.get_mut(&key.site) else { return Ok(0) };
                let before = site.seen;
                check_site(fleet, &key.site, site, &self.verdicts)?;
                // If nothing of the site has changed, the next check of all views covers the fleet's.
                if !has_changed && site.seen == before {
                    return Ok(1);
                }
                self.check_fleet(fleet)?;
                if self.facts.is_multiple_of(DEPLOYMENTS_EVERY) {
                    self.verdicts.check_deployments(fleet).map(|deployments| 2 + deployments)
                } else {
                    Ok(2)
                }
            }
            AffectedViews::Everything => self.check_all(fleet),
        }
    }

    /// Checks the view of every site, and the fleet's; returns the number of views checked.
    pub(crate) fn check_all(&mut self, fleet: &Fleet) -> Lawful<u64> {
        self.count_anew();
        self.verdicts.read_all(fleet, self.sites.values().flat_map(|site| site.devices.keys()));
        self.sites.iter_mut().try_for_each(|(id, site)| check_site(fleet, id, site, &self.verdicts))?;
        self.check_fleet(fleet)?;
        let deployments = self.verdicts.check_deployments(fleet)?;
        Ok(1 + self.sites.len() as u64 + deployments)
    }

    fn check_fleet(&self, fleet: &Fleet) -> Lawful {
        let (view, mut whole) = (fleet.fleet_view(), Counted::default());
        self.sites.values().for_each(|site| whole.add(&site.seen));
        let seen = Counted::of_view(&view.tally);
        must(seen == whole, "the sites together are the fleet", || format!("{seen:?}, sites: {whole:?}"))?;
        must(
            view.tally.complete.of == seen.devices.total(),
            "a fleet is complete of all its devices",
            || format!("{view:?}"),
        )?;
        self.verdicts.check_fleet(&view.tally)
    }
}

fn check_site(fleet: &Fleet, id: &SiteId, site: &mut Site, verdicts: &Verdicts) -> Lawful {
    let view = fleet.site_view(id);
    let seen = view.as_ref().map(|view| Counted::of_view(&view.tally)).unwrap_or_default();
    let targets = view.as_ref().map_or(0, |view| view.tally.targets);
    must(targets == seen.targets.total(), "a site's counts add up to its targets", || format!("{view:?}"))?;
    // A hostile device has no desired state, and speaks of deployments nonetheless.
    let right = *id == rogue(0).site || seen == site.counted;
    must(right, "a site's view counts its devices as LEDGER says", || {
        format!("{id} {seen:?}, LEDGER: {:?}", site.counted)
    })?;
    site.seen = seen;
    verdicts.check_site(id, view.as_ref().map(|view| &view.tally))
}
