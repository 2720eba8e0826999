//! Breaks the fleet, waits until the alerts of each breakage have fired, mends it, and waits until none fires any more.

use std::time::Duration;

use muster_contract::limits::QUARANTINE_SHARE;
use muster_contract::notify::{WEBHOOK_GIVE_UP_MAX_SECONDS, WEBHOOK_GIVE_UP_MIN_SECONDS};
use muster_contract::subjects::stream;
use muster_simulator::repository::write_devices;
use muster_tests::prometheus::free_address;
use muster_tests::story::{key, workloads};
use muster_tests::system::{INGEST, PUBLISHER, ROLLUP, agent_name};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::fleet::{Fleet, GATEWAY, LATE, REJECTED_DEVICE, SILENT_SITE, VIEWER};
use crate::scripted::ScriptedDevice;

/// Reports for which QUARANTINE has no room, beyond those of one device that it holds.
const REFUSED: u64 = 10;
const REJECTED: u64 = QUARANTINE_SHARE as u64 + REFUSED;
/// Reports that a device names in its heartbeats and does not send.
const HELD_BACK: u64 = 3;
/// A file that makes the publisher refuse a commit.
const BAD_FILE: &str = "fleet/bad.yaml";
/// A state that ingest rejects.
const NO_STATE: &str = "exploded";
/// How long credentials were valid, of which a twentieth is left.
const VALID_SECONDS: u64 = 30 * 24 * 60 * 60;
/// How full LEDGER is made; the alert fires above 80 %.
const FULL_PERCENT: u64 = 90;
/// Reports that nobody reads, and facts after them: more than the 10,000 at which alerts fire, by so many that a narrow line does
/// not carry them while an alert waits.
const UNREAD: u64 = 15_000;
/// Until when a consumer is paused at most: the test ends earlier.
const PAUSED_UNTIL: &str = "2099-01-01T00:00:00Z";
/// A webhook that is given up, and one that no gateway tries.
const WEBHOOK: &str = "alarms";
const WAITING_WEBHOOK: &str = "waiting";
/// Time for one request to the server.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Deployments fail and are late, a site is silent, reports are missing and rejected, a commit is refused, a token ends, a disk is
/// full, and nobody listens where a webhook leads to.
pub(crate) async fn devices_and_deployments(fleet: &mut Fleet) {
    break_devices(fleet).await;
    fleet
        .fire(&[
            "DeploymentFailing",
            "DeploymentOverdue",
            "SiteSilent",
            "MissingReportsStay",
            "Quarantined",
            "QuarantineFull",
            "CommitRefused",
            "CredentialEnding",
            "AccessEnding",
            "DeviceCannotStore",
            "WebhookDisabled",
        ])
        .await;
    fleet.has_series(&format!("muster_fleet_silent_devices{{site=\"{SILENT_SITE}\"}} == 2")).await;
    fleet.has_series("muster_fleet_oldest_silence_seconds > 3").await;
    fleet.has_series(&format!("muster_ingest_quarantine_reports == {QUARANTINE_SHARE}")).await;
    mend_devices(fleet).await;
    fleet.none_fires().await;
    fleet.has_series("muster_fleet_oldest_silence_seconds == 0").await;
}

/// Alerts that look at a window clear by themselves, so their causes come last.
async fn break_devices(fleet: &mut Fleet) {
    register_webhook(fleet, WEBHOOK, WEBHOOK_GIVE_UP_MIN_SECONDS).await;
    for agent in &fleet.agents {
        fleet.system.kill(&agent_name(agent)).await;
    }
    fill_disk(fleet);
    set_ends(fleet);
    write_devices(&fleet.system.repository, &[key(LATE)]).unwrap();
    fleet.system.repository.commit("a device that does not start").await.unwrap();
    let mut late = ScriptedDevice::start(&fleet.system, LATE).await;
    late.report("installing").await;
    fleet.late = Some(late);
    fleet.scripted.report("failed").await;
    fleet.scripted.hold_back(HELD_BACK);
    for _ in 0..REJECTED {
        fleet.rejected.report(NO_STATE).await;
    }
    fleet.system.repository.write(BAD_FILE, "id: [").unwrap();
    fleet.system.repository.commit("a document that is none").await.unwrap();
}

/// Registers a webhook that leads to where nobody listens.
async fn register_webhook(fleet: &Fleet, name: &str, give_up_seconds: u64) {
    let url = format!("https://localhost:{}/", free_address().port());
    let webhook = json!({ "name": name, "url": url, "giveUpSeconds": give_up_seconds });
    fleet.ask_gateway("POST /api/v1/webhooks", &webhook.to_string(), 201).await;
}

async fn mend_devices(fleet: &mut Fleet) {
    for agent in &fleet.agents {
        fleet.system.start_again(&agent_name(agent));
    }
    let (device, disk) = &fleet.on_disk;
    disk.clear(fleet.system.pid(&agent_name(device))).unwrap();
    std::fs::remove_file(fleet.system.repository.dir().join(BAD_FILE)).unwrap();
    fleet.system.repository.commit("without it").await.unwrap();
    fleet.late.as_mut().expect("it was added").report("installed").await;
    for _ in 0..HELD_BACK {
        fleet.scripted.report("installed").await;
    }
    fleet.renew();
    fleet.ask_gateway(&format!("DELETE /api/v1/webhooks/{WEBHOOK}"), "", 200).await;
    empty_quarantine(fleet).await;
}

/// The disk takes no byte any more, and there is something to report.
fn fill_disk(fleet: &Fleet) {
    let (device, disk) = &fleet.on_disk;
    disk.fill(fleet.system.pid(&agent_name(device))).unwrap();
    let workload = *workloads(&fleet.system, device, "web").first().expect("the workload runs");
    kill_process(workload, Signal::KILL).unwrap();
}

/// Drops what is in quarantine, asks for the rest, and sends that again.
async fn empty_quarantine(fleet: &Fleet) {
    let device = ["--device", REJECTED_DEVICE];
    for verb in [&["drop", "--reason", "test"][..], &["requeue"]] {
        let output = fleet.system.muster(&[&["quarantine"], verb, &device].concat()).await;
        assert!(output.status.success(), "{verb:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    // The first report was accepted, and QUARANTINE takes them in order.
    for seq in (2..2 + REJECTED).rev().take(REFUSED as usize) {
        fleet.rejected.send(seq, NO_STATE).await;
    }
}

/// As far as the registry says, the token of the enrolled device is over, and the credentials of a viewer end soon.
fn set_ends(fleet: &Fleet) {
    let path = fleet.keys().join("roster.json");
    let mut registry: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    for user in registry["users"].as_array_mut().unwrap() {
        let issued = user["issued"].as_u64().unwrap();
        if user["role"] == "device" {
            user["expires"] = json!(issued + 1);
        } else if user["name"] == VIEWER {
            user["issued"] = json!(issued - VALID_SECONDS);
            user["expires"] = json!(issued + VALID_SECONDS / 20);
        }
    }
    std::fs::write(&path, registry.to_string()).unwrap();
}

/// The publisher, ingest and the gateway are gone, and a webhook waits.
pub(crate) async fn services(fleet: &mut Fleet) {
    register_webhook(fleet, WAITING_WEBHOOK, WEBHOOK_GIVE_UP_MAX_SECONDS).await;
    for name in [PUBLISHER, INGEST, GATEWAY] {
        fleet.system.kill(name).await;
    }
    fleet.fire(&["ServiceDown", "HubDoesNotHear", "WebhookUntried"]).await;
    fleet.has_series("min(muster_rollup_pulse_age_seconds) > 5").await;
    for name in [PUBLISHER, INGEST, GATEWAY] {
        fleet.system.start_again(name);
    }
    fleet.none_fires().await;
    fleet.ask_gateway(&format!("DELETE /api/v1/webhooks/{WAITING_WEBHOOK}"), "", 200).await;
}

/// nats-server is gone.
pub(crate) async fn server(fleet: &mut Fleet) {
    fleet.system.server.kill();
    fleet.fire(&["NatsUnreachable", "AnswersBehind"]).await;
    fleet.has_series("muster_rollup_view_lag_seconds > 5").await;
    fleet.system.server.restart();
    fleet.none_fires().await;
    fleet.has_series("muster_rollup_view_lag_seconds == 0").await;
}

/// LEDGER holds nearly as much as it may, until it may hold more.
pub(crate) async fn ledger(fleet: &mut Fleet) {
    let ledger = request(fleet, "STREAM.INFO.LEDGER", "").await;
    let (bytes, bytes_max) =
        (ledger["state"]["bytes"].as_u64().unwrap(), ledger["config"]["max_bytes"].clone());
    set_bytes_max(fleet, ledger["config"].clone(), json!(bytes * 100 / FULL_PERCENT)).await;
    fleet.fire(&["LedgerFillsUp"]).await;
    set_bytes_max(fleet, ledger["config"].clone(), bytes_max).await;
    fleet.none_fires().await;
}

/// Ingest gets no reports, because the server delivers none, and many come. When it gets them, the rollup reads their facts
/// through a narrow line.
pub(crate) async fn reports_and_facts_wait(fleet: &mut Fleet) {
    let uplink = request(fleet, "STREAM.INFO.UPLINK", "").await["config"].clone();
    let mut wide = uplink.clone();
    // One device's share of UPLINK is less.
    wide["max_msgs_per_subject"] = json!(2 * UNREAD);
    request(fleet, "STREAM.UPDATE.UPLINK", &wide.to_string()).await;
    pause(fleet, stream::UPLINK, Some(PAUSED_UNTIL)).await;
    for _ in 0..UNREAD {
        fleet.scripted.report("installed").await;
    }
    fleet.fire(&["ReportsWait"]).await;
    fleet.system.kill(ROLLUP).await;
    let read = ledger_end(fleet).await;
    pause(fleet, stream::UPLINK, None).await;
    fleet
        .system
        .eventually("LEDGER has the facts", async || {
            let facts = ledger_end(fleet).await - read;
            if facts >= UNREAD { Ok(()) } else { Err(format!("{facts} of {UNREAD}")) }
        })
        .await;
    // A rollup starts on streams of its own release's shape alone.
    request(fleet, "STREAM.UPDATE.UPLINK", &uplink.to_string()).await;
    fleet.start_rollup_behind_a_narrow_line();
    fleet.fire(&["ViewsBehind"]).await;
    fleet.system.kill(ROLLUP).await;
    fleet.system.start_again(ROLLUP);
    fleet.none_fires().await;
}

/// The last sequence of LEDGER.
async fn ledger_end(fleet: &Fleet) -> u64 {
    fleet.system.bus.stream_state(stream::LEDGER).await.unwrap().last_seq
}

/// The consumers of a stream deliver nothing until this time, or again.
async fn pause(fleet: &Fleet, stream: &str, until: Option<&str>) {
    let found = request(fleet, &format!("CONSUMER.NAMES.{stream}"), "").await;
    let names: Vec<&str> = found["consumers"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(!names.is_empty(), "{stream} has no consumer: {found}");
    for name in names {
        let until = until.map_or_else(|| json!({}), |until| json!({ "pause_until": until }));
        request(fleet, &format!("CONSUMER.PAUSE.{stream}.{name}"), &until.to_string()).await;
    }
}

async fn set_bytes_max(fleet: &Fleet, mut settings: Value, bytes_max: Value) {
    settings["max_bytes"] = bytes_max;
    request(fleet, "STREAM.UPDATE.LEDGER", &settings.to_string()).await;
}

/// Asks the server about streams and consumers, or to change them, as an operator does with the `nats` CLI.
async fn request(fleet: &Fleet, call: &str, body: &str) -> Value {
    let subject = format!("$JS.API.{call}");
    let answer = fleet.system.bus.request(&subject, body.to_owned().into(), ANSWER_WITHIN).await.unwrap();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert!(answer["error"].is_null(), "{subject}: {answer}");
    answer
}
