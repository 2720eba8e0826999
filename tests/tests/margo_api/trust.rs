//! The authorities of devices, as a device without a certificate reads them from the listener of people.

use std::io;
use std::net::SocketAddr;

use muster_tests::answer;
use muster_tests::system::System;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::fleet::{GATEWAY, start_gateway};
use crate::pki::{Authority, DOMAIN};

pub(crate) const HOST: &str = "fleet.example.com";
const DISCOVERY: &str = "/.well-known/margo";

type Answer = answer::Answer<Vec<u8>>;

async fn get(addr: SocketAddr, host: &str, path: &str, more: &str) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(addr).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await?;
    Answer::parse(&bytes)
}

/// A gateway behind a proxy that ends TLS, its authority, the address of people, and the answer to the first document.
pub(crate) async fn served() -> (System, Authority, SocketAddr, Answer) {
    let mut system = System::start().await;
    let authority = Authority::create(system.dir(), "authority");
    let public = ["--public-url", &format!("https://{HOST}"), "--trust-bundle-sequence", "12"];
    let [addr, _] = start_gateway(&mut system, &authority, GATEWAY, None, &public);
    let look = async || match get(addr, HOST, DISCOVERY, "").await {
        Ok(answer) if answer.status == 200 => Ok(answer),
        other => Err(format!("{other:?}")),
    };
    let discovery = system.eventually("the gateway serves the document", look).await;
    (system, authority, addr, discovery)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_without_a_certificate_learns_the_authorities_over_https_alone() {
    let (_system, authority, addr, discovery) = served().await;
    let bundle_path = "/.well-known/spiffe/bundle.json";
    let expected = json!({ "trustDomain": DOMAIN, "trustBundleUri": format!("https://{HOST}{bundle_path}") });
    assert_eq!(discovery.json(), expected);
    let bundle = get(addr, HOST, bundle_path, "").await.unwrap();
    assert_eq!((bundle.status, bundle.header("content-type")), (200, Some("application/json")));
    let document: Value = bundle.json();
    let der = CertificateDer::from_pem_file(authority.certificate()).unwrap();
    let held = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &der);
    assert_eq!((&document["keys"][0]["x5c"][0], &document["spiffe_sequence"]), (&json!(held), &json!(12)));
    for (path, answer) in [(DISCOVERY, &discovery), (bundle_path, &bundle)] {
        let tag = format!("If-None-Match: {}\r\n", answer.header("etag").unwrap());
        let again = get(addr, HOST, path, &tag).await.unwrap();
        assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
        let plain = get(addr, &addr.to_string(), path, "").await.unwrap();
        assert_ne!(plain.status, 200, "{path}: this address has no TLS");
    }
}
