//! Holds the parts of one hub, parsed so that only counts that add up are held.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use muster_contract::canonical::Digest;
use muster_contract::parts::{DeploymentPart, Part, TallyPart};
use muster_contract::pulse::HubHearing;
use muster_contract::silence::SilentSites;
use muster_contract::subjects::ViewKey;
use muster_contract::view::{AsOf, ErrorCount, SiteView};
use muster_contract::{ComponentName, DeploymentId, LabelKey, LabelValue, SiteId, State, Timestamp};

use super::super::max_timestamp::Times;
use super::super::tally::{BadPart, Devices, Group};
use super::AppliedPart;

/// Groups of a label by its value.
type ByGroup<T> = BTreeMap<LabelKey, BTreeMap<LabelValue, T>>;

/// One hub.
#[derive(Debug, Default)]
pub(super) struct Hub {
    pub(super) as_of: Option<AsOf>,
    pub(super) heard: bool,
    pub(super) heard_at: Option<Timestamp>,
    /// It was looked through once.
    pub(super) whole: bool,
    pub(super) fleet: Tally,
    pub(super) deployments: BTreeMap<DeploymentId, HubDeployment>,
    pub(super) groups: ByGroup<Tally>,
    pub(super) sites: BTreeMap<SiteId, SiteView>,
    /// Parts whose rows are incomplete.
    begun: BTreeMap<DeploymentId, HubDeployment>,
}

/// Its counts of the fleet, or of a group.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) devices: Devices,
    pub(super) group: Group,
    pub(super) silent_sites: SilentSites,
    pub(super) hearing: HubHearing,
    pub(super) times: Times,
}

/// Its counts of a deployment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct HubDeployment {
    pub(super) group: Group,
    pub(super) silent_sites: SilentSites,
    pub(super) hearing: HubHearing,
    pub(super) times: Times,
    /// Its name for people; empty if that is its id.
    pub(super) name: String,
    pub(super) components: BTreeMap<ComponentName, BTreeMap<State, u64>>,
    pub(super) errors: BTreeMap<String, ErrorCount>,
    pub(super) groups: ByGroup<(Group, Times)>,
    rows: u64,
    whole: Option<Digest>,
}

impl Hub {
    /// Applies a part, and adds the views that it may change to `changed`.
    pub(super) fn apply_part(
        &mut self,
        key: &ViewKey,
        part: Option<&Part>,
        changed: &mut BTreeSet<ViewKey>,
    ) -> Result<AppliedPart, BadPart> {
        match (key, part) {
            (ViewKey::Deployment(id), Some(Part::DeploymentPart(part))) => {
                return self.apply_deployment(id, part, changed);
            }
            (ViewKey::Deployment(id), None) => {
                self.begun.remove(id);
                let was = self.deployments.remove(id);
                mark(id, was.as_ref(), changed);
            }
            (ViewKey::Group(label, value), Some(Part::TallyPart(part))) => {
                let tally = Tally::read(part)?;
                let held = self.groups.entry(label.clone()).or_default().entry(value.clone());
                if let Entry::Occupied(held) = &held
                    && *held.get() == tally
                {
                    return Ok(AppliedPart::Whole);
                }
                held.insert_entry(tally);
            }
            (ViewKey::Group(label, value), None) => self.leave(label, value),
            (ViewKey::Fleet, Some(Part::TallyPart(part))) => {
                let fleet = Tally::read(part)?;
                if fleet == self.fleet {
                    return Ok(AppliedPart::Whole);
                }
                self.fleet = fleet;
            }
            (ViewKey::Fleet, None) => self.fleet = Tally::default(),
            _ => return Err(BadPart::Kind),
        }
        changed.insert(key.clone());
        Ok(AppliedPart::Whole)
    }

    fn leave(&mut self, label: &LabelKey, value: &LabelValue) {
        if let Some(values) = self.groups.get_mut(label) {
            values.remove(value);
            if values.is_empty() {
                self.groups.remove(label);
            }
        }
    }

    fn apply_deployment(
        &mut self,
        id: &DeploymentId,
        part: &DeploymentPart,
        changed: &mut BTreeSet<ViewKey>,
    ) -> Result<AppliedPart, BadPart> {
        let begun = self.begun.remove(id).filter(|_| part.skipped > 0);
        if begun.as_ref().is_some_and(|begun| begun.whole != part.whole) {
            // The part changed since its first rows came: the rows do not match.
            return Ok(AppliedPart::Rest(0));
        }
        let held = begun.unwrap_or_default().and(part)?;
        if let Some(next) = part.next.filter(|next| *next > part.skipped) {
            self.begun.insert(id.clone(), held);
            return Ok(AppliedPart::Rest(next));
        }
        if self.deployments.get(id) == Some(&held) {
            return Ok(AppliedPart::Whole);
        }
        mark(id, Some(&held), changed);
        let was = self.deployments.insert(id.clone(), held);
        mark(id, was.as_ref(), changed);
        Ok(AppliedPart::Whole)
    }

    /// Its newest part is as of this. Parts may come out of order, and its LEDGER may begin anew: the last one holds.
    pub(super) const fn read_to(&mut self, as_of: AsOf) {
        self.as_of = Some(as_of);
    }

    /// The views that it has a part in.
    pub(super) fn keys(&self) -> BTreeSet<ViewKey> {
        let deployments = self.deployments.keys().cloned().map(ViewKey::Deployment);
        let sites = self.sites.keys().cloned().map(ViewKey::Site);
        let groups = self.groups.iter().flat_map(|(label, values)| {
            values.keys().map(|value| ViewKey::Group(label.clone(), value.clone()))
        });
        deployments.chain(sites).chain(groups).chain([ViewKey::Fleet]).collect()
    }
}

/// The views that a hub's share of a deployment is counted in.
fn mark(id: &DeploymentId, counts: Option<&HubDeployment>, changed: &mut BTreeSet<ViewKey>) {
    changed.insert(ViewKey::Deployment(id.clone()));
    changed.insert(ViewKey::Fleet);
    for (label, values) in counts.iter().flat_map(|counts| &counts.groups) {
        changed.extend(values.keys().map(|value| ViewKey::Group(label.clone(), value.clone())));
    }
}

impl Tally {
    fn read(part: &TallyPart) -> Result<Self, BadPart> {
        Ok(Self {
            devices: Devices::read(part.devices, part.complete)?,
            group: Group::read(&part.standings)?,
            silent_sites: part.silent_sites.clone(),
            hearing: part.hub.clone(),
            times: Times { changed_at: part.changed_at, heard_at: part.last_heard_at },
        })
    }
}

impl HubDeployment {
    /// Appends the rows of a part. All other fields come from the newest part.
    fn and(mut self, part: &DeploymentPart) -> Result<Self, BadPart> {
        if self.rows != part.skipped {
            return Err(BadPart::Rows);
        }
        self.group = Group::read(&part.standings)?;
        self.silent_sites.clone_from(&part.silent_sites);
        self.hearing.clone_from(&part.hub);
        self.name.clone_from(&part.deployment_name);
        self.times = Times { changed_at: part.changed_at, heard_at: part.last_heard_at };
        self.whole = part.whole;
        self.rows += part.rows() as u64;
        let components = part.components.iter().map(|of| (of.name.clone(), of.states.clone()));
        self.components.extend(components);
        self.errors.extend(part.errors.iter().map(|error| (error.code.clone(), error.clone())));
        for counts in &part.groups {
            let times = Times { changed_at: counts.changed_at, heard_at: counts.last_heard_at };
            let share = (Group::read(&counts.standings)?, times);
            self.groups.entry(counts.label.clone()).or_default().insert(counts.value.clone(), share);
        }
        Ok(self)
    }
}
