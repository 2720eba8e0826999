//! Attacks on the listener of devices: invalid certificates, revoked clients, names of other devices, large bodies and malformed
//! addresses.

use std::time::Duration;

use rcgen::KeyUsagePurpose;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client::Client;
use crate::fleet::{DEVICE, Fleet, WEB, status, status_path};
use crate::pki::{Authority, MANAGER, client_id};

/// Longest wait for the end of a connection: the gateway's own deadlines, and some seconds more.
const DEADLINE: Duration = Duration::from_secs(40);

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_certificate_of_this_manager_ends_in_the_handshake() {
    let fleet = Fleet::start(&[DEVICE]).await;
    let good = fleet.client(DEVICE).await;
    let (authority, own) = (&fleet.authority, client_id("press-1"));
    let foreign = Authority::create(fleet.system.dir(), "foreign");
    let ca = authority.certificate();
    let with = |signed| Client::new(fleet.gateway, &ca, Some(&signed));
    let signed = |name: &str, uris: &[&str]| with(authority.sign(name, uris, |_| ()));
    let clients = [
        ("none", Client::new(fleet.gateway, &ca, None)),
        ("a foreign authority", with(foreign.client("press-1"))),
        ("no name", signed("a", &[])),
        ("two names", signed("b", &[&own, &client_id("press-2")])),
        ("another trust domain", signed("c", &["spiffe://example.com/margo/wfm/main/client/press-1"])),
        ("another manager", signed("d", &["spiffe://example.org/margo/wfm/other/client/press-1"])),
        ("the server's name", signed("e", &[MANAGER])),
        ("a longer name", signed("f", &[&format!("{own}/more")])),
        (
            "one that signs",
            with(authority.sign("g", &[&own], |params| {
                params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
            })),
        ),
        (
            "an expired one",
            with(authority.sign("h", &[&own], |params| {
                params.not_after = rcgen::date_time_ymd(2020, 1, 1);
            })),
        ),
    ];
    for (what, client) in clients {
        let answer = client.ask("GET", "/api/v1/deployments", &[], b"").await;
        assert!(answer.is_err(), "{what}: {answer:?}");
    }
    fleet.manifest(&good, |_| true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_accepted_clients_are_served_and_a_revoked_one_not_once_more() {
    let fleet = Fleet::start(&[DEVICE]).await;
    let client = fleet.client(DEVICE).await;
    fleet.publish(&[(WEB, "1.0.0")]).await;
    let (manifest, _) = fleet.manifest(&client, |manifest| !manifest["bundle"].is_null()).await;
    let body = status(WEB, &manifest["manifestVersion"], "installed");
    let stranger = fleet.authority.client("stranger");
    let stranger = Client::new(fleet.gateway, &fleet.authority.certificate(), Some(&stranger));
    let refused = async |client: &Client| {
        for (method, path) in
            [("GET", "/api/v1/deployments"), ("DELETE", "/api/v1/capabilities/press-1"), ("GET", "/x")]
        {
            let answer = client.ask(method, path, &[], b"").await.unwrap();
            assert_eq!((answer.status, &*answer.problem()), (403, "not-authorized"), "{method} {path}");
        }
        assert_eq!(client.send("POST", &status_path(WEB), &body).await.problem(), "not-authorized");
    };
    refused(&stranger).await;
    let id = client_id("press-1");
    let again = fleet.system.muster(&["enroll", "plant8/press-2", "--spiffe", &id]).await;
    assert!(!again.status.success(), "one certificate is one device unless an operator replaces it");
    assert!(fleet.muster(&["auth", "clients"]).await.contains("accepted"));
    fleet.muster(&["revoke", "--spiffe", &id]).await;
    refused(&client).await;
    let listed = fleet.muster(&["auth", "clients", "--format", "json"]).await;
    assert!(listed.contains("\"revoked\": true") && listed.contains(&id), "{listed}");
    fleet.accept(DEVICE).await;
    assert_eq!(client.send("POST", &status_path(WEB), &body).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_reports_for_another_device() {
    let fleet = Fleet::start(&[DEVICE, "plant8/press-2"]).await;
    let other = fleet.client("plant8/press-2").await;
    fleet.publish(&[(WEB, "1.0.0")]).await;
    let (manifest, _) = fleet.manifest(&other, |manifest| !manifest["bundle"].is_null()).await;
    let mut body = status(WEB, &manifest["manifestVersion"], "installed");
    let (none, foreign) = ((422, "semantic-error"), (403, "not-authorized"));
    for (name, refused) in [
        ("press-1", none),
        ("plant7/press-1", foreign),
        ("press-2/press-1", foreign),
        ("../press-1", foreign),
        ("", none),
    ] {
        body["deviceId"] = json!(name);
        let answer = other.send("POST", &status_path(WEB), &body).await;
        assert_eq!((answer.status, &*answer.problem()), refused, "{name}");
    }
    body["deviceId"] = json!("press-2");
    assert_eq!(other.send("POST", &status_path(WEB), &body).await.status, 201);
    fleet.state("plant8/press-2", WEB, "installed").await;
    let shown = fleet.device(DEVICE, "the other device", |_| true).await;
    assert_eq!(shown["device"]["head"], 0, "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_and_strange_addresses_are_refused_with_a_problem() {
    let fleet = Fleet::start(&[DEVICE]).await;
    let client = fleet.client(DEVICE).await;
    let large = vec![b' '; 1024 * 1024 + 1];
    for (method, path) in [("POST", status_path(WEB)), ("PUT", "/api/v1/capabilities/press-1".to_owned())] {
        let answer = client.ask(method, &path, &[], &large).await.unwrap();
        assert_eq!((answer.status, &*answer.problem()), (413, "about:blank"), "{path}");
    }
    for (method, path, status) in [
        ("GET", "/", 404),
        ("GET", "/api/v1", 404),
        ("GET", "/api/v1/deployments/", 404),
        ("GET", "/api/v1/deployments/../deployments", 404),
        ("GET", "/api/v1/deployments/%2e%2e/%2e%2e", 404),
        ("GET", "/api/v1/deployments/a%00b/sha256:0", 404),
        ("GET", "/api/v1/deployments/%ff/sha256:0", 404),
        ("GET", "/api/v1/bundles/..%2f..%2fetc%2fpasswd", 404),
        ("GET", "/api/v1/bundles/sha256%3A00", 404),
        ("GET", &status_path(WEB), 405),
        ("POST", "/api/v1/deployments", 405),
        ("DELETE", "/api/v1/bundles/sha256:0", 405),
        ("PUT", "/api/v1/capabilities/", 404),
        ("PUT", "/api/v1/capabilities/a//b", 400),
        ("PUT", "/api/v1/capabilities/press-1%2f..%2fpress-2", 403),
        ("PUT", "/api/v1/capabilities/*", 400),
        ("DELETE", "/api/v1/capabilities/press-2", 404),
        ("POST", "/api/v1/deployments/a.b.c/status", 422),
        ("POST", "/api/v1/deployments/%3E/status", 422),
    ] {
        let answer = client.ask(method, path, &[], b"").await.unwrap();
        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
        answer.problem();
    }
    let two = b"POST /api/v1/deployments/a/status HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 4\r\n\
        Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /api/v1/deployments HTTP/1.1\r\nHost: a\r\n\r\n";
    let answer = client.raw(two).await.unwrap();
    assert!(
        answer.status >= 400 && !String::from_utf8_lossy(&answer.body).contains("HTTP/1.1 2"),
        "{answer:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_shakes_hands_is_cut_off_and_delays_nobody() {
    let fleet = Fleet::start(&[DEVICE]).await;
    let good = fleet.client(DEVICE).await;
    let mut slow = Vec::new();
    for _ in 0..50 {
        let mut stream = TcpStream::connect(fleet.gateway).await.unwrap();
        stream.write_all(b"\x16\x03\x01").await.unwrap();
        slow.push(stream);
    }
    fleet.manifest(&good, |_| true).await;
    for mut stream in slow {
        let mut byte = [0];
        let ended = timeout(DEADLINE, stream.read(&mut byte)).await;
        assert!(matches!(ended, Ok(Ok(0) | Err(_))), "the connection ends: {ended:?}");
    }
}
