//! Reimplements groups and defined views naively: devices and standings are filtered and counted from the start
//! each time.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::defined::{ComponentPart, Counted, CountedPart, DevicePart, GroupBy, ViewDefinition};
use muster_contract::groups::GroupView;
use muster_contract::standing_part::StandingPart;
use muster_contract::view::{Bounds, Complete, Freshness, Split, Standing, Verdict, content_digest};
use muster_contract::{DeploymentId, DeviceKey, LabelKey, LabelValue, State, Timestamp};

use super::{Machine, Pair, World, counts, evidence, retried, verdict};

/// The result of a definition: the total, by group, and without a group.
#[derive(Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) total: CountedPart,
    pub(crate) groups: BTreeMap<String, CountedPart>,
    pub(crate) without: CountedPart,
}

/// The times of the last change and of the last proof that a device was heard.
type TimePair = (Option<Timestamp>, Option<Timestamp>);

/// The times of the same.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct FoundTimes {
    pub(crate) total: TimePair,
    pub(crate) groups: BTreeMap<String, TimePair>,
    pub(crate) without: TimePair,
}

impl World {
    pub(crate) fn group_view(&self, label: &LabelKey, value: &LabelValue) -> Option<GroupView> {
        let within =
            |key: &DeviceKey| self.times.labels(key).is_some_and(|labels| labels.get(label) == Some(value));
        let tally = self.tally(&within);
        let mut view = GroupView {
            api_version: Default::default(),
            kind: Default::default(),
            label: label.clone(),
            value: value.clone(),
            tally,
        };
        view.tally.digest = content_digest(&view);
        (view.tally.devices.total() > 0).then_some(view)
    }

    /// Every pair of label and value that a device has.
    pub(crate) fn groups(&self) -> BTreeSet<(LabelKey, LabelValue)> {
        self.machines.iter().flat_map(|one| one.labels.clone()).collect()
    }

    /// When a standing that a definition counts last changed, and when a device that counts was last heard: in all, by group,
    /// and without a group.
    pub(crate) fn defined_times(&self, definition: &ViewDefinition) -> FoundTimes {
        let counts = |pair: Option<&Pair>| match (definition.count, pair) {
            (Counted::Components, Some(pair)) => shows_components(pair),
            (Counted::Devices, None) => definition.select.is_of_devices(),
            (_, pair) => pair.is_some(),
        };
        let mut found = FoundTimes::default();
        for (machine, pair) in self.selected(definition).filter(|(_, pair)| counts(*pair)) {
            let changed = pair
                .and_then(|pair| self.changed_at(&|key, id| (key, id) == (&pair.device, &pair.deployment)));
            let add = |times: &mut TimePair| {
                let heard = self.heard_at([&machine.key].into_iter());
                *times = (times.0.max(changed), times.1.max(heard));
            };
            add(&mut found.total);
            let by_component = definition.group_by == Some(GroupBy::Component);
            let names: BTreeSet<Option<String>> = match pair {
                Some(pair) if by_component => pair.names().map(Some).collect(),
                pair => self.name(definition, machine, pair).into_iter().collect(),
            };
            for name in names {
                match name {
                    Some(name) => add(found.groups.entry(name).or_default()),
                    None => add(&mut found.without),
                }
            }
        }
        found
    }

    /// The same of the standings of a deployment on the devices of a group.
    pub(crate) fn times_with(&self, id: &DeploymentId, label: &LabelKey, value: &LabelValue) -> TimePair {
        let is_in =
            |key: &DeviceKey| self.times.labels(key).and_then(|labels| labels.get(label)) == Some(value);
        let pairs = self.pairs.iter().filter(|pair| pair.deployment == *id && is_in(&pair.device));
        let changed_at = self.changed_at(&|key, of| of == id && is_in(key));
        (changed_at, self.heard_at(pairs.map(|pair| &pair.device)))
    }

    pub(crate) fn defined(&self, definition: &ViewDefinition) -> Found {
        let place =
            |machine: &Machine, pair: &Pair| Vec::from_iter(self.name(definition, machine, Some(pair)));
        match definition.count {
            Counted::Standings => self.found(definition, &|_| true, &place, &standings),
            Counted::Devices => self.found_devices(definition),
            Counted::Components => self.found_components(definition),
        }
    }

    /// The standings that are selected and kept, as parts: all of them, and those with a name in common.
    fn found(
        &self,
        definition: &ViewDefinition,
        keep: &dyn Fn(&Pair) -> bool,
        names: &dyn Fn(&Machine, &Pair) -> Vec<Option<String>>,
        part: &dyn Fn(&[&Pair]) -> CountedPart,
    ) -> Found {
        let (mut total, mut without) = (Vec::new(), Vec::new());
        let mut groups: BTreeMap<String, Vec<&Pair>> = BTreeMap::new();
        for (machine, pair) in self.selected(definition) {
            let Some(pair) = pair.filter(|pair| keep(pair)) else { continue };
            total.push(pair);
            for name in names(machine, pair) {
                match name {
                    Some(name) => groups.entry(name).or_default().push(pair),
                    None => without.push(pair),
                }
            }
        }
        let groups = groups.into_iter().map(|(name, pairs)| (name, part(&pairs))).collect();
        Found { total: part(&total), groups, without: part(&without) }
    }

    fn found_devices(&self, definition: &ViewDefinition) -> Found {
        let (mut total, mut without) = (BTreeSet::new(), BTreeSet::new());
        let mut groups: BTreeMap<String, BTreeSet<&DeviceKey>> = BTreeMap::new();
        for (machine, pair) in self.selected(definition) {
            if pair.is_none() && !definition.select.is_of_devices() {
                continue;
            }
            total.insert(&machine.key);
            if definition.group_by == Some(GroupBy::Deployment) && pair.is_none() {
                continue;
            }
            match self.name(definition, machine, pair) {
                Some(Some(name)) => drop(groups.entry(name).or_default().insert(&machine.key)),
                Some(None) => drop(without.insert(&machine.key)),
                None => {}
            }
        }
        let part = |keys: &BTreeSet<&DeviceKey>| self.devices(keys);
        let groups = groups.iter().map(|(name, keys)| (name.clone(), part(keys))).collect();
        Found { total: part(&total), groups, without: part(&without) }
    }

    fn found_components(&self, definition: &ViewDefinition) -> Found {
        let shows = shows_components;
        let by_component = definition.group_by == Some(GroupBy::Component);
        let place = |machine: &Machine, pair: &Pair| {
            if by_component {
                pair.names().map(Some).collect()
            } else {
                Vec::from_iter(self.name(definition, machine, Some(pair)))
            }
        };
        let mut found = self.found(definition, &shows, &place, &|pairs| components(pairs, None));
        if by_component {
            let all = self.selected(definition).filter_map(|(_, pair)| pair).filter(|pair| shows(pair));
            let all: Vec<&Pair> = all.collect();
            for (name, part) in &mut found.groups {
                let has = |pair: &&Pair| pair.names().any(|one| one == *name);
                let of: Vec<&Pair> = all.iter().copied().filter(has).collect();
                *part = components(&of, Some(name));
            }
        }
        found
    }

    /// Devices that are selected, each with its standings that are; with none where it has none.
    fn selected<'a>(
        &'a self,
        definition: &'a ViewDefinition,
    ) -> impl Iterator<Item = (&'a Machine, Option<&'a Pair>)> {
        let select = &definition.select;
        let machines = self.machines.iter().filter(move |one| {
            let labelled = |(label, values): (&LabelKey, &muster_contract::defined::Values<LabelValue>)| {
                one.labels.get(label).is_some_and(|value| values.contains(value))
            };
            select.sites.as_ref().is_none_or(|sites| sites.contains(&one.key.site))
                && select.freshness.as_ref().is_none_or(|wanted| wanted.contains(&one.freshness))
                && select.labels.iter().all(labelled)
        });
        machines.flat_map(move |machine| {
            let own = self.pairs.iter().filter(move |pair| pair.device == machine.key);
            let own: Vec<Option<&Pair>> = own
                .filter(|pair| {
                    let alone = verdict(&[pair]);
                    select.deployments.as_ref().is_none_or(|ids| ids.contains(&pair.deployment))
                        && select
                            .standings
                            .as_ref()
                            .is_none_or(|wanted| pair.is_target && wanted.contains(&pair.standing))
                        && select.verdicts.as_ref().is_none_or(|wanted| wanted.contains(&alone.unwrap()))
                })
                .map(Some)
                .collect();
            let own = if own.is_empty() { vec![None] } else { own };
            own.into_iter().map(move |pair| (machine, pair))
        })
    }

    /// The group of a device or of a standing: none where nothing is grouped, a name of none where it lacks the label.
    fn name(
        &self,
        definition: &ViewDefinition,
        machine: &Machine,
        pair: Option<&Pair>,
    ) -> Option<Option<String>> {
        match definition.group_by.as_ref()? {
            GroupBy::Site => Some(Some(machine.key.site.to_string())),
            GroupBy::Label(label) => Some(machine.labels.get(label).map(ToString::to_string)),
            GroupBy::Deployment => Some(Some(pair?.deployment.to_string())),
            GroupBy::Component => None,
        }
    }

    fn devices(&self, keys: &BTreeSet<&DeviceKey>) -> CountedPart {
        let of: Vec<&Machine> = self.machines.iter().filter(|one| keys.contains(&one.key)).collect();
        let mut devices = Split::default();
        of.iter().for_each(|one| *devices.get_mut(one.freshness) += 1);
        let complete = Complete {
            devices: of.iter().filter(|one| one.complete).count() as u64,
            of: of.len() as u64,
            missing_reports: of.iter().map(|one| one.missing).sum(),
        };
        CountedPart::Devices(DevicePart { devices, complete })
    }
}

impl Pair {
    fn names(&self) -> impl Iterator<Item = String> {
        self.report.iter().flat_map(|fact| &fact.components).map(|component| component.name.to_string())
    }
}

/// Whether the components of a pair count: its report is about its target.
fn shows_components(pair: &Pair) -> bool {
    pair.is_target && !matches!(pair.standing, Standing::Waiting | Standing::Outdated)
}

fn standings(pairs: &[&Pair]) -> CountedPart {
    let targets: Vec<&Pair> = pairs.iter().copied().filter(|pair| pair.is_target).collect();
    let count = |keep: &dyn Fn(&Pair) -> bool| targets.iter().filter(|pair| keep(pair)).count() as u64;
    let now = |pair: &Pair| pair.freshness == Freshness::Fresh && pair.known;
    let sure = |pair: &Pair| pair.standing == Standing::Installed && now(pair);
    let lost = count(&|pair| pair.standing == Standing::Failed && now(pair));
    CountedPart::Standings(StandingPart {
        verdict: verdict(pairs).unwrap_or(Verdict::Empty),
        targets: targets.len() as u64,
        leaving: (pairs.len() - targets.len()) as u64,
        overdue: count(&|pair| pair.overdue),
        retried: retried(&targets),
        counts: counts(&targets),
        evidence: evidence::counts(&targets),
        converged: Bounds { lo: count(&sure), hi: targets.len() as u64 - lost },
        complete: complete(&targets),
    })
}

fn components(pairs: &[&Pair], name: Option<&str>) -> CountedPart {
    let mut components: BTreeMap<State, u64> = BTreeMap::new();
    for pair in pairs {
        for component in pair.report.iter().flat_map(|fact| &fact.components) {
            if name.is_none_or(|name| name == component.name.as_str()) {
                *components.entry(component.state).or_default() += 1;
            }
        }
    }
    CountedPart::Components(ComponentPart { components, complete: complete(pairs) })
}

fn complete(targets: &[&Pair]) -> Complete {
    Complete {
        devices: targets.iter().filter(|pair| pair.known).count() as u64,
        of: targets.len() as u64,
        missing_reports: targets.iter().map(|pair| pair.missing).sum(),
    }
}
