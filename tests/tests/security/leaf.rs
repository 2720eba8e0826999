//! A site with a server of its own. Its devices reach their own subjects through it, as if they were at the hub; a holder of
//! the site's server reaches nothing that belongs to another site.

use std::time::Duration;

use muster_bus::{Bus, BusConfig, Outgoing, PublishErrorKind, RequestError, Start};
use muster_contract::subjects::{self, stream};
use muster_contract::{DeviceKey, SiteId};
use muster_identity::Role;
use muster_tests::guarded::Guarded;
use muster_tests::leaf::Site;
use muster_tests::raw::Raw;
use muster_tests::wait::{soon, until};

use crate::{connect, ingest};

/// How long an attacker waits for an answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// A hub with two sites, of which one has its server running.
struct Stage {
    hub: Guarded,
    ingest: Bus,
    publisher: Bus,
}

fn site(name: &str) -> SiteId {
    name.parse().unwrap()
}

fn key(name: &str) -> DeviceKey {
    name.parse().unwrap()
}

impl Stage {
    async fn start() -> Self {
        let hub = Guarded::start_with_sites(&[&site("harbour"), &site("quarry")]);
        let ingest = ingest(&hub).await;
        let publisher = connect(hub.config(Role::Publisher)).await;
        let stage = Self { hub, ingest, publisher };
        for device in ["harbour/crane", "quarry/mill"] {
            stage.desire(device, &format!("what {device} shall run")).await;
            stage.hub.enroll(&key(device), "1h");
        }
        stage
    }

    async fn desire(&self, device: &str, what: &str) {
        self.publisher
            .publish(Outgoing::new(subjects::desired(&key(device)), what.to_owned()))
            .await
            .unwrap();
    }

    async fn held(&self, stream: &str) -> u64 {
        self.ingest.stream_state(stream).await.unwrap().messages
    }

    /// Subjects of a device's reports in UPLINK.
    async fn reported(&self, key: &DeviceKey) -> Vec<String> {
        let filter = format!("muster.report.*.{}.{}", key.site, key.device);
        let mut replay = self.ingest.replay(stream::UPLINK, &[&filter], Start::First).await.unwrap();
        match replay.waiting() {
            0 => Vec::new(),
            _ => replay.next_batch(100).await.unwrap().into_iter().map(|report| report.subject).collect(),
        }
    }
}

fn report(device: &str) -> Outgoing {
    let message = Outgoing::new(subjects::report(&key(device)), "a report".to_owned());
    Outgoing { expected_stream: Some(stream::UPLINK), ..message }
}

/// The document stored for a device; none until the leaf node has reached the hub.
async fn fetched(bus: &Bus, device: &str) -> Option<String> {
    let last = bus.last(stream::DOWNLINK, &subjects::desired(&key(device))).await.ok()??;
    Some(String::from_utf8_lossy(&last.payload).into_owned())
}

#[tokio::test]
async fn a_device_reaches_through_its_sites_server_what_it_reaches_at_the_hub() {
    let stage = Stage::start().await;
    let leaf = Site::start(&stage.hub, &site("harbour"));
    let device = connect(leaf.device_config(&stage.hub, &key("harbour/crane"))).await;
    let mut live = device.subscribe(&subjects::live(&key("harbour/crane"))).await.unwrap();
    let shall = until("what it shall run", || fetched(&device, "harbour/crane"), Option::is_some).await;
    assert_eq!(shall.unwrap(), "what harbour/crane shall run");
    soon("a report", device.publish(report("harbour/crane"))).await.unwrap();
    let stored = stage.reported(&key("harbour/crane")).await;
    assert_eq!((stored.len(), stage.held(stream::UPLINK).await), (1, 1), "{stored:?}");
    stage.desire("harbour/crane", "something else").await;
    let told = soon("the message that comes at once", live.next()).await.unwrap();
    assert_eq!(told.payload, "something else");
    let presence = subjects::presence(&key("harbour/crane"));
    device.publish_core(&presence, Default::default(), "a heartbeat".into()).await.unwrap();
    until("the heartbeat", || stage.held(stream::PRESENCE), |held| *held == 1).await;
}

#[tokio::test]
async fn while_the_hub_is_unreachable_a_report_is_refused_and_later_accepted() {
    let mut stage = Stage::start().await;
    let leaf = Site::start(&stage.hub, &site("harbour"));
    let device = connect(leaf.device_config(&stage.hub, &key("harbour/crane"))).await;
    until("what it shall run", || fetched(&device, "harbour/crane"), Option::is_some).await;
    stage.hub.server.kill();
    let refused = async || device.publish(report("harbour/crane")).await.map_err(|error| error.kind);
    let refused = until("a refusal", refused, |told| matches!(told, Err(PublishErrorKind::Transient))).await;
    assert!(refused.is_err(), "the site's server keeps nothing in the hub's place");
    stage.hub.server.restart();
    let taken = async || device.publish(report("harbour/crane")).await.is_ok();
    until("the report is taken", taken, |taken| *taken).await;
}

#[tokio::test]
async fn a_device_of_another_site_is_let_in_and_reaches_nothing() {
    let stage = Stage::start().await;
    let leaf = Site::start(&stage.hub, &site("harbour"));
    let own = connect(leaf.device_config(&stage.hub, &key("harbour/crane"))).await;
    until("what the other shall run", || fetched(&own, "harbour/crane"), Option::is_some).await;
    let stranger = connect(leaf.device_config(&stage.hub, &key("quarry/mill"))).await;
    assert_eq!(fetched(&stranger, "quarry/mill").await, None);
    assert!(stranger.publish(report("quarry/mill")).await.is_err());
    assert_eq!(stage.held(stream::UPLINK).await, 0);
}

#[tokio::test]
async fn a_compromised_site_reaches_nothing_of_another_site_or_of_the_hub() {
    let stage = Stage::start().await;
    let leaf = Site::taken_over(&stage.hub, &site("harbour"));
    let attacker = connect(BusConfig::service(leaf.server.url(), "attacker")).await;
    let ask = async |subject: &str| attacker.request(subject, Default::default(), PATIENCE).await;
    let own = async || ask("muster.fetch.desired.harbour.crane").await.ok();
    let shall = until("its own site's", own, Option::is_some).await.unwrap();
    assert_eq!(shall, "what harbour/crane shall run");
    let mut overheard = attacker.subscribe(">").await.unwrap();
    for subject in [
        "muster.report.quarry.mill",
        "muster.presence.quarry.mill",
        "muster.fetch.desired.quarry.mill",
        "muster.fetch.receipt.quarry.mill",
        "muster.fetch.credential.quarry.mill",
        "muster.desired.harbour.crane",
        "muster.receipt.harbour.crane",
        "muster.status.harbour.crane.web",
        "muster.query.fleet",
        "$JS.API.DIRECT.GET.DOWNLINK.muster.desired.quarry.mill",
        "$JS.API.DIRECT.GET.DOWNLINK",
        "$JS.API.STREAM.INFO.LEDGER",
        "$JS.API.STREAM.PURGE.UPLINK",
        "$JS.hub.API.STREAM.INFO.LEDGER",
    ] {
        // A listener on `>` receives every request, so a missing responder is a timeout; its own server answers about streams
        // that it has none.
        let nothing = match ask(subject).await {
            Ok(answer) => subject.starts_with("$JS.") && answer.windows(9).any(|words| words == b"not found"),
            Err(error) => matches!(error, RequestError::Timeout { .. }),
        };
        assert!(nothing, "{subject} is answered");
    }
    stage.desire("quarry/mill", "a secret").await;
    stage.desire("harbour/crane", "no secret").await;
    let mut heard = Vec::new();
    while !heard.iter().any(|payload| payload == "no secret") {
        heard.push(soon("its own site's", overheard.next()).await.unwrap().payload);
    }
    assert!(!heard.iter().any(|payload| payload == "a secret"), "{heard:?}");
    assert_eq!((stage.held(stream::UPLINK).await, stage.held(stream::PRESENCE).await), (0, 0));
}

#[tokio::test]
async fn the_credentials_of_a_sites_server_let_in_a_leaf_node_and_nobody_else() {
    let stage = Stage::start().await;
    let leaf = Site::start(&stage.hub, &site("harbour"));
    let refused = Raw::connect(stage.hub.server.port(), leaf.creds()).err();
    assert!(refused.is_some_and(|words| words.contains("Authorization Violation")), "a client came in");
}

#[tokio::test]
async fn a_site_whose_server_is_put_out_is_out_and_others_stay() {
    let stage = Stage::start().await;
    let leaves = ["harbour", "quarry"].map(|name| Site::start(&stage.hub, &site(name)));
    let crane = connect(leaves[0].device_config(&stage.hub, &key("harbour/crane"))).await;
    let mill = connect(leaves[1].device_config(&stage.hub, &key("quarry/mill"))).await;
    until("the one", || fetched(&crane, "harbour/crane"), Option::is_some).await;
    until("the other", || fetched(&mill, "quarry/mill"), Option::is_some).await;
    let text = std::fs::read_to_string(leaves[0].creds()).unwrap();
    let token = muster_identity::creds::token(&text).unwrap();
    stage.hub.decide(&["revoke", "--key", &muster_identity::jwt::read(token).unwrap().sub]);
    until("the one is out", || fetched(&crane, "harbour/crane"), Option::is_none).await;
    until("the other stays", || fetched(&mill, "quarry/mill"), Option::is_some).await;
}

#[tokio::test]
async fn a_site_made_again_keeps_its_keys_and_a_new_one_needs_no_hub_restart() {
    let stage = Stage::start().await;
    let made = |site: &str| {
        let told = stage.hub.decide(&["auth", "leaf", site, "--format", "json"]);
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        let text = std::fs::read_to_string(told["creds"].as_str().unwrap()).unwrap();
        (told["new"].as_bool().unwrap(), muster_identity::creds::seed(&text).unwrap().to_owned())
    };
    let again = made("harbour");
    assert_eq!((again.0, made("harbour")), (false, again));
    let (new, _) = made("mine");
    assert!(new, "nobody knew that site");
    stage.hub.decide(&["auth", "push"]);
    stage.desire("mine/drill", "what mine/drill shall run").await;
    stage.hub.enroll(&key("mine/drill"), "1h");
    let leaf = Site::start(&stage.hub, &site("mine"));
    let device = connect(leaf.device_config(&stage.hub, &key("mine/drill"))).await;
    until("what it shall run", || fetched(&device, "mine/drill"), Option::is_some).await;
}
