//! Known failures of other systems when things are removed, moved or replaced while devices are out of reach, tried on a
//! whole system of real processes. The numbers are those of the list of such failures.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use muster_contract::DeviceKey;
use muster_contract::State;
use muster_contract::canonical::Digest;
use muster_contract::desired::DesiredState;
use muster_contract::fact::{Fact, StatusFact};
use muster_contract::subjects::{self, ViewKey, stream};
use muster_contract::view::{DeploymentView, Freshness, Standing, Verdict};
use muster_simulator::link::{Condition, Link};
use muster_simulator::repository::write_devices;
use muster_tests::story::{
    device_settled, fleet_of, key, nothing_lost, publish, rebuilt, sleeper, verdict, workloads,
};
use muster_tests::system::{INGEST, PUBLISHER, ROLLUP, System, agent_name};

/// A device behind a link that can be cut.
async fn behind_a_link(system: &mut System, device: &str) -> (DeviceKey, Link) {
    let device = key(device);
    let link = Link::open(system.address()).await.unwrap();
    system.start_agent(&device, link.address(), &[]);
    (device, link)
}

/// Waits until what is published last for a device satisfies `holds`.
async fn published(
    system: &System,
    device: &DeviceKey,
    holds: impl Fn(&DesiredState) -> bool,
) -> DesiredState {
    system
        .eventually(&format!("the desired state of {device} is published"), async || {
            let last = system.bus.last(stream::DOWNLINK, &subjects::desired(device)).await;
            let message = last.map_err(|error| error.to_string())?.ok_or("nothing yet")?;
            let document: DesiredState = muster_contract::decode::parse(&message.payload).unwrap();
            if holds(&document) { Ok(document) } else { Err(format!("{document:?}")) }
        })
        .await
}

fn runs(document: &DesiredState, id: &str) -> bool {
    document.deployments.iter().any(|deployment| deployment.id.as_str() == id)
}

fn digest_of(document: &DesiredState, id: &str) -> Digest {
    document.deployments.iter().find(|deployment| deployment.id.as_str() == id).unwrap().digest
}

async fn view(system: &System, id: &str) -> Option<DeploymentView> {
    let views = system.hub.deployments().await.unwrap();
    views.into_iter().find(|view| view.deployment.as_str() == id)
}

/// No process, no row, no view and no answer is left of a deployment.
async fn no_ghost(system: &System, device: &DeviceKey, id: &str) {
    system
        .eventually(&format!("nothing is left of {id}"), async || {
            let processes = workloads(system, device, id);
            let views = system.hub.deployments().await.map_err(|error| error.to_string())?;
            let shown = views.iter().any(|view| view.deployment.as_str() == id);
            let answer = system.hub.device(device).await.map_err(|error| error.to_string())?;
            let row = answer.deployments.iter().any(|line| line.deployment.as_str() == id);
            let key = ViewKey::Deployment(id.parse().unwrap());
            let kept = !system.shown_digests([&key]).await.is_empty();
            if processes.is_empty() && !shown && !row && !kept {
                return Ok(());
            }
            Err(format!("processes {processes:?}, view {shown}, row {row}, in the bucket {kept}"))
        })
        .await;
    let status = system.muster(&["status", id]).await;
    assert!(!status.status.success(), "{}", String::from_utf8_lossy(&status.stdout));
}

/// The reports of a deployment of a device, in the order of LEDGER.
async fn reports(system: &System, device: &DeviceKey, id: &str) -> Vec<StatusFact> {
    let of = |entry: muster_tests::system::Entry| match entry.fact {
        Fact::Status(fact) if entry.subject.device() == Some(device) && fact.deployment.as_str() == id => {
            Some(fact)
        }
        _ => None,
    };
    system.ledger().await.into_iter().filter_map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn m13_what_was_deleted_while_a_device_was_away_is_gone_after_its_return() {
    let mut system = System::start().await;
    let (device, link) = behind_a_link(&mut system, "plant-a/press-1").await;
    publish(&system, std::slice::from_ref(&device), "web", 1).await;
    publish(&system, std::slice::from_ref(&device), "log", 1).await;
    verdict(&system, "web", 1, Verdict::Converged).await;
    verdict(&system, "log", 1, Verdict::Converged).await;

    link.set(Condition::Cut);
    verdict(&system, "web", 1, Verdict::ConvergedStale).await;
    std::fs::remove_file(system.repository.dir().join("fleet/web.yaml")).unwrap();
    system.repository.commit("web goes").await.unwrap();
    let wanted = published(&system, &device, |document| !runs(document, "web")).await;
    assert_eq!(workloads(&system, &device, "web").len(), 1, "it cannot know yet, and goes on");

    link.set(Condition::Open);
    no_ghost(&system, &device, "web").await;
    device_settled(&system, &device, wanted.generation.get()).await;
    assert_eq!(workloads(&system, &device, "log").len(), 1, "what was not deleted is left alone");
    nothing_lost(&system).await;
    rebuilt(&system).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn m13_a_target_moved_during_an_outage_runs_there_and_nowhere_else() {
    let mut system = System::start().await;
    let (from, from_link) = behind_a_link(&mut system, "plant-a/press-1").await;
    let (to, to_link) = behind_a_link(&mut system, "plant-b/saw-1").await;
    let devices = [from.clone(), to.clone()];
    write_devices(&system.repository, &devices).unwrap();
    let place = |device: &DeviceKey| format!("sites/{device}/web.yaml");
    system.repository.write(&place(&from), &sleeper("web", 1)).unwrap();
    system.repository.commit("web on the press").await.unwrap();
    verdict(&system, "web", 1, Verdict::Converged).await;

    from_link.set(Condition::Cut);
    to_link.set(Condition::Cut);
    std::fs::remove_file(system.repository.dir().join(place(&from))).unwrap();
    system.repository.write(&place(&to), &sleeper("web", 1)).unwrap();
    system.repository.commit("web on the saw").await.unwrap();
    published(&system, &from, |document| !runs(document, "web")).await;
    published(&system, &to, |document| runs(document, "web")).await;
    let meanwhile = system
        .eventually("one target, and one that is leaving", async || {
            let view = view(&system, "web").await.ok_or("no view")?;
            if (view.targets, view.leaving) == (1, 1) { Ok(view) } else { Err(format!("{view:?}")) }
        })
        .await;
    assert_eq!(meanwhile.converged.lo, 0, "nobody has said that it runs where it shall");

    // The one that shall have it no more comes back last: until then it is not forgotten.
    to_link.set(Condition::Open);
    system
        .eventually("it runs on the saw", async || match workloads(&system, &to, "web")[..] {
            [_] => Ok(()),
            _ => Err("not yet".to_owned()),
        })
        .await;
    verdict(&system, "web", 1, Verdict::Converged).await;
    assert_eq!(view(&system, "web").await.unwrap().leaving, 1);
    from_link.set(Condition::Open);
    system
        .eventually("it is gone from the press", async || {
            let leaving = view(&system, "web").await.map_or(u64::MAX, |view| view.leaving);
            let left = workloads(&system, &from, "web").len();
            if leaving == 0 && left == 0 {
                Ok(())
            } else {
                Err(format!("{leaving} leaving, {left} processes"))
            }
        })
        .await;
    verdict(&system, "web", 1, Verdict::Converged).await;
    nothing_lost(&system).await;
    rebuilt(&system).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn m14_a_deployment_deleted_on_a_disconnected_device_leaves_then_is_gone() {
    let mut system = System::start().await;
    let (device, link) = behind_a_link(&mut system, "plant-a/press-1").await;
    publish(&system, std::slice::from_ref(&device), "web", 1).await;
    verdict(&system, "web", 1, Verdict::Converged).await;
    link.set(Condition::Stalled);
    verdict(&system, "web", 1, Verdict::ConvergedStale).await;
    std::fs::remove_file(system.repository.dir().join("fleet/web.yaml")).unwrap();
    system.repository.commit("web goes").await.unwrap();
    verdict(&system, "web", 0, Verdict::Removing).await;
    let meanwhile = view(&system, "web").await.unwrap();
    assert_eq!((meanwhile.leaving, meanwhile.counts.len()), (1, 0), "{meanwhile:?}");
    link.set(Condition::Open);
    no_ghost(&system, &device, "web").await;
    rebuilt(&system).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn m14_a_device_that_never_returns_leaves_no_trace_once_it_is_retired() {
    let mut system = System::start().await;
    let (device, link) = behind_a_link(&mut system, "plant-a/press-1").await;
    // Somebody stays: a repository without any device is taken for a mistake.
    write_devices(&system.repository, &[device.clone(), key("plant-b/saw-1")]).unwrap();
    system.repository.write("sites/plant-a/web.yaml", &sleeper("web", 1)).unwrap();
    system.repository.commit("web on the press").await.unwrap();
    verdict(&system, "web", 1, Verdict::Converged).await;
    link.set(Condition::Cut);
    system.kill(&agent_name(&device)).await;
    std::fs::remove_dir_all(system.repository.dir().join("sites/plant-a")).unwrap();
    system.repository.commit("the press is scrapped").await.unwrap();
    published(&system, &device, |document| document.deployments.is_empty()).await;
    verdict(&system, "web", 0, Verdict::Removing).await;
    let retired = system.muster(&["retire", &device.to_string()]).await;
    assert!(retired.status.success(), "{}", String::from_utf8_lossy(&retired.stderr));
    system
        .eventually("web has no view any more", async || match view(&system, "web").await {
            None => Ok(()),
            Some(view) => Err(format!("{view:?}")),
        })
        .await;
    let audit = system.muster(&["audit"]).await;
    assert!(audit.status.success(), "{}", String::from_utf8_lossy(&audit.stdout));
    rebuilt(&system).await;
}

/// Waits until web is known to be installed on so many devices, none of which is heard any more. One lease runs out before
/// the other, and the verdict is the same from the first on.
async fn all_stale(system: &System, devices: u64) {
    system
        .eventually(&format!("web is known of {devices} devices, and all are stale"), async || {
            let views = system.hub.deployments().await.map_err(|error| error.to_string())?;
            let view = views.iter().find(|view| view.deployment.as_str() == "web").ok_or("no view yet")?;
            let installed = view.counts.get(&Standing::Installed).copied().unwrap_or_default();
            let there = view.verdict == Verdict::ConvergedStale && installed.stale == devices;
            if there { Ok(()) } else { Err(format!("{view:?}")) }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn m33_a_hub_restarted_without_devices_shows_what_it_knew_with_its_age() {
    let mut system = System::start().await;
    let devices = fleet_of(&mut system, 2).await;
    for device in &devices {
        system.kill(&agent_name(device)).await;
    }
    all_stale(&system, 2).await;
    let before = system.hub.devices().await.unwrap();
    for service in [INGEST, ROLLUP, PUBLISHER] {
        system.kill(service).await;
    }
    system.server.kill();
    std::fs::remove_dir_all(system.dir().join(ROLLUP)).unwrap();
    system.server.restart();
    for service in [ROLLUP, INGEST, PUBLISHER] {
        system.start_again(service);
    }
    all_stale(&system, 2).await;
    let after = system.hub.devices().await.unwrap();
    for (before, after) in before.iter().zip(&after) {
        assert_eq!((after.freshness, after.head), (Freshness::Stale, before.head));
        assert!(before.last_heard_at.is_some(), "its age is known");
        assert_eq!(after.last_heard_at, before.last_heard_at, "a restart of the hub is no sign of life");
    }
    rebuilt(&system).await;
}

/// `muster` reports an older generation of a device's deployment as superseded, and claims nothing else of it.
async fn superseded(system: &System, device: &DeviceKey, id: &str, generation: u64) {
    let (key, generation) = (device.to_string(), generation.to_string());
    let words = ["status", id, "--device", &key, "--generation", &generation, "--format", "json"];
    let output = system.muster(&words).await;
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let line = &said["targets"][0];
    assert_eq!(line["superseded"], true, "{said}");
    assert!(line["message"].as_str().is_some_and(|words| words.contains("superseded")), "{said}");
    assert_eq!(line["readyStatus"], serde_json::Value::Null, "{said}");
}

/// A deployment that is never ready: it waits for a file that nobody writes, and no limit is set.
fn stuck(id: &str, release: u32) -> String {
    let never = "readiness: {type: file, path: never}, timeout: 1h0m0s";
    sleeper(id, release).replace("readiness: {type: uptime, for: 50ms}", never)
}

#[tokio::test(flavor = "multi_thread")]
async fn m36_a_stuck_deployment_delays_no_other_and_is_superseded() {
    let mut system = System::start().await;
    let devices = fleet_of(&mut system, 1).await;
    let device = &devices[0];
    system.repository.write("fleet/web.yaml", &stuck("web", 2)).unwrap();
    system.repository.commit("a release that is never ready").await.unwrap();
    let wanted = published(&system, device, |document| document.generation.get() >= 2).await;
    let bad = digest_of(&wanted, "web");
    system
        .eventually("the release is stuck", async || {
            let said = reports(&system, device, "web").await;
            let stuck = said.iter().any(|fact| fact.digest == bad && fact.status.state == State::Installing);
            if stuck { Ok(()) } else { Err(format!("{said:?}")) }
        })
        .await;

    publish(&system, &devices, "log", 1).await;
    verdict(&system, "log", 1, Verdict::Converged).await;
    assert_eq!(view(&system, "web").await.unwrap().verdict, Verdict::Progressing, "and web is stuck still");

    publish(&system, &devices, "web", 3).await;
    verdict(&system, "web", 1, Verdict::Converged).await;
    assert_eq!(workloads(&system, device, "web").len(), 1, "the one that was stuck is gone");
    let said = reports(&system, device, "web").await;
    let last_of_bad = said.iter().rposition(|fact| fact.digest == bad).unwrap();
    assert!(said[last_of_bad..].iter().skip(1).all(|fact| fact.generation > said[last_of_bad].generation));
    // The older one is closed: superseded, and nothing of it is left in the view.
    superseded(&system, device, "web", wanted.generation.get()).await;
    let view = view(&system, "web").await.unwrap();
    assert_eq!((view.overdue, view.errors.len(), view.leaving), (0, 0, 0), "{view:?}");
    assert_eq!(view.counts.keys().collect::<Vec<_>>(), [&Standing::Installed]);
    nothing_lost(&system).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn m37_a_fix_published_while_offline_replaces_a_bad_release_unapplied() {
    let mut system = System::start().await;
    let (device, link) = behind_a_link(&mut system, "plant-a/press-1").await;
    publish(&system, std::slice::from_ref(&device), "web", 1).await;
    verdict(&system, "web", 1, Verdict::Converged).await;
    link.set(Condition::Cut);
    let bad = sleeper("web", 2).replace("command: sleep", "command: \"false\"");
    system.repository.write("fleet/web.yaml", &bad).unwrap();
    system.repository.commit("a bad release").await.unwrap();
    let bad = published(&system, &device, |document| document.generation.get() == 2).await;
    publish(&system, std::slice::from_ref(&device), "web", 3).await;
    let fix = published(&system, &device, |document| document.generation.get() == 3).await;
    link.set(Condition::Open);
    device_settled(&system, &device, 3).await;
    let said = reports(&system, &device, "web").await;
    let (bad, fix) = (digest_of(&bad, "web"), digest_of(&fix, "web"));
    assert!(said.iter().all(|fact| fact.digest != bad), "the bad release was begun: {said:?}");
    assert!(said.iter().any(|fact| fact.digest == fix && fact.status.state == State::Installed));
    assert!(said.iter().all(|fact| fact.status.state != State::Failed), "{said:?}");
    verdict(&system, "web", 1, Verdict::Converged).await;
    superseded(&system, &device, "web", 2).await;
    rebuilt(&system).await;
}
