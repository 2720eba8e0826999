//! Checks what must be true after everything was healed, with an operator's credentials and without trusting any service: it
//! asks the devices what they have, counts LEDGER again, and builds the views again from LEDGER's first fact.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use futures_util::{StreamExt, stream};
use muster_bus::Bus;
use muster_contract::DeviceKey;
use muster_contract::decode;
use muster_contract::desired::DesiredState;
use muster_contract::query::DeviceLine;
use muster_contract::subjects::{self, stream::LEDGER};
use muster_contract::view::{Freshness, Standing, Verdict};
use muster_identity::Role;
use muster_service::error::chain;

use super::activity::{LedgerActivity, Takeovers};
use super::monitor::ViewMonitor;
use super::plan::{self, PlanClient};
use super::rollouts::{Decisions, Releases};
use super::script::Wanted;
use super::secured::SecuredHub;
use super::violation::Violation;
use super::workloads;
use crate::environment;
use crate::fleet::find_program;
use crate::http;
use crate::hub::Hub;
use crate::ledger::{self, Rebuild, Recount};
use crate::link_faults::HEAD_METRIC;
use crate::result::Accounting;
use crate::run_paths::RunPaths;

/// Devices asked at once.
const ASKED_AT_ONCE: usize = 16;
/// Violations of one kind that are listed; the others are counted.
const LISTED_MAX: usize = 8;
/// The agent's metric for the generation it accepted last.
const GENERATION_METRIC: &str = "muster_agent_desired_generation";
/// The agent's metric for unsent reports.
const UNSENT_METRIC: &str = "muster_agent_unsent_reports";
/// Incidents that nothing in a run justifies: a device was taken for another, or a process for an attacker.
const FORBIDDEN: [&str; 5] = ["clone", "sequenceFork", "foreignDocument", "foreignView", "ledgerReplaced"];
/// The incident of a device that lost its database: one for each that was wiped, at most.
const AMNESIA: &str = "amnesia";

/// The checker of a run.
pub(super) struct Checker {
    /// The query service.
    pub(super) hub: Hub,
    /// An operator's connection, not by way of any link.
    pub(super) bus: Bus,
    /// Where things are.
    pub(super) paths: RunPaths,
    /// The hub's keys.
    pub(super) keys: SecuredHub,
    /// The release of each deployment that each device should run.
    pub(super) wanted: Wanted,
    /// The devices that a rollout governs.
    pub(super) governed: BTreeSet<DeviceKey>,
    /// The plan, if there is one.
    pub(super) plan: Option<PlanClient>,
    /// The devices that run real processes.
    pub(super) real: Vec<DeviceKey>,
    /// The devices whose agents have lost their databases, and how often: what they had not sent is gone with them.
    pub(super) wiped: BTreeMap<DeviceKey, u64>,
    /// The follower of the views.
    pub(super) monitor: ViewMonitor,
}

/// The counts of a check.
#[derive(Debug, Default)]
pub(super) struct CheckedCounts {
    /// The accounting of the hub.
    pub(super) accounting: Accounting,
    /// Facts of LEDGER.
    pub(super) facts: u64,
    /// Numbers that are not accounted for.
    pub(super) lost: u64,
    /// Report numbers that are in LEDGER twice.
    pub(super) duplicated: u64,
    /// Incidents by type.
    pub(super) incidents: BTreeMap<&'static str, u64>,
    /// Views that the monitor saw written.
    pub(super) views_seen: u64,
    /// Takeovers between ingests.
    pub(super) takeovers: Takeovers,
    /// Deployments on devices that were in a crash loop: those that are real processes, and all.
    pub(super) crash_loops: (u64, u64),
    /// Real processes that run on devices.
    pub(super) workloads: u64,
    /// Decisions about rollouts, by verb.
    pub(super) decisions: Decisions,
}

/// The state that a device itself stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AgentState {
    head: u64,
    generation: u64,
    unsent: u64,
}

impl Checker {
    /// The reasons why the fleet is not at rest. Cheap enough to be read many times.
    pub(super) async fn unrest(&self, agents: &[(DeviceKey, Option<SocketAddr>)]) -> Vec<Violation> {
        let lines = match self.hub.devices().await {
            Ok(lines) => lines,
            Err(error) => return vec![chain(&error)],
        };
        let wanted = match self.wanted_with_plan().await {
            Ok(wanted) => wanted,
            Err(found) => return found,
        };
        let lines: BTreeMap<_, _> = lines.into_iter().map(|line| (line.key.clone(), line)).collect();
        let device = |(key, http): &(DeviceKey, _)| {
            self.device(key.clone(), wanted.get(key).cloned().zip(*http), lines.get(key))
        };
        let asked: Vec<_> = agents.iter().map(device).collect();
        let per_device: Vec<Vec<_>> = stream::iter(asked).buffered(ASKED_AT_ONCE).collect().await;
        let mut found = listed(per_device.concat());
        found.extend(listed(self.unrest_of_views(&wanted).await));
        found
    }

    /// The release of each deployment that each device should run, those of the plan among them.
    async fn wanted_with_plan(&self) -> Result<Wanted, Vec<Violation>> {
        let mut wanted = self.wanted.clone();
        if let Some(plan) = &self.plan {
            for (node, instances) in plan.approve_and_check().await? {
                wanted.entry(node).or_default().extend(instances);
            }
        }
        Ok(wanted)
    }

    async fn device(
        &self,
        key: DeviceKey,
        target: Option<(BTreeMap<String, u64>, SocketAddr)>,
        line: Option<&DeviceLine>,
    ) -> Vec<Violation> {
        let Some((wanted, http)) = target else { return Vec::new() };
        let found = match (self.published(&key).await, own(http).await, line) {
            (Err(error), ..) => vec![error],
            (_, Err(error), _) => vec![error],
            (_, _, None) => vec!["the hub does not know it".to_owned()],
            (Ok(published), Ok(own), Some(line)) => compare(&wanted, &published, own, line),
        };
        found.into_iter().map(|difference| format!("{key}: {difference}")).collect()
    }

    /// The desired state that was published for a device last, as LEDGER holds it.
    async fn published(&self, key: &DeviceKey) -> Result<DesiredState, Violation> {
        let last = self.bus.last(LEDGER, &subjects::desired(key)).await.map_err(|error| chain(&error))?;
        let message = last.ok_or("nothing was ever published for it")?;
        decode::parse(&message.payload).map_err(|refusal| format!("LEDGER holds no desired state: {refusal}"))
    }

    async fn unrest_of_views(&self, wanted: &Wanted) -> Vec<Violation> {
        let views = match self.hub.deployments().await {
            Ok(views) => views,
            Err(error) => return vec![chain(&error)],
        };
        let wanted: BTreeSet<&str> =
            wanted.values().flat_map(|apps| apps.keys().map(String::as_str)).collect();
        let shown: BTreeSet<&str> = views.iter().map(|view| view.deployment.as_str()).collect();
        let ghosts = shown.difference(&wanted).map(|id| format!("{id} has a view and nobody shall run it"));
        let absent = wanted.difference(&shown).map(|id| format!("{id} has no view"));
        let restless = views
            .iter()
            .filter(|view| view.verdict != Verdict::Converged)
            .map(|view| format!("{} is {}: {:?}", view.deployment, view.verdict.as_str(), view.counts));
        ghosts.chain(absent).chain(restless).collect()
    }

    /// The violations that a second count of LEDGER, rebuilt views, the audit, the monitor and the running processes show.
    pub(super) async fn violations(
        &self,
        ingests_by_pid: &BTreeMap<u32, usize>,
        count: &mut CheckedCounts,
    ) -> Vec<Violation> {
        let lines = match self.hub.devices().await {
            Ok(lines) => lines,
            Err(error) => return vec![chain(&error)],
        };
        let (mut recount, mut rebuild) = (Recount::default(), Rebuild::default());
        let mut activity = LedgerActivity::default();
        let mut releases = Releases::to(self.governed.clone());
        let read = ledger::read(&self.bus, |entry| {
            recount.count(&entry);
            activity.read(&entry);
            releases.read(&entry);
            rebuild.apply(entry);
        });
        if let Err(error) = read.await {
            return vec![chain(&error)];
        }
        let mut found = listed(recounted(&recount, &lines, &self.wiped, count));
        found.extend(listed(self.rebuilt(&rebuild).await));
        found.extend(self.audit().await.err());
        let (of_rollouts, decisions) = releases.violations(&self.bus).await;
        found.extend(listed(of_rollouts));
        count.decisions = decisions;
        let devices: Vec<_> = self.real.iter().filter_map(|key| Some((key, self.wanted.get(key)?))).collect();
        let (views, steps_back) = self.monitor.result();
        count.views_seen = views;
        count.takeovers = activity.takeovers(ingests_by_pid);
        count.crash_loops = activity.crash_loops(&self.real);
        count.workloads = workloads::pids(&self.paths.dir).len() as u64;
        found.extend(steps_back);
        found.extend(listed(workloads::differences(&self.paths.dir, &devices)));
        found
    }

    /// The bucket holds the views of a fold from the first fact on: those and no others, digest for digest.
    async fn rebuilt(&self, rebuild: &Rebuild) -> Vec<Violation> {
        let shown = match ledger::shown(&self.bus).await {
            Ok(shown) => shown,
            Err(error) => return vec![chain(&error)],
        };
        let rebuilt: BTreeMap<String, _> =
            rebuild.digests().into_iter().map(|(key, digest)| (key.to_string(), Some(digest))).collect();
        let keys: BTreeSet<&String> = rebuilt.keys().chain(shown.keys()).collect();
        let differ = keys.into_iter().filter(|key| rebuilt.get(*key) != shown.get(*key));
        differ
            .map(|key| {
                let (rebuilt, shown) = (rebuilt.get(key), shown.get(key));
                format!("view {key}: a rebuild gives {rebuilt:?}, the bucket holds {shown:?}")
            })
            .collect()
    }

    /// Checks that `muster audit` finds nothing.
    async fn audit(&self) -> Result<(), Violation> {
        let program = find_program(&self.paths.programs, "muster").map_err(|error| chain(&error))?;
        let output = environment::command(program)
            .args(["audit", "--format", "json"])
            .args(self.keys.arguments(&self.keys.credentials(Role::Operator), self.keys.address))
            .output()
            .await
            .map_err(|error| format!("`muster audit` cannot be run: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stdout);
        let complaint = String::from_utf8_lossy(&output.stderr);
        Err(format!("`muster audit` ends with {}: {complaint}{said}", output.status))
    }
}

/// The violations by a recount of LEDGER: report numbers stored twice, missing or rejected, and devices taken for others.
fn recounted(
    recount: &Recount,
    lines: &[DeviceLine],
    wiped: &BTreeMap<DeviceKey, u64>,
    count: &mut CheckedCounts,
) -> Vec<Violation> {
    let mut found = recount.twice.clone();
    // No process under test sends a bad report: each in quarantine was refused wrongly.
    found.extend(listed(recount.quarantined.clone()));
    let mut lost = 0;
    for ((device, epoch), numbers) in &recount.numbers {
        let line = lines.iter().find(|line| line.key == *device);
        let current = line.filter(|line| line.epoch.is_some_and(|known| known.get() == *epoch));
        if current.is_none() && wiped.contains_key(device) {
            continue;
        }
        let missing = numbers.missing();
        if !missing.is_empty() && !line.is_some_and(|line| line.retired) {
            lost += missing.count();
            found.push(format!("{device} epoch {epoch}: {missing:?} of {} are lost", numbers.head));
        }
        let Some(line) = current else {
            found.push(format!("{device} has been of epoch {epoch}, which the hub does not think it is"));
            continue;
        };
        let (counted, said) = (numbers.received.count(), line.account.received);
        if counted != said {
            found.push(format!("{device}: {counted} numbers are in LEDGER, the hub says {said}"));
        }
    }
    let forbidden = FORBIDDEN.iter().filter_map(|kind| Some((kind, recount.incidents.get(kind)?)));
    found.extend(forbidden.map(|(kind, times)| format!("{times} incidents of {kind}")));
    let amnesia = recount.incidents.get(AMNESIA).copied().unwrap_or_default();
    let wiped_databases: u64 = wiped.values().sum();
    if amnesia > wiped_databases {
        found.push(format!("{amnesia} incidents of {AMNESIA}, and {wiped_databases} databases were wiped"));
    }
    *count = CheckedCounts {
        accounting: Accounting::of(lines),
        facts: recount.facts,
        lost,
        duplicated: recount.twice.len() as u64,
        incidents: recount.incidents.clone(),
        ..CheckedCounts::default()
    };
    found
}

/// The differences between the desired state of a device, the published document, its own state and the hub's answer.
fn compare(
    wanted: &BTreeMap<String, u64>,
    published: &DesiredState,
    own: AgentState,
    line: &DeviceLine,
) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut expect = |holds: bool, what: String| {
        if !holds {
            found.push(what);
        }
    };
    let releases = releases(published);
    expect(releases == *wanted, format!("it shall run {wanted:?}, and {releases:?} is published"));
    let generation = published.generation.get();
    expect(own.generation == generation, format!("it has generation {} of {generation}", own.generation));
    expect(own.unsent == 0, format!("{} reports are not sent", own.unsent));
    let known = line.generation.map(|generation| generation.get());
    expect(known == Some(generation), format!("the hub knows generation {known:?} of {generation}"));
    expect(line.head == own.head, format!("its head is {}, the hub says {}", own.head, line.head));
    let missing = &line.account.missing;
    expect(missing.is_empty(), format!("the hub misses {missing:?}"));
    expect(line.freshness == Freshness::Fresh, format!("it is {:?}", line.freshness));
    expect(!line.retired, "it is retired".to_owned());
    let installed = BTreeMap::from([(Standing::Installed, wanted.len() as u64)]);
    let standings: BTreeMap<_, _> =
        line.standings.iter().filter(|(_, count)| **count > 0).map(|(at, count)| (*at, *count)).collect();
    expect(
        standings == installed || wanted.is_empty() && standings.is_empty(),
        format!("it stands at {standings:?}"),
    );
    found
}

/// The releases in a desired state. One whose release cannot be read is release 0, which there never is.
fn releases(published: &DesiredState) -> BTreeMap<String, u64> {
    let release = |deployment: &muster_contract::desired::DesiredDeployment| {
        let value = deployment.parameters.get("release").and_then(|parameter| parameter.value.as_str());
        let value = value.and_then(|text| text.parse().ok());
        value.or_else(|| plan::release(deployment)).unwrap_or_default()
    };
    published.deployments.iter().map(|deployment| (deployment.id.to_string(), release(deployment))).collect()
}

/// Asks an agent for its own numbers.
async fn own(address: SocketAddr) -> Result<AgentState, Violation> {
    let answer = http::get(address, "/metrics")
        .await
        .map_err(|error| format!("its agent does not answer: {error}"))?;
    let number = |name| {
        let value =
            http::metric(&answer.body, name).ok_or_else(|| format!("its agent does not show {name}"))?;
        Ok::<_, Violation>(value as u64)
    };
    Ok(AgentState {
        head: number(HEAD_METRIC)?,
        generation: number(GENERATION_METRIC)?,
        unsent: number(UNSENT_METRIC)?,
    })
}

/// The first few, and the number of the others.
fn listed(mut found: Vec<Violation>) -> Vec<Violation> {
    let more = found.len().saturating_sub(LISTED_MAX);
    if more > 0 {
        found.truncate(LISTED_MAX);
        found.push(format!("and {more} more of the kind"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::tests::quarantine;

    #[test]
    fn a_report_in_quarantine_is_a_difference_although_it_is_accounted_for() {
        let (mut recount, mut count) = (Recount::default(), CheckedCounts::default());
        recount.count(&quarantine(8, r#""epoch":7,"seq":1,"#, false));
        let wiped = BTreeMap::from([("plant7/press-4".parse().unwrap(), 1)]);
        let found = recounted(&recount, &[], &wiped, &mut count);
        assert_eq!(count.lost, 0);
        assert!(matches!(&found[..], [one] if one.contains("quarantine")), "{found:?}");
    }
}
