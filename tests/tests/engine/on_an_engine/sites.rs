//! `compose/compose.sites.yaml` as a person starts it: two sites with a server of their own, of which one is cut off.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_contract::view::{DeploymentView, Freshness, Verdict};
use muster_tests::containers::{Stack, docker};
use muster_tests::oci::packed;
use muster_tests::wait::within;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::fleet::{DEADLINE, Fleet};

/// Devices of each site: twelve in all.
const AGENTS: u64 = 6;
/// Time between two looks that are a program each.
const LOOK: Duration = Duration::from_millis(500);

async fn started() -> Fleet {
    let files = ["compose.yaml", "compose.sites.yaml"];
    let stack = Stack::new("muster-check-sites", &files, &[("MUSTER_LINK_PROFILE", "steady")]);
    let began = Instant::now();
    let scale = ["agent-harbour", "agent-quarry"].map(|service| format!("{service}={AGENTS}"));
    stack.up(&["--scale", &scale[0], "--scale", &scale[1]]);
    let fleet = Fleet::of(stack).await;
    until_all_converged(&fleet, "both sites run everything").await;
    println!("two sites of {AGENTS} agents behind leaf nodes: converged in {:.1?}", began.elapsed());
    fleet
}

/// The cranes are harbour's alone; the rest is for both sites.
async fn until_all_converged(fleet: &Fleet, what: &str) {
    fleet
        .until(what, |views| {
            let converged = |view: &DeploymentView| {
                let targets = if view.deployment.as_str() == "cranes" { AGENTS } else { 2 * AGENTS };
                view.verdict == Verdict::Converged && view.targets == targets
            };
            views.keys().eq(&["cranes", "gateway", "telemetry"]) && views.values().all(converged)
        })
        .await;
}

/// How the devices of a site are heard.
async fn heard(fleet: &Fleet, site: &str) -> BTreeSet<&'static str> {
    let devices = fleet.hub.devices().await.unwrap_or_default();
    let own = devices.iter().filter(|line| line.key.site.as_str() == site);
    own.map(|line| match line.freshness {
        Freshness::Fresh => "fresh",
        Freshness::Stale => "stale",
        Freshness::Never => "never",
    })
    .collect()
}

/// `muster` as JSON, until it holds.
async fn until_told(fleet: &Fleet, args: &[&str], what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let args = [args, &["--format", "json"]].concat();
    let look = async || {
        sleep(LOOK).await;
        let said = fleet.stack.muster(&args).unwrap_or_default();
        serde_json::from_str(&said).unwrap_or(Value::Null)
    };
    within(DEADLINE, what, look, holds).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_cut_off_is_one_cause_loses_nothing_and_spares_the_others() {
    let fleet = started().await;
    devices_see_the_server_of_their_site_alone(&fleet.stack);
    every_server_has_a_domain_of_its_own(&fleet.stack);
    a_package_of_the_hub_comes_through_a_leaf_node(&fleet).await;
    let (leaf, field) = (fleet.stack.container("leaf-quarry"), fleet.stack.network("field"));
    docker(&["network", "disconnect", &field, &leaf]);
    let since = Instant::now();
    fleet.until_devices("quarry is silent, harbour is heard", AGENTS, AGENTS).await;
    println!("a site cut off: told after {:.1?}", since.elapsed());
    it_is_one_cause_with_its_effects(&fleet).await;
    fleet.push("Telemetry release 2", "fleet/telemetry.yaml", "value: \"1\"", "value: \"2\"");
    the_other_site_takes_the_commit_and_this_one_waits(&fleet).await;
    docker(&["network", "connect", &field, &leaf]);
    let back = Instant::now();
    fleet.until_devices("every device is heard", 2 * AGENTS, 0).await;
    until_all_converged(&fleet, "what was published meanwhile runs").await;
    println!("its uplink back: right again after {:.1?}", back.elapsed());
    until_told(&fleet, &["status"], "nothing is silent", |told| told["silentSites"].is_null()).await;
    fleet.until_nothing_is_missing().await;
    fleet.until_every_view_is_that_of_a_rebuild().await;
    fleet.stack.end();
    assert_eq!(fleet.stack.remains(), Vec::<String>::new(), "`down.sh` leaves nothing");
}

/// On each network only what belongs there: a device could not go past the server of its site.
fn devices_see_the_server_of_their_site_alone(stack: &Stack) {
    for site in ["harbour", "quarry"] {
        for id in stack.containers(&format!("agent-{site}")) {
            let told: Value = serde_json::from_str(&docker(&["inspect", &id])).unwrap();
            let networks = told[0]["NetworkSettings"]["Networks"].as_object().unwrap();
            assert_eq!(networks.keys().collect::<Vec<_>>(), [&stack.network(site)]);
        }
    }
    assert!(stack.containers("agent").is_empty(), "a device without a site's server");
}

fn every_server_has_a_domain_of_its_own(stack: &Stack) {
    for site in ["harbour", "quarry"] {
        let id = stack.container(&format!("leaf-{site}"));
        let told = docker(&["exec", &id, "/bin/muster-probe", "127.0.0.1:8222", "/jsz"]);
        let told: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told["config"]["domain"], site, "{told}");
    }
}

/// As the walk-through does it: a package in the hub, which the cranes' controller fetches before it starts.
async fn a_package_of_the_hub_comes_through_a_leaf_node(fleet: &Fleet) {
    let (dir, archive) = (tempfile::tempdir().unwrap(), packed(&[("limits.txt", "40 t")]));
    let file = dir.path().join("cranes.tar.gz");
    std::fs::write(&file, &archive).unwrap();
    let put = ["package", "put", file.to_str().unwrap()];
    let refused = fleet.stack.muster(&put).unwrap_err();
    assert!(refused.contains("packager"), "an operator may not put packages: {refused}");
    fleet.stack.muster_as("packager", &put).unwrap();
    let digest = muster_contract::canonical::Digest::of_bytes(&archive);
    let to =
        format!("startDelay: 2s, packageLocation: nats://packages/cranes.tar.gz, packageDigest: '{digest}'");
    fleet.push("Limits of the cranes", "sites/harbour/cranes.yaml", "startDelay: 2s", &to);
    fleet.until_published(&fleet.stack.revision()).await;
    until_all_converged(fleet, "every crane has fetched its package").await;
}

async fn it_is_one_cause_with_its_effects(fleet: &Fleet) {
    let status =
        until_told(fleet, &["status"], "status names the site", |told| told["silentSites"]["count"] == 1)
            .await;
    let silent = &status["silentSites"]["first"][0];
    assert_eq!((&silent["site"], &silent["devices"]), (&"quarry".into(), &AGENTS.into()), "{status}");
    // telemetry and gateway on each device of the site
    assert_eq!(silent["targets"], 2 * AGENTS);
    let cause = "site quarry is silent since ";
    for args in [&["status"][..], &["site", "quarry"], &["why", "gateway"], &["status", "gateway"]] {
        let said = fleet.stack.muster(args).unwrap();
        assert_eq!(said.matches(cause).count(), 1, "{args:?}: {said}");
    }
    let why = fleet.stack.muster(&["why", "gateway", "--limit", "100"]).unwrap();
    let effects = why.lines().filter(|line| line.ends_with("  installed, stale")).count() as u64;
    assert_eq!(effects, AGENTS, "{why}");
    assert!(!why.contains("LEDGER"), "the answer has no entry for one device: {why}");
    println!("{why}");
}

async fn the_other_site_takes_the_commit_and_this_one_waits(fleet: &Fleet) {
    fleet.until_published(&fleet.stack.revision()).await;
    fleet
        .until("harbour runs the release, quarry does not", |views| {
            views.get("telemetry").is_some_and(|view| {
                (view.converged.lo, view.targets, view.verdict) == (AGENTS, 2 * AGENTS, Verdict::Waiting)
            })
        })
        .await;
    assert_eq!(heard(fleet, "harbour").await, BTreeSet::from(["fresh"]));
    assert_eq!(heard(fleet, "quarry").await, BTreeSet::from(["stale"]));
}
