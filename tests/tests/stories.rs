//! The stories of a fleet, each told by a whole system of real processes: what an operator would see, end to end.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::time::Duration;

use muster_contract::DeviceKey;
use muster_contract::fact::Fact;
use muster_contract::view::Verdict;
use muster_simulator::link::{Condition, Link};
use muster_tests::story::{
    device_settled, fleet_of, key, nothing_lost, publish, rebuilt, sleeper, verdict, workloads,
};
use muster_tests::system::{INGEST, PUBLISHER, ROLLUP, System, agent_name};

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_becomes_running_processes_and_a_true_view() {
    let mut system = System::start().await;
    let devices = [key("plant-a/press-1"), key("plant-a/press-2"), key("plant-b/saw-1")];
    for device in &devices {
        let address = system.address();
        system.start_agent(device, address, &[]);
    }
    publish(&system, &devices, "web", 1).await;
    verdict(&system, "web", 3, Verdict::Converged).await;
    publish(&system, &devices, "web", 2).await;
    for device in &devices {
        device_settled(&system, device, 2).await;
    }
    nothing_lost(&system).await;
    let status = system.muster(&["status", "web"]).await;
    let text = String::from_utf8_lossy(&status.stdout);
    assert!(status.status.success() && text.contains("converged"), "{text}");
    let audit = system.muster(&["audit"]).await;
    assert!(audit.status.success(), "{}", String::from_utf8_lossy(&audit.stdout));
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_on_a_device_during_an_outage_is_known_in_full_afterwards() {
    let mut system = System::start().await;
    let device = key("plant-a/press-1");
    let link = Link::open(system.address()).await.unwrap();
    system.start_agent(&device, link.address(), &[]);
    publish(&system, std::slice::from_ref(&device), "web", 1).await;
    verdict(&system, "web", 1, Verdict::Converged).await;

    link.set(Condition::Cut);
    verdict(&system, "web", 1, Verdict::ConvergedStale).await;
    kill_workload(&system, &device);
    system
        .eventually("the agent restarts the workload offline", async || {
            match workloads(&system, &device, "web")[..] {
                [_] => Ok(()),
                [] => Err("no workload".to_owned()),
                _ => Err("a twin".to_owned()),
            }
        })
        .await;

    link.set(Condition::Open);
    verdict(&system, "web", 1, Verdict::Converged).await;
    system
        .eventually("the failure that happened offline is in LEDGER", async || {
            let failed = system.ledger().await.into_iter().any(|entry| {
                matches!(&entry.fact, Fact::Status(fact) if fact.status.state == muster_contract::State::Failed)
            });
            if failed { Ok(()) } else { Err("no failed report".to_owned()) }
        })
        .await;
    device_settled(&system, &device, 1).await;
    nothing_lost(&system).await;
}

fn kill_workload(system: &System, device: &DeviceKey) {
    let pid = *workloads(system, device, "web").first().expect("the workload runs");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// Commits `releases` releases of `web`, and between two of them does something to the system.
async fn under_traffic(
    system: &mut System,
    devices: &[DeviceKey],
    releases: u32,
    mut meanwhile: impl AsyncFnMut(&mut System, u32),
) {
    for release in 2..=releases {
        publish(system, devices, "web", release).await;
        meanwhile(system, release).await;
    }
    // The last release may be the only one that some device sees; all of them must end with it.
    let digest = newest_digest(system, releases).await;
    system
        .eventually("every device runs the last release", async || {
            let answer = system.ledger().await;
            let done = devices.iter().all(|device| {
                answer.iter().rev().any(|entry| {
                    entry.subject.device() == Some(device)
                        && matches!(&entry.fact, Fact::Status(fact)
                            if fact.digest == digest && fact.status.state == muster_contract::State::Installed)
                })
            });
            if done { Ok(()) } else { Err(format!("{} facts so far", answer.len())) }
        })
        .await;
    for device in devices {
        device_settled(system, device, 2).await;
    }
}

async fn newest_digest(system: &System, release: u32) -> muster_contract::canonical::Digest {
    system
        .eventually("the last release is published", async || {
            let ledger = system.ledger().await;
            let wanted = serde_json::Value::from(release.to_string());
            ledger
                .iter()
                .rev()
                .find_map(|entry| match &entry.fact {
                    Fact::Desired(state) => state
                        .deployments
                        .iter()
                        .find(|deployment| {
                            deployment.parameters.get("release").is_some_and(|p| p.value == wanted)
                        })
                        .map(|deployment| deployment.digest),
                    _ => None,
                })
                .ok_or_else(|| format!("{} facts so far", ledger.len()))
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_killed_in_mid_traffic_lose_nothing_and_start_no_twin() {
    let mut system = System::start().await;
    let devices = fleet_of(&mut system, 3).await;
    under_traffic(&mut system, &devices.clone(), 8, async |system, release| {
        let victim = agent_name(&devices[release as usize % devices.len()]);
        system.kill(&victim).await;
        system.start_again(&victim);
    })
    .await;
    nothing_lost(&system).await;
    rebuilt(&system).await;
    for device in &devices {
        assert_eq!(workloads(&system, device, "web").len(), 1, "{device} runs a twin");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ingest_and_rollup_killed_in_traffic_lose_nothing_and_repeat_nothing() {
    let mut system = System::start().await;
    let devices = fleet_of(&mut system, 3).await;
    under_traffic(&mut system, &devices, 8, async |system, release| {
        let victim = if release % 2 == 0 { INGEST } else { ROLLUP };
        system.kill(victim).await;
        system.start_again(victim);
    })
    .await;
    nothing_lost(&system).await;
    rebuilt(&system).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_killed_in_mid_traffic_loses_nothing_and_repeats_nothing() {
    let mut system = System::start().await;
    let devices = fleet_of(&mut system, 3).await;
    under_traffic(&mut system, &devices, 6, async |system, release| {
        if release % 2 == 0 {
            system.server.kill();
            system.server.restart();
        }
    })
    .await;
    nothing_lost(&system).await;
    rebuilt(&system).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_asked_to_end_under_load_drain_and_exit_with_zero() {
    let mut system = System::start().await;
    let devices = fleet_of(&mut system, 3).await;
    under_traffic(&mut system, &devices.clone(), 7, async |system, release| {
        let names = [INGEST.to_owned(), ROLLUP.to_owned(), PUBLISHER.to_owned(), agent_name(&devices[0])];
        let name = &names[release as usize % names.len()];
        let status = system.terminate(name).await;
        assert!(status.success(), "{name} ended with {status}\n{}", system.log(name));
        system.start_again(name);
    })
    .await;
    nothing_lost(&system).await;
    rebuilt(&system).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_commit_is_refused_whole_and_the_fleet_keeps_the_last_good_one() {
    let mut system = System::start().await;
    let devices = fleet_of(&mut system, 2).await;
    system.repository.write("fleet/good.yaml", &sleeper("good", 1)).unwrap();
    system
        .repository
        .write("fleet/web.yaml", &sleeper("web", 2).replace("components: [main]", "components: [mian]"))
        .unwrap();
    system.repository.commit("one good, one bad").await.unwrap();
    system
        .eventually("the refusal names file, line, field and rule", async || {
            let said = system.muster(&["publisher", "status", "--format", "json"]).await;
            let text = String::from_utf8_lossy(&said.stdout).into_owned();
            let named = ["fleet/web.yaml", "\"line\"", "parameters.release", "mian"]
                .iter()
                .all(|part| text.contains(part));
            if named { Ok(()) } else { Err(text) }
        })
        .await;
    let views = system.hub.deployments().await.unwrap();
    assert_eq!(views.len(), 1, "nothing of a refused commit is published");
    publish(&system, &devices, "web", 3).await;
    verdict(&system, "good", 2, Verdict::Converged).await;
    for device in &devices {
        device_settled(&system, device, 2).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poisonous_report_is_kept_with_its_reason_and_delays_nobody() {
    let mut system = System::start().await;
    let devices = fleet_of(&mut system, 2).await;
    for payload in
        [&b"not json"[..], br#"{"apiVersion":"muster/v1","kind":"StatusReport","epoch":0}"#, &[0xFF; 300_000]]
    {
        let message = muster_bus::Outgoing::new("muster.report.plant-a.stranger", payload.to_vec());
        // A server may refuse what is over its own limit; then nothing is to be quarantined.
        let _ = system.bus.publish(message).await;
    }
    publish(&system, &devices, "web", 2).await;
    for device in &devices {
        device_settled(&system, device, 2).await;
    }
    let listed = system
        .eventually("the poison is listed", async || {
            let said = system.muster(&["quarantine", "list"]).await;
            let text = String::from_utf8_lossy(&said.stdout).into_owned();
            if text.matches("plant-a/stranger").count() >= 2 { Ok(text) } else { Err(text) }
        })
        .await;
    assert!(listed.contains("StatusReport"), "a reason names the document: {listed}");
    nothing_lost(&system).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_folder_empties_a_device_and_a_request_outlives_the_publisher() {
    let mut system = System::start().await;
    let devices = fleet_of(&mut system, 1).await;
    let file = system.dir().join("extra.yaml");
    std::fs::write(&file, sleeper("extra", 1)).unwrap();
    let device = devices[0].to_string();
    let applied = system.muster(&["apply", "-f", &file.display().to_string(), "--device", &device]).await;
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    verdict(&system, "extra", 1, Verdict::Converged).await;
    system.kill(PUBLISHER).await;
    system.start_again(PUBLISHER);
    publish(&system, &devices, "web", 2).await;
    verdict(&system, "web", 1, Verdict::Converged).await;
    verdict(&system, "extra", 1, Verdict::Converged).await;
    // A publisher that has just started takes nothing back before it has read the repository.
    system
        .eventually("the request is taken back", async || {
            let removed = system.muster(&["remove", "--device", &device, "extra"]).await;
            if removed.status.success() {
                Ok(())
            } else {
                Err(String::from_utf8_lossy(&removed.stderr).into_owned())
            }
        })
        .await;
    system
        .eventually("extra has no view any more", async || {
            let views = system.hub.deployments().await.map_err(|error| error.to_string())?;
            let gone = views.iter().all(|view| view.deployment.as_str() != "extra");
            if gone { Ok(()) } else { Err(format!("{views:?}")) }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_falls_silent_is_stale_within_the_lease_and_never_green() {
    let mut system = System::start().await;
    let devices = fleet_of(&mut system, 2).await;
    system.kill(&agent_name(&devices[0])).await;
    let fell = tokio::time::Instant::now();
    verdict(&system, "web", 2, Verdict::ConvergedStale).await;
    assert!(fell.elapsed() < Duration::from_secs(20), "the lease is 3 s; it took {:?}", fell.elapsed());
    let view = &system.hub.deployments().await.unwrap()[0];
    assert_eq!((view.converged.lo, view.converged.hi), (1, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ingest_that_wakes_beside_its_successor_repeats_nothing() {
    let mut system = System::start().await;
    let devices = fleet_of(&mut system, 3).await;
    const SUCCESSOR: &str = "muster-ingest-successor";
    under_traffic(&mut system, &devices, 8, async |system, release| match release {
        // In the middle of what the release before has set going.
        3 => system.freeze(INGEST),
        4 => system.start_another(INGEST, SUCCESSOR),
        6 => system.thaw(INGEST),
        7 => system.kill(INGEST).await,
        _ => {}
    })
    .await;
    nothing_lost(&system).await;
    rebuilt(&system).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_with_unmet_constraints_reports_them_and_another_runs_it() {
    let mut system = System::start().await;
    let [able, unable] = ["plant-a/press-1", "plant-a/press-2"].map(key);
    let hub = system.address();
    system.start_agent(&able, hub, &["--label", "line=press"]);
    system.start_agent(&unable, hub, &["--label", "line=weld"]);
    let constrained = sleeper("web", 1).replace(
        "    components:\n",
        "    deviceConstraints:\n      eligibilityRules:\n        - labelSelector: {matchExpressions: [{key: line, \
         operator: In, values: [press]}]}\n    components:\n",
    );
    muster_simulator::repository::write_devices(&system.repository, &[able.clone(), unable.clone()]).unwrap();
    system.repository.write("fleet/web.yaml", &constrained).unwrap();
    system.repository.commit("web for presses").await.unwrap();
    verdict(&system, "web", 2, Verdict::Failing).await;
    let standing = async |key: &DeviceKey, state: &str| {
        system
            .eventually(&format!("{key} has it {state}"), async || {
                let answer = system.hub.device(key).await.map_err(|error| error.to_string())?;
                let text = serde_json::to_string(&answer).unwrap();
                let is_there = answer
                    .deployments
                    .first()
                    .is_some_and(|line| line.standing.as_str() == state && line.known);
                if is_there { Ok(text) } else { Err(text) }
            })
            .await
    };
    standing(&able, "installed").await;
    let refused = standing(&unable, "failed").await;
    assert!(refused.contains("DeviceNotEligible") && refused.contains("line"), "{refused}");
    assert_eq!((workloads(&system, &able, "web").len(), workloads(&system, &unable, "web").len()), (1, 0));
    let why = system.muster(&["why", "web"]).await;
    let why = String::from_utf8_lossy(&why.stdout);
    assert!(why.contains("plant-a/press-2") && why.contains("DeviceNotEligible"), "{why}");
}

/// A deployment that agents with processes as their runtime cannot run.
const CHART: &str = r#"id: chart
metadata: {name: chart}
spec:
  applicationId: com-example-chart
  deploymentProfile:
    type: helm
    components:
      - name: main
        properties: {repository: "oci://registry.example.com/chart", revision: 1.0.0}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_profile_without_a_runtime_is_an_incident_and_the_rest_runs() {
    let mut system = System::start().await;
    let device = key("plant-a/press-1");
    system.start_agent(&device, system.address(), &[]);
    muster_simulator::repository::write_devices(&system.repository, std::slice::from_ref(&device)).unwrap();
    system.repository.write("fleet/web.yaml", &sleeper("web", 1)).unwrap();
    system.repository.write("fleet/chart.yaml", CHART).unwrap();
    system.repository.commit("a chart for a device without a cluster").await.unwrap();
    verdict(&system, "chart", 1, Verdict::Failing).await;
    verdict(&system, "web", 1, Verdict::Converged).await;
    for words in [&["device", "plant-a/press-1"][..], &["why", "chart"]] {
        let output = system.muster(words).await;
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(shown.contains("UnsupportedProfile") && shown.contains("helm"), "{shown}");
    }
    let device = system.hub.device(&device).await.unwrap();
    let last = device.last_incident.unwrap();
    assert_eq!((last.what.name(), device.device.refused), ("profileUnsupported", None));
}
