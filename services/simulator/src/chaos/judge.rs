//! What must be true after everything was healed, each claim checked by somebody who trusts no service's own word:
//! the devices are asked what they have, LEDGER is counted again, the views are built again from its first fact.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use futures_util::{StreamExt, stream};
use muster_bus::Bus;
use muster_contract::DeviceKey;
use muster_contract::decode;
use muster_contract::desired::DesiredState;
use muster_contract::query::DeviceLine;
use muster_contract::subjects::{self, stream::DOWNLINK};
use muster_contract::view::{Freshness, Standing, Verdict};
use muster_service::error::chain;

use super::witness::Witness;
use super::workloads;
use crate::environment;
use crate::fleet::find_program;
use crate::http;
use crate::hub::Hub;
use crate::ledger::{self, Rebuild, Recount};
use crate::places::Places;
use crate::tally::Accounting;
use crate::weather::HEAD_METRIC;

/// Devices asked at once.
const ASKED_AT_ONCE: usize = 16;
/// Differences told of one kind at most; the number of the others is.
const TOLD_MAX: usize = 8;
/// The agent's metric for the generation it accepted last.
const GENERATION_METRIC: &str = "muster_agent_desired_generation";
/// The agent's metric for what it has not sent.
const UNSENT_METRIC: &str = "muster_agent_unsent_reports";
/// Incidents that say that a device was taken for another. Nothing in a trial justifies one.
const FORBIDDEN: [&str; 2] = ["clone", "sequenceFork"];
/// The incident of a device that forgot: one for each database that was lost, at most.
const AMNESIA: &str = "amnesia";

/// Something that is not as it must be.
pub(super) type Difference = String;

/// Who judges.
pub(super) struct Judge {
    /// The query service.
    pub(super) hub: Hub,
    /// The bus, not by way of any link.
    pub(super) bus: Bus,
    /// Where things are.
    pub(super) places: Places,
    /// Where the server listens.
    pub(super) nats: SocketAddr,
    /// What each device shall run: the release of each deployment.
    pub(super) wanted: BTreeMap<DeviceKey, BTreeMap<String, u64>>,
    /// The devices that run real processes.
    pub(super) real: Vec<DeviceKey>,
    /// The devices whose agents have lost their databases, and how often: what they had not sent is gone with them.
    pub(super) forgotten: BTreeMap<DeviceKey, u64>,
    /// Who followed the views all the time.
    pub(super) witness: Witness,
}

/// What was counted.
#[derive(Debug, Default)]
pub(super) struct Count {
    /// The accounting of the hub.
    pub(super) accounting: Accounting,
    /// Facts of LEDGER.
    pub(super) facts: u64,
    /// Numbers that are not accounted for.
    pub(super) lost: u64,
    /// Numbers that are in twice.
    pub(super) duplicated: u64,
    /// Incidents by type.
    pub(super) incidents: BTreeMap<&'static str, u64>,
    /// Views that the witness saw written.
    pub(super) views_seen: u64,
}

/// What a device says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Own {
    head: u64,
    generation: u64,
    unsent: u64,
}

impl Judge {
    /// What keeps the fleet from being at rest. Cheap: to be asked again and again.
    pub(super) async fn unrest(&self, agents: &[(DeviceKey, Option<SocketAddr>)]) -> Vec<Difference> {
        let lines = match self.hub.devices().await {
            Ok(lines) => lines,
            Err(error) => return vec![chain(&error)],
        };
        let lines: BTreeMap<_, _> = lines.into_iter().map(|line| (line.key.clone(), line)).collect();
        let asked: Vec<_> =
            agents.iter().map(|(key, http)| self.device(key, *http, lines.get(key))).collect();
        let per_device: Vec<Vec<_>> = stream::iter(asked).buffered(ASKED_AT_ONCE).collect().await;
        let mut found = told(per_device.concat());
        found.extend(told(self.unrest_of_views().await));
        found
    }

    async fn device(
        &self,
        key: &DeviceKey,
        http: Option<SocketAddr>,
        line: Option<&DeviceLine>,
    ) -> Vec<Difference> {
        let (Some(wanted), Some(http)) = (self.wanted.get(key), http) else { return Vec::new() };
        let found = match (self.published(key).await, own(http).await, line) {
            (Err(error), ..) => vec![error],
            (_, Err(error), _) => vec![error],
            (_, _, None) => vec!["the hub does not know it".to_owned()],
            (Ok(published), Ok(own), Some(line)) => compare(wanted, &published, own, line),
        };
        found.into_iter().map(|difference| format!("{key}: {difference}")).collect()
    }

    /// What DOWNLINK holds for a device.
    async fn published(&self, key: &DeviceKey) -> Result<DesiredState, Difference> {
        let last = self.bus.last(DOWNLINK, &subjects::desired(key)).await.map_err(|error| chain(&error))?;
        let message = last.ok_or("nothing was ever published for it")?;
        decode::parse(&message.payload)
            .map_err(|refusal| format!("DOWNLINK holds no desired state: {refusal}"))
    }

    async fn unrest_of_views(&self) -> Vec<Difference> {
        let views = match self.hub.deployments().await {
            Ok(views) => views,
            Err(error) => return vec![chain(&error)],
        };
        let wanted: BTreeSet<&str> =
            self.wanted.values().flat_map(|apps| apps.keys().map(String::as_str)).collect();
        let shown: BTreeSet<&str> = views.iter().map(|view| view.deployment.as_str()).collect();
        let ghosts = shown.difference(&wanted).map(|id| format!("{id} has a view and nobody shall run it"));
        let absent = wanted.difference(&shown).map(|id| format!("{id} has no view"));
        let restless = views
            .iter()
            .filter(|view| view.verdict != Verdict::Converged)
            .map(|view| format!("{} is {}: {:?}", view.deployment, view.verdict.as_str(), view.counts));
        ghosts.chain(absent).chain(restless).collect()
    }

    /// What is wrong with the books: LEDGER counted again, the views built again, and the audit.
    pub(super) async fn books(&self, count: &mut Count) -> Vec<Difference> {
        let lines = match self.hub.devices().await {
            Ok(lines) => lines,
            Err(error) => return vec![chain(&error)],
        };
        let (mut recount, mut rebuild) = (Recount::default(), Rebuild::default());
        let read = ledger::read(&self.bus, |entry| {
            recount.count(&entry);
            rebuild.apply(entry);
        });
        if let Err(error) = read.await {
            return vec![chain(&error)];
        }
        let mut found = told(recounted(&recount, &lines, &self.forgotten, count));
        found.extend(told(self.rebuilt(&rebuild).await));
        found.extend(self.audit().await.err());
        let devices: Vec<_> = self.real.iter().filter_map(|key| Some((key, self.wanted.get(key)?))).collect();
        let (views, steps_back) = self.witness.testimony();
        count.views_seen = views;
        found.extend(steps_back);
        found.extend(told(workloads::differences(&self.places.dir, &devices)));
        found
    }

    /// The bucket holds the views of a fold from the first fact on: those and no others, digest for digest.
    async fn rebuilt(&self, rebuild: &Rebuild) -> Vec<Difference> {
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

    /// `muster audit` is content.
    async fn audit(&self) -> Result<(), Difference> {
        let program = find_program(&self.places.programs, "muster").map_err(|error| chain(&error))?;
        let output = environment::command(program)
            .args(["--nats-url", &format!("nats://{}", self.nats), "audit", "--format", "json"])
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

/// Every number once, none missing, none refused, nobody taken for another.
fn recounted(
    recount: &Recount,
    lines: &[DeviceLine],
    forgotten: &BTreeMap<DeviceKey, u64>,
    count: &mut Count,
) -> Vec<Difference> {
    let mut found = recount.twice.clone();
    // No member of the cast sends a bad report: what is in quarantine was refused wrongly.
    found.extend(told(recount.quarantined.clone()));
    let mut lost = 0;
    for ((device, epoch), numbers) in &recount.numbers {
        let line = lines.iter().find(|line| line.key == *device);
        let current = line.filter(|line| line.epoch.is_some_and(|known| known.get() == *epoch));
        if current.is_none() && forgotten.contains_key(device) {
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
    let forgot = recount.incidents.get(AMNESIA).copied().unwrap_or_default();
    let lost_databases: u64 = forgotten.values().sum();
    if forgot > lost_databases {
        found.push(format!("{forgot} incidents of {AMNESIA}, and {lost_databases} databases were lost"));
    }
    *count = Count {
        accounting: Accounting::of(lines),
        facts: recount.facts,
        lost,
        duplicated: recount.twice.len() as u64,
        incidents: recount.incidents.clone(),
        views_seen: 0,
    };
    found
}

/// What is different between what a device shall be, what was published for it, what it says and what the hub says.
fn compare(
    wanted: &BTreeMap<String, u64>,
    published: &DesiredState,
    own: Own,
    line: &DeviceLine,
) -> Vec<Difference> {
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
        value.and_then(|text| text.parse().ok()).unwrap_or_default()
    };
    published.deployments.iter().map(|deployment| (deployment.id.to_string(), release(deployment))).collect()
}

/// Asks an agent for its own numbers.
async fn own(address: SocketAddr) -> Result<Own, Difference> {
    let answer = http::get(address, "/metrics")
        .await
        .map_err(|error| format!("its agent does not answer: {error}"))?;
    let number = |name| {
        let value =
            http::metric(&answer.body, name).ok_or_else(|| format!("its agent does not show {name}"))?;
        Ok::<_, Difference>(value as u64)
    };
    Ok(Own {
        head: number(HEAD_METRIC)?,
        generation: number(GENERATION_METRIC)?,
        unsent: number(UNSENT_METRIC)?,
    })
}

/// The first few, and how many more there are.
fn told(mut found: Vec<Difference>) -> Vec<Difference> {
    let more = found.len().saturating_sub(TOLD_MAX);
    if more > 0 {
        found.truncate(TOLD_MAX);
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
        let (mut recount, mut count) = (Recount::default(), Count::default());
        recount.count(&quarantine(8, r#""epoch":7,"seq":1,"#, false));
        let forgotten = BTreeMap::from([("plant7/press-4".parse().unwrap(), 1)]);
        let found = recounted(&recount, &[], &forgotten, &mut count);
        assert_eq!(count.lost, 0);
        assert!(matches!(&found[..], [one] if one.contains("quarantine")), "{found:?}");
    }
}
