//! Shared parts of the stories of a whole system: its content, and facts to wait for. [`crate::system`] runs the processes.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use muster_contract::DeviceKey;
use muster_contract::view::{Freshness, Standing, Verdict};
use muster_simulator::ledger::Recount;

use crate::system::System;

/// A device, as `site/device`.
///
/// # Panics
/// It is none.
pub fn key(text: &str) -> DeviceKey {
    text.parse().unwrap()
}

/// A deployment of one component that stays up; `release` changes its content.
pub fn sleeper(id: &str, release: u32) -> String {
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

/// Commits a release of a [`sleeper`] for every device, and the devices.
///
/// # Panics
/// Git refuses.
pub async fn publish(system: &System, devices: &[DeviceKey], id: &str, release: u32) {
    muster_simulator::repository::write_devices(&system.repository, devices).unwrap();
    system.repository.write(&format!("fleet/{id}.yaml"), &sleeper(id, release)).unwrap();
    system.repository.commit(&format!("{id} {release}")).await.unwrap();
}

/// Devices that run, and one deployment that has converged on all of them.
///
/// # Panics
/// It does not.
pub async fn settled(system: &mut System, devices: &[&str], id: &str) -> Vec<DeviceKey> {
    let devices: Vec<DeviceKey> = devices.iter().map(|text| key(text)).collect();
    publish(system, &devices, id, 1).await;
    let hub = system.address();
    for device in &devices {
        system.start_agent(device, hub, &[]);
    }
    verdict(system, id, devices.len() as u64, Verdict::Converged).await;
    devices
}

/// Waits until a deployment has a verdict for so many targets at a generation of at least `generation`.
pub async fn verdict(system: &System, id: &str, targets: u64, verdict: Verdict) {
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
pub async fn device_settled(system: &System, device: &DeviceKey, generation: u64) {
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

/// Every number up to a device's head is accounted for in LEDGER, and none is in twice.
///
/// # Panics
/// Invariant 1 or 2 is broken.
pub async fn nothing_lost(system: &System) {
    let mut recount = Recount::default();
    system.ledger().await.iter().for_each(|entry| recount.count(entry));
    assert!(recount.twice.is_empty(), "{:?}", recount.twice);
    for line in system.hub.devices().await.unwrap() {
        let Some(epoch) = line.epoch else { continue };
        let held = &recount.numbers[&(line.key.clone(), epoch.get())];
        assert!(held.head <= line.head, "{}: a report speaks of more than the hub knows: {held:?}", line.key);
        assert!(held.missing_through(line.head).is_empty(), "{}: head {}, but {held:?}", line.key, line.head);
    }
}

/// A fold of the whole ledger gives the views that are shown, digest for digest.
pub async fn rebuilt(system: &System) {
    system
        .eventually("the views shown are those of a rebuild", async || {
            let rebuilt = system.rebuilt_digests().await;
            let shown = system.shown_digests(rebuilt.keys()).await;
            if rebuilt == shown { Ok(()) } else { Err(format!("rebuilt {rebuilt:?}, shown {shown:?}")) }
        })
        .await;
}

/// Main processes of a deployment on a device, found by their identity in the environment.
pub fn workloads(system: &System, device: &DeviceKey, id: &str) -> Vec<rustix::process::Pid> {
    let unit = format!("MUSTER_UNIT={device}/{id}/main/");
    let home = system.device_dir(device).display().to_string();
    let found = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let pid = rustix::process::Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        let environment = std::fs::read(entry.path().join("environ")).ok()?;
        let text = String::from_utf8_lossy(&environment);
        (text.contains(&unit) && text.contains(&home)).then_some(pid)
    });
    found.collect()
}

/// So many agents at two sites, all of which run `web`.
pub async fn fleet_of(system: &mut System, count: usize) -> Vec<DeviceKey> {
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
