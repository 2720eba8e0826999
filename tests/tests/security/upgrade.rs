//! A running hub of the release before READERS and PEOPLE is upgraded: no device needs a new key, and people who had the
//! right to write by a reply subject lose it. And a running hub of the release before CHECKERS.

use muster_bus::{Bus, Outgoing, RequestError, Start};
use muster_contract::subjects::{self, stream};
use muster_contract::{DeviceKey, SiteId};
use muster_identity::Role;
use muster_tests::guarded::Guarded;
use muster_tests::leaf::Site;
use muster_tests::raw::Raw;
use muster_tests::server::device;
use muster_tests::wait::{soon, until};

use crate::{connect, ingest};

async fn report(bus: &Bus) {
    soon("a report", bus.publish(Outgoing::new(subjects::report(&device("press-4")), "{}"))).await.unwrap();
}

/// Waits until UPLINK holds so many reports; a push may end the connection that asks.
async fn holds(ingest: &Bus, reports: u64) {
    let held = async || ingest.stream_state(stream::UPLINK).await.ok().map(|state| state.messages);
    until("the reports", held, |held| *held == Some(reports)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_of_a_running_hub_disturbs_no_device_and_moves_people() {
    let hub = Guarded::start_older(&device("press-4"));
    let refused = hub.muster(&["auth", "push", "--dir", &hub.auth().display().to_string()]);
    assert!(String::from_utf8(refused.stderr).unwrap().contains("muster auth upgrade"));
    let ingest = ingest(&hub).await;
    let press = connect(hub.device_config(&device("press-4"))).await;
    report(&press).await;
    let old_viewer = std::fs::read(hub.creds(Role::Viewer)).unwrap();
    let carried = hub.dir().join("carried.creds");
    std::fs::write(&carried, old_viewer).unwrap();
    Raw::connect(hub.server.port(), &carried).unwrap();

    let said = hub.decide(&["auth", "upgrade"]);
    assert!(said.contains("READERS, PEOPLE") && said.contains("muster auth push"), "{said}");
    hub.decide(&["auth", "push"]);

    let refused = async || Raw::connect(hub.server.port(), &carried).is_err();
    until("the old token of a viewer is refused", refused, |is_refused| *is_refused).await;
    report(&press).await;
    let again = connect(hub.device_config(&device("press-4"))).await;
    report(&again).await;
    holds(&ingest, 3).await;
    hub.mirror().await;
    let subscriber = connect(hub.config(Role::Subscriber)).await;
    soon("LEDGER", subscriber.replay("LEDGER", &[], Start::First)).await.unwrap();
}

/// The credentials of the planner stay as they are: the server takes its right to ask from the account.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_of_a_running_hub_lets_checkers_answer_its_planner() {
    const CHECK: &str = "muster.check.smoke";
    let hub = Guarded::start_without_checkers();
    let planner = connect(hub.config(Role::Planner)).await;
    let ask = async || planner.request(CHECK, "{}".into(), std::time::Duration::from_secs(1)).await;
    assert!(matches!(ask().await, Err(RequestError::Forbidden { .. })));

    let said = hub.decide(&["auth", "upgrade"]);
    assert!(said.contains("CHECKERS") && !said.contains("READERS"), "{said}");
    hub.decide(&["auth", "push"]);

    let enters = async || Raw::connect(hub.server.port(), &hub.creds(Role::Checker)).is_ok();
    until("the server accepts a checker", enters, |enters| *enters).await;
    let checker = connect(hub.config(Role::Checker)).await;
    let _responder = checker.respond(CHECK, |_| "an answer".into()).await.unwrap();
    let answer = until("an answer", ask, Result::is_ok).await.unwrap();
    assert_eq!(answer, "an answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_of_a_hub_with_leaf_sites_disturbs_no_site() {
    let (site, crane): (SiteId, DeviceKey) = ("harbour".parse().unwrap(), "harbour/crane".parse().unwrap());
    let hub = Guarded::start_older_with_sites(&crane, &[&site]);
    let ingest = ingest(&hub).await;
    let publisher = connect(hub.config(Role::Publisher)).await;
    let desire = async |what: &str| {
        let publish =
            async || publisher.publish(Outgoing::new(subjects::desired(&crane), what.to_owned())).await;
        until("a document", publish, Result::is_ok).await.unwrap();
    };
    desire("before").await;
    let leaf = Site::start(&hub, &site);
    let device = connect(leaf.device_config(&hub, &crane)).await;
    let fetched = async || {
        let last = device.last(stream::DOWNLINK, &subjects::desired(&crane)).await.ok()??;
        Some(String::from_utf8_lossy(&last.payload).into_owned())
    };
    until("what it shall run", fetched, |shall| shall.as_deref() == Some("before")).await;
    let report = async || {
        let report = Outgoing::new(subjects::report(&crane), "{}");
        soon("a report", device.publish(report)).await.unwrap();
    };
    report().await;
    let creds = || std::fs::read_to_string(hub.auth().join("leaves/harbour/leaf.creds")).unwrap();
    let made = creds();

    hub.decide(&["auth", "upgrade"]);
    hub.decide(&["auth", "push"]);
    assert!(creds() == made, "the site's server needs new credentials");
    desire("after").await;
    until("what it shall run", fetched, |shall| shall.as_deref() == Some("after")).await;
    report().await;
    let again = connect(leaf.device_config(&hub, &crane)).await;
    soon("a report", again.publish(Outgoing::new(subjects::report(&crane), "{}"))).await.unwrap();
    holds(&ingest, 3).await;
    // A site that is new after the upgrade joins the same account structure.
    let quarry: DeviceKey = "quarry/mill".parse().unwrap();
    hub.decide(&["auth", "leaf", "quarry"]);
    hub.decide(&["auth", "push"]);
    hub.enroll(&quarry, "1h");
    let leaf = Site::start(&hub, &quarry.site);
    let mill = connect(leaf.device_config(&hub, &quarry)).await;
    let taken = async || mill.publish(Outgoing::new(subjects::report(&quarry), "{}")).await.is_ok();
    until("a report of the new site", taken, |taken| *taken).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_maintainer_brings_streams_of_an_older_release_to_this_ones() {
    let hub = Guarded::start_plain();
    let ingest = ingest(&hub).await;
    let file = hub.dir().join("maintainer.creds").display().to_string();
    hub.decide(&["auth", "creds", "maintainer", "--valid", "1h", "-o", &file]);
    let mut raw = Raw::connect(hub.server.port(), file.as_ref()).unwrap();
    // A setting that the server never revokes stays: deletes are denied.
    let older = r#"{"name":"PRESENCE","subjects":["muster.presence.*.*"],"storage":"memory","num_replicas":1,
        "max_age":1800000000000,"max_msgs_per_subject":1,"deny_delete":true}"#;
    raw.publish("$JS.API.STREAM.UPDATE.PRESENCE", "", older);
    let converged = async || ingest.converge().await;
    let refused = until("a service refuses the older shape", converged, Result::is_err).await.unwrap_err();
    assert!(refused.to_string().contains("muster streams upgrade"), "{refused}");

    let streams = |verb: &str| hub.muster(&["streams", verb, "--creds", &file]);
    let shown = streams("show");
    let words = String::from_utf8(shown.stdout).unwrap();
    assert_eq!(shown.status.code(), Some(1), "{words}");
    assert!(words.contains("PRESENCE") && words.contains("max_age"), "{words}");
    assert!(streams("upgrade").status.success());
    soon("the streams", ingest.converge()).await.unwrap();
    assert!(streams("show").status.success());
    let viewer = hub.creds(Role::Viewer).display().to_string();
    let denied = hub.muster(&["streams", "show", "--creds", &viewer, "--timeout", "1s"]);
    assert!(!denied.status.success());
}
