//! A receiver of webhooks: an https server of the tests' own, whose answer depends on the path.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_tests::tls::certified;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

/// The path that never answers.
pub(super) const SLOW: &str = "/slow";
/// The path whose answer leads elsewhere.
pub(super) const REDIRECT: &str = "/redirect";
/// The destination of the redirect.
pub(super) const ELSEWHERE: &str = "/elsewhere";
/// The path that fails.
pub(super) const FAILS: &str = "/fails";
/// The path that answers late.
pub(super) const LATE: &str = "/late";
/// The delay of its answer.
const LATE_AFTER: Duration = Duration::from_secs(4);
/// The path that wants no more events.
pub(super) const GONE: &str = "/gone";

/// One request.
#[derive(Debug, Clone)]
pub(super) struct Received {
    pub(super) path: String,
    head: String,
    pub(super) body: String,
}

/// The server with its requests.
pub(super) struct Receiver {
    port: u16,
    authority: PathBuf,
    state: Arc<State>,
}

/// The state that connections share.
#[derive(Default)]
struct State {
    received: Mutex<Vec<Received>>,
    /// Requests that wait for their answers, now and at most.
    waiting: AtomicUsize,
    waiting_max: AtomicUsize,
}

impl Received {
    /// The value of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The event.
    pub(super) fn event(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// The id of the event.
    pub(super) fn id(&self) -> String {
        self.event()["id"].as_str().unwrap().to_owned()
    }
}

impl Receiver {
    /// Starts it with a certificate for localhost; files are written into a folder of its own below `dir`.
    pub(super) async fn start(dir: &Path) -> Self {
        let folder = dir.join("receiver");
        std::fs::create_dir_all(&folder).unwrap();
        let (authority, _) = certified(&folder);
        Self::serve_from(&folder, authority).await
    }

    /// Starts another one with the same certificate, at another port.
    pub(super) async fn another(&self) -> Self {
        Self::serve_from(self.authority.parent().unwrap(), self.authority.clone()).await
    }

    async fn serve_from(folder: &Path, authority: PathBuf) -> Self {
        let certificate = CertificateDer::from_pem_file(folder.join("cert.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(folder.join("key.pem")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let (acceptor, listener) =
            (TlsAcceptor::from(Arc::new(config)), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let port = listener.local_addr().unwrap().port();
        let state = Arc::<State>::default();
        let kept = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                tokio::spawn(serve(acceptor.clone(), tcp, Arc::clone(&kept)));
            }
        });
        Self { port, authority, state }
    }

    /// The certificate of its authority.
    pub(super) fn authority(&self) -> &str {
        self.authority.to_str().unwrap()
    }

    /// The address of a path.
    pub(super) fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.port)
    }

    /// The same by the number of its address: another host.
    pub(super) fn url_by_address(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.port)
    }

    /// All requests.
    pub(super) fn all(&self) -> Vec<Received> {
        self.state.received.lock().unwrap().clone()
    }

    /// The most requests that waited for their answers at once.
    pub(super) fn waiting_max(&self) -> usize {
        self.state.waiting_max.load(Ordering::SeqCst)
    }

    /// The requests to a path.
    pub(super) fn at(&self, path: &str) -> Vec<Received> {
        self.all().into_iter().filter(|received| received.path == path).collect()
    }

    /// The ids of different events at a path.
    pub(super) fn ids_at(&self, path: &str) -> BTreeSet<String> {
        self.at(path).iter().map(Received::id).collect()
    }
}

async fn serve(acceptor: TlsAcceptor, tcp: TcpStream, state: Arc<State>) {
    let Ok(mut stream) = acceptor.accept(tcp).await else { return };
    let (mut bytes, mut part) = (Vec::new(), vec![0; 16 * 1024]);
    let request = loop {
        if let Some(request) = whole(&bytes) {
            break request;
        }
        match stream.read(&mut part).await {
            Ok(read @ 1..) => bytes.extend_from_slice(&part[..read]),
            _ => return,
        }
    };
    let path = request.path.clone();
    state.received.lock().unwrap().push(request);
    let answer = match path.as_str() {
        SLOW => {
            // The client gives up, or dies.
            let _ = stream.read(&mut part).await;
            return;
        }
        LATE => {
            let waiting = state.waiting.fetch_add(1, Ordering::SeqCst) + 1;
            state.waiting_max.fetch_max(waiting, Ordering::SeqCst);
            sleep(LATE_AFTER).await;
            state.waiting.fetch_sub(1, Ordering::SeqCst);
            "204 No Content".to_owned()
        }
        REDIRECT => format!("302 Found\r\nLocation: {ELSEWHERE}"),
        FAILS => "500 Internal Server Error".to_owned(),
        GONE => "410 Gone".to_owned(),
        _ => "204 No Content".to_owned(),
    };
    let answer = format!("HTTP/1.1 {answer}\r\nConnection: close\r\n\r\n");
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// The request, once all of it is there.
fn whole(bytes: &[u8]) -> Option<Received> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let path = head.split(' ').nth(1)?.to_owned();
    let request = Received { path, head: head.to_owned(), body: body.to_owned() };
    let length: usize = request.header("content-length")?.parse().ok()?;
    (body.len() >= length).then_some(request)
}
