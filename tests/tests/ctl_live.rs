//! `muster` against the whole system: real services, real agents, a real repository; the program as an operator runs it.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::process::{Output, Stdio};

use muster_bus::Outgoing;
use muster_contract::DeviceKey;
use muster_contract::fact::Fact;
use muster_simulator::repository::write_devices;
use muster_tests::python::interpreter;
use muster_tests::story::sleeper;
use muster_tests::system::{ROLLUP, System, program};
use muster_tests::wait::soon;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};

const DEVICES: [&str; 2] = ["plant7/press-1", "plant8/press-2"];

#[tokio::test]
async fn what_is_true_of_a_fleet_is_shown_in_every_way() {
    let mut system = System::start().await;
    let devices = settled(&mut system).await;

    let status = said(&system, &["status"], 0).await;
    assert!(status.contains("web") && status.contains("converged"), "{status}");
    assert!(status.contains("1 deployment, 2 targets, all known and fresh; as of ledger"), "{status}");
    let detail = said(&system, &["status", "web", "--output", "detail"], 0).await;
    assert!(detail.contains("targets    2: 2 installed") && detail.contains("SHALL RUN"), "{detail}");
    let part = said(&system, &["status", "web", "--site", "plant7"], 0).await;
    assert!(part.contains("plant7/press-1") && !part.contains("plant8/press-2"), "{part}");

    let list = said(&system, &["devices", "--site", "plant8"], 0).await;
    assert!(list.contains("1 device, all heard and complete") && list.contains("1 installed"), "{list}");
    let device = said(&system, &["device", DEVICES[0]], 0).await;
    assert!(device.contains("plant7/press-1  fresh") && device.contains(" = "), "{device}");
    assert!(said(&system, &["site", "plant7"], 0).await.contains("devices      1: 1 fresh"));
    assert!(said(&system, &["fleet"], 0).await.contains("deployments  1: 1 converged"));

    let audit = json(&system, &["audit"], 0).await;
    assert_eq!(audit["explained"], true);
    assert_eq!(audit["totals"]["missing"], 0);
    assert_eq!(audit["devices"].as_array().unwrap().len(), devices.len());
    let views: Vec<_> = audit["views"].as_array().unwrap().iter().map(|view| view["key"].as_str()).collect();
    assert_eq!(views, ["deployment.web", "site.plant7", "site.plant8", "fleet"].map(Some));

    let unknown = system.muster(&["status", "wbe"]).await;
    assert_eq!(unknown.status.code(), Some(1));
    assert!(text(&unknown.stderr).contains("did you mean web?"), "{}", text(&unknown.stderr));
    let unknown = system.muster(&["devices", "--site", "plant9"]).await;
    assert_eq!(unknown.status.code(), Some(1), "{}", text(&unknown.stdout));
    assert!(text(&unknown.stderr).contains("did you mean plant"), "{}", text(&unknown.stderr));
}

#[tokio::test]
async fn what_was_applied_runs_until_it_is_removed_and_a_retired_device_is_gone() {
    let mut system = System::start().await;
    settled(&mut system).await;
    let publisher = said(&system, &["publisher", "status"], 0).await;
    assert!(publisher.contains("branch main") && publisher.contains("2 with a desired state"), "{publisher}");

    let file = system.dir().join("extra.yaml");
    std::fs::write(&file, sleeper("extra", 1)).unwrap();
    let apply = ["apply", "-f", file.to_str().unwrap(), "--device", DEVICES[0]];
    let applied = said(&system, &apply, 0).await;
    assert!(applied.contains("is published; it shall run extra, web"), "{applied}");
    let again = said(&system, &apply, 0).await;
    assert!(again.contains("nothing to change"), "{again}");
    converged(&system, "extra", 1).await;

    std::fs::write(&file, sleeper("extra", 1).replace("command", "comand")).unwrap();
    let refused = system.muster(&apply).await;
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stdout));
    assert!(text(&refused.stderr).contains("command"), "{}", text(&refused.stderr));

    let removed = said(&system, &["remove", "--device", DEVICES[0], "extra"], 0).await;
    assert!(removed.contains("it shall run web"), "{removed}");
    system
        .eventually("extra is gone", async || {
            let gone = system.muster(&["status", "extra"]).await;
            if gone.status.code() == Some(1) { Ok(()) } else { Err(text(&gone.stdout)) }
        })
        .await;

    let early = system.muster(&["retire", DEVICES[1]]).await;
    assert_eq!(early.status.code(), Some(1), "{}", text(&early.stdout));
    assert!(
        text(&early.stderr).contains("remove the folder sites/plant8/press-2"),
        "{}",
        text(&early.stderr)
    );
    retire(&system, DEVICES[1]).await;
    converged(&system, "web", 1).await;
    let audit = said(&system, &["audit"], 0).await;
    assert!(audit.contains("Explained"), "{audit}");
}

#[tokio::test]
async fn a_message_that_cannot_be_let_in_is_found_with_its_reason() {
    let mut system = System::start().await;
    settled(&mut system).await;
    let poison = r#"{"apiVersion":"muster/v1","kind":"StatusReport","epoch":1}"#;
    system.bus.publish(Outgoing::new("muster.report.plant7.press-1", poison)).await.unwrap();
    let message = system
        .eventually("the poison is in quarantine", async || {
            let list = json(&system, &["quarantine", "list", "--device", DEVICES[0]], 0).await;
            list["reports"].get(0).cloned().ok_or_else(|| list.to_string())
        })
        .await;
    let number = message["quarantineSeq"].to_string();
    let shown = said(&system, &["quarantine", "show", &number], 0).await;
    assert!(shown.contains(poison) && shown.contains("missing field"), "{shown}");
    system
        .eventually("what has no number is in nobody's account, once a heartbeat has said so", async || {
            let audit = text(&system.muster(&["audit"]).await.stdout);
            if audit.contains("Explained: every report") { Ok(()) } else { Err(audit) }
        })
        .await;
}

#[tokio::test]
async fn why_leads_from_a_verdict_to_the_facts_in_ledger() {
    let mut system = System::start().await;
    settled(&mut system).await;
    let why = json(&system, &["why", "web"], 0).await;
    assert_eq!((why["verdict"].as_str(), &why["because"]), (Some("converged"), &2.into()), "{why}");
    let ledger = system.ledger().await;
    for fact in
        why["standings"].as_array().unwrap().iter().flat_map(|standing| standing["facts"].as_array().unwrap())
    {
        let entry = ledger.iter().find(|entry| Some(entry.seq) == fact["ledgerSeq"].as_u64());
        let entry = entry.unwrap_or_else(|| panic!("LEDGER holds no {fact}"));
        let (subject, kind) = (entry.subject.to_string(), fact["kind"].as_str().unwrap());
        assert!(subject.contains(kind) || kind == "head", "{fact} is {subject}");
        let number = match &entry.fact {
            Fact::Status(report) => (report.epoch, report.seq),
            Fact::Device(report) => (report.epoch, report.seq),
            _ => continue,
        };
        let named = (fact["epoch"].as_u64(), fact["seq"].as_u64());
        assert_eq!(named, (Some(number.0.get()), Some(number.1.get())), "{fact}");
    }
    let one = said(&system, &["why", "web", "--device", DEVICES[0]], 0).await;
    assert!(one.contains("is installed") && one.contains("is heard") && !one.contains(DEVICES[1]), "{one}");

    let unknown = system.muster(&["why", "wbe"]).await;
    assert_eq!(unknown.status.code(), Some(1), "{}", text(&unknown.stdout));
    assert!(text(&unknown.stderr).contains("web"), "{}", text(&unknown.stderr));
    let stranger = system.muster(&["why", "web", "--device", "plant7/press-9"]).await;
    assert_eq!(stranger.status.code(), Some(1), "{}", text(&stranger.stdout));
    assert!(text(&stranger.stderr).contains(DEVICES[0]), "{}", text(&stranger.stderr));
}

#[tokio::test]
async fn a_watch_says_each_change_and_ends_well() {
    let mut system = System::start().await;
    settled(&mut system).await;
    let mut watch = tokio::process::Command::new(program("muster"))
        .args(["--nats-url", &system.server.url(), "watch", "web"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    // Views are written a little after the query service knows.
    let mut line = async |wanted: &str| {
        while !soon(wanted, lines.next_line()).await.unwrap().unwrap().starts_with(wanted) {}
    };
    line("web  converged  2 of 2 converged: 2 installed; as of ledger").await;
    retire(&system, DEVICES[1]).await;
    line("web  converged  1 of 1 converged: 1 installed; as of ledger").await;
    kill_process(Pid::from_raw(watch.id().unwrap().cast_signed()).unwrap(), Signal::INT).unwrap();
    assert_eq!(soon("its end", watch.wait()).await.unwrap().code(), Some(0), "Ctrl-C is how a watch ends");
}

#[tokio::test]
async fn a_terminal_is_redrawn_in_place_with_colours_unless_unwanted() {
    let mut system = System::start().await;
    settled(&mut system).await;
    let coloured = drawn(&system, &[]).await;
    assert!(coloured.contains("\u{1b}[H") && coloured.contains("\u{1b}[32mconverged"), "{coloured:?}");
    let plain = drawn(&system, &[("NO_COLOR", "1")]).await;
    assert!(plain.contains("\u{1b}[H") && !plain.contains("\u{1b}[32m"), "{plain:?}");
}

#[tokio::test]
async fn a_rollup_that_is_down_is_named_and_missed_by_nothing_else() {
    let mut system = System::start().await;
    settled(&mut system).await;
    system.terminate(ROLLUP).await;
    let status = system.muster(&["status"]).await;
    assert_eq!(status.status.code(), Some(2));
    let words = text(&status.stderr);
    let no_answer = "no muster-rollup answers on muster.query";
    let unknown = format!("the hub's incidents are not known: {no_answer}.incidents: is it running?\n");
    assert_eq!(words, format!("{unknown}muster: {no_answer}.deployments: is it running?\n"));
    said(&system, &["publisher", "status"], 0).await;
}

/// The output of `muster watch` on a terminal until everything in it has converged. Python gives the terminal.
async fn drawn(system: &System, variables: &[(&str, &str)]) -> String {
    let mut terminal = tokio::process::Command::new(interpreter())
        .args(["-c", "import pty, sys; pty.spawn(sys.argv[1:])"])
        .arg(program("muster"))
        .args(["--nats-url", &system.server.url(), "watch"])
        .env_remove("NO_COLOR")
        .env("TERM", "xterm")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut output = terminal.stdout.take().unwrap();
    let mut seen = String::new();
    // Views are written a little after the query service knows, so the first picture may be of before.
    while !seen.contains("converged") {
        let mut bytes = [0; 4096];
        let count = soon("more of the picture", output.read(&mut bytes)).await.unwrap();
        assert!(count > 0, "the watch ended: {seen}");
        seen += &text(&bytes[..count]);
    }
    seen
}

/// Two devices with one deployment, converged.
async fn settled(system: &mut System) -> Vec<DeviceKey> {
    let devices: Vec<DeviceKey> = DEVICES.iter().map(|key| key.parse().unwrap()).collect();
    write_devices(&system.repository, &devices).unwrap();
    system.repository.write("fleet/web.yaml", &sleeper("web", 1)).unwrap();
    system.repository.commit("web").await.unwrap();
    let hub = system.address();
    for device in &devices {
        system.start_agent(device, hub, &[]);
    }
    converged(system, "web", 2).await;
    devices
}

/// Takes a device out of Git and then out of the fleet.
async fn retire(system: &System, device: &str) {
    std::fs::remove_dir_all(system.repository.dir().join("sites").join(device)).unwrap();
    system.repository.commit("one device less").await.unwrap();
    system
        .eventually(&format!("{device} is retired"), async || {
            let retired = system.muster(&["retire", device]).await;
            let words = text(&retired.stdout);
            if words.contains("it is in no view any more") { Ok(()) } else { Err(text(&retired.stderr)) }
        })
        .await;
}

async fn converged(system: &System, id: &str, targets: u64) {
    system
        .eventually(&format!("{id} has converged on {targets} devices"), async || {
            let output = system.muster(&["status", id, "--format", "json"]).await;
            let answer: Value = serde_json::from_slice(&output.stdout).map_err(|_| text(&output.stderr))?;
            let view = &answer["view"];
            let there = view["verdict"] == "converged" && view["targets"] == targets;
            if there { Ok(()) } else { Err(view.to_string()) }
        })
        .await;
}

async fn said(system: &System, words: &[&str], code: i32) -> String {
    let output: Output = system.muster(words).await;
    assert_eq!(
        output.status.code(),
        Some(code),
        "{words:?}: {}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

async fn json(system: &System, words: &[&str], code: i32) -> Value {
    serde_json::from_str(&said(system, &[words, &["--format", "json"]].concat(), code).await).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn the_past_is_shown_compared_and_proven() {
    let mut system = System::start().await;
    settled(&mut system).await;
    // A pulse is no position of a view.
    let ledger = system.ledger().await;
    let end = ledger.iter().rfind(|entry| !matches!(entry.fact, Fact::Pulse(_))).unwrap().seq;
    let now = json(&system, &["status", "web"], 0).await;
    let then = json(&system, &["status", "web", "--at-seq", &end.to_string()], 0).await;
    assert_eq!(then["view"]["digest"], now["view"]["digest"]);
    let at = then["view"]["asOf"]["at"].as_str().unwrap().to_owned();
    let by_time = json(&system, &["status", "web", "--at", &at], 0).await;
    assert_eq!(by_time["view"], then["view"], "the time of a fact stands for it");
    let before = system.muster(&["status", "web", "--at-seq", "0"]).await;
    assert_eq!(before.status.code(), Some(1), "{}", text(&before.stdout));
    let shown = said(&system, &["status", "web", "--event-time", &at], 0).await;
    assert!(shown.contains("converged") && shown.contains("0 reports came later"), "{shown}");

    let site = DEVICES[0].split('/').next().unwrap();
    let seq = end.to_string();
    let filtered = json(&system, &["status", "web", "--site", site, "--at-seq", &seq], 0).await;
    assert_eq!(
        (&filtered["asOf"]["ledgerSeq"], &filtered["whole"]),
        (&end.into(), &true.into()),
        "{filtered}"
    );
    let shown = said(&system, &["status", "web", "--device", DEVICES[0], "--at-seq", &seq], 0).await;
    assert!(shown.contains("As known with ledger"), "{shown}");
    let export = ["status", "web", "--at-seq", &seq, "--format", "resourcegroup", "--aggregate"];
    let shown = said(&system, &export, 0).await;
    assert!(shown.contains("kind: ResourceGroup") && !shown.contains("As known with ledger"), "{shown}");
    let before = system.muster(&["status", "web", "--site", site, "--at-seq", "0"]).await;
    assert_eq!(before.status.code(), Some(1), "{}", text(&before.stdout));

    places_and_reasons_of_the_past(&system, end, &at).await;

    let diff = json(&system, &["diff", "web", "--from", "0"], 0).await;
    assert_eq!(
        (diff["from"]["verdict"].as_str(), diff["changed"].as_u64()),
        (Some("empty"), Some(2)),
        "{diff}"
    );
    let shown = said(&system, &["diff", "web", "--from", "0", "--to", &end.to_string()], 0).await;
    assert!(
        shown.contains("empty → converged") && shown.contains(DEVICES[0]) && shown.contains("is installed"),
        "{shown}"
    );

    let verified = said(&system, &["verify"], 0).await;
    assert!(verified.starts_with("Verified: 2 devices and 4 views are what LEDGER gives."), "{verified}");
    let future = system.muster(&["status", "--at-seq", "99999999"]).await;
    assert_eq!(future.status.code(), Some(1));
    assert!(text(&future.stderr).contains("in the future"), "{}", text(&future.stderr));
}

/// The past state of devices, a site, the fleet and a verdict: at a fact, at its time, and before the first.
async fn places_and_reasons_of_the_past(system: &System, end: u64, at: &str) {
    let site = DEVICES[0].split('/').next().unwrap();
    let seq = end.to_string();
    for words in [
        &["devices"][..],
        &["devices", "--site", site, "--freshness", "fresh"],
        &["device", DEVICES[0]],
        &["site", site],
        &["fleet"],
        &["why", "web"],
        &["why", "web", "--device", DEVICES[0]],
    ] {
        let [by_seq, by_time, by_now] = [["--at-seq", &seq], ["--at", at], ["--event-time", at]]
            .map(|point| [words, &point[..]].concat());
        let then = json(system, &by_seq, 0).await;
        assert_eq!(then["asOf"]["ledgerSeq"], end, "{words:?}: {then}");
        assert_eq!(json(system, &by_time, 0).await, then, "{words:?}: the time of a fact stands for it");
        let shown = said(system, &by_seq, 0).await;
        assert!(shown.contains("As known with ledger"), "{words:?}: {shown}");
        let shown = said(system, &by_now, 0).await;
        assert!(shown.contains("0 reports came later"), "{words:?}: {shown}");
    }
    let none = said(system, &["devices", "--at-seq", "0"], 0).await;
    assert!(none.contains("No device is known"), "{none}");
    let none = said(system, &["fleet", "--at-seq", "0"], 0).await;
    assert!(none.contains("devices      none"), "{none}");
    for words in [&["device", DEVICES[0]][..], &["site", site], &["why", "web"], &["devices", "--site", site]]
    {
        let output = system.muster(&[words, &["--at-seq", "0"]].concat()).await;
        assert_eq!(output.status.code(), Some(1), "{words:?}: {}", text(&output.stdout));
        assert!(!text(&output.stderr).contains("did you mean"), "{words:?}: {}", text(&output.stderr));
    }
}
