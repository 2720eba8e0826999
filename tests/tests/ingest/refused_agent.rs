//! Tests the refusal of a report from the side of a real agent process: it keeps a report that QUARANTINE has no room for, says so
//! everywhere, and sends it again when an operator has made room.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use muster_contract::desired::DesiredDeployment;
use muster_contract::{Seq, State};
use muster_simulator::http;
use muster_tests::server::{device, free_port};
use muster_tests::system::program;
use rusqlite::Connection;

use super::quarantine::{kept, missing_and_refused, muster, share};
use super::*;

/// A device whose agent runs as a process.
struct Device {
    key: DeviceKey,
    dir: TempDir,
    http: SocketAddr,
}

impl Device {
    fn new(key: DeviceKey) -> Self {
        let http = SocketAddr::from(([127, 0, 0, 1], free_port()));
        Self { key, dir: tempfile::tempdir().unwrap(), http }
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Starts the agent; it looks for its hub there.
    fn start(&self, url: &str) -> Child {
        let (data, http) = (self.data().display().to_string(), self.http.to_string());
        let words = [
            ["--nats-url", url],
            ["--site", self.key.site.as_str()],
            ["--device", self.key.device.as_str()],
            ["--runtime", "simulated"],
            ["--data-dir", &data],
            ["--heartbeat", "1s"],
            ["--reconnect-max", "500ms"],
            ["--http-addr", &http],
        ];
        let args = words.concat().into_iter().map(str::to_owned).collect();
        let name = "muster-agent";
        let spec = Spec { name: name.to_owned(), program: program(name), args };
        Child::start(spec, self.dir.path()).unwrap()
    }

    /// The output of `muster-agent status`.
    fn status(&self, more: &[&str]) -> String {
        let mut command = Command::new(program("muster-agent"));
        let output = command.args(["status", "--data-dir"]).arg(self.data()).args(more).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// The same as JSON; null before an agent has written it.
    async fn figures(&self) -> Value {
        serde_json::from_str(&self.status(&["--json"])).unwrap_or_default()
    }

    /// The reports that the hub refused, by the agent's metrics.
    async fn refused_reports(&self) -> Option<f64> {
        let answer = http::get(self.http, "/metrics").await.ok()?;
        http::metric(&answer.body, "muster_agent_refused_reports")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("logs/muster-agent.log")).unwrap_or_default()
    }

    /// Removes everything but the database, as a reboot ends all workloads.
    fn reboot(&self) {
        for entry in std::fs::read_dir(self.data()).unwrap() {
            let path = entry.unwrap().path();
            if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("agent.")) {
                if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
                    .unwrap();
            }
        }
    }

    /// Gives a stored report a state that this hub does not know, as a newer agent may have written it before a downgrade.
    fn write_unknown_state(&self, seq: u64) {
        let database = Connection::open(self.data().join("agent.db")).unwrap();
        let update = "UPDATE outbox SET body = replace(body, '\"installing\"', '\"hibernating\"') \
                      WHERE seq = ?1 AND body LIKE '%installing%'";
        assert_eq!(database.execute(update, [seq]).unwrap(), 1, "the report is in the outbox");
    }
}

/// A desired state with one deployment.
fn desired() -> String {
    let mut entry = json!({
        "id": "web", "name": "web", "applicationId": "com-acme", "targetGeneration": 1,
        "digest": Digest::of_bytes(b"").to_string(),
        "profile": { "type": "simulated", "components": [{ "name": "main", "properties": {} }] },
    });
    let parsed: DesiredDeployment = serde_json::from_value(entry.clone()).unwrap();
    entry["digest"] = json!(parsed.content_digest());
    let document = json!({
        "apiVersion": "muster/v1", "kind": "DesiredState", "generation": 1, "issuedAt": "2026-11-21T00:00:00Z",
        "source": { "kind": "git", "revision": "test" }, "deployments": [entry],
    });
    document.to_string()
}

/// A device with an outbox of two reports that the hub has not seen: one of an unknown state, and the newest. Returns the
/// number of the first.
async fn device_with_an_unknown_report(hub: &Hub) -> (Device, u64) {
    let device = Device::new(device("press-4"));
    hub.send_bytes(&subjects::desired(&device.key), desired()).await;
    let agent = device.start(&hub.url);
    let is_installed =
        |facts: &Vec<StatusFact>| facts.iter().any(|fact| fact.status.state == State::Installed);
    let installed = until("web is installed", || hub.statuses(&device.key), is_installed).await;
    let head = installed.iter().map(|fact| fact.seq.get()).max().unwrap();
    hub.receipt_is(&device.key, installed[0].epoch.get(), head, "").await;
    agent.stop().await.unwrap();
    device.reboot();
    // No hub is there: it starts web again, and keeps what it would report.
    let agent = device.start(&format!("nats://127.0.0.1:{}", free_port()));
    until("two reports", || device.figures(), |figures| figures["head"] == json!(head + 2)).await;
    agent.stop().await.unwrap();
    device.write_unknown_state(head + 1);
    (device, head + 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_keeps_and_shows_a_refused_report_until_there_is_room() {
    let hub = Hub::start(&[]).await;
    hub.started(1).await;
    let (device, seq) = device_with_an_unknown_report(&hub).await;
    let (key, number) = (&device.key, seq.to_string());
    share(&hub, 1).await;
    hub.send_bytes(&subjects::report(key), "no report").await;
    let held = async || hub.bus.stream_state(stream::QUARANTINE).await.unwrap().messages;
    until("QUARANTINE is full for the device", held, |held| *held == 1).await;

    let agent = device.start(&hub.url);
    let is_refused = Some((number.clone(), vec![(number.clone(), "quarantineFull".to_owned())]));
    until("the receipt refuses it", || missing_and_refused(&hub, key), |said| *said == is_refused).await;
    let newest = async || hub.statuses(key).await.iter().map(|fact| fact.seq.get()).max();
    until("the later report is stored", newest, |newest| *newest == Some(seq + 1)).await;
    let named = json!([{ "ranges": [[seq, seq]], "reason": "quarantineFull" }]);
    // Neither the agent nor the reason is gone with the process.
    agent.kill().await.unwrap();
    let agent = device.start(&hub.url);
    until("the metric", || device.refused_reports(), |count| *count == Some(1.0)).await;
    until("the status file", || device.figures(), |figures| figures["refused"] == named).await;
    let words = format!("1 reports, {number}: quarantineFull; they stay here until the hub has room");
    assert!(device.status(&[]).contains(&words), "{}", device.status(&[]));
    let is_logged = |log: &String| {
        log.lines().any(|line| {
            line.contains("kept reports that the hub refused")
                && line.contains(&number)
                && line.contains("quarantineFull")
        })
    };
    until("the line of the log", async || device.log(), is_logged).await;

    let of_device = key.to_string();
    let (code, said) = muster(&hub, &["drop", "--device", &of_device, "--reason", "a test"]).await;
    assert_eq!(code, 0, "{said}");
    share(&hub, 256).await;
    // The filters match no report here; the device sends all that it keeps.
    muster(&hub, &["requeue", "--device", &of_device, "--code", "oldEpoch", "--until", "1h"]).await;
    let kept = async || {
        let kept = kept(&hub).await;
        kept.iter().map(|report| (report.seq.map(Seq::get), report.payload().unwrap())).collect::<Vec<_>>()
    };
    let arrived = until("the report arrives", kept, |kept| kept.iter().any(|(of, _)| *of == Some(seq))).await;
    let text = String::from_utf8_lossy(&arrived[0].1);
    assert!(arrived.len() == 1 && text.contains("hibernating"), "whole, and alone: {text}");
    let is_covered = Some((String::new(), Vec::new()));
    until("the receipt covers it", || missing_and_refused(&hub, key), |said| *said == is_covered).await;
    until("the metric", || device.refused_reports(), |count| *count == Some(0.0)).await;
    until("the status file", || device.figures(), |figures| figures["refused"] == json!([])).await;
    assert!(device.status(&[]).contains("refused    none"), "{}", device.status(&[]));
    assert!(device.log().contains("the hub no longer refuses any report"), "{}", device.log());
    agent.stop().await.unwrap();
}
