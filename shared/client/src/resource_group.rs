//! Status as kpt's ResourceGroup (`kpt.dev/v1alpha1`): of a deployment on a device, whose resources are the components; of a
//! deployment over the fleet, whose subgroups are the ResourceGroups of the devices; or of the fleet with counts alone.
//!
//! kstatus computes Current from it only if every resource is Current. An unknown state is `Reconciling`, because kstatus
//! ignores a condition of status Unknown. A document stays within its budget: long messages are cut, the best resources are
//! omitted first, and an annotation has the number of omitted resources of each status.

pub mod read;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use muster_contract::status::{KAxes, KStatus, Reconcile, StatusAnswer, TargetStatus};
use muster_contract::view::ErrorCount;
use muster_contract::{DeploymentId, DeviceKey, Timestamp};
use serde_json::{Value, json};

use crate::text::clean;

/// A message that has more than this part of the budget is cut where not everything fits.
const MESSAGE_SHARE: usize = 16;

/// How a document is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// As kubectl and kpt print it by default.
    Yaml,
    /// As they do on request.
    Json,
}

/// A ResourceGroup before it is fitted into its budget.
#[derive(Debug, Clone)]
pub struct Group {
    metadata: Value,
    description: String,
    generations: Option<(u64, u64)>,
    kstatus: KStatus,
    overdue: bool,
    message: String,
    changed_at: Option<Timestamp>,
    counts: BTreeMap<KStatus, u64>,
    /// Whether its members are groups themselves.
    has_subgroups: bool,
    /// Its members, in the order in which they are written.
    resources: Vec<Resource>,
    /// Most frequent first.
    errors: Vec<String>,
    /// Error codes that the source of the errors has left out already.
    errors_left_out: u64,
    /// There are errors, and nobody has counted them.
    errors_not_counted: bool,
}

/// The part of a group that fits.
#[derive(Debug, Clone, Copy)]
struct Kept<'a> {
    /// Places of resources.
    resources: &'a [usize],
    /// How many errors, the most frequent first.
    errors: usize,
    /// Bytes of a message.
    message_max: usize,
}

#[derive(Debug, Clone)]
struct Resource {
    name: Value,
    axes: KAxes,
    message: String,
    changed_at: Option<Timestamp>,
}

impl Group {
    /// A deployment on a device.
    pub fn of_device(id: &DeploymentId, key: &DeviceKey, answer: &StatusAnswer) -> Self {
        let target = answer.targets.first();
        let resources = target.into_iter().flat_map(|target| components(id, key, target)).collect();
        let generations = target.and_then(|target| target.target_generation).map(|wanted| {
            let reported = target.and_then(|target| target.reported_generation);
            (wanted.get(), reported.map_or(0, |reported| reported.min(wanted).get()))
        });
        let nothing = || format!("{id} neither shall run on {key} nor is there");
        Self {
            metadata: metadata(&format!("{id}.{}", key.device), key.site.as_str(), answer),
            description: format!("{id} on {key}"),
            generations,
            kstatus: target.map_or(KStatus::NotFound, |target| target.axes.kstatus),
            overdue: target.is_some_and(|target| target.overdue),
            message: target.map_or_else(nothing, |target| target.message.clone()),
            changed_at: target.and_then(|target| target.changed_at),
            counts: target.map(counted).unwrap_or_default(),
            has_subgroups: false,
            resources,
            errors: Vec::new(),
            errors_left_out: 0,
            errors_not_counted: false,
        }
    }

    /// A deployment over all that passes the filters, with a subgroup for each device.
    pub fn of_fleet(id: &DeploymentId, answer: &StatusAnswer) -> Self {
        let resources = answer.targets.iter().map(|target| Resource {
            name: json!({ "namespace": target.key.site, "name": format!("{id}.{}", target.key.device) }),
            axes: target.axes,
            message: target.message.clone(),
            changed_at: target.changed_at,
        });
        Self { resources: resources.collect(), ..Self::of_counts(id, answer, Some(&[]), 0) }
    }

    /// A deployment over the fleet without its resources: counts, and the errors by frequency, if they are counted of what
    /// passes the filters.
    pub fn of_counts(
        id: &DeploymentId,
        answer: &StatusAnswer,
        errors: Option<&[ErrorCount]>,
        left_out: u64,
    ) -> Self {
        let rollup = &answer.rollup;
        let lines = errors.unwrap_or_default().iter().map(|error| {
            let (count, of) = (error.count, rollup.targets);
            format!("{} on {count} of {of}, such as {}", clean(&error.code), error.example.device)
        });
        Self {
            metadata: metadata(id.as_str(), "", answer),
            description: format!("{id} on {} targets", rollup.targets),
            generations: None,
            kstatus: whole(&rollup.kstatus),
            overdue: rollup.overdue > 0,
            message: rollup.message.clone().unwrap_or_else(|| "nothing passes the filters".to_owned()),
            changed_at: rollup.changed_at,
            counts: rollup.kstatus.clone(),
            has_subgroups: true,
            resources: Vec::new(),
            errors: lines.collect(),
            errors_left_out: left_out,
            errors_not_counted: errors.is_none() && rollup.kstatus.contains_key(&KStatus::Failed),
        }
    }

    /// The document in at most so many bytes, as far as that can be: its conditions and counts are always there.
    pub fn within(&self, budget: usize, spelling: Spelling) -> String {
        let ranked = self.ranked();
        let whole = Kept { resources: &ranked, errors: self.errors.len(), message_max: usize::MAX };
        let text = |kept: Kept<'_>| self.text(kept, spelling);
        let everything = text(whole);
        if everything.len() <= budget {
            return everything;
        }
        let least = |message_max| Kept { resources: &[], errors: 0, message_max };
        // Signs may take several bytes when they are written, so it is tried out what fits.
        let mut message_max = budget / MESSAGE_SHARE;
        while message_max > 0 && text(least(message_max)).len() > budget {
            message_max /= 2;
        }
        let least = least(message_max);
        // Errors are few and come first; resources have what they leave.
        let (errors, _) = most(whole.errors, budget, |errors| text(Kept { errors, ..least }));
        let resources = |count| text(Kept { resources: &ranked[..count], errors, ..least });
        most(ranked.len(), budget, resources).1
    }

    /// Places of the resources, the worst first.
    fn ranked(&self) -> Vec<usize> {
        let mut ranked: Vec<usize> = (0..self.resources.len()).collect();
        ranked.sort_by_key(|place| (self.resources[*place].axes.kstatus, *place));
        ranked
    }

    fn text(&self, kept: Kept<'_>, spelling: Spelling) -> String {
        let mut document = self.document(kept);
        document.sort_all_objects();
        // Values that were made here can be written.
        match spelling {
            Spelling::Yaml => with_quoted_times(&serde_norway::to_string(&document).unwrap_or_default()),
            Spelling::Json => serde_json::to_string_pretty(&document).unwrap_or_default() + "\n",
        }
    }

    fn document(&self, kept: Kept<'_>) -> Value {
        let mut places = kept.resources.to_vec();
        places.sort_unstable();
        let resources = || places.iter().map(|place| &self.resources[*place]);
        let names: Vec<_> = resources().map(|resource| resource.name.clone()).collect();
        let with_axes = !self.has_subgroups;
        let statuses: Vec<_> = resources().map(|it| it.status(kept.message_max, with_axes)).collect();
        let mut metadata = self.metadata.clone();
        let left_out = self.left_out(kept);
        metadata["annotations"]["muster/kstatus"] = self.kstatus.as_str().into();
        metadata["annotations"]["muster/counts"] = words(&self.counts).into();
        if !left_out.is_empty() {
            metadata["annotations"]["muster/left-out"] = left_out.into();
        }
        if let Some((generation, _)) = self.generations {
            metadata["generation"] = generation.into();
        }
        let mut document = json!({
            "apiVersion": "kpt.dev/v1alpha1",
            "kind": "ResourceGroup",
            "metadata": metadata,
            "spec": { "descriptor": { "type": "Muster/Deployment", "description": self.description } },
            "status": {
                "observedGeneration": self.generations.map_or(0, |(_, observed)| observed),
                "conditions": self.conditions(kept),
            },
        });
        if !names.is_empty() {
            let (names_at, statuses_at) = if self.has_subgroups {
                ("subgroups", "subgroupStatuses")
            } else {
                ("resources", "resourceStatuses")
            };
            document["spec"][names_at] = names.into();
            document["status"][statuses_at] = statuses.into();
        }
        document
    }

    fn left_out(&self, kept: Kept<'_>) -> String {
        let mut counts: BTreeMap<KStatus, u64> = BTreeMap::new();
        let places: HashSet<_> = kept.resources.iter().copied().collect();
        let absent = (0..self.resources.len()).filter(|place| !places.contains(place));
        absent.for_each(|place| *counts.entry(self.resources[place].axes.kstatus).or_default() += 1);
        let mut parts = Vec::new();
        let resources: u64 = counts.values().sum();
        let members = if self.has_subgroups { "subgroups" } else { "resources" };
        if resources > 0 {
            parts.push(format!("{resources} of {} {members} ({})", self.resources.len(), words(&counts)));
        }
        if self.resources.is_empty() && !self.counts.is_empty() {
            parts.push(format!("all {} {members}", self.counts.values().sum::<u64>()));
        }
        let errors = (self.errors.len() - kept.errors) as u64 + self.errors_left_out;
        if errors > 0 {
            parts.push(format!("{errors} error codes"));
        }
        if self.errors_not_counted {
            parts.push("all error codes (counted without a filter only)".to_owned());
        }
        if self.messages(kept).any(|message| message.len() > kept.message_max) {
            parts.push("ends of messages (…)".to_owned());
        }
        parts.join(", ")
    }

    /// The messages of what is written.
    fn messages<'a>(&'a self, kept: Kept<'a>) -> impl Iterator<Item = &'a String> {
        let resources = kept.resources.iter().map(|place| &self.resources[*place].message);
        [&self.message].into_iter().chain(&self.errors[..kept.errors]).chain(resources)
    }

    /// The conditions: a stalled group has its message there, any other group in the condition that it reconciles.
    fn conditions(&self, Kept { errors, message_max, .. }: Kept<'_>) -> Vec<Value> {
        let stalled = self.kstatus == KStatus::Failed || self.overdue;
        let reconciling = !matches!(self.kstatus, KStatus::Failed | KStatus::Current);
        let reason = match (self.kstatus, self.overdue) {
            (KStatus::Failed, _) => "ComponentFailed",
            (_, true) => "DeadlineExceeded",
            _ => "NothingFailed",
        };
        let message = truncate(&self.message, message_max);
        let (of_reconciling, of_stalled) = if stalled { ("", &*message) } else { (&*message, "") };
        let at = self.changed_at;
        let mut conditions = vec![
            condition("Reconciling", reconciling, self.kstatus.as_str(), of_reconciling, at),
            condition("Stalled", stalled, reason, of_stalled, at),
        ];
        if errors > 0 {
            let lines: Vec<_> =
                self.errors[..errors].iter().map(|line| truncate(line, message_max)).collect();
            conditions.push(condition("Errors", true, "ByFrequency", &lines.join("\n"), at));
        }
        conditions
    }
}

impl Resource {
    /// kpt's definition has the axes of what was tried for resources, and not for subgroups.
    fn status(&self, message_max: usize, with_axes: bool) -> Value {
        let KAxes { kstatus, strategy, actuation, reconcile } = self.axes;
        let mut status = self.name.clone();
        status["status"] = kstatus.as_str().into();
        if with_axes {
            status["strategy"] = strategy.as_str().into();
            status["actuation"] = actuation.as_str().into();
            status["reconcile"] = reconcile.as_str().into();
        }
        let ready = reconcile == Reconcile::Succeeded && kstatus == KStatus::Current;
        let message = truncate(&self.message, message_max);
        status["conditions"] =
            json!([condition("Ready", ready, kstatus.as_str(), &message, self.changed_at)]);
        status
    }
}

fn components<'a>(
    id: &'a DeploymentId,
    key: &'a DeviceKey,
    target: &'a TargetStatus,
) -> impl Iterator<Item = Resource> + 'a {
    target.components.iter().map(move |component| Resource {
        name: json!({ "group": "muster", "kind": "Component", "namespace": key.site,
            "name": format!("{id}.{}.{}", key.device, component.name) }),
        axes: component.axes,
        message: component.message.clone(),
        changed_at: component.changed_at,
    })
}

fn counted(target: &TargetStatus) -> BTreeMap<KStatus, u64> {
    let mut counts = BTreeMap::new();
    for component in &target.components {
        *counts.entry(component.axes.kstatus).or_default() += 1;
    }
    counts
}

fn metadata(name: &str, namespace: &str, answer: &StatusAnswer) -> Value {
    let mut metadata = json!({
        "name": name,
        "annotations": { "muster/ledger-seq": answer.as_of.ledger_seq.to_string() },
    });
    if !namespace.is_empty() {
        metadata["namespace"] = namespace.into();
    }
    metadata
}

/// At most so many bytes of a text; what is cut is marked.
fn truncate(text: &str, bytes_max: usize) -> Cow<'_, str> {
    const MARK: &str = "…";
    if text.len() <= bytes_max {
        return text.into();
    }
    match bytes_max.checked_sub(MARK.len()) {
        Some(room) => format!("{}{MARK}", &text[..text.floor_char_boundary(room)]).into(),
        None => "".into(),
    }
}

fn condition(kind: &str, is: bool, reason: &str, message: &str, at: Option<Timestamp>) -> Value {
    let mut value = json!({ "type": kind, "status": if is { "True" } else { "False" }, "reason": reason });
    if !message.is_empty() {
        value["message"] = message.lines().map(clean).collect::<Vec<_>>().join("\n").into();
    }
    // Kubernetes has times in whole seconds.
    if let Some(at) = at.and_then(|at| Timestamp::from_second(at.as_second()).ok()) {
        value["lastTransitionTime"] = at.to_string().into();
    }
    value
}

/// YAML 1.1 has a type for times, which Kubernetes avoids by quotes.
fn with_quoted_times(yaml: &str) -> String {
    yaml.lines().fold(String::with_capacity(yaml.len()), |mut text, line| {
        let _ = match line.split_once("lastTransitionTime: ") {
            Some((before, time)) if before.trim_matches([' ', '-']).is_empty() => {
                writeln!(text, "{before}lastTransitionTime: \"{time}\"")
            }
            _ => writeln!(text, "{line}"),
        };
        text
    })
}

/// kstatus of many, as kpt aggregates it, but that nothing is never Current.
fn whole(counts: &BTreeMap<KStatus, u64>) -> KStatus {
    let has = |status: KStatus| counts.contains_key(&status);
    match () {
        () if counts.is_empty() => KStatus::NotFound,
        () if has(KStatus::Failed) => KStatus::Failed,
        () if has(KStatus::Unknown) => KStatus::Unknown,
        () if counts.len() == 1 => *counts.first_key_value().map_or(&KStatus::NotFound, |(status, _)| status),
        () => KStatus::InProgress,
    }
}

fn words(counts: &BTreeMap<KStatus, u64>) -> String {
    counts.iter().fold(String::new(), |mut text, (status, count)| {
        let comma = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{comma}{count} {status}");
        text
    })
}

/// The most of `all` things whose text is within the budget, and that text.
fn most(all: usize, budget: usize, text: impl Fn(usize) -> String) -> (usize, String) {
    let whole = text(all);
    if whole.len() <= budget {
        return (all, whole);
    }
    let (mut fits, mut too_many) = (0, all);
    while fits + 1 < too_many {
        let middle = fits.midpoint(too_many);
        if text(middle).len() <= budget { fits = middle } else { too_many = middle }
    }
    (fits, text(fits))
}
