//! Gateways that die between a request and its answer, and two that serve one device: no status is lost, none counts twice, no
//! number is missing, and no version of a manifest falls.

use muster_tests::story::key;
use muster_tests::system::numbers;
use serde_json::Value;

use crate::children::{self, CHILDREN, OWN};
use crate::client::Client;
use crate::cut::{Cut, LinkProxy};
use crate::fleet::{DEVICE, Fleet, GATEWAY, WEB, is_complete, standing, status, status_path};

/// Publishes of one status: assign the number, send the report, confirm the number.
const STEPS: usize = 3;
/// Publishes before a gateway client has the manifest of itself and its children: what each of the three targets.
const STEPS_OF_MANIFEST: usize = 3;
/// The name of the gateway that dies.
pub(crate) const DYING: &str = "gateway-dying";

/// Publishes a deployment and waits until the device has its manifest; the version.
pub(crate) async fn version(fleet: &Fleet, client: &Client) -> Value {
    fleet.publish(&[(WEB, "1.0.0")]).await;
    let (manifest, _) = fleet.manifest(client, |manifest| !manifest["bundle"].is_null()).await;
    manifest["manifestVersion"].clone()
}

/// The facts of the device's statuses in LEDGER by state, once its account is complete.
pub(crate) async fn facts(fleet: &Fleet) -> Vec<(u64, String)> {
    let what = "every number of the device is accounted for";
    fleet.device(DEVICE, what, |shown| is_complete(shown, 1)).await;
    let ledger = fleet.system.ledger().await;
    // It fails if a number is in LEDGER twice.
    numbers(&ledger);
    let of_device =
        |fact: &muster_contract::fact::StatusFact| (fact.seq.get(), fact.status.state.to_string());
    let device = key(DEVICE);
    let statuses = ledger.iter().filter(|entry| entry.subject.device() == Some(&device));
    let mut found: Vec<_> = statuses
        .filter_map(|entry| match &entry.fact {
            muster_contract::fact::Fact::Status(fact) if !fact.reasserted => Some(of_device(fact)),
            _ => None,
        })
        .collect();
    found.sort();
    found
}

/// A status is posted to a gateway that dies at a step; then the device goes on at another one.
async fn dies_at(step: usize, cut: Cut, is_repeated: bool) {
    let mut fleet = Fleet::start(&[DEVICE]).await;
    let whole = fleet.client(DEVICE).await;
    let version = version(&fleet, &whole).await;
    let link = LinkProxy::to(fleet.system.address(), cut).await;
    let dying = whole.at(fleet.another_gateway(DYING, Some(link.addr)));
    fleet.serves(&dying).await;
    assert_eq!(dying.send("POST", &status_path(WEB), &status(WEB, &version, "pending")).await.status, 201);
    link.break_at(step);
    let installing = status(WEB, &version, "installing");
    let (dying_client, body) = (dying.clone(), installing.to_string());
    let lost = tokio::spawn(async move {
        dying_client
            .ask("POST", &status_path(WEB), &[("Content-Type", "application/json")], body.as_bytes())
            .await
    });
    link.broken().await;
    fleet.system.kill(DYING).await;
    assert!(lost.await.unwrap().is_err(), "there is no answer");
    if is_repeated {
        assert_eq!(whole.send("POST", &status_path(WEB), &installing).await.status, 200);
    }
    let installed = status(WEB, &version, "installed");
    assert_eq!(whole.send("POST", &status_path(WEB), &installed).await.status, 200);
    fleet.state(DEVICE, WEB, "installed").await;
    let states: Vec<String> = facts(&fleet).await.into_iter().map(|(_, state)| state).collect();
    let all = ["pending", "installing", "installed"];
    if is_repeated {
        assert_eq!(states, all, "each once");
    } else {
        // The dead gateway may have published its report, which then counts.
        assert!(states == all || states == ["pending", "installed"], "{states:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_killed_before_any_step_loses_and_doubles_no_repeated_status() {
    for step in 1..=STEPS {
        dies_at(step, Cut::Before, true).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_killed_after_any_step_loses_and_doubles_no_repeated_status() {
    for step in 1..=STEPS {
        dies_at(step, Cut::After, true).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_a_dead_gateway_took_is_coalesced_by_the_next_status() {
    for (step, cut) in [(1, Cut::After), (2, Cut::Before), (2, Cut::After), (3, Cut::Before)] {
        dies_at(step, cut, false).await;
    }
}

/// The generation of the desired state of a device and those behind it, once all of them are higher.
async fn generations(fleet: &Fleet, above: &[u64]) -> Vec<u64> {
    let mut found = Vec::new();
    for (device, above) in [OWN, CHILDREN[0], CHILDREN[1]].into_iter().zip(above) {
        let is_newer = |shown: &Value| shown["device"]["generation"].as_u64() > Some(*above);
        let shown = fleet.device(device, "a newer desired state", is_newer).await;
        found.push(shown["device"]["generation"].as_u64().unwrap());
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_killed_at_any_step_of_a_childs_manifest_spoils_none() {
    let (mut fleet, whole) = children::behind().await;
    fleet.publish(&[(WEB, "1.0.0")]).await;
    let (mut version, _) = children::manifest_of(&fleet, &whole, 3).await;
    let mut known = generations(&fleet, &[0; 3]).await;
    let deaths = (1..=STEPS_OF_MANIFEST).flat_map(|step| [(step, Cut::Before), (step, Cut::After)]);
    for (at, (step, cut)) in deaths.enumerate() {
        let link = LinkProxy::to(fleet.system.address(), cut).await;
        let name = format!("{DYING}-{at}");
        let dying = whole.at(fleet.another_gateway(&name, Some(link.addr)));
        fleet.serves(&dying).await;
        fleet.publish(&[(WEB, &format!("2.0.{at}"))]).await;
        known = generations(&fleet, &known).await;
        link.break_at(step);
        let lost = tokio::spawn(async move { dying.ask("GET", "/api/v1/deployments", &[], b"").await });
        link.broken().await;
        fleet.system.kill(&name).await;
        assert!(lost.await.unwrap().is_err(), "{step} {cut:?}: there is no answer");
        let (newer, ids) = children::manifest_of(&fleet, &whole, 3).await;
        assert_eq!(newer.as_u64(), version.as_u64().map(|old| old + 3), "{step} {cut:?}: each device's own");
        assert_eq!(children::manifest_of(&fleet, &whole, 3).await, (newer.clone(), ids.clone()));
        let posted = children::post(&whole, "gw/press-a", &ids["gw/press-a"], &newer, "installed").await;
        assert!([200, 201].contains(&posted), "{step} {cut:?}: {posted}");
        let is_installed = |shown: &Value| standing(shown, WEB)["standing"] == "installed";
        fleet.device(CHILDREN[0], "the new content is installed", is_installed).await;
        version = newer;
    }
    fleet.device(CHILDREN[0], "no number is missing", |shown| is_complete(shown, 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_gateways_serve_one_device_at_once() {
    let mut fleet = Fleet::start(&[DEVICE]).await;
    let one = fleet.client(DEVICE).await;
    let ids: Vec<String> = (0..8).map(|at| format!("{at}{}", &WEB[1..])).collect();
    let deployments: Vec<(&str, &str)> = ids.iter().map(|id| (id.as_str(), "1.0.0")).collect();
    fleet.publish(&deployments).await;
    let (manifest, _) = fleet.manifest(&one, |manifest| !manifest["bundle"].is_null()).await;
    let version = manifest["manifestVersion"].clone();
    let other = one.at(fleet.another_gateway("gateway-2", None));
    fleet.serves(&other).await;
    let own = one.get("/api/v1/deployments").await;
    let others = other.get("/api/v1/deployments").await;
    assert_eq!((own.body, own.status), (others.body, others.status), "the same bytes");
    let posts = ids.iter().enumerate().map(|(at, id)| {
        let (client, version) = (if at % 2 == 0 { &one } else { &other }, &version);
        async move {
            for state in ["pending", "installing", "installed"] {
                // A device retries a status.
                while client.send("POST", &status_path(id), &status(id, version, state)).await.status >= 400 {
                }
            }
        }
    });
    futures_util::future::join_all(posts).await;
    for id in &ids {
        fleet.state(DEVICE, id, "installed").await;
    }
    assert_eq!(facts(&fleet).await.len(), 24, "each once");
    fleet.system.kill(GATEWAY).await;
    assert_eq!(
        other.send("POST", &status_path(&ids[0]), &status(&ids[0], &version, "failed")).await.status,
        200
    );
}
