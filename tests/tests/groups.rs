//! Groups from the repository to the person who looks: labels in Git, the real programs, `muster`.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use muster_contract::DeviceKey;
use muster_contract::query::DeviceAnswer;
use muster_contract::view::{Standing, Verdict};
use muster_simulator::repository::write_devices;
use muster_tests::story::{sleeper, verdict};
use muster_tests::system::System;
use serde_json::Value;

const DEVICES: [&str; 2] = ["plant7/press-1", "plant8/press-2"];

/// Waits until the groups of a label are these: value, targets, verdict of `web`.
async fn groups(system: &System, label: &str, wanted: &[(&str, u64, &str)]) {
    system
        .eventually(&format!("web by {label} is {wanted:?}"), async || {
            let output = system.muster(&["status", "web", "--group-by", label, "--format", "json"]).await;
            let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let none = Vec::new();
            let lines = answer["groups"].as_array().unwrap_or(&none);
            let seen: Vec<_> = lines
                .iter()
                .map(|line| (line["value"].as_str(), line["targets"].as_u64(), line["verdict"].as_str()))
                .collect();
            let wanted =
                wanted.iter().map(|(value, targets, verdict)| (Some(*value), Some(*targets), Some(*verdict)));
            if seen.iter().copied().eq(wanted) {
                Ok(())
            } else {
                Err(format!("{answer} {}", text(&output.stderr)))
            }
        })
        .await;
}

async fn said(system: &System, args: &[&str], code: i32) -> String {
    let output = system.muster(args).await;
    let all = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "muster {args:?}: {all}");
    all
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

async fn started() -> (System, Vec<DeviceKey>) {
    let mut system = System::start().await;
    let devices: Vec<DeviceKey> = DEVICES.iter().map(|name| name.parse().unwrap()).collect();
    write_devices(&system.repository, &devices).unwrap();
    for (path, content) in [
        ("fleet/web.yaml", sleeper("web", 1)),
        ("fleet/labels.yaml", "ring: stable\n".to_owned()),
        ("sites/plant7/labels.yaml", "region: north\n".to_owned()),
        ("sites/plant7/press-1/labels.yaml", "ring: canary\n".to_owned()),
        ("sites/plant8/labels.yaml", "region: south\n".to_owned()),
    ] {
        system.repository.write(path, &content).unwrap();
    }
    system.repository.commit("a fleet with labels").await.unwrap();
    for device in &devices {
        let hub = system.address();
        system.start_agent(device, hub, &[]);
    }
    groups(&system, "region", &[("north", 1, "converged"), ("south", 1, "converged")]).await;
    (system, devices)
}

/// The generation in a device's desired state, and its last report of `web`: generation and number.
async fn told(system: &System, device: &DeviceKey) -> (u64, u64, u64) {
    let answer: DeviceAnswer = system.hub.device(device).await.unwrap();
    let line = &answer.deployments[0];
    assert_eq!(line.standing, Standing::Installed);
    let report = line.report.as_ref().unwrap();
    (answer.device.generation.unwrap().get(), report.generation.get(), report.seq.get())
}

#[tokio::test]
async fn labels_of_the_repository_group_the_fleet_and_redeploy_nothing() {
    let (system, devices) = started().await;
    groups(&system, "ring", &[("canary", 1, "converged"), ("stable", 1, "converged")]).await;
    let list = said(&system, &["groups"], 0).await;
    assert!(list.contains("region") && list.contains("ring"), "{list}");
    assert!(said(&system, &["groups", "region", "north"], 0).await.contains("group region=north"));
    let device = said(&system, &["device", DEVICES[0]], 0).await;
    assert!(device.contains("region=north, ring=canary"), "{device}");

    let before = told(&system, &devices[1]).await;
    system.repository.write("sites/plant8/labels.yaml", "region: north\n").unwrap();
    system.repository.commit("plant 8 belongs to the north").await.unwrap();
    groups(&system, "region", &[("north", 2, "converged")]).await;
    let after = told(&system, &devices[1]).await;
    assert!(after.0 > before.0, "the label travels in a document of its own: {before:?}, {after:?}");
    assert_eq!((after.1, after.2), (before.1, before.2), "nothing was applied anew");
    system
        .eventually("the group of nobody is gone", async || {
            match system.bus.view_get("group.region.south").await.unwrap() {
                None => Ok(()),
                Some(entry) => Err(format!("{entry:?}")),
            }
        })
        .await;

    system.repository.write("sites/plant8/labels.yaml", "region: The North\n").unwrap();
    system.repository.commit("a slip of the pen").await.unwrap();
    let refused = system
        .eventually("the commit is refused", async || {
            let status = text(&system.muster(&["publisher", "status"]).await.stdout);
            if status.contains("labels.yaml") { Ok(status) } else { Err(status) }
        })
        .await;
    assert!(refused.contains("'The North' is not a valid value of a label"), "{refused}");
    groups(&system, "region", &[("north", 2, "converged")]).await;
    let unknown = said(&system, &["groups", "regoin"], 1).await;
    assert!(unknown.contains("no device has the label 'regoin'; did you mean region?"), "{unknown}");
}

#[tokio::test]
async fn a_site_is_counted_and_judged_alone_and_its_changes_are_listed() {
    let (system, _) = started().await;
    // Without a retry, during which the deployment would be progressing.
    let broken = sleeper("web", 2).replace("command: sleep", "command: no-such-program, restart: never");
    system.repository.write("sites/plant8/web.yaml", &broken).unwrap();
    system.repository.commit("a release of plant 8 alone").await.unwrap();
    groups(&system, "region", &[("north", 1, "converged"), ("south", 1, "failing")]).await;
    let rows = async |words: &[&str]| {
        let all = [&["status", "--format", "json"], words].concat();
        let answer: Value = serde_json::from_str(&said(&system, &all, 0).await).unwrap();
        let rows = answer["deployments"].as_array().unwrap().iter();
        let rows =
            rows.map(|row| (row["verdict"].as_str().unwrap().to_owned(), row["targets"].as_u64().unwrap()));
        rows.collect::<Vec<_>>()
    };
    let row = |verdict: &str, targets| vec![(verdict.to_owned(), targets)];
    assert_eq!(rows(&[]).await, row("failing", 2));
    assert_eq!(rows(&["--site", "plant7"]).await, row("converged", 1));
    assert_eq!(rows(&["--site", "plant8"]).await, row("failing", 1));
    assert_eq!(rows(&["--site", "plant7", "--site", "plant8"]).await, row("failing", 2));
    assert_eq!(rows(&["--verdict", "failing,overdue", "--site", "plant7"]).await, []);
    assert_eq!(rows(&["--verdict", "failing,overdue"]).await, row("failing", 2));
    assert_eq!(rows(&["--verdict", "converged"]).await, []);
    let one = said(&system, &["status", "web", "--site", "plant7"], 0).await;
    assert!(one.starts_with("web  converged"), "{one}");
    let missing = said(&system, &["devices", "--not-running", "web"], 0).await;
    assert!(missing.contains(DEVICES[1]) && !missing.contains(DEVICES[0]), "{missing}");
    let all: Value = serde_json::from_str(&said(&system, &["devices", "--format", "json"], 0).await).unwrap();
    let version = all["devices"][0]["agentVersion"].as_str().unwrap();
    let view: Value =
        serde_json::from_str(&said(&system, &["status", "web", "--format", "json"], 0).await).unwrap();
    let code = view["view"]["errors"][0]["code"].as_str().unwrap();
    assert_eq!(rows(&["--error", code]).await, row("failing", 2));
    assert_eq!(rows(&["--error", "NOBODY-HAS-IT"]).await, []);
    for (words, is_there) in [
        (["devices", "--error", code], [false, true]),
        (["devices", "--version", version], [true, true]),
        (["devices", "--version", "0.0.1"], [false, false]),
    ] {
        let listed = said(&system, &words, 0).await;
        assert_eq!(DEVICES.map(|device| listed.contains(device)), is_there, "{words:?}: {listed}");
    }
    let wrong = said(&system, &["status", "--site", "plant77"], 1).await;
    assert!(wrong.contains("site 'plant77' has no devices; did you mean plant7"), "{wrong}");

    let changes = said(&system, &["changes", "--since", "0", "--site", "plant7"], 0).await;
    // The first report may come to LEDGER before the copy of what was desired.
    assert!(changes.contains("new: ") && changes.contains("→ converged"), "{changes}");
    assert!(!changes.contains("plant8") && !changes.contains("failing"), "{changes}");
    let changes = said(&system, &["changes", "web", "--since", "1h", "--format", "json"], 0).await;
    let answer: Value = serde_json::from_str(&changes).unwrap();
    let is_failure = |change: &&Value| change["type"] == "verdict" && change["to"] == "failing";
    let failure = answer["changes"].as_array().unwrap().iter().find(is_failure).unwrap();
    assert_eq!((&failure["fact"], &failure["deployment"]), (&"status".into(), &"web".into()), "{failure}");

    system.repository.write("fleet/app.yaml", &sleeper("app", 1)).unwrap();
    system.repository.commit("another deployment, which comes before the other by name").await.unwrap();
    verdict(&system, "app", 2, Verdict::Converged).await;
    let list = said(&system, &["status"], 0).await;
    let line = |name: &str| list.lines().position(|line| line.starts_with(name)).expect(&list);
    assert!(line("web") < line("app"), "worst first: {list}");
}

#[tokio::test]
async fn a_person_defines_a_view_looks_at_it_and_takes_it_back() {
    let (system, _) = started().await;
    let file = system.dir().join("rings.yaml");
    let file_name = file.to_str().unwrap();
    let head = "apiVersion: muster/v1\nkind: ViewDefinition\nname: rings\n";
    std::fs::write(&file, format!("{head}groupBy: label:ring\nselekt: {{}}\n")).unwrap();
    let refused = said(&system, &["view", "apply", "-f", file_name], 1).await;
    assert!(refused.contains("rings.yaml") && refused.contains("selekt"), "{refused}");

    std::fs::write(&file, format!("{head}groupBy: label:ring\nselect: {{deployments: [web]}}\n")).unwrap();
    system
        .eventually("it is taken", async || {
            let output = system.muster(&["view", "apply", "-f", file_name]).await;
            if output.status.success() { Ok(()) } else { Err(text(&output.stderr)) }
        })
        .await;
    let shown = system
        .eventually("the view", async || {
            let output = system.muster(&["view", "show", "rings"]).await;
            if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
        })
        .await;
    assert!(
        shown.contains("canary")
            && shown.contains("stable")
            && shown.contains("rings: standings by label:ring"),
        "{shown}"
    );
    let list = said(&system, &["view", "list"], 0).await;
    assert!(list.contains("rings") && list.contains("ready"), "{list}");
    let audit = said(&system, &["audit", "--format", "json"], 0).await;
    assert!(audit.contains("view.rings") && audit.contains("group.ring.canary"), "{audit}");

    said(&system, &["view", "remove", "rings"], 0).await;
    system
        .eventually("the view is gone", async || {
            let output = system.muster(&["view", "show", "rings"]).await;
            if output.status.code() == Some(1) { Ok(()) } else { Err(text(&output.stdout)) }
        })
        .await;
}
