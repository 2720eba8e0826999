//! Blue-green on a whole system with real agents: two revisions of an application run side by side as two deployments, the switch to the
//! new one is the rollout of a third deployment that comes after it, and a rollback of that is the switch back.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use muster_tests::rollouts::{DEVICES, ROLLOUT_FILE, document, governed, json, muster, says, start_planner};
use muster_tests::story::sleeper;
use muster_tests::system::{System, agent_name};

const ROLLOUT: &str = "apiVersion: muster/v1\nkind: Rollout\nwaves: [{name: canary, count: 1}]\n";
/// The old revision, the new one, and the deployment that points to one of them.
const BLUE: &str = "web";
const GREEN: &str = "web-green";
const SWITCH: &str = "proxy";

/// The deployments that a device shall run by its newest document, each with its release.
async fn shall_run(system: &System, device: &str) -> Vec<String> {
    let document = document(system, device).await;
    let release = |id: &str| {
        let entry = document.deployments.iter().find(|entry| entry.id.as_str() == id)?;
        Some(format!("{id} {}", entry.parameters["release"].value.as_str().unwrap()))
    };
    [BLUE, GREEN, SWITCH].into_iter().filter_map(release).collect()
}

/// Waits until these devices shall run this.
async fn all_shall_run(system: &System, devices: &[&str], wanted: &[&str]) {
    let done = async || {
        for device in devices {
            let found = shall_run(system, device).await;
            if found != wanted {
                return Err(format!("{device} shall run {found:?}"));
            }
        }
        Ok(())
    };
    system.eventually(&format!("{devices:?} shall run {wanted:?}"), done).await;
}

/// Commits a file for each of these deployments.
async fn commit(system: &System, releases: &[(&str, u32)]) {
    for (id, release) in releases {
        system.repository.write(&format!("fleet/{id}.yaml"), &sleeper(id, *release)).unwrap();
    }
    system.repository.commit("a release").await.unwrap();
}

#[tokio::test]
async fn blue_green_switches_once_green_runs_everywhere_and_switches_back() {
    let (mut system, devices) = governed(ROLLOUT).await;
    start_planner(&mut system);
    commit(&system, &[(SWITCH, 1)]).await;
    says(&system, &["rollout", "show", SWITCH], "done: every target has the content").await;

    // The new revision, the switch to it and the removal of the old one are one commit, while one device is dark.
    system.kill(&agent_name(&devices[3])).await;
    let order = format!("{ROLLOUT}after: {{{SWITCH}: [{GREEN}]}}\n");
    system.repository.write(ROLLOUT_FILE, &order).unwrap();
    std::fs::remove_file(system.repository.dir().join(format!("fleet/{BLUE}.yaml"))).unwrap();
    commit(&system, &[(GREEN, 1), (SWITCH, 2)]).await;
    all_shall_run(&system, &DEVICES, &["web 1", "web-green 1", "proxy 1"]).await;
    let waits = "waits for the rollout of web-green, which has not ended";
    says(&system, &["rollout", "show", SWITCH], waits).await;
    let (code, why) = json(&system, &["why", "rollout", SWITCH]).await;
    let blocked = &why[0]["blocked"];
    assert_eq!((code, blocked["rule"].as_str()), (0, Some("after")), "{why}");
    assert_eq!(blocked["waitsFor"][0]["deployment"], GREEN, "{why}");
    let (_, preview) = muster(&system, &["rollout", "preview", SWITCH]).await;
    assert!(preview.contains("and after the rollout of web-green"), "{preview}");
    let (code, next) = muster(&system, &["rollout", "next", SWITCH]).await;
    assert!(code != 0 && next.contains(waits), "{code}: {next}");
    all_shall_run(&system, &DEVICES, &["web 1", "web-green 1", "proxy 1"]).await;

    system.start_again(&agent_name(&devices[3]));
    all_shall_run(&system, &DEVICES, &["web 1", "web-green 1", "proxy 2"]).await;
    says(&system, &["rollout", "show", SWITCH], "done: every target has the content").await;

    // Back, and there again: both revisions run all the time.
    assert_eq!(muster(&system, &["rollout", "rollback", SWITCH]).await.0, 0);
    all_shall_run(&system, &DEVICES, &["web 1", "web-green 1", "proxy 1"]).await;
    assert_eq!(muster(&system, &["rollout", "retry", SWITCH]).await.0, 0);
    all_shall_run(&system, &DEVICES, &["web 1", "web-green 1", "proxy 2"]).await;

    // The old revision goes once a person releases its removal.
    assert_eq!(muster(&system, &["rollout", "release", BLUE, "--all"]).await.0, 0);
    all_shall_run(&system, &DEVICES, &["web-green 1", "proxy 2"]).await;
}
