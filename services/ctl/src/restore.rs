//! `muster restore`: reports missing data of the hub and how to rebuild it. It changes nothing.
//!
//! The rules are pure; `run` gathers their input. A stream that the credentials do not show is reported as not visible: on a
//! secured hub people see only LEDGER and the views, and the answers of the services stand for the other streams.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use muster_bus::topology::VIEWS_STREAM;
use muster_bus::{Bus, ReadError, StreamState};
use muster_contract::Timestamp;
use muster_contract::incident::HubIncident;
use muster_contract::packages;
use muster_contract::query::{PublisherQuery, PublisherStatus, Query};
use muster_contract::subjects::{ViewKey, stream};
use muster_contract::view::FleetView;
use muster_service::error::chain;
use serde::Serialize;
use tokio::time::timeout;

use crate::ask::understood;
use crate::error::CtlError;
use crate::render;
use crate::session::Session;

/// Timeout of a request: the server does not answer one without the right to it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Pings the incident service of every ingest, which it offers from its start to its end.
const INGEST_PING: &str = "$SRV.PING.muster-incidents";

/// The answer of the command.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RestoreReport {
    /// Whether everything was checked, nothing is missing, and nothing was replaced within a day.
    pub complete: bool,
    /// The streams.
    pub streams: Vec<StreamLine>,
    /// The sequence in LEDGER up to which the rollup has read, if it answers.
    pub rollup_read_to: Option<u64>,
    /// The sequence in LEDGER of the fleet's view in the bucket, if there is one.
    pub views_read_to: Option<u64>,
    /// The status of the publisher, if it answers.
    pub publisher: Option<PublisherStatus>,
    /// Whether ingest answers; `None` if these credentials may not ask it.
    pub ingest_answers: Option<bool>,
    /// Incidents of the hub within a day.
    pub incidents: Vec<HubIncident>,
    /// The steps of the operator, in this order.
    pub steps: Vec<Step>,
    /// The omitted checks, each with its reason.
    pub unchecked: Vec<String>,
}

/// One stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamLine {
    /// Its name.
    pub name: &'static str,
    /// Its state.
    #[serde(flatten)]
    pub seen: Seen,
    /// The sources from which it is rebuilt.
    pub rebuilt_from: &'static str,
    /// The service or devices that rebuild it.
    pub rebuilt_by: &'static str,
    /// The data that is lost.
    pub not_rebuilt: &'static str,
}

/// The visible state of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Seen {
    /// It exists.
    #[serde(rename = "present")]
    Existing {
        /// The time at which it was created; for a mirror, that of the mirror.
        created_at: Timestamp,
        /// Its messages.
        messages: u64,
        /// Its bytes.
        bytes: u64,
        /// The first sequence.
        first_seq: u64,
        /// The last sequence.
        last_seq: u64,
    },
    /// It does not exist.
    Missing,
    /// These credentials do not show it, or the server does not answer.
    NotVisible,
}

/// A step of the operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// The problem and its remedy.
    pub what: String,
    /// The command, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// The way in which a stream is rebuilt.
struct Source {
    name: &'static str,
    from: &'static str,
    by: &'static str,
    not: &'static str,
}

/// The streams in the order of a restore: each can be rebuilt once those before it exist.
const SOURCES: [Source; 10] = [
    Source {
        name: stream::DOWNLINK,
        from: "Git, LEDGER's copies, the publisher's memory",
        by: "publisher, at once",
        not: "requests that LEDGER has not copied",
    },
    Source {
        name: stream::LEDGER,
        from: "DOWNLINK (desired states), the devices' outboxes (24 h or 10,000 reports each)",
        by: "any service; ingest asks the devices",
        not: "older facts; the rollup keeps its last snapshot and checkpoints as *.set-aside in --data-dir",
    },
    Source {
        name: VIEWS_STREAM,
        from: "LEDGER",
        by: "rollup, within a second",
        not: "definitions of views: apply them again",
    },
    Source {
        name: stream::NOTICES,
        from: "subscribers, who subscribe again",
        by: "rollup",
        not: "notices that nobody confirmed",
    },
    Source {
        name: stream::QUARANTINE,
        from: "nothing: back it up with the others",
        by: "ingest, empty",
        not: "rejected reports; their numbers stay counted, and devices keep them for 24 h",
    },
    Source {
        name: stream::HTTP_DEVICES,
        from: "nothing: back it up with the others",
        by: "ingest, empty",
        not: "accepted clients: `muster enroll --spiffe` again; their devices begin a new epoch",
    },
    Source {
        name: packages::STREAM,
        from: "nothing: back it up with the others",
        by: "ingest, empty",
        not: "packages: put them again; devices keep those that they have placed",
    },
    Source {
        name: stream::PLANS,
        from: "nothing: back it up with the others",
        by: "planner, empty",
        not: "plans, inventory and operations: apply them again; what runs on devices goes on",
    },
    Source {
        name: stream::UPLINK,
        from: "the devices' outboxes",
        by: "devices, what no receipt covers",
        not: "nothing is lost",
    },
    Source {
        name: stream::PRESENCE,
        from: "the devices' heartbeats",
        by: "devices, within 30 s",
        not: "nothing is lost",
    },
];

/// The answers of the services; the fields are those of [`RestoreReport`].
#[derive(Debug, Clone, PartialEq)]
pub struct Answers {
    /// The sequence in LEDGER up to which the rollup has read.
    pub rollup_read_to: Option<u64>,
    /// The sequence in LEDGER of the fleet's view in the bucket.
    pub views_read_to: Option<u64>,
    /// The status of the publisher.
    pub publisher: Option<PublisherStatus>,
    /// Whether ingest answers.
    pub ingest_answers: Option<bool>,
    /// Incidents of the hub within a day, or why they are not known.
    pub incidents: Result<Vec<HubIncident>, String>,
}

impl RestoreReport {
    /// The report of the states of the streams, in the order of [`streams`].
    pub fn of(seen: impl IntoIterator<Item = Seen>, answers: Answers) -> Self {
        let streams = SOURCES.iter().zip(seen).map(|(source, seen)| StreamLine {
            name: source.name,
            seen,
            rebuilt_from: source.from,
            rebuilt_by: source.by,
            not_rebuilt: source.not,
        });
        let streams: Vec<_> = streams.collect();
        let (steps, unchecked) = (steps(&streams, &answers), unchecked(&streams, &answers));
        let Answers { rollup_read_to, views_read_to, publisher, ingest_answers, incidents } = answers;
        let (complete, incidents) = (steps.is_empty() && unchecked.is_empty(), incidents.unwrap_or_default());
        Self {
            complete,
            streams,
            rollup_read_to,
            views_read_to,
            publisher,
            ingest_answers,
            incidents,
            steps,
            unchecked,
        }
    }
}

/// The checked streams.
pub fn streams() -> impl Iterator<Item = &'static str> {
    SOURCES.iter().map(|source| source.name)
}

fn unchecked(streams: &[StreamLine], answers: &Answers) -> Vec<String> {
    let hidden = streams.iter().filter(|line| line.seen == Seen::NotVisible).map(|line| line.name);
    let hidden = hidden.collect::<Vec<_>>().join(", ");
    let mut unchecked = Vec::new();
    if !hidden.is_empty() {
        unchecked.push(format!(
            "{hidden}: not visible with these credentials; their services say above whether they work"
        ));
    }
    if streams.iter().any(|line| line.name == stream::PLANS && line.seen == Seen::Missing) {
        unchecked.push(
            "PLANS: a hub without plans has none; a hub that had plans has lost them: restore a backup"
                .to_owned(),
        );
    }
    if answers.ingest_answers.is_none() {
        unchecked.push("ingest: these credentials may not ask whether it answers".to_owned());
    }
    unchecked.extend(answers.incidents.as_ref().err().map(|reason| render::incident::unknown(reason)));
    unchecked
}

fn steps(streams: &[StreamLine], answers: &Answers) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut add = |what: String, command: Option<&str>| {
        steps.push(Step { what, command: command.map(str::to_owned) });
    };
    // A hub without plans has no PLANS.
    let is_needed = |line: &&StreamLine| line.seen == Seen::Missing && line.name != stream::PLANS;
    for line in streams.iter().filter(is_needed) {
        let StreamLine { name, rebuilt_from, rebuilt_by, not_rebuilt, .. } = line;
        let what = format!(
            "{name} is missing. Rebuilt from: {rebuilt_from}; by: {rebuilt_by}. Not rebuilt: {not_rebuilt}"
        );
        add(what, Some(restart_command(name)));
    }
    let last_seq = streams.iter().find_map(|line| match line.seen {
        Seen::Existing { last_seq, .. } if line.name == stream::LEDGER => Some(last_seq),
        _ => None,
    });
    if let (Some(last_seq), Some(read_to)) =
        (last_seq, answers.views_read_to.filter(|to| Some(*to) > last_seq))
    {
        let what = format!(
            "the views are of LEDGER {read_to}, and LEDGER ends at {last_seq}: it was set back or replaced. A rollup that runs \
             writes them again"
        );
        add(what, Some("systemctl restart muster-rollup"));
    }
    let mut incidents = answers.incidents.iter().flatten();
    if let Some(incident) = incidents.find(|incident| incident.is_ledger_replaced()) {
        let at = incident.incident.at;
        let what = format!(
            "LEDGER was replaced at {at}: devices send again what their outboxes keep, and the rollup keeps the snapshot of \
             the old LEDGER as *.set-aside in --data-dir. `muster audit` names the missing reports"
        );
        add(what, Some("muster audit"));
    }
    if answers.ingest_answers == Some(false) {
        let what = "ingest does not answer: it takes reports into LEDGER, and ends where LEDGER was replaced";
        add(what.to_owned(), Some("systemctl start muster-ingest"));
    }
    if answers.rollup_read_to.is_none() {
        add(
            "the rollup does not answer: it rebuilds the views from LEDGER".to_owned(),
            Some("systemctl start muster-rollup"),
        );
    }
    match &answers.publisher {
        None => add(
            "the publisher does not answer: it rebuilds DOWNLINK from Git and from LEDGER's copies"
                .to_owned(),
            Some("systemctl start muster-publisher"),
        ),
        Some(publisher) if !publisher.unreadable.is_empty() => {
            let what = format!(
                "DOWNLINK holds something unreadable for {} devices of which nothing good is known: give each a folder in Git",
                publisher.unreadable.count
            );
            add(what, Some("muster publisher status"));
        }
        Some(_) => {}
    }
    steps
}

/// The systemd command that starts the service which creates a stream.
fn restart_command(stream: &str) -> &'static str {
    match stream {
        stream::DOWNLINK => "systemctl restart muster-publisher",
        stream::PLANS => "systemctl restart muster-planner",
        VIEWS_STREAM | stream::NOTICES => "systemctl restart muster-rollup",
        _ => "systemctl restart muster-ingest",
    }
}

/// Checks the hub and shows the report; returns whether there is nothing to do.
///
/// # Errors
/// The report cannot be shown.
pub async fn run(session: &mut Session<'_>) -> Result<bool, CtlError> {
    let report = report(session).await;
    session.show_own(&report, render::restore::report)?;
    Ok(report.steps.is_empty())
}

/// Checks the hub.
pub async fn report(session: &Session<'_>) -> RestoreReport {
    let bus = session.hub.bus();
    let seen = join_all(streams().map(|name| visible_state(bus, name))).await;
    RestoreReport::of(seen, answers(session).await)
}

async fn visible_state(bus: &Bus, name: &str) -> Seen {
    match timeout(REQUEST_TIMEOUT, bus.stream_state(name)).await {
        Ok(Ok(StreamState { created_at, messages, bytes, first_seq, last_seq, .. })) => {
            Seen::Existing { created_at, messages, bytes, first_seq, last_seq }
        }
        Ok(Err(ReadError::Missing { .. })) => Seen::Missing,
        Ok(Err(_)) | Err(_) => Seen::NotVisible,
    }
}

/// The answers of all services; one that does not answer is `None`.
async fn answers(session: &Session<'_>) -> Answers {
    let hub = &session.hub;
    let read_to = |view: FleetView| view.tally.as_of.ledger_seq;
    let fleet = hub.query("fleet", &Query::default()).await;
    let rollup_read_to = fleet.and_then(|answer| understood(&answer)).ok().map(read_to);
    let entry = hub.bus().view_get(&ViewKey::Fleet.to_string()).await.ok().flatten();
    let value = entry.and_then(|entry| entry.value);
    let views_read_to = value.and_then(|value| serde_json::from_slice(&value).ok()).map(read_to);
    let publisher = hub.publisher("status", &PublisherQuery::default()).await;
    let publisher = publisher.and_then(|answer| understood(&answer)).ok();
    let incidents = session.hub.incidents().await.map_err(|error| chain(&error));
    let ingest_answers = does_ingest_answer(hub.bus()).await;
    Answers { rollup_read_to, views_read_to, publisher, ingest_answers, incidents }
}

/// Whether an ingest answers; `None` if the server refuses the request of these credentials.
async fn does_ingest_answer(bus: &Bus) -> Option<bool> {
    let answer = bus.request(INGEST_PING, Bytes::new(), REQUEST_TIMEOUT).await;
    let is_refused = answer.is_err() && bus.refusal().is_some_and(|words| words.contains(INGEST_PING));
    (!is_refused).then_some(answer.is_ok())
}
