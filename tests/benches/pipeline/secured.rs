//! The whole way on a secured hub: accounts, TLS, services with the credentials of their roles and, where this release has
//! them, mirrors for readers. All reports come over one connection of the devices' account, as over one of an open hub.

use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use muster_bus::BusConfig;
use muster_contract::subjects::stream;
use muster_identity::{KeyPair, KeyPairType, Role, creds, jwt};
use muster_simulator::hub::Hub;
use muster_tests::bench::HubKind;
use muster_tests::envelope::Carry;
use muster_tests::guarded::Guarded;
use muster_tests::hostile::hub::{connect, has_mirrors, start_service};
use muster_tests::system::{INGEST, ROLLUP};
use serde_json::json;

use super::load::{self, DEVICES, Fleet, PATIENCE};
use super::muster::{LOOK, received};

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
    std::fs::write(&file, creds::written(&token, &user.seed().unwrap())).unwrap();
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

/// Events per second as on an open hub, and what kind of hub this was.
pub(crate) async fn throughput(fleet: Fleet, reports: usize) -> (f64, HubKind) {
    let hub = Guarded::start();
    let _services = [ROLLUP, INGEST].map(|name| start_service(&hub, name, "10m"));
    let ingest = connect(hub.config(Role::Ingest)).await;
    ingest.converge().await.unwrap();
    let kind = if has_mirrors(&hub).await { HubKind::SecuredWithMirrors } else { HubKind::Secured };
    let publisher = connect(hub.config(Role::Publisher)).await;
    load::publish_desired(&publisher, (0..DEVICES).map(|at| load::desired(fleet, at)).collect()).await;
    let devices = connect(fleet_config(&hub)).await;
    load::publish(&devices, Carry::Everything, load::reports(fleet, 1, DEVICES)).await;
    let questions = Hub::new(connect(hub.config(Role::Operator)).await);
    settled(&questions, DEVICES).await;
    let base = ingest.stream_state(stream::LEDGER).await.unwrap().last_seq;
    let messages = load::reports(fleet, 2, reports);
    let begin = Instant::now();
    let publishing = tokio::spawn(async move { load::publish(&devices, Carry::Everything, messages).await });
    while questions.fleet().await.map_or(0, |view| view.tally.as_of.ledger_seq) < base + reports as u64 {
        assert!(begin.elapsed() < PATIENCE, "the reports are not in after {PATIENCE:?}");
        tokio::time::sleep(LOOK).await;
    }
    let rate = reports as f64 / begin.elapsed().as_secs_f64();
    publishing.await.unwrap();
    settled(&questions, reports + DEVICES).await;
    (rate, kind)
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
