//! Leases of devices that poll a gateway more rarely than the lease of the hub: a device is fresh between two polls, and a child is
//! stale as soon as its gateway does not reach it.

use serde_json::Value;

use crate::children::{CHILDREN, OWN, behind, manifest_of, post, unreached};
use crate::fleet::{DEVICE, Fleet, WEB, status_path};
use crate::pki::client_id;

const OTHER: &str = "plant8/press-2";

/// Waits until a device is fresh or stale.
async fn is(fleet: &Fleet, device: &str, freshness: &str) {
    let what = format!("{device} is {freshness}");
    fleet.device(device, &what, |shown| shown["device"]["freshness"] == freshness).await;
}

/// The freshness of a device now.
async fn freshness(fleet: &Fleet, device: &str) -> Value {
    fleet.device(device, "it is known", |_| true).await["device"]["freshness"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_with_a_poll_lease_is_fresh_between_rare_polls() {
    let fleet = Fleet::start(&[DEVICE, OTHER]).await;
    fleet.accept_with(DEVICE, &["--poll-lease", "2h"]).await;
    // It keeps the lease when it is accepted again.
    fleet.accept(DEVICE).await;
    let listed = fleet.muster(&["auth", "clients"]).await;
    let has_lease = |line: &str| line.starts_with(DEVICE) && line.contains(" 2h ");
    assert!(listed.lines().any(has_lease), "{listed}");

    // Each polls and is silent afterwards.
    let (client, other) = (fleet.client(DEVICE).await, fleet.client(OTHER).await);
    for device in [DEVICE, OTHER] {
        is(&fleet, device, "fresh").await;
    }
    is(&fleet, OTHER, "stale").await;
    assert_eq!(freshness(&fleet, DEVICE).await, "fresh");

    // Without the lease, its next poll counts as one of the other device.
    fleet.accept_with(DEVICE, &["--poll-lease", "none"]).await;
    fleet.serves(&client).await;
    is(&fleet, DEVICE, "stale").await;
    fleet.accept_with(DEVICE, &["--poll-lease", "3h"]).await;
    let said = fleet.muster(&["revoke", "--spiffe", &client_id("press-1")]).await;
    assert!(said.contains("until 3h after its last request"), "{said}");
    drop(other);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_is_not_reached_has_no_poll_lease() {
    let (fleet, client) = behind().await;
    fleet.accept_with(OWN, &["--children", "press-a,press-b", "--poll-lease", "2h"]).await;
    fleet.publish(&[(WEB, "1.0.0")]).await;
    let (version, ids) = manifest_of(&fleet, &client, 3).await;
    is(&fleet, CHILDREN[0], "fresh").await;
    let id = &ids["gw/press-a"];
    let silent = client.send("POST", &status_path(id), &unreached("gw/press-a", id, &version)).await;
    assert_eq!(silent.status, 201, "{silent:?}");
    is(&fleet, CHILDREN[0], "stale").await;
    // A poll is a sign of life of the others alone.
    manifest_of(&fleet, &client, 3).await;
    assert_eq!(post(&client, "gw/press-b", &ids["gw/press-b"], &version, "failed").await, 201);
    fleet.state(CHILDREN[1], WEB, "failed").await;
    assert_eq!(freshness(&fleet, CHILDREN[0]).await, "stale");
    // Its gateway reaches it again, and does not poll.
    assert_eq!(post(&client, "gw/press-a", id, &version, "installed").await, 200);
    is(&fleet, CHILDREN[0], "fresh").await;
}
