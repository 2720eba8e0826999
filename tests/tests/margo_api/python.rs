//! A device in Python, `schemas/examples/margo_device.py`: through long outages of the hub, the gateway and itself, and with a
//! manager that serves wrong content; and `margo_gateway.py`, which speaks for children.

use std::net::SocketAddr;
use std::path::Path;

use muster_tests::example::{Example, Language};
use serde_json::{Value, json};

use crate::children::{CHILDREN, OWN};
use crate::fake::Manager;
use crate::fleet::{DEVICE, Fleet, GATEWAY, WEB, is_complete, standing};
use crate::pki::{Authority, MANAGER};

/// Starts the device with a poll every 300 ms.
fn start(fleet: &Fleet) -> Example {
    start_at(&fleet.authority, fleet.gateway, fleet.system.dir())
}

fn start_at(authority: &Authority, gateway: SocketAddr, folder: &Path) -> Example {
    let settings = settings("press-1", authority, gateway, folder);
    start_with("margo_device", &settings, folder)
}

/// The settings of a device.
fn settings(name: &str, authority: &Authority, gateway: SocketAddr, folder: &Path) -> Value {
    let own = authority.client(name);
    json!({
        "host": gateway.ip(),
        "port": gateway.port(),
        "manager": MANAGER,
        "ca": authority.certificate(),
        "cert": own.certificate,
        "key": own.key,
        "state": folder.join("margo_device.db"),
        "poll": 0.3,
        "device": {
            "id": name,
            "vendor": "example",
            "modelNumber": "margo_device.py",
            "serialNumber": "1",
            "cpus": [{ "cores": 2 }],
            "supportedRuntimes": ["oci"],
            "supportedDeploymentTypes": ["compose"],
        },
    })
}

fn start_with(example: &str, settings: &Value, folder: &Path) -> Example {
    let file = folder.join("settings.json");
    std::fs::write(&file, settings.to_string()).unwrap();
    Example::start(Language::Python, example, &[&file.display().to_string()])
}

async fn installed(fleet: &Fleet, ids: &[&str]) -> Value {
    installed_on(fleet, DEVICE, ids).await
}

async fn installed_on(fleet: &Fleet, device: &str, ids: &[&str]) -> Value {
    let all = |shown: &Value| ids.iter().all(|id| standing(shown, id)["standing"] == "installed");
    fleet.device(device, "all deployments are installed", all).await
}

async fn is(fleet: &Fleet, freshness: &str) {
    all_are(fleet, &[DEVICE], freshness).await;
}

async fn all_are(fleet: &Fleet, devices: &[&str], freshness: &str) {
    for device in devices {
        fleet.device(device, freshness, |shown| shown["device"]["freshness"] == freshness).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_in_python_lives_through_outages_of_hub_gateway_and_itself() {
    let mut fleet = Fleet::start(&[DEVICE]).await;
    let ids: Vec<String> = (0..4).map(|at| format!("{at}{}", &WEB[1..])).collect();
    let all: Vec<&str> = ids.iter().map(String::as_str).collect();
    let tagged = |tag: &'static str| all.iter().map(|id| (*id, tag)).collect::<Vec<_>>();
    fleet.publish(&tagged("1.0.0")).await;
    let device = start(&fleet);
    let shown = installed(&fleet, &all).await;
    assert_eq!(shown["capabilities"]["modelNumber"], "margo_device.py");
    is(&fleet, "fresh").await;

    // The gateway is gone for longer than the lease, and the fleet moves on twice.
    fleet.system.kill(GATEWAY).await;
    is(&fleet, "stale").await;
    fleet.publish(&tagged("1.1.0")).await;
    fleet.publish(&tagged("1.2.0")[..3]).await;
    fleet.system.start_again(GATEWAY);
    installed(&fleet, &all[..3]).await;
    is(&fleet, "fresh").await;
    let gone = |shown: &Value| {
        standing(shown, all[3])["report"]["state"].as_str().is_none_or(|state| state == "removed")
    };
    fleet.device(DEVICE, "the fourth is removed", gone).await;

    // The hub restarts.
    fleet.system.server.kill();
    fleet.system.server.restart();
    fleet.publish(&tagged("2.0.0")).await;
    installed(&fleet, &all).await;

    // The device itself dies, and misses a release.
    device.kill().await;
    is(&fleet, "stale").await;
    fleet.publish(&tagged("3.0.0")).await;
    let device = start(&fleet);
    let shown = installed(&fleet, &all).await;
    let what = "no number is missing";
    fleet.device(DEVICE, what, |shown| is_complete(shown, 1)).await;
    assert_eq!(shown["device"]["incidents"].as_u64().unwrap_or(0), 0, "{shown}");
    device.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_in_python_speaks_for_two_children_through_outages() {
    let mut fleet = Fleet::start_with_children(OWN, &CHILDREN).await;
    let silent = fleet.system.dir().join("silent.txt");
    std::fs::write(&silent, "").unwrap();
    let folder = fleet.system.dir();
    let mut settings = settings("gw", &fleet.authority, fleet.gateway, folder);
    settings["children"] = json!(["press-a", "press-b"]);
    settings["unreachable"] = json!(silent);
    let device = start_with("margo_gateway", &settings, folder);
    let all = [OWN, CHILDREN[0], CHILDREN[1]];
    let settled = async |fleet: &Fleet, devices: &[&str]| {
        for device in devices {
            installed_on(fleet, device, &[WEB]).await;
        }
    };
    fleet.publish(&[(WEB, "1.0.0")]).await;
    settled(&fleet, &all).await;
    all_are(&fleet, &all, "fresh").await;

    // The gateway of the hub is gone for longer than the lease, and the fleet moves on.
    fleet.system.kill(GATEWAY).await;
    all_are(&fleet, &all, "stale").await;
    fleet.publish(&[(WEB, "2.0.0")]).await;
    fleet.system.start_again(GATEWAY);
    settled(&fleet, &all).await;
    all_are(&fleet, &all, "fresh").await;

    // One child does not answer its gateway, and the fleet moves on; the others follow.
    std::fs::write(&silent, "press-a\n").unwrap();
    fleet.state(CHILDREN[0], WEB, "failed").await;
    all_are(&fleet, &CHILDREN[..1], "stale").await;
    fleet.publish(&[(WEB, "3.0.0")]).await;
    settled(&fleet, &[OWN, CHILDREN[1]]).await;
    all_are(&fleet, &[OWN, CHILDREN[1]], "fresh").await;
    std::fs::write(&silent, "").unwrap();
    settled(&fleet, &all).await;
    for device in all {
        let shown = fleet.device(device, "no number is missing", |shown| is_complete(shown, 1)).await;
        assert_eq!(shown["device"]["incidents"].as_u64().unwrap_or(0), 0, "{shown}");
    }
    device.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_in_python_refuses_older_versions_and_other_content_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::create(folder.path(), "authority");
    let manager = Manager::start(&authority).await;
    manager.serve(5, &[("web", "one", true)]);
    let device = start_at(&authority, manager.addr, folder.path());
    manager.reported("web", "installed").await;
    // An older version, whose content is right.
    manager.serve(4, &[("web", "one", true), ("db", "one", true)]);
    manager.polled(2).await;
    // A newer one, with one content that does not match its digest.
    manager.serve(6, &[("db", "two", true), ("web", "two", false)]);
    manager.polled(2).await;
    assert_eq!(manager.reports_of("db"), 0, "nothing is begun of it");
    assert_eq!(manager.reports_of("web"), 3, "and nothing is removed");
    manager.serve(7, &[("db", "three", true)]);
    manager.reported("db", "installed").await;
    manager.reported("web", "removed").await;
    // It stores the version after the last report and before the next poll.
    manager.polled(1).await;
    device.kill().await;
    // The device keeps the version in its file.
    manager.serve(7, &[]);
    let device = start_at(&authority, manager.addr, folder.path());
    manager.polled(2).await;
    assert_eq!(manager.reports_of("db"), 3, "an equal version is refused after a restart, too");
    device.kill().await;
}
