//! Leases of devices that poll a gateway more rarely than the lease of the hub.

use crate::fleet::{DEVICE, Fleet};

const OTHER: &str = "plant8/press-2";

#[tokio::test(flavor = "multi_thread")]
async fn a_device_with_a_poll_lease_is_fresh_between_rare_polls() {
    let fleet = Fleet::start(&[DEVICE, OTHER]).await;
    fleet.accept_with(DEVICE, &["--poll-lease", "2h"]).await;
    let listed = fleet.muster(&["auth", "clients"]).await;
    let has_lease = |line: &&str| line.starts_with(DEVICE) && line.contains(" 2h ");
    assert!(listed.lines().any(|line| has_lease(&line)), "{listed}");

    // Each polls and is silent afterwards.
    let (client, other) = (fleet.client(DEVICE).await, fleet.client(OTHER).await);
    for device in [DEVICE, OTHER] {
        fleet.device(device, "the poll is heard", |shown| shown["device"]["freshness"] == "fresh").await;
    }
    fleet.device(OTHER, "the hub's lease is over", |shown| shown["device"]["freshness"] == "stale").await;
    let shown = fleet.device(DEVICE, "it is known", |_| true).await;
    assert_eq!(shown["device"]["freshness"], "fresh", "{shown}");

    // Without the lease, its next poll counts as one of the other device.
    fleet.accept(DEVICE).await;
    fleet.serves(&client).await;
    fleet.device(DEVICE, "the hub's lease is over", |shown| shown["device"]["freshness"] == "stale").await;
    drop(other);
}
