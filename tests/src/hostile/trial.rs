//! One trial: a fresh hub, good devices that report, one attack beside them, and what came of it.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_bus::topology::VIEWS_STREAM;
use muster_bus::{Bus, Start};
use muster_contract::DeviceKey;
use muster_contract::decode::peek;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_identity::Role;
use serde_json::Value;
use tokio::time::Instant;

use super::bounds::{ENFORCED_WITHIN, REPORTS_PER_SECOND, RESTART_MAX, held_max};
use super::flood::Flood;
use super::good::GoodFleet;
use super::hub::{FLOOD_SITE, HostileHub};
use super::memory::MemorySampler;
use super::outcome::{FloodFacts, Outcome};
use super::{device_floods, filler, reader_floods, reader_tricks};
use crate::bench::HubKind;
use crate::system::INGEST;

/// Time before a flood in which the devices report already: what starts with the services is over then.
const WARM_UP: Duration = Duration::from_secs(2);
/// Time in which facts of the flood are read after it.
const COUNT_PATIENCE: Duration = Duration::from_secs(30);
/// Time between two looks at what an attacker holds.
const LOOK: Duration = Duration::from_millis(100);
/// Messages that are read at once.
const BATCH: usize = 512;

/// How large a trial is.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Good devices.
    pub good_devices: usize,
    /// How long the flood lasts.
    pub time: Duration,
    /// How long after it good reports may take.
    pub patience: Duration,
    /// Connections that one credential tries.
    pub connections: usize,
    /// Durable consumers that a subscriber tries.
    pub consumers: usize,
    /// The burst of each device's quota.
    pub burst_reports: u64,
    /// Facts of other devices that LEDGER holds before it is read again and again.
    pub archived_facts: u64,
}

/// The actions of an attacker.
#[derive(Debug, Default)]
pub struct Attack {
    /// Messages, requests or objects that it tried.
    pub attempts: u64,
    /// The same in words, with what came of it.
    pub text: String,
    /// Connections, consumers or subscriptions that it holds at the end.
    pub held: Option<usize>,
}

/// Runs a flood, or a calm time where there is none, on a hub of its own; says how readers reach that hub, too.
pub async fn run(settings: Settings, flood: Option<Flood>) -> (Outcome, HubKind) {
    let mut hub = HostileHub::start(settings.good_devices, settings.burst_reports).await;
    if flood.is_some_and(Flood::reads_ledger) {
        filler::fill_ledger(&hub.inspector, &hub.attacker, settings.archived_facts).await;
    }
    let mut fleet = warm(&hub, settings).await;
    let outcome = attack(&mut hub, &mut fleet, settings, flood).await;
    (outcome, hub.kind())
}

/// The good devices of a hub, which have reported for a while.
pub async fn warm(hub: &HostileHub, settings: Settings) -> GoodFleet {
    let mut fleet = GoodFleet::observe(&hub.inspector, &hub.views, hub.good.clone()).await;
    fleet.report(REPORTS_PER_SECOND, WARM_UP, settings.patience).await;
    fleet
}

/// Runs a flood, or a calm time, on a hub that is there already.
pub async fn attack(
    hub: &mut HostileHub,
    fleet: &mut GoodFleet,
    settings: Settings,
    flood: Option<Flood>,
) -> Outcome {
    let streams = reader_tricks::streams(&hub.inspector).await;
    let (messages, bytes) = ledger_size(&hub.inspector).await;
    let memory = MemorySampler::start(hub.processes());
    let (begin, end) = (Instant::now(), Instant::now() + settings.time);
    let attack = async {
        match flood {
            None => Attack::default(),
            Some(flood) if flood.role() == Role::Device => {
                device_floods::run(hub, flood, settings.connections, end).await
            }
            Some(flood) => reader_floods::run(hub, flood, settings, end).await,
        }
    };
    let reporting = fleet.report(REPORTS_PER_SECOND, settings.time, settings.patience);
    let (attack, good) = Box::pin(async { tokio::join!(attack, reporting) }).await;
    let (seconds, memory) = (begin.elapsed().as_secs_f64(), memory.end());
    let (messages_now, bytes_now) = ledger_size(&hub.inspector).await;
    let mut lost = reader_tricks::lost(&streams, &reader_tricks::streams(&hub.inspector).await);
    lost.extend(good.lost);
    lost.extend(reader_tricks::foreign_writes(hub).await);
    lost.extend(hub.ended());
    let views = hub.inspector.stream_state(VIEWS_STREAM).await.map_or(0, |state| state.messages);
    let facts = count_facts(&hub.inspector, &hub.attacker.key).await;
    let afterwards = afterwards(hub, fleet, settings, flood).await;
    let afterwards = afterwards.unwrap_or_else(|failure| {
        lost.push(failure.clone());
        failure
    });
    Outcome {
        flood,
        seconds,
        burst_reports: settings.burst_reports,
        attack: attack.text,
        attempts: attack.attempts,
        held: attack.held,
        reports: good.reports,
        refused: good.refused,
        in_ledger: good.in_ledger,
        in_view: good.in_view,
        ledger: good.ledger,
        view: good.view,
        memory,
        ledger_messages: messages_now.saturating_sub(messages),
        ledger_bytes: bytes_now.saturating_sub(bytes),
        facts,
        views,
        lost,
        afterwards,
    }
}

/// The number that an attacker holds after the hub had time to end the excess.
pub async fn held_at_last(flood: Flood, look: impl AsyncFn() -> usize) -> usize {
    let deadline = Instant::now() + ENFORCED_WITHIN;
    loop {
        let held = look().await;
        if held_max(flood).is_none_or(|most| held <= most) || Instant::now() > deadline {
            return held;
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn ledger_size(inspector: &Bus) -> (u64, u64) {
    inspector.stream_state(stream::LEDGER).await.map_or((0, 0), |state| (state.messages, state.bytes))
}

/// Counts the facts about the device that floods; what cannot be read in time is not counted.
async fn count_facts(inspector: &Bus, of: &DeviceKey) -> FloodFacts {
    let name = format!("{FLOOD_SITE}.{}", of.device);
    let (mut facts, mut deployments, mut epochs) = (FloodFacts::default(), BTreeSet::new(), BTreeSet::new());
    let read = async {
        for filter in [format!("muster.*.{name}"), format!("muster.*.{name}.*")] {
            let Ok(mut replay) = inspector.replay(stream::LEDGER, &[&filter], Start::First).await else {
                return;
            };
            while let Ok(Some(batch)) = replay.next_present(BATCH).await {
                for fact in batch {
                    match LedgerSubject::parse(&fact.subject) {
                        Some(LedgerSubject::Status(_, deployment)) => {
                            facts.reports += 1;
                            deployments.insert(deployment);
                            epochs.extend(peek(&fact.payload).epoch);
                        }
                        Some(LedgerSubject::Device(_)) => facts.reports += 1,
                        Some(LedgerSubject::Quarantine(_)) => {
                            facts.quarantine += 1;
                            facts.refusal = facts.refusal.take().or_else(|| reason(&fact.payload));
                        }
                        Some(LedgerSubject::Desired(_)) | None => {}
                        Some(_) => facts.others += 1,
                    }
                }
            }
        }
    };
    let _ = tokio::time::timeout(COUNT_PATIENCE, read).await;
    FloodFacts { deployments: deployments.len(), epochs: epochs.len(), ..facts }
}

/// Why a message is in quarantine.
fn reason(fact: &[u8]) -> Option<String> {
    let fact: Value = serde_json::from_slice(fact).ok()?;
    Some(fact["reason"].as_str()?.to_owned())
}

/// The functions that must still work after a flood.
async fn afterwards(
    hub: &mut HostileHub,
    fleet: &mut GoodFleet,
    settings: Settings,
    flood: Option<Flood>,
) -> Result<String, String> {
    match flood {
        Some(Flood::DurableConsumers) => {
            hub.restart(INGEST).await;
            let begin = Instant::now();
            let good = fleet.report(1, Duration::from_secs(1), RESTART_MAX).await;
            let took = begin.elapsed().as_secs_f64();
            let text = format!(
                "{} of {} reports are in LEDGER {took:.1} s after ingest restarted",
                good.in_ledger, good.reports
            );
            if good.in_ledger != good.reports {
                return Err(text);
            }
            operators_watch(hub, fleet, settings).await.map(|watch| format!("{text}; {watch}"))
        }
        Some(Flood::NoticeSubscriptions) => operators_watch(hub, fleet, settings).await,
        _ => Ok(String::new()),
    }
}

/// An operator watches a deployment, and reads LEDGER where people read it.
async fn operators_watch(
    hub: &HostileHub,
    fleet: &mut GoodFleet,
    settings: Settings,
) -> Result<String, String> {
    let Some(good) = hub.good.first() else { return Ok(String::new()) };
    let id = good.deployment.to_string();
    // The last report of every device says that its deployment is installed, or the one after it does.
    fleet.report(1, Duration::from_secs(1), settings.patience).await;
    let watching = ["watch", &id, "--until", "converged", "--within", "20s"];
    for args in [&watching[..], &["quarantine", "list"]] {
        let done = hub.muster(Role::Operator, args);
        if !done.status.success() {
            let error = String::from_utf8_lossy(&done.stderr).trim().to_owned();
            return Err(format!("an operator's {args:?} ended with {:?}: {error}", done.status.code()));
        }
    }
    Ok("an operator watches, and lists quarantine".to_owned())
}
