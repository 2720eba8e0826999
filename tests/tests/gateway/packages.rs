//! Packages over HTTP: stored, listed, fetched by a device's store, refused and removed, and who may do it on a secured hub.

use std::net::SocketAddr;

use muster_agent::package::{PackageSettings, PackageSource, PackageStore};
use muster_bus::{Bus, Role};
use muster_tests::oci::packed;
use muster_tests::system::System;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::client::{Answer, get, send_bytes};
use super::login::{KEY, LoginStage, ask, key_of};
use super::served;

const COMPOSE: &str = "services: {web: {image: web}}\n";
const NAME: &str = "plant7/web-1.tar.gz";

/// An archive with a mark.
fn archive(mark: &str) -> Vec<u8> {
    packed(&[("compose.yaml", COMPOSE), ("mark", mark)])
}

/// Sends content to the address of a package; `headers` end their lines.
async fn request(addr: SocketAddr, method: &str, name: &str, headers: &str, content: &[u8]) -> Answer {
    let head = format!(
        "{method} /api/v1/packages/{name} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n",
        content.len()
    );
    send_bytes(addr, &[head.as_bytes(), content].concat()).await.unwrap()
}

async fn put(addr: SocketAddr, name: &str, content: &[u8]) -> Answer {
    request(addr, "PUT", name, "", content).await
}

async fn listed(addr: SocketAddr) -> Vec<Value> {
    let list = get(addr, "/api/v1/packages").await.unwrap().json();
    list["packages"].as_array().cloned().unwrap_or_default()
}

/// The Compose file that a device's store fetches from the address of a package.
async fn fetched(system: &System, put: &Value) -> String {
    let digest = put["digest"].as_str().unwrap().parse().unwrap();
    let source = PackageSource::archive(put["address"].as_str().unwrap(), Some(digest)).unwrap();
    let bus = Bus::connect(system.server.config("device"), &CancellationToken::new()).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let connected = watch::channel(Some(bus)).1;
    let store = PackageStore::with_hub(dir.path(), PackageSettings::default(), connected);
    let folder = store.ensure_unpacked(&source, None, dir.path()).await.unwrap();
    std::fs::read_to_string(folder.join("compose.yaml")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_package_put_over_http_is_fetched_by_devices_and_removed() {
    let (system, addr) = served().await;
    let first = put(addr, NAME, &archive("one")).await;
    assert_eq!((first.status, &first.json()["changed"]), (201, &json!(true)), "{first:?}");
    let again = put(addr, NAME, &archive("one")).await;
    assert_eq!((again.status, &again.json()["changed"]), (200, &json!(false)), "{again:?}");
    // Longer than any other body may be, in several chunks.
    let long: String =
        (0..400_000_u32).map(|nth| format!("{:08x}", nth.wrapping_mul(2_654_435_761))).collect();
    let second = put(addr, NAME, &archive(&long)).await;
    assert_eq!(second.status, 201, "{second:?}");
    let (list, second) = (listed(addr).await, second.json());
    assert_eq!((list.len(), &list[0]["digest"], &list[0]["name"]), (1, &second["digest"], &json!(NAME)));
    assert!(second["bytes"].as_u64().unwrap() > 1024 * 1024, "{second}");
    assert_eq!(fetched(&system, &second).await, COMPOSE);

    let removed = request(addr, "DELETE", &NAME.replace('/', "%2F"), "", b"").await;
    assert_eq!((removed.status, removed.json()), (200, json!({ "removed": NAME })));
    assert_eq!(listed(addr).await.len(), 0);
    let missing = request(addr, "DELETE", NAME, "", b"").await;
    assert!(missing.status == 404 && missing.body.contains(NAME), "{missing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_content_names_and_headers_of_a_package_change_nothing() {
    let (_system, addr) = served().await;
    let archive = archive("one");
    for (name, headers, content, status, words) in [
        ("web.zip", "", &b"PK"[..], 400, "no gzip-compressed tar archive"),
        ("web.tar.gz.sig", "", b"", 400, "1 to 4096 are allowed"),
        ("a%20b", "", &archive, 400, "letters, digits"),
        ("a//b", "", &archive, 400, "no empty part"),
        ("web.tar.gz?name=b", "", &archive, 400, "query"),
        ("a/../b", "", &archive, 400, "no address can have"),
        ("web.tar.gz", "If-Match: \"1\"\r\n", &archive, 412, "If-Match"),
        ("web.tar.gz", "If-None-Match: *\r\n", &archive, 412, "If-None-Match"),
        ("web.tar.gz", "Content-Range: bytes 0-9/99\r\n", &archive, 400, "Content-Range"),
        ("web.tar.gz", "Idempotency-Key: k\r\n", &archive, 400, "Idempotency-Key"),
        ("web.tar.gz", "Origin: http://evil.example\r\n", &archive, 403, "page of this gateway"),
    ] {
        let refused = request(addr, "PUT", name, headers, content).await;
        assert!(refused.status == status && refused.body.contains(words), "{name}: {refused:?}");
    }
    let mut endless = archive;
    endless.resize(64 * 1024 * 1024 + 1, 0);
    let refused = put(addr, "web.tar.gz", &endless).await;
    assert_eq!(refused.status, 413, "{}", refused.body);
    assert_eq!(listed(addr).await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_alone_change_packages_by_a_gateway_that_may() {
    let mut stage = LoginStage::start().await;
    let packager = stage.hub.creds(Role::Packager).display().to_string();
    let addr = stage.start_gateway_with(KEY, &["--packages-creds", &packager]).await;
    let [operator, approver, viewer] = [Role::Operator, Role::Approver, Role::Viewer]
        .map(|role| format!("Authorization: Bearer {}\r\n", stage.token(&stage.hub.creds(role)).unwrap()));
    for method in ["PUT", "DELETE"] {
        let refused = request(stage.addr, method, NAME, &operator, b"").await;
        assert!(refused.status == 409 && refused.body.contains("--packages-creds"), "{refused:?}");
        for (headers, status) in [("", 401), (&viewer, 403), (&approver, 403)] {
            let refused = request(addr, method, NAME, headers, &archive("one")).await;
            assert_eq!(refused.status, status, "{refused:?}");
        }
    }
    let stored = request(addr, "PUT", NAME, &operator, &archive("one")).await;
    assert_eq!(stored.status, 201, "{stored:?}");
    let token = operator.trim().rsplit(' ').next().unwrap();
    let list = ask(stage.addr, "GET", "/api/v1/packages", token).await.json();
    let by = &list["packages"][0]["putBy"];
    assert_eq!(*by, json!({ "key": key_of(&stage.hub.creds(Role::Operator)), "role": "operator" }));
    let removed = request(addr, "DELETE", NAME, &operator, b"").await;
    assert_eq!(removed.status, 200, "{removed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_packager_ends_packages_alone_at_a_gateway() {
    let mut stage = LoginStage::start().await;
    let packager = stage.hub.creds(Role::Packager);
    stage.hub.decide(&["revoke", "--key", &key_of(&packager)]);
    let addr = stage.start_gateway_with(KEY, &["--packages-creds", &packager.display().to_string()]).await;
    let token = stage.token(&stage.hub.creds(Role::Operator)).unwrap();
    let operator = format!("Authorization: Bearer {token}\r\n");
    let refused = request(addr, "PUT", NAME, &operator, &archive("one")).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("2")), "{refused:?}");
    assert_eq!(ask(addr, "GET", "/api/v1/packages", &token).await.status, 200);
}
