//! Credentials: the bus uses a file, a renewed file without a restart, and a private certificate authority.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use muster_bus::{Bus, BusConfig, Link, Outgoing};
use muster_tests::server::{Server, Setup};
use muster_tests::tls::certified;
use muster_tests::wait::soon;
use nkeys::KeyPair;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::connect;

/// An operator's account, as an administrator makes it.
struct Authority {
    account: KeyPair,
    configuration: String,
}

impl Authority {
    fn new() -> Self {
        let (operator, system, account) =
            (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account());
        let endless = json!({ "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
            "conn": -1, "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1 });
        let of_account = |key: &KeyPair, limits: &Value| {
            let nats = json!({ "type": "account", "version": 2, "limits": limits });
            format!("{}: \"{}\"\n", key.public_key(), signed(&operator, &key.public_key(), &nats, None))
        };
        let mut without_streams = endless.clone();
        for limit in ["mem_storage", "disk_storage", "streams", "consumer"] {
            without_streams[limit] = json!(0);
        }
        let configuration = format!(
            "operator: \"{}\"\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{\n{}{}}}\n",
            signed(&operator, &operator.public_key(), &json!({ "type": "operator", "version": 2 }), None),
            system.public_key(),
            of_account(&system, &without_streams),
            of_account(&account, &endless),
        );
        Self { account, configuration }
    }

    /// Writes a new user's credentials file.
    fn enrol(&self, file: &Path, valid_for: Option<Duration>) {
        let user = KeyPair::new_user();
        let nats = json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {} });
        let jwt = signed(&self.account, &user.public_key(), &nats, valid_for);
        let text = format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            user.seed().unwrap()
        );
        fs::write(file, text).unwrap();
    }
}

fn signed(issuer: &KeyPair, subject: &str, nats: &Value, valid_for: Option<Duration>) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut claims = json!({ "jti": subject, "iat": now.as_secs(), "iss": issuer.public_key(), "name": "test",
        "sub": subject, "nats": nats });
    if let Some(valid_for) = valid_for {
        claims["exp"] = json!((now + valid_for).as_secs());
    }
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", part(&json!({ "typ": "JWT", "alg": "ed25519-nkey" })), part(&claims));
    let signature = URL_SAFE_NO_PAD.encode(issuer.sign(text.as_bytes()).unwrap());
    format!("{text}.{signature}")
}

#[tokio::test]
async fn a_private_authority_is_trusted_where_it_is_given_and_only_there() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, more) = certified(folder.path());
    let server = Server::start_with(Setup { more, ..Setup::default() });
    let url = format!("tls://127.0.0.1:{}", server.port());
    let trusting = BusConfig { url: url.clone(), tls_ca: Some(authority), ..server.config("test") };
    connect(trusting).await.converge().await.unwrap();

    let doubting = BusConfig { url, ..server.config("test") };
    let stop = CancellationToken::new();
    let refused = tokio::time::timeout(Duration::from_secs(1), Bus::connect(doubting, &stop)).await;
    assert!(refused.is_err(), "connected to a server that nobody vouches for");
}

#[tokio::test]
async fn a_credentials_file_is_used_and_a_renewed_one_without_a_restart() {
    let authority = Authority::new();
    let server = Server::start_with(Setup { more: authority.configuration.clone(), ..Setup::default() });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("service.creds");
    authority.enrol(&file, Some(Duration::from_secs(2)));
    let bus = connect(BusConfig { creds: Some(file.clone()), ..server.config("test") }).await;
    bus.converge().await.unwrap();

    // The server ends the connection when the first credentials expire.
    authority.enrol(&file, None);
    let mut link = bus.link();
    let renewed = |link: &Link| matches!(link, Link::Up { since_count: 2.. });
    soon("a connection with the renewed credentials", link.wait_for(renewed)).await.unwrap();
    bus.publish(Outgoing::new("muster.report.plant7.press-4", "{}")).await.unwrap();
}
