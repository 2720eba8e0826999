//! Tricks of readers with subjects that are not theirs: push consumers that deliver to others' subjects, and requests whose
//! reply subject is an API or a stream of the hub. Every stream has to survive them unchanged.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::Client;
use muster_bus::Bus;
use muster_bus::topology::VIEWS_STREAM;
use muster_contract::desired::DesiredState;
use muster_contract::packages;
use muster_contract::subjects::{self, stream};
use serde_json::json;
use tokio::time::Instant;

use super::client::{ask, is_refused};
use super::hub::{GOOD_SITE, HostileHub};
use super::reader_floods::consumer_request;
use super::trial::Attack;

/// The streams of the contract, in the order of the bus's topology.
pub const STREAMS: [&str; 9] = [
    stream::DOWNLINK,
    stream::UPLINK,
    stream::PRESENCE,
    stream::LEDGER,
    VIEWS_STREAM,
    stream::NOTICES,
    stream::QUARANTINE,
    stream::HTTP_DEVICES,
    packages::STREAM,
];
/// Pause between two rounds of the tricks.
const ROUND_PAUSE: Duration = Duration::from_millis(20);
/// A name that marks what was written by a trick.
const MARK: &str = "hostile-mark";

/// Subjects of which a copy would be a write into a stream of the hub, or an order to the server.
fn targets(hub: &HostileHub) -> Vec<String> {
    let victim = hub.good.last().map_or_else(String::new, |good| good.key.device.to_string());
    let mut targets: Vec<_> = ["DELETE", "PURGE"]
        .iter()
        .flat_map(|verb| STREAMS.map(|stream| format!("$JS.API.STREAM.{verb}.{stream}")))
        .collect();
    targets.extend([
        format!("muster.desired.{GOOD_SITE}.{victim}"),
        format!("muster.receipt.{GOOD_SITE}.{victim}"),
        format!("muster.status.{GOOD_SITE}.{victim}.{MARK}"),
        format!("muster.report.{GOOD_SITE}.{victim}"),
        format!("muster.presence.{GOOD_SITE}.{victim}"),
        "$KV.views.fleet".to_owned(),
        format!("$KV.views.{MARK}"),
        format!("muster.notice.{MARK}"),
        "$JS.API.CONSUMER.DELETE.UPLINK.ingest-0".to_owned(),
    ]);
    // Purging and deleting comes last: what it leaves cannot be written to.
    targets.rotate_left(2 * STREAMS.len());
    targets
}

/// Requests with foreign reply subjects, in a loop.
pub async fn reply_subjects(hub: &HostileHub, client: &Client, end: Instant) -> Attack {
    let targets = targets(hub);
    let mut sent = 0;
    while Instant::now() < end {
        for target in &targets {
            let requests = [
                // No such key: the answer has an empty body, which the API takes for a request.
                format!("$JS.API.DIRECT.GET.KV_views.$KV.views.{MARK}-missing"),
                "$JS.API.DIRECT.GET.KV_views.$KV.views.fleet".to_owned(),
                format!("$JS.API.DIRECT.GET.NOTICES.muster.notice.{MARK}-missing"),
                "muster.query.fleet".to_owned(),
                "muster.publisher.status".to_owned(),
                "$SRV.PING".to_owned(),
            ];
            for request in requests {
                if client.publish_with_reply(request, target.clone(), "".into()).await.is_err() {
                    return Attack { attempts: sent, text: "was stopped".to_owned(), held: None };
                }
                sent += 1;
            }
        }
        tokio::time::sleep(ROUND_PAUSE).await;
    }
    Attack { attempts: sent, text: format!("{sent} requests"), held: None }
}

/// Push consumers on LEDGER with foreign deliver subjects, in a loop.
pub async fn push_consumers(hub: &HostileHub, client: &Client, end: Instant) -> Attack {
    let targets = targets(hub);
    let (mut tried, mut made, mut round) = (0, 0, 0);
    while Instant::now() < end {
        for (at, target) in targets.iter().enumerate() {
            let name = format!("push-{round}-{at}");
            let config = json!({ "name": name, "deliver_subject": target, "deliver_policy": "all", "ack_policy": "none",
                "filter_subject": "muster.status.>", "idle_heartbeat": 1_000_000_000, "flow_control": true,
                "inactive_threshold": 5_000_000_000_u64, "mem_storage": true });
            let (subject, body) = consumer_request(&name, &config, Some("muster.status.>"));
            let answer = ask(client, subject, body.to_string()).await;
            tried += 1;
            made += u64::from(answer.is_some_and(|answer| !is_refused(&answer)));
            if Instant::now() > end {
                break;
            }
        }
        round += 1;
        tokio::time::sleep(ROUND_PAUSE).await;
    }
    Attack { attempts: tried, text: format!("{tried} consumers tried, {made} made"), held: None }
}

/// The state of each stream: when it was created, and its first and last sequence.
pub async fn streams(inspector: &Bus) -> BTreeMap<&'static str, Option<(String, u64, u64)>> {
    let mut found = BTreeMap::new();
    for name in STREAMS {
        let state = inspector.stream_state(name).await.ok();
        let state = state.map(|state| (state.created_at.to_string(), state.first_seq, state.last_seq));
        found.insert(name, state);
    }
    found
}

/// The changes of the streams that only a trick changes. UPLINK and PRESENCE delete messages by themselves.
pub fn lost(
    before: &BTreeMap<&'static str, Option<(String, u64, u64)>>,
    after: &BTreeMap<&'static str, Option<(String, u64, u64)>>,
) -> Vec<String> {
    let mut lost = Vec::new();
    for (name, old) in before {
        match (old, after.get(name).and_then(Option::as_ref)) {
            (Some(_), None) => lost.push(format!("{name} is deleted")),
            (Some((created, ..)), Some((now, ..))) if created != now => {
                lost.push(format!("{name} was recreated"));
            }
            (Some((_, first, last)), Some((_, now, now_last))) => {
                let keeps =
                    matches!(*name, stream::LEDGER | stream::DOWNLINK | stream::NOTICES | stream::QUARANTINE);
                if keeps && first != now && *now > *last {
                    lost.push(format!("{name} was purged up to {now}"));
                } else if last > now_last {
                    lost.push(format!("{name} went back from {last} to {now_last}"));
                }
            }
            (None, _) => {}
        }
    }
    lost
}

/// The messages of a trick that the streams still hold.
pub async fn foreign_writes(hub: &HostileHub) -> Vec<String> {
    let mut found = Vec::new();
    let Some(victim) = hub.good.last() else { return found };
    let fact = format!("muster.status.{GOOD_SITE}.{}.{MARK}", victim.key.device);
    if hub.inspector.last(stream::LEDGER, &fact).await.is_ok_and(|fact| fact.is_some()) {
        found.push(format!("LEDGER holds a foreign {fact}"));
    }
    if hub.views.view_get(MARK).await.is_ok_and(|view| view.is_some()) {
        found.push(format!("the bucket holds a foreign key {MARK}"));
    }
    let desired = hub.inspector.last(stream::DOWNLINK, &subjects::desired(&victim.key)).await;
    let is_foreign = |payload: &[u8]| serde_json::from_slice::<DesiredState>(payload).is_err();
    if desired.is_ok_and(|document| document.is_some_and(|document| is_foreign(&document.payload))) {
        found.push(format!("what {} shall run is no document", victim.key));
    }
    found
}
