//! A scripted workload fleet manager, also a wrong one: it serves the given manifests and records the statuses of devices.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use muster_contract::canonical::Digest;
use muster_tests::wait::until;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::pki::Authority;

/// A manager with the served contents and the received statuses.
pub(crate) struct Manager {
    pub(crate) addr: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    contents: HashMap<String, String>,
    polls: usize,
    statuses: Vec<Value>,
}

impl Manager {
    pub(crate) async fn start(authority: &Authority) -> Self {
        let own = authority.server();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from_pem_file(&own.certificate).unwrap()],
                PrivateKeyDer::from_pem_file(&own.key).unwrap(),
            )
            .unwrap();
        let (acceptor, listener) =
            (TlsAcceptor::from(Arc::new(config)), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let (addr, shared) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Shared::default())));
        let of_tasks = shared.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(acceptor.clone(), stream, of_tasks.clone()));
            }
        });
        Self { addr, shared }
    }

    /// Serves a manifest with deployments: id, content, and whether the digest is right. Sizes are always wrong.
    pub(crate) fn serve(&self, version: u64, deployments: &[(&str, &str, bool)]) {
        let mut contents = HashMap::new();
        let mut listed = Vec::new();
        for (id, content, is_true) in deployments {
            let profile = json!({ "type": "compose", "components": [{ "name": content }] });
            let text = json!({ "id": id, "spec": { "deploymentProfile": profile } }).to_string();
            let digest = Digest::of_bytes(if *is_true { text.as_bytes() } else { b"other" });
            let url = format!("/api/v1/deployments/{id}/{digest}");
            listed.push(
                json!({ "deploymentId": id, "digest": digest.to_string(), "url": url, "sizeBytes": 1 }),
            );
            contents.insert(url, text);
        }
        let manifest = json!({ "manifestVersion": version, "bundle": null, "deployments": listed });
        contents.insert("/api/v1/deployments".to_owned(), manifest.to_string());
        self.shared.lock().unwrap().contents = contents;
    }

    /// Waits until a device has reported a state.
    pub(crate) async fn reported(&self, id: &str, state: &str) {
        let is_it = |status: &Value| status["deploymentId"] == id && status["status"]["state"] == state;
        let look = async || self.shared.lock().unwrap().statuses.iter().any(is_it);
        until(&format!("{id} is {state}"), look, |found| *found).await;
    }

    /// Waits for so many more polls.
    pub(crate) async fn polled(&self, count: usize) {
        let before = self.shared.lock().unwrap().polls;
        until("polls", async || self.shared.lock().unwrap().polls, |polls| *polls >= before + count).await;
    }

    /// The number of statuses of a deployment so far.
    pub(crate) fn reports_of(&self, id: &str) -> usize {
        let shared = self.shared.lock().unwrap();
        shared.statuses.iter().filter(|status| status["deploymentId"] == id).count()
    }
}

/// One request and its answer.
async fn answer(acceptor: TlsAcceptor, stream: TcpStream, shared: Arc<Mutex<Shared>>) -> Option<()> {
    let mut stream = BufReader::new(acceptor.accept(stream).await.ok()?);
    let (mut line, mut length, mut held) = (String::new(), 0, String::new());
    stream.read_line(&mut line).await.ok()?;
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).await.ok()?;
        if header.trim().is_empty() {
            break;
        }
        if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if let Some(value) = header.to_ascii_lowercase().strip_prefix("if-none-match:") {
            held = value.trim().to_owned();
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let content = {
        let mut shared = shared.lock().unwrap();
        if path.ends_with("/status") {
            shared.statuses.push(serde_json::from_slice(&body).ok()?);
        }
        shared.polls += usize::from(path == "/api/v1/deployments");
        shared.contents.get(&path).cloned().unwrap_or_default()
    };
    let tag = format!("\"{}\"", Digest::of_bytes(content.as_bytes()));
    let (status, content) =
        if tag == held { ("304 Not Modified", String::new()) } else { ("200 OK", content) };
    let head = format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nETag: {tag}\r\nContent-Length: {}\r\n\r\n",
        content.len()
    );
    stream.write_all(&[head.as_bytes(), content.as_bytes()].concat()).await.ok()?;
    stream.shutdown().await.ok()
}
