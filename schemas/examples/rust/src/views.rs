//! The views: every one is counted afresh from all devices, because this is written to be read and not to be fast. They
//! are the contract's own types, so their digests are those of the bucket.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::canonical::Digest;
use muster_contract::fact::StatusFact;
use muster_contract::groups::GroupView;
use muster_contract::ids::{LabelKey, LabelValue};
use muster_contract::limits::{
    COMPONENTS_MAX, ERROR_CODE_BYTES_MAX, VIEW_ERRORS_MAX, VIEW_MESSAGE_BYTES_MAX,
};
use muster_contract::partition::partition_of;
use muster_contract::pulse::{HubHearing, UnheardPartition};
use muster_contract::retry::{Retry, RetrySummary};
use muster_contract::state::{ComponentStatus, cut};
use muster_contract::subjects::ViewKey;
use muster_contract::view::{
    AsOf, Bounds, Complete, Counts, DeploymentView, ErrorCount, ErrorExample, FleetView, Freshness, Omitted,
    SiteView, Split, Standing, Tally, UNSPECIFIED, Verdict, content_digest,
};
use muster_contract::{ComponentName, DeploymentId, DeviceKey, SiteId, State};
use serde::Serialize;
use serde_json::Value;

use crate::device::{Device, Row, Target};
use crate::fleet::Fleet;

/// Of one device, in a sum.
const MISSING_COUNTED_MAX: u64 = u32::MAX as u64;

type Devices<'a> = Vec<(&'a DeviceKey, &'a Device)>;
type Rows<'a> = Vec<(&'a DeviceKey, Row<'a>)>;

impl Fleet {
    /// Every view that there is, as the bucket has it.
    pub fn views(&self) -> BTreeMap<ViewKey, Value> {
        let mut keys = BTreeSet::from([ViewKey::Fleet]);
        for (key, device) in &self.devices {
            keys.insert(ViewKey::Site(key.site.clone()));
            let labels = device.labels.iter().map(|(label, value)| (label.clone(), value.clone()));
            keys.extend(labels.map(|(label, value)| ViewKey::Group(label, value)));
            keys.extend(device.rows().map(|(id, _)| ViewKey::Deployment(id.clone())));
        }
        keys.into_iter().filter_map(|key| Some((key.clone(), self.view(&key)?))).collect()
    }

    /// One view, if there is one. Sites and groups without devices, and deployments that are nowhere, have none; and
    /// what people define is not in LEDGER.
    pub fn view(&self, key: &ViewKey) -> Option<Value> {
        match key {
            ViewKey::Deployment(id) => self.deployment(id).map(signed),
            ViewKey::Site(site) => self.site(site).map(signed),
            ViewKey::Group(label, value) => self.group(label, value).map(signed),
            ViewKey::Fleet => {
                let (api_version, kind) = Default::default();
                Some(signed(FleetView { api_version, kind, tally: self.tally(&self.all()) }))
            }
            ViewKey::Defined(_) => None,
        }
    }

    fn all(&self) -> Devices<'_> {
        self.devices.iter().collect()
    }

    fn site(&self, site: &SiteId) -> Option<SiteView> {
        let mut devices = self.all();
        devices.retain(|(key, device)| key.site == *site && !device.retired);
        let (api_version, kind) = Default::default();
        let view = || SiteView { api_version, kind, site: site.clone(), tally: self.tally(&devices) };
        (!devices.is_empty()).then(view)
    }

    fn group(&self, label: &LabelKey, value: &LabelValue) -> Option<GroupView> {
        let mut devices = self.all();
        devices.retain(|(_, device)| device.labels.get(label) == Some(value) && !device.retired);
        let (api_version, kind) = Default::default();
        let (label, value) = (label.clone(), value.clone());
        let view = || GroupView { api_version, kind, label, value, tally: self.tally(&devices) };
        (!devices.is_empty()).then(view)
    }

    fn deployment(&self, id: &DeploymentId) -> Option<DeploymentView> {
        let rows = by_deployment(&self.all()).remove(id)?;
        let targets = targets(&rows);
        let (verdict, (api_version, kind)) = (verdict(&targets), Default::default());
        let sure = |target: &&Target| {
            target.known && target.standing == Standing::Installed && target.freshness == Freshness::Fresh
        };
        // What failed before it fell silent may have recovered since.
        let lost = |target: &&Target| {
            target.known && target.standing == Standing::Failed && target.freshness == Freshness::Fresh
        };
        let (mut components, mut errors) = (components(&rows), errors(&rows));
        let omitted = Omitted {
            components: components.len().saturating_sub(COMPONENTS_MAX) as u64,
            errors: errors.len().saturating_sub(VIEW_ERRORS_MAX) as u64,
        };
        while components.len() > COMPONENTS_MAX {
            components.pop_last();
        }
        errors.truncate(VIEW_ERRORS_MAX);
        Some(DeploymentView {
            api_version,
            kind,
            deployment: id.clone(),
            as_of: self.as_of,
            verdict,
            targets: targets.len() as u64,
            leaving: (rows.len() - targets.len()) as u64,
            overdue: count(&targets, |target| target.overdue),
            counts: counts(&targets),
            converged: Bounds {
                lo: targets.iter().filter(sure).count() as u64,
                hi: (targets.len() - targets.iter().filter(lost).count()) as u64,
            },
            complete: Complete {
                devices: count(&targets, |target| target.known),
                of: targets.len() as u64,
                missing_reports: total(targets.iter().map(|target| target.missing)),
            },
            components,
            errors,
            omitted,
            hub: self.hub(rows.iter().map(|(key, _)| *key)),
            digest: unsigned(),
        })
    }

    /// The partitions of these devices that the hub does not listen to.
    fn hub<'a>(&self, devices: impl Iterator<Item = &'a DeviceKey>) -> HubHearing {
        let partitions: BTreeSet<u16> = devices.map(partition_of).collect();
        let unheard = self.unheard.iter().filter(|(partition, _)| partitions.contains(partition));
        let unheard = unheard.map(|(partition, since)| UnheardPartition {
            hub: None,
            partition: *partition,
            since: *since,
            ledger_seq: None,
        });
        HubHearing::of(unheard.collect())
    }

    /// What sites, groups and the fleet have in common.
    fn tally(&self, devices: &Devices<'_>) -> Tally {
        let present = devices.iter().filter(|(_, device)| !device.retired);
        Tally { hub: self.hub(present.map(|(key, _)| *key)), ..tally(self.as_of, devices) }
    }
}

/// The counts of a part of the fleet.
fn tally(as_of: AsOf, devices: &Devices<'_>) -> Tally {
    let present: Vec<&Device> =
        devices.iter().map(|(_, device)| *device).filter(|device| !device.retired).collect();
    let mut heard = Split::default();
    present.iter().for_each(|device| *heard.get_mut(device.freshness()) += 1);
    let rows = by_deployment(devices);
    let mut deployments = BTreeMap::new();
    for rows in rows.values() {
        *deployments.entry(verdict(&targets(rows))).or_default() += 1;
    }
    let all: Rows<'_> = rows.into_values().flatten().collect();
    let targets = targets(&all);
    Tally {
        as_of,
        devices: heard,
        targets: targets.len() as u64,
        leaving: (all.len() - targets.len()) as u64,
        overdue: count(&targets, |target| target.overdue),
        counts: counts(&targets),
        deployments,
        complete: Complete {
            devices: present.iter().filter(|device| device.is_complete()).count() as u64,
            of: present.len() as u64,
            missing_reports: total(present.iter().map(|device| device.missing())),
        },
        hub: HubHearing::default(),
        digest: unsigned(),
    }
}

fn by_deployment<'a>(devices: &Devices<'a>) -> BTreeMap<&'a DeploymentId, Rows<'a>> {
    let mut rows: BTreeMap<_, Rows<'_>> = BTreeMap::new();
    for (key, device) in devices {
        device.rows().for_each(|(id, row)| rows.entry(id).or_default().push((*key, row)));
    }
    rows
}

fn targets(rows: &Rows<'_>) -> Vec<Target> {
    rows.iter().filter_map(|(_, row)| row.target).collect()
}

fn count(targets: &[Target], holds: fn(&Target) -> bool) -> u64 {
    targets.iter().filter(|target| holds(target)).count() as u64
}

fn total(missing: impl Iterator<Item = u64>) -> u64 {
    missing.map(|number| number.min(MISSING_COUNTED_MAX)).sum()
}

fn counts(targets: &[Target]) -> Counts {
    let mut counts = Counts::new();
    for target in targets {
        *counts.entry(target.standing).or_default().get_mut(target.freshness) += 1;
    }
    counts
}

/// The first that holds.
fn verdict(targets: &[Target]) -> Verdict {
    use Standing::{Failed, Installed, Installing, Pending, Removed, Removing};
    let any = |holds: fn(&Target) -> bool| targets.iter().any(holds);
    let is_at_work = |target: &Target| matches!(target.standing, Pending | Installing | Removing | Removed);
    // Who is silent while at work is waited for.
    let gets_on = |target: &Target| is_at_work(target) && target.freshness == Freshness::Fresh;
    if targets.is_empty() {
        Verdict::Removing
    } else if any(|target| target.standing == Failed) {
        Verdict::Failing
    } else if any(|target| target.overdue) {
        Verdict::Overdue
    } else if any(|target| !target.known) {
        Verdict::Incomplete
    } else if targets.iter().any(gets_on) {
        Verdict::Progressing
    } else if any(|target| target.standing != Installed) {
        Verdict::Waiting
    } else if any(|target| target.freshness != Freshness::Fresh) {
        Verdict::ConvergedStale
    } else {
        Verdict::Converged
    }
}

/// A component of an older generation is no evidence for the present one.
fn components(rows: &Rows<'_>) -> BTreeMap<ComponentName, BTreeMap<State, u64>> {
    let mut components: BTreeMap<_, BTreeMap<State, u64>> = BTreeMap::new();
    for (_, row) in rows {
        if row.target.is_some_and(|target| target.standing != Standing::Outdated) {
            for component in row.report.iter().flat_map(|report| &report.components) {
                *components.entry(component.name.clone()).or_default().entry(component.state).or_default() +=
                    1;
            }
        }
    }
    components
}

/// Most frequent first, then by code; a device counts once for each code, and the first device is the example.
fn errors(rows: &Rows<'_>) -> Vec<ErrorCount> {
    let mut errors: BTreeMap<String, ErrorCount> = BTreeMap::new();
    let mut failed: Vec<_> = rows
        .iter()
        .filter(|(_, row)| {
            row.target.is_some_and(|target| target.standing == Standing::Failed || target.retried)
        })
        .filter_map(|(key, row)| Some((*key, row.report?)))
        .collect();
    failed.sort_by_key(|(key, _)| *key);
    for (key, report) in failed {
        let mut codes = BTreeSet::new();
        for (code, component, message, retry) in errors_of(report) {
            if codes.insert(code.clone()) {
                let message = cut(message.to_owned(), VIEW_MESSAGE_BYTES_MAX);
                let first = || ErrorCount {
                    code: code.clone(),
                    count: 0,
                    example: ErrorExample {
                        device: key.clone(),
                        component: component.cloned(),
                        message,
                        retry,
                    },
                };
                errors.entry(code.clone()).or_insert_with(first).count += 1;
            }
        }
    }
    let mut errors: Vec<ErrorCount> = errors.into_values().collect();
    // Those of one count stay in the order of their codes.
    errors.sort_by_key(|error| std::cmp::Reverse(error.count));
    errors
}

/// Code, component, message and retry of an error.
type Culprit<'a> = (String, Option<&'a ComponentName>, &'a str, Option<RetrySummary>);

/// The deployment's own error first, then by component; of what is tried again the last one, where the report has no other.
fn errors_of(report: &StatusFact) -> Vec<Culprit<'_>> {
    let tried = |component: Option<&ComponentName>| {
        report.retries.iter().find(|retry| retry.component.as_ref() == component).map(Retry::summary)
    };
    let mut found: Vec<Culprit<'_>> = Vec::new();
    if let Some(error) = &report.status.error {
        let mut names = report.components.iter().map(|component| &component.name);
        let component = names.find(|name| name.as_str() == error.source);
        found.push((code(&error.code), component, error.message.as_str(), tried(component)));
    }
    for component in &report.components {
        let name = Some(&component.name);
        let error = component.error.iter();
        found.extend(error.map(|error| (code(&error.code), name, error.message.as_str(), tried(name))));
    }
    for retry in &report.retries {
        let (name, error) = (retry.component.as_ref(), &retry.last_error);
        let has_error = |of: &&ComponentStatus| Some(&of.name) == name && of.error.is_some();
        let is_told = match name {
            Some(_) => report.components.iter().any(|of| has_error(&of)),
            None => report.status.error.is_some(),
        };
        if !is_told {
            found.push((code(&error.code), name, error.message.as_str(), Some(retry.summary())));
        }
    }
    if found.is_empty() {
        found.push((code(""), None, report.status.reason.as_deref().unwrap_or_default(), None));
    }
    found.sort_by_key(|(_, component, ..)| *component);
    found
}

fn code(text: &str) -> String {
    let shown = &text[..text.floor_char_boundary(ERROR_CODE_BYTES_MAX)];
    if shown.is_empty() { UNSPECIFIED.to_owned() } else { shown.to_owned() }
}

/// Stands where a digest will.
fn unsigned() -> Digest {
    Digest::of_bytes(b"")
}

fn signed(view: impl Serialize) -> Value {
    let digest = content_digest(&view);
    let mut view = serde_json::json!(view);
    view["digest"] = serde_json::json!(digest);
    view
}
