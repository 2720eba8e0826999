//! The stories of a fleet, each told by a whole system of real processes: what an operator would see, end to end.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::time::Duration;

use muster_contract::DeviceKey;
use muster_contract::fact::Fact;
use muster_contract::view::{Freshness, Standing, Verdict};
use muster_simulator::link::{Condition, Link};
use muster_tests::system::{INGEST, PUBLISHER, ROLLUP, System, agent_name, numbers};

fn key(text: &str) -> DeviceKey {
    text.parse().unwrap()
}

/// A deployment of one component that stays up; `release` changes its content.
fn sleeper(id: &str, release: u32) -> String {
    format!(
        r#"id: {id}
metadata: {{name: {id}}}
spec:
  applicationId: com-example-{id}
  deploymentProfile:
    type: process
    components:
      - name: main
        properties: {{command: sleep, args: ["86400"], readiness: {{type: uptime, for: 50ms}}}}
  parameters:
    release: {{value: "{release}", targets: [{{pointer: RELEASE, components: [main]}}]}}
"#
    )
}

async fn publish(system: &System, devices: &[DeviceKey], id: &str, release: u32) {
    muster_simulator::repository::write_devices(&system.repository, devices).unwrap();
    system.repository.write(&format!("fleet/{id}.yaml"), &sleeper(id, release)).unwrap();
    system.repository.commit(&format!("{id} {release}")).await.unwrap();
}

/// Waits until a deployment has a verdict for so many targets at a generation of at least `generation`.
async fn verdict(system: &System, id: &str, targets: u64, verdict: Verdict) {
    system
        .eventually(&format!("{id} is {} on {targets}", verdict.as_str()), async || {
            let views = system.hub.deployments().await.map_err(|error| error.to_string())?;
            let view =
                views.iter().find(|view| view.deployment.as_str() == id).ok_or("no such deployment yet")?;
            let there = view.verdict == verdict && view.targets == targets;
            if there { Ok(()) } else { Err(serde_json::to_string(view).unwrap()) }
        })
        .await;
}

/// Waits until a device has converged on its newest generation and nothing of it is missing.
async fn device_settled(system: &System, device: &DeviceKey, generation: u64) {
    system
        .eventually(&format!("{device} has settled at generation {generation}"), async || {
            let answer = system.hub.device(device).await.map_err(|error| error.to_string())?;
            let line = &answer.device;
            let settled = line.generation.is_some_and(|known| known.get() >= generation)
                && line.freshness == Freshness::Fresh
                && line.account.missing.is_empty()
                && answer.deployments.iter().all(|line| line.standing == Standing::Installed && line.known);
            if settled { Ok(()) } else { Err(serde_json::to_string(&answer).unwrap()) }
        })
        .await;
}

/// Every number up to a device's head is in LEDGER, once.
async fn nothing_lost(system: &System) {
    let numbers = numbers(&system.ledger().await);
    for line in system.hub.devices().await.unwrap() {
        let Some(epoch) = line.epoch else { continue };
        let held = &numbers[&(line.key.clone(), epoch.get())];
        let folded = line.account.coalesced;
        assert_eq!(held.len() as u64 + folded, line.head, "{}: head {} but {held:?}", line.key, line.head);
    }
}

/// A fold of the whole ledger gives the views that are shown, digest for digest.
async fn rebuilt(system: &System) {
    system
        .eventually("the views shown are those of a rebuild", async || {
            let rebuilt = system.rebuilt_digests().await;
            let shown = system.shown_digests(rebuilt.keys()).await;
            if rebuilt == shown { Ok(()) } else { Err(format!("rebuilt {rebuilt:?}, shown {shown:?}")) }
        })
        .await;
}

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
async fn what_happens_on_a_device_while_it_is_offline_is_known_in_full_afterwards() {
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
        .eventually("the agent restarts the workload offline", async || match workload(&system, &device) {
            Some(_) => Ok(()),
            None => Err("no workload".to_owned()),
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

/// The process of `web/main` on a device, found by its identity in the environment.
fn workload(system: &System, device: &DeviceKey) -> Option<rustix::process::Pid> {
    let unit = format!("MUSTER_UNIT={}/{}/web/main/", device.site, device.device);
    let home = system.device_dir(device).display().to_string();
    std::fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let pid = rustix::process::Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        let environment = std::fs::read(entry.path().join("environ")).ok()?;
        let text = String::from_utf8_lossy(&environment);
        (text.contains(&unit) && text.contains(&home)).then_some(pid)
    })
}

fn kill_workload(system: &System, device: &DeviceKey) {
    let pid = workload(system, device).expect("the workload runs");
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

async fn fleet_of(system: &mut System, count: usize) -> Vec<DeviceKey> {
    let devices: Vec<_> = (1..=count)
        .map(|at| key(&format!("plant-{}/press-{at}", if at % 2 == 0 { "a" } else { "b" })))
        .collect();
    for device in &devices {
        let address = system.address();
        system.start_agent(device, address, &[]);
    }
    publish(system, &devices, "web", 1).await;
    verdict(system, "web", count as u64, Verdict::Converged).await;
    devices
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
        assert_eq!(workloads(&system, device), 1, "{device} runs a twin");
    }
}

fn workloads(system: &System, device: &DeviceKey) -> usize {
    let unit = format!("MUSTER_UNIT={}/{}/web/main/", device.site, device.device);
    let home = system.device_dir(device).display().to_string();
    let carries = |path: std::path::PathBuf| {
        std::fs::read(path).is_ok_and(|bytes| {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            text.contains(&unit) && text.contains(&home)
        })
    };
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|entry| carries(entry.path().join("environ")))
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn ingest_and_rollup_killed_in_mid_traffic_lose_nothing_and_repeat_nothing() {
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
async fn a_bad_commit_is_refused_whole_and_named_and_the_fleet_keeps_the_last_good_one() {
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
async fn a_removed_folder_empties_the_device_and_a_request_outlives_the_publisher() {
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
