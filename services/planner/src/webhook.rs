//! Posts the question of a check to an https address. It connects only to addresses that it has judged itself, follows no
//! redirect, and reads a bounded answer. A name that leads to a private address is refused unless the settings allow its host.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use muster_contract::rollout::{CHECK_ANSWER_BYTES_MAX, CheckUrl};
use muster_service::version::VERSION;
use ring::hmac;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use self::address::is_public;

mod address;

/// The header with the signature of the question: `sha256=` and the HMAC-SHA-256 of the body, in hex.
const SIGNATURE: &str = "muster-signature";
/// Addresses of one host that are tried.
const ADDRESSES_MAX: usize = 4;
/// Shortest secret.
const SECRET_BYTES_MIN: usize = 16;

/// The client of webhooks.
#[derive(Debug, Clone)]
pub struct Webhooks(Option<Arc<Client>>);

struct Client {
    tls: TlsConnector,
    secret: hmac::Key,
    allowed: BTreeSet<String>,
}

/// The settings of webhooks.
#[derive(Debug, Clone, Default)]
pub struct WebhookConfig {
    /// File of the secret that signs questions. Without it no webhook is asked.
    pub secret: Option<std::path::PathBuf>,
    /// File of certificates of authorities, in place of those of the system.
    pub ca: Option<std::path::PathBuf>,
    /// Hosts that may have private addresses.
    pub allowed: BTreeSet<String>,
}

/// Why webhooks cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WebhookSetupError {
    /// A file cannot be read.
    #[error("cannot read {file}")]
    Read {
        /// The file.
        file: String,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The secret is too short.
    #[error("the secret in {file} has fewer than {SECRET_BYTES_MIN} bytes")]
    ShortSecret {
        /// The file.
        file: String,
    },
    /// No usable certificate of an authority.
    #[error("{from} has no certificate of an authority")]
    NoAuthority {
        /// The file, or the system.
        from: String,
    },
    /// TLS cannot be set up.
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
}

/// Why a webhook gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WebhookError {
    #[error("the planner has no --webhook-secret, so it asks no webhook")]
    NoSecret,
    #[error("{0} has a private address; --webhook-allow {0} allows it")]
    PrivateAddress(String),
    #[error("cannot connect to {host}")]
    Connect {
        host: String,
        #[source]
        source: io::Error,
    },
    #[error("{0} is no name of a server")]
    ServerName(String),
    #[error("the request failed")]
    Http(#[from] hyper::Error),
    #[error("cannot make the request")]
    Request(#[from] hyper::http::Error),
    #[error("the answer has status {0}, not 200; redirects are not followed")]
    Status(u16),
    #[error("the answer is cut off or has more than {CHECK_ANSWER_BYTES_MAX} bytes")]
    Answer,
}

impl Webhooks {
    /// A client by the settings.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn new(config: WebhookConfig) -> Result<Self, WebhookSetupError> {
        let WebhookConfig { secret, ca, allowed } = config;
        let Some(file) = secret else { return Ok(Self(None)) };
        let shown = file.display().to_string();
        let secret =
            std::fs::read(&file).map_err(|source| WebhookSetupError::Read { file: shown.clone(), source })?;
        let secret = secret.trim_ascii();
        if secret.len() < SECRET_BYTES_MIN {
            return Err(WebhookSetupError::ShortSecret { file: shown });
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(authorities(ca.as_deref())?)
            .with_no_client_auth();
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        Ok(Self(Some(Arc::new(Client { tls: TlsConnector::from(Arc::new(tls)), secret, allowed }))))
    }

    /// Posts a question; the body of the answer.
    ///
    /// # Errors
    /// There is no whole answer with status 200.
    pub(crate) async fn post(&self, url: &CheckUrl, question: Bytes) -> Result<Bytes, WebhookError> {
        let client = self.0.as_ref().ok_or(WebhookError::NoSecret)?;
        let (host, tcp) = (url.host().to_owned(), client.connect(url).await?);
        let name = ServerName::try_from(host.clone()).map_err(|_| WebhookError::ServerName(host.clone()))?;
        let tls =
            client.tls.connect(name, tcp).await.map_err(|source| WebhookError::Connect { host, source })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls)).await?;
        let request = client.request(url, question)?;
        let answer = async {
            let response = sender.send_request(request).await?;
            if response.status() != StatusCode::OK {
                return Err(WebhookError::Status(response.status().as_u16()));
            }
            let body = Limited::new(response.into_body(), CHECK_ANSWER_BYTES_MAX).collect().await;
            body.map(|body| body.to_bytes()).map_err(|_| WebhookError::Answer)
        };
        tokio::pin!(answer, connection);
        // The connection carries the request, and may end before the answer is taken.
        tokio::select! {
            answer = &mut answer => answer,
            ended = &mut connection => { ended?; answer.await }
        }
    }
}

impl Client {
    /// Connects to an allowed address of a host. The name is resolved once, so no later answer leads elsewhere.
    async fn connect(&self, url: &CheckUrl) -> Result<TcpStream, WebhookError> {
        let (host, port) = (url.host(), url.port());
        let failed = |source| WebhookError::Connect { host: host.to_owned(), source };
        let addresses: Vec<SocketAddr> = match host.parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, port)],
            Err(_) => tokio::net::lookup_host((host, port)).await.map_err(failed)?.collect(),
        };
        let is_allowed = self.allowed.contains(host) || self.allowed.contains(&url.authority());
        let usable: Vec<_> =
            addresses.iter().filter(|address| is_allowed || is_public(address.ip())).collect();
        if usable.is_empty() && !addresses.is_empty() {
            return Err(WebhookError::PrivateAddress(host.to_owned()));
        }
        let mut error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in usable.into_iter().take(ADDRESSES_MAX) {
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(refused) => error = refused,
            }
        }
        Err(failed(error))
    }

    fn request(&self, url: &CheckUrl, question: Bytes) -> Result<Request<Full<Bytes>>, WebhookError> {
        let signature = hmac::sign(&self.secret, &question);
        let mut text = "sha256=".to_owned();
        for byte in signature.as_ref() {
            let _ = write!(text, "{byte:02x}");
        }
        let request = Request::post(&*url.path())
            .header(HOST, url.authority())
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, format!("muster-planner/{VERSION}"))
            .header(SIGNATURE, text);
        Ok(request.body(Full::new(question))?)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("allowed", &self.allowed).finish_non_exhaustive()
    }
}

/// The certificates of authorities: those of a file, or of the system.
fn authorities(file: Option<&Path>) -> Result<RootCertStore, WebhookSetupError> {
    let mut roots = RootCertStore::empty();
    let (from, certificates) = match file {
        Some(file) => {
            let from = file.display().to_string();
            let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            let unread = |error: rustls::pki_types::pem::Error| WebhookSetupError::Read {
                file: from.clone(),
                source: io::Error::other(error.to_string()),
            };
            let certificates = read.map_err(unread)?;
            (from, certificates)
        }
        None => ("the system".to_owned(), rustls_native_certs::load_native_certs().certs),
    };
    // One certificate that cannot be used does not take the others away.
    roots.add_parsable_certificates(certificates);
    if roots.is_empty() { Err(WebhookSetupError::NoAuthority { from }) } else { Ok(roots) }
}

#[cfg(test)]
mod tests;
