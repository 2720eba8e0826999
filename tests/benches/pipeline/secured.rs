//! The whole way on a secured hub: accounts, TLS, services with the credentials of their roles; without mirrors for readers, with
//! them, and with a reader that follows one. All reports come over one connection of the devices' account, as over one of an
//! open hub. While they come it is sampled how far a mirror is behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use muster_bus::{Bus, BusConfig, Start};
use muster_contract::subjects::stream;
use muster_identity::{KeyPair, KeyPairType, Role, creds, jwt};
use muster_simulator::hub::Hub;
use muster_tests::envelope::Carry;
use muster_tests::guarded::Guarded;
use muster_tests::hostile::hub::{connect, has_mirrors, start_service};
use muster_tests::system::{INGEST, ROLLUP};
use serde_json::json;

use super::muster::{LOOK, received};
use muster_tests::load::{self, DEVICES, Fleet, PATIENCE};

/// The credentials of all devices in one: no identifier can be a wildcard, so `muster auth` never makes such a token.
fn fleet_config(hub: &Guarded) -> BusConfig {
    let seed = std::fs::read_to_string(hub.auth().join("signers/device.seed")).unwrap();
    let signer = KeyPair::from_seed(seed.trim()).unwrap();
    let user = KeyPair::new(KeyPairType::User);
    let like = "plant7/press-4".parse().unwrap();
    let text = std::fs::read_to_string(hub.enroll(&like, "1d")).unwrap();
    let account = account_of(creds::token(&text).unwrap());
    let nats = json!({ "type": "user", "version": 2, "issuer_account": account,
        "tags": ["site:*", "device:*", "role:device"] });
    let claims = json!({ "sub": user.public_key(), "name": "bench", "iat": 1_700_000_000, "nats": nats });
    let token = jwt::sign(&signer, claims.as_object().unwrap().clone()).unwrap();
    let file = hub.dir().join("fleet.creds");
    std::fs::write(&file, creds::to_text(&token, &user.seed().unwrap())).unwrap();
    let inbox_prefix = Some("_INBOX_*_*".to_owned());
    BusConfig { creds: Some(file), inbox_prefix, ..hub.config(Role::Ingest) }
}

/// The account that a user's token names.
fn account_of(token: &str) -> String {
    let body = token.split('.').nth(1).unwrap();
    let body = URL_SAFE_NO_PAD.decode(body).unwrap();
    let claims: serde_json::Value = serde_json::from_slice(&body).unwrap();
    claims["nats"]["issuer_account"].as_str().unwrap().to_owned()
}

/// How people read a secured hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// There are no mirrors.
    None,
    /// There are mirrors that nobody reads.
    Mirrors,
    /// A subscriber follows the mirror of LEDGER.
    Follower,
}

/// The rates of the same work on secured hubs.
#[derive(Default)]
pub(crate) struct Rates {
    /// Without mirrors, devices alike.
    pub(crate) bare: Vec<f64>,
    /// With mirrors, devices alike.
    pub(crate) alike: Vec<f64>,
    /// With mirrors, devices different.
    pub(crate) different: Vec<f64>,
    /// With mirrors of which one is followed, devices alike.
    pub(crate) followed: Vec<f64>,
    /// From a fact's place in LEDGER until the mirror has it, sampled in all rounds with mirrors.
    pub(crate) lag: Vec<Duration>,
}

impl Rates {
    /// One more round of each.
    pub(crate) async fn measure(&mut self, reports: usize, say: impl Fn(&str)) {
        for (reading, fleet, name) in [
            (Reading::None, Fleet::Alike, "no mirrors, devices alike"),
            (Reading::Mirrors, Fleet::Alike, "mirrors, devices alike"),
            (Reading::Mirrors, Fleet::Different, "mirrors, devices different"),
            (Reading::Follower, Fleet::Alike, "a mirror is followed, devices alike"),
        ] {
            say(name);
            let (rate, lag) = throughput(reading, fleet, reports).await;
            self.lag.extend(lag);
            match (reading, fleet) {
                (Reading::None, _) => &mut self.bare,
                (Reading::Follower, _) => &mut self.followed,
                (Reading::Mirrors, Fleet::Alike) => &mut self.alike,
                (Reading::Mirrors, Fleet::Different) => &mut self.different,
            }
            .push(rate);
        }
    }
}

/// Events per second as on an open hub, and how far the mirror was behind.
async fn throughput(reading: Reading, fleet: Fleet, reports: usize) -> (f64, Vec<Duration>) {
    let hub = Guarded::start();
    if reading == Reading::None {
        std::fs::remove_file(hub.creds(Role::Keeper)).unwrap();
    }
    let _services = [ROLLUP, INGEST].map(|name| start_service(&hub, name, "10m"));
    let ingest = connect(hub.config(Role::Ingest)).await;
    ingest.converge().await.unwrap();
    assert_eq!(has_mirrors(&hub).await, reading != Reading::None);
    let publisher = connect(hub.config(Role::Publisher)).await;
    load::publish_desired(&publisher, (0..DEVICES).map(|at| load::desired(fleet, at)).collect()).await;
    let devices = connect(fleet_config(&hub)).await;
    load::publish(&devices, Carry::Everything, load::reports(fleet, 1, DEVICES)).await;
    let questions = Hub::new(connect(hub.config(Role::Operator)).await);
    settled(&questions, DEVICES).await;
    let base = ingest.stream_state(stream::LEDGER).await.unwrap().last_seq;
    let is_over = Arc::new(AtomicBool::new(false));
    let lag = (reading != Reading::None)
        .then(|| tokio::spawn(lags(hub.config(Role::Keeper), ingest, is_over.clone())));
    if reading == Reading::Follower {
        tokio::spawn(follow(connect(hub.config(Role::Subscriber)).await));
    }
    let messages = load::reports(fleet, 2, reports);
    let begin = Instant::now();
    let publishing = tokio::spawn(async move { load::publish(&devices, Carry::Everything, messages).await });
    while questions.fleet().await.map_or(0, |view| view.tally.as_of.ledger_seq) < base + reports as u64 {
        assert!(begin.elapsed() < PATIENCE, "the reports are not in after {PATIENCE:?}");
        tokio::time::sleep(LOOK).await;
    }
    let rate = reports as f64 / begin.elapsed().as_secs_f64();
    is_over.store(true, Ordering::Relaxed);
    publishing.await.unwrap();
    settled(&questions, reports + DEVICES).await;
    let lag = match lag {
        Some(lag) => lag.await.unwrap(),
        None => Vec::new(),
    };
    (rate, lag)
}

/// How long the mirror of LEDGER takes to have what LEDGER has, again and again until it is over.
async fn lags(keeper: BusConfig, origin: Bus, is_over: Arc<AtomicBool>) -> Vec<Duration> {
    let mirror = connect(keeper).await;
    let last = async |bus: &Bus| bus.stream_state(stream::LEDGER).await.unwrap().last_seq;
    let mut lags = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let there = last(&origin).await;
        let begin = Instant::now();
        while last(&mirror).await < there {
            assert!(begin.elapsed() < PATIENCE, "the mirror does not get on");
        }
        lags.push(begin.elapsed());
        tokio::time::sleep(LOOK).await;
    }
    lags
}

/// Reads everything that comes to the mirror of LEDGER until the hub ends.
async fn follow(subscriber: Bus) {
    let mut facts = subscriber.replay(stream::LEDGER, &[], Start::New).await.unwrap();
    while facts.next_batch(512).await.is_ok() {}
}

/// Waits until the rollup has so many reports.
async fn settled(hub: &Hub, reports: usize) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let received = hub.devices().await.map_or(0, |lines| received(&lines));
        if received == reports as u64 {
            return;
        }
        assert!(Instant::now() < deadline, "{received} of {reports} reports are in after {PATIENCE:?}");
        tokio::time::sleep(LOOK).await;
    }
}
