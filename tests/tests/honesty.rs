//! Views never claim more than is known, as a whole system shows it: a report that nobody can read, a disk that is full, a
//! cable that is pulled in silence.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::time::Duration;

use muster_bus::{Bus, Outgoing, Start};
use muster_contract::desired::{DesiredDeployment, DesiredState};
use muster_contract::fact::{DeadlineKind, Fact, Incident, Liveness, LivenessFact};
use muster_contract::query::DeviceAnswer;
use muster_contract::status::TargetStatus;
use muster_contract::subjects::{self, LedgerSubject, stream};
use muster_contract::view::{Freshness, Verdict};
use muster_contract::{DeviceKey, State, Timestamp};
use muster_simulator::link::{Condition, Link};
use muster_tests::not_run::is_mounted;
use muster_tests::story::{
    device_settled, key, nothing_lost, publish, rebuilt, settled, sleeper, verdict, workloads,
};
use muster_tests::system::{INGEST, PUBLISHER, System, agent_name, program};
use muster_tests::wait::soon;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// A device without an agent: what it says is said by the test. Its heart beats until the value is dropped.
struct Device {
    bus: Bus,
    key: DeviceKey,
    entry: DesiredDeployment,
    heart: Option<JoinHandle<()>>,
}

impl Device {
    /// One that shall run `web`.
    async fn of(system: &System, name: &str) -> Self {
        let key = key(name);
        publish(system, std::slice::from_ref(&key), "web", 1).await;
        let document = system
            .eventually("its desired state is published", async || {
                let last = system.bus.last(stream::DOWNLINK, &subjects::desired(&key)).await;
                let message = last.map_err(|error| error.to_string())?.ok_or("nothing yet")?;
                Ok(muster_contract::decode::parse::<DesiredState>(&message.payload).unwrap())
            })
            .await;
        Self { bus: system.bus.clone(), key, entry: document.deployments[0].clone(), heart: None }
    }

    fn beats(&mut self, head: u64) {
        self.heart.take().iter().for_each(JoinHandle::abort);
        let (bus, subject) = (self.bus.clone(), subjects::presence(&self.key));
        let beat = json!({
            "apiVersion": "muster/v1", "kind": "Heartbeat", "epoch": 1, "head": head, "unsent": 0,
            "generation": 1, "agentVersion": "test",
        });
        self.heart = Some(tokio::spawn(async move {
            loop {
                let _ = bus.publish(Outgoing::new(subject.clone(), beat.to_string())).await;
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        }));
    }

    fn report(&self, seq: u64, state: &str) -> Value {
        json!({
            "apiVersion": "muster/v1", "kind": "StatusReport", "epoch": 1, "seq": seq, "head": seq,
            "observedAt": Timestamp::now().to_string(), "deployment": "web",
            "generation": self.entry.target_generation, "digest": self.entry.digest,
            "status": {"state": state}, "components": [{"name": "main", "state": state}], "current": true,
        })
    }

    async fn send(&self, report: &Value) {
        self.bus.publish(Outgoing::new(subjects::report(&self.key), report.to_string())).await.unwrap();
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.heart.take().iter().for_each(JoinHandle::abort);
    }
}

/// Waits until what is known of a device satisfies `holds`.
async fn device(
    system: &System,
    key: &DeviceKey,
    what: &str,
    holds: impl Fn(&DeviceAnswer) -> bool,
) -> DeviceAnswer {
    system
        .eventually(what, async || {
            let answer = system.hub.device(key).await.map_err(|error| error.to_string())?;
            if holds(&answer) { Ok(answer) } else { Err(json!(answer).to_string()) }
        })
        .await
}

async fn lo(system: &System) -> u64 {
    system.hub.deployments().await.unwrap()[0].converged.lo
}

/// The output of `muster`, with any exit code.
async fn muster(system: &System, args: &[&str]) -> String {
    let output = system.muster(args).await;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!printed.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    printed
}

/// How often the log of an agent says that a deployment changed.
fn changes(system: &System, name: &str) -> usize {
    system.log(name).matches("a deployment changed its state").count()
}

/// Status reports of a device in LEDGER.
async fn statuses(system: &System, key: &DeviceKey) -> usize {
    let of = |entry: &muster_tests::system::Entry| {
        matches!(entry.fact, Fact::Status(_)) && entry.subject.device() == Some(key)
    };
    system.ledger().await.iter().filter(|entry| of(entry)).count()
}

async fn liveness(system: &System, key: &DeviceKey) -> Vec<LivenessFact> {
    let of = |entry: muster_tests::system::Entry| match entry.fact {
        Fact::Liveness(fact) if entry.subject.device() == Some(key) => Some(fact),
        _ => None,
    };
    system.ledger().await.into_iter().filter_map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_report_in_quarantine_says_is_not_known_until_a_person_drops_it() {
    let system = System::start().await;
    let mut press = Device::of(&system, "plant-a/press-1").await;
    press.send(&press.report(1, "installed")).await;
    press.beats(1);
    verdict(&system, "web", 1, Verdict::Converged).await;
    // It may say that the deployment has failed: nobody can read it.
    press.send(&press.report(2, "exploded")).await;
    verdict(&system, "web", 1, Verdict::Incomplete).await;
    assert_eq!(lo(&system).await, 0);
    press.beats(2);
    let counted = |answer: &DeviceAnswer| {
        let line = &answer.device;
        (line.head, line.account.received, line.account.quarantined, line.unread) == (2, 1, 1, 0)
    };
    let answer = device(&system, &press.key, "the account counts it", counted).await;
    assert_eq!(answer.device.in_doubt.to_string(), "2");
    verdict(&system, "web", 1, Verdict::Incomplete).await;
    assert_eq!(lo(&system).await, 0);
    let audit = muster(&system, &["audit"]).await;
    assert!(audit.contains("Explained: every report"), "{audit}");
    assert!(muster(&system, &["device", "plant-a/press-1"]).await.contains("in doubt"));
    let why: Value =
        serde_json::from_str(&muster(&system, &["--format", "json", "why", "web"]).await).unwrap();
    let fact = why["standings"][0]["facts"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&fact["kind"], &fact["seq"]), (&json!("quarantine"), &json!(2)), "{why}");
    rebuilt(&system).await;

    muster(&system, &["quarantine", "drop", "--device", "plant-a/press-1", "--reason", "a test"]).await;
    verdict(&system, "web", 1, Verdict::Converged).await;
    let answer = device(&system, &press.key, "it stays in the account", counted).await;
    assert!(answer.device.in_doubt.is_empty(), "{answer:?}");
    rebuilt(&system).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unnumbered_message_leaves_doubt_until_the_next_heartbeat() {
    let system = System::start().await;
    let mut press = Device::of(&system, "plant-a/press-1").await;
    let garbage = || Outgoing::new(subjects::report(&press.key), "garbage");
    press.bus.publish(garbage()).await.unwrap();
    let answer = device(&system, &press.key, "it was heard", |it| it.device.last_heard_at.is_some()).await;
    assert_eq!((answer.device.freshness, answer.device.unread), (Freshness::Stale, 1));
    let audit = muster(&system, &["audit"]).await;
    assert!(audit.contains("Not explained") && audit.contains("may be any report"), "{audit}");
    press.send(&press.report(1, "installed")).await;
    device(&system, &press.key, "a report is in", |it| it.device.head == 1).await;
    assert_eq!(lo(&system).await, 0, "the message may be later than the report");
    press.beats(1);
    verdict(&system, "web", 1, Verdict::Converged).await;
    rebuilt(&system).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_with_a_full_disk_is_heard_and_unknown_until_it_can_store() {
    let mut system = System::start().await;
    let press = key("plant-a/press-1");
    let disk = system.start_agent_on_a_small_disk(&press);
    if !is_mounted("a_device_with_a_full_disk_is_heard_and_unknown_until_it_can_store", &disk) {
        return;
    }
    publish(&system, std::slice::from_ref(&press), "web", 1).await;
    verdict(&system, "web", 1, Verdict::Converged).await;
    let name = agent_name(&press);
    disk.fill(system.pid(&name)).unwrap();
    let workload = *workloads(&system, &press, "web").first().expect("the workload runs");
    rustix::process::kill_process(workload, rustix::process::Signal::KILL).unwrap();
    let mute = |answer: &DeviceAnswer| !answer.device.storing && answer.device.freshness == Freshness::Fresh;
    device(&system, &press, "it says that it cannot store", mute).await;
    verdict(&system, "web", 1, Verdict::Incomplete).await;
    assert_eq!(lo(&system).await, 0);
    let shown = muster(&system, &["device", "plant-a/press-1"]).await;
    assert!(shown.contains("not storing") && shown.contains("see to its disk"), "{shown}");
    let why = muster(&system, &["why", "web"]).await;
    assert!(why.contains("cannot store reports"), "{why}");
    assert!(system.log(&name).contains("cannot store reports"));
    system
        .eventually("no change is reported, not even to the log, before it is stored", async || {
            let (logged, told) = (changes(&system, &name), statuses(&system, &press).await);
            if logged == told { Ok(()) } else { Err(format!("{logged} in the log, {told} in LEDGER")) }
        })
        .await;
    let before = changes(&system, &name);
    rebuilt(&system).await;

    disk.clear(system.pid(&name)).unwrap();
    device(&system, &press, "it can store again", |answer| answer.device.storing).await;
    verdict(&system, "web", 1, Verdict::Converged).await;
    device_settled(&system, &press, 1).await;
    assert!(system.log(&name).contains("reports can be stored again"));
    assert!(changes(&system, &name) > before);
    nothing_lost(&system).await;
    rebuilt(&system).await;
    system.kill(&name).await;
}

/// A deployment that downloads something before it runs, and whose download wedges: connected, and nothing comes.
fn wedged(release: u32, limit: &str) -> String {
    let download = format!(
        "components:\n      - name: download\n        properties: {{command: sleep, args: [\"86400\"], \
         readiness: {{type: exit}}{limit}}}\n"
    );
    sleeper("web", release).replacen("components:\n", &download, 1)
}

/// The state of `web` on a device.
async fn web(
    system: &System,
    key: &DeviceKey,
    what: &str,
    holds: impl Fn(&DeviceAnswer, &TargetStatus) -> bool,
) -> (DeviceAnswer, TargetStatus) {
    let answer = device(system, key, what, |answer| {
        answer.deployments.iter().any(|line| line.deployment.as_str() == "web" && holds(answer, line))
    });
    let answer = answer.await;
    let line = answer.deployments.iter().find(|line| line.deployment.as_str() == "web").unwrap().clone();
    (answer, line)
}

#[tokio::test(flavor = "multi_thread")]
async fn m41_an_agent_stuck_in_a_download_is_overdue_until_its_watchdog_acts() {
    let mut system = System::with_settings(&[(INGEST, &["--deadline-default", "2s"])]).await;
    let press = key("plant-a/press-1");
    let hub = system.address();
    system.start_agent(&press, hub, &[]);
    muster_simulator::repository::write_devices(&system.repository, std::slice::from_ref(&press)).unwrap();
    system.repository.write("fleet/web.yaml", &wedged(1, "")).unwrap();
    system.repository.commit("a download that wedges").await.unwrap();
    verdict(&system, "web", 1, Verdict::Overdue).await;
    let overdue = |answer: &DeviceAnswer, line: &TargetStatus| {
        answer.device.freshness == Freshness::Fresh && line.overdue
    };
    let (_, line) = web(&system, &press, "it is overdue although the device is heard", overdue).await;
    assert_eq!(line.deadline.unwrap().deadline, DeadlineKind::Stuck);
    let said = line.report.unwrap();
    assert_eq!(said.state, State::Installing, "what it said last stays beside it");
    let shown = muster(&system, &["status", "web", "--output", "brief"]).await;
    assert!(
        shown.contains("past its deadline; not finished within 2s") && shown.contains("installing"),
        "{shown}"
    );

    // Wedged as a whole, it is not heard either: both are told, and since when.
    system.freeze(&agent_name(&press));
    let silent = |answer: &DeviceAnswer, line: &TargetStatus| {
        answer.device.freshness == Freshness::Stale && line.overdue
    };
    let (answer, line) = web(&system, &press, "it is silent, and overdue still", silent).await;
    assert!(answer.device.last_heard_at.unwrap() >= said.received_at, "{answer:?}");
    assert_eq!(line.report.unwrap().state, State::Installing);
    system.thaw(&agent_name(&press));

    // The agent itself ends a download with a limit, and reports why.
    system.repository.write("fleet/web.yaml", &wedged(2, ", timeout: 1s")).unwrap();
    system.repository.commit("a download with a limit").await.unwrap();
    system
        .eventually("the agent has given it up and said why", async || {
            let gave_up = |fact: &Fact| {
                let Fact::Status(fact) = fact else { return false };
                let mut errors = fact.components.iter().filter_map(|component| component.error.as_ref());
                errors.any(|error| error.code == "ReadinessTimeout" && error.source == "download")
            };
            let ledger = system.ledger().await;
            if ledger.iter().any(|entry| gave_up(&entry.fact)) { Ok(()) } else { Err(format!("{ledger:?}")) }
        })
        .await;
    publish(&system, std::slice::from_ref(&press), "web", 3).await;
    verdict(&system, "web", 1, Verdict::Converged).await;
    nothing_lost(&system).await;
    rebuilt(&system).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn m05_a_pulled_cable_makes_a_device_stale_within_its_lease() {
    let mut system = System::start().await;
    let press = key("plant-a/press-1");
    let link = Link::open(system.address()).await.unwrap();
    system.start_agent(&press, link.address(), &[]);
    publish(&system, std::slice::from_ref(&press), "web", 1).await;
    verdict(&system, "web", 1, Verdict::Converged).await;
    link.set(Condition::Stalled);
    verdict(&system, "web", 1, Verdict::ConvergedStale).await;
    let told = liveness(&system, &press).await;
    let stale = told.iter().find(|fact| fact.state == Liveness::Stale).expect("the hub reported it");
    let at = system
        .ledger()
        .await
        .into_iter()
        .find(|entry| matches!(&entry.fact, Fact::Liveness(fact) if fact == stale))
        .map(|entry| entry.stored_at)
        .unwrap();
    let silent = at.duration_since(stale.last_heard_at).as_secs_f64();
    assert!((3.0..6.0).contains(&silent), "the lease is 3 s, and it took {silent}");
    link.set(Condition::Open);
    verdict(&system, "web", 1, Verdict::Converged).await;
    nothing_lost(&system).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn m32_without_ingest_nothing_expires_and_a_subscriber_continues() {
    let mut system = System::start().await;
    let mut press = Device::of(&system, "plant-a/press-1").await;
    press.send(&press.report(1, "installing")).await;
    press.beats(1);
    verdict(&system, "web", 1, Verdict::Progressing).await;
    system.kill(INGEST).await;
    // A subscriber has read so far, and is away as well.
    let mut subscriber = system.bus.replay(stream::LEDGER, &[], Start::First).await.unwrap();
    let (read, mut seen) = (system.ledger().await.last().unwrap().seq, 0);
    while seen < read {
        // A batch may end before the last fact.
        let batch = soon("facts", subscriber.next_batch(1_000)).await.unwrap();
        seen = batch.last().map_or(seen, |delivery| delivery.stream_seq);
    }
    drop(subscriber);
    assert_eq!(seen, read);
    let known = system.rebuilt_digests().await;
    for seq in 2..=200 {
        press.send(&press.report(seq, if seq == 200 { "installed" } else { "installing" })).await;
    }
    // Longer than any lease: who looks sees what was known.
    tokio::time::sleep(Duration::from_secs(4)).await;
    verdict(&system, "web", 1, Verdict::Progressing).await;
    assert_eq!(system.ledger().await.last().unwrap().seq, read, "nothing becomes a fact by itself");
    assert_eq!(system.shown_digests(known.keys()).await, known, "what was known is shown, to the byte");
    system.start_again(INGEST);
    press.beats(200);
    verdict(&system, "web", 1, Verdict::Converged).await;
    let mut subscriber = system.bus.replay(stream::LEDGER, &[], Start::After(read)).await.unwrap();
    let mut rest: Vec<u64> = Vec::new();
    while rest.last() != Some(&200) {
        for delivery in soon("the rest", subscriber.next_batch(1_000)).await.unwrap() {
            let subject = LedgerSubject::parse(&delivery.subject).unwrap();
            if let Fact::Status(fact) = Fact::parse(&subject, &delivery.payload).unwrap() {
                rest.push(fact.seq.get());
            }
        }
    }
    assert_eq!(rest, (2..=200).collect::<Vec<_>>(), "from where it had read, without gap or repetition");
    let stale = liveness(&system, &press.key).await.iter().any(|fact| fact.state == Liveness::Stale);
    assert!(!stale, "the hub was away, not the device");
    rebuilt(&system).await;
}

/// The refusals of desired states and their ends in LEDGER, each with its device, as types. LEDGER holds documents that are no
/// facts, so incidents alone are read.
async fn refusals(system: &System) -> Vec<String> {
    let filter = ["muster.incident.*.*"];
    let mut replay = soon("LEDGER", system.bus.replay(stream::LEDGER, &filter, Start::First)).await.unwrap();
    let (mut found, mut pending) = (Vec::new(), 1);
    while pending > 0 {
        for delivery in soon("incidents", replay.next_batch(100)).await.unwrap() {
            let incident: Incident = muster_contract::decode::parse(&delivery.payload).unwrap();
            found.push(format!("{} {}", delivery.subject, incident.what.name()));
            pending = delivery.pending;
        }
    }
    found.retain(|text| text.contains(" desired"));
    found
}

async fn stored_document(system: &System, key: &DeviceKey) -> Value {
    let last = soon("DOWNLINK", system.bus.last(stream::DOWNLINK, &subjects::desired(key))).await;
    serde_json::from_slice(&last.unwrap().unwrap().payload).unwrap()
}

async fn store_document(system: &System, key: &DeviceKey, document: &Value) {
    let message = Outgoing::new(subjects::desired(key), document.to_string());
    soon("a stored document", system.bus.publish(message)).await.unwrap();
}

/// Waits until the hub says that a device refuses its desired state for a reason.
async fn refused(system: &System, key: &DeviceKey, wanted: Option<&str>) {
    let code = |answer: &DeviceAnswer| answer.device.refused.as_ref().map(|refused| refused.code.as_str());
    device(system, key, &format!("the refusal is {wanted:?}"), |answer| code(answer) == wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_desired_state_is_shown_with_its_reason_until_one_is_accepted() {
    let mut system = System::start().await;
    let [press, saw] = ["plant-a/press-1", "plant-b/saw-1"].map(key);
    let fleet = settled(&mut system, &["plant-a/press-1", "plant-b/saw-1"], "web").await;
    let first = stored_document(&system, &press).await;
    publish(&system, &fleet, "web", 2).await;
    for key in &fleet {
        device_settled(&system, key, 2).await;
    }
    // The publisher would replace a foreign document.
    system.kill(PUBLISHER).await;
    let newest = stored_document(&system, &press).await;
    store_document(&system, &press, &first).await;
    refused(&system, &press, Some("older")).await;
    let words = format!("generation {} since ", first["generation"]);
    for args in [&["why", "web"][..], &["devices"], &["device", "plant-a/press-1"]] {
        let printed = muster(&system, args).await;
        assert!(printed.contains(&words) && printed.contains("is below"), "{args:?}: {printed}");
    }
    let dir = system.device_dir(&press).display().to_string();
    system
        .eventually("the device's own status has it", async || {
            let mut command = tokio::process::Command::new(program("muster-agent"));
            let output = command.args(["status", "--data-dir", &dir]).output().await.unwrap();
            let status = String::from_utf8(output.stdout).unwrap();
            if status.contains("desired    refused generation ") { Ok(()) } else { Err(status) }
        })
        .await;
    // Others are served: this one shall run nothing any more.
    let mut empty = stored_document(&system, &saw).await;
    empty["generation"] = json!(empty["generation"].as_u64().unwrap() + 1);
    empty["deployments"] = json!([]);
    store_document(&system, &saw, &empty).await;
    system
        .eventually("the other device obeys", async || match workloads(&system, &saw, "web").len() {
            0 => Ok(()),
            count => Err(format!("{count} workloads")),
        })
        .await;

    // Nothing is recorded twice: not by the same device after a restart, nor by another ingest.
    system.kill(INGEST).await;
    system.kill(&agent_name(&press)).await;
    system.start_again(&agent_name(&press));
    let nonsense = json!({"kind": "Nonsense", "generation": newest["generation"].as_u64().unwrap() + 1});
    store_document(&system, &press, &nonsense).await;
    system.start_again(INGEST);
    refused(&system, &press, Some("invalid")).await;
    for name in [INGEST, &agent_name(&press)] {
        system.kill(name).await;
        system.start_again(name);
    }
    system.start_again(PUBLISHER);
    refused(&system, &press, None).await;
    let wanted = ["desiredRefused", "desiredRefused", "desiredAccepted"];
    assert_eq!(refusals(&system).await, wanted.map(|what| format!("muster.incident.plant-a.press-1 {what}")));
}
