//! Posts one body to an https address. It connects only to addresses that it has judged itself, follows no redirect, and reads a
//! bounded answer. A name that leads to a private address is refused unless the settings allow its host.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::Request;
use hyper::header::{HOST, HeaderMap, RETRY_AFTER, USER_AGENT};
use hyper_util::rt::TokioIo;
use muster_contract::WebhookUrl;
use muster_service::version::VERSION;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use crate::address::is_public;

/// Addresses of one host that are tried.
const ADDRESSES_MAX: usize = 4;

/// Posts to https addresses. Clones share everything.
#[derive(Clone)]
pub struct Client {
    tls: TlsConnector,
    allowed: Arc<BTreeSet<String>>,
    agent: &'static str,
}

/// The answer of a receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its HTTP status.
    pub status: u16,
    /// Seconds of its `Retry-After`.
    pub retry_after: Option<u64>,
    /// Its body; empty unless the request reads it.
    pub body: Bytes,
}

/// Why a client cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A file cannot be read.
    #[error("cannot read {file}")]
    Read {
        /// The file.
        file: String,
        /// The reason.
        #[source]
        source: io::Error,
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

/// Why a receiver gave no answer. The texts name its host alone: a path may be a secret.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// The host has no public address, and is not allowed.
    #[error("{0} has a private address; --webhook-allow {0} allows it")]
    PrivateAddress(String),
    /// The host cannot be reached.
    #[error("cannot connect to {host}")]
    Connect {
        /// The host.
        host: String,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The host can have no certificate.
    #[error("{0} is not a host name")]
    ServerName(String),
    /// The connection broke, or the answer is no HTTP.
    #[error("the request failed")]
    Http(#[from] hyper::Error),
    /// A header cannot be sent.
    #[error("cannot make the request")]
    Request(#[from] hyper::http::Error),
    /// The body of the answer is not read.
    #[error("the answer is cut off or has more than {0} bytes")]
    Answer(usize),
}

impl Client {
    /// A client that trusts the authorities of a file, or of the system, and may reach private addresses of the `allowed` hosts
    /// (HOST or HOST:PORT). `agent` is the program's name.
    ///
    /// # Errors
    /// The authorities cannot be read.
    pub fn new(
        agent: &'static str,
        authorities_file: Option<&Path>,
        allowed: BTreeSet<String>,
    ) -> Result<Self, SetupError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(authorities(authorities_file)?)
            .with_no_client_auth();
        Ok(Self { tls: TlsConnector::from(Arc::new(tls)), allowed: Arc::new(allowed), agent })
    }

    /// Posts a body with these headers. The answer's body is read up to `answer_bytes_max`; with 0 it is not read at all.
    ///
    /// # Errors
    /// There is no answer, or its body is too long.
    pub async fn post(
        &self,
        url: &WebhookUrl,
        headers: &[(&'static str, String)],
        body: Bytes,
        answer_bytes_max: usize,
    ) -> Result<Answer, PostError> {
        let (host, tcp) = (url.host().to_owned(), self.connect(url).await?);
        let name = ServerName::try_from(host.clone()).map_err(|_| PostError::ServerName(host.clone()))?;
        let tls = self.tls.connect(name, tcp).await.map_err(|source| PostError::Connect { host, source })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls)).await?;
        let request = self.request(url, headers, body)?;
        let answer = async {
            let response = sender.send_request(request).await?;
            let (status, retry_after) = (response.status().as_u16(), retry_after(response.headers()));
            if answer_bytes_max == 0 {
                return Ok(Answer { status, retry_after, body: Bytes::new() });
            }
            let body = Limited::new(response.into_body(), answer_bytes_max).collect().await;
            let body = body.map_err(|_| PostError::Answer(answer_bytes_max))?.to_bytes();
            Ok(Answer { status, retry_after, body })
        };
        tokio::pin!(answer, connection);
        // The connection carries the request, and may end before the answer is read.
        tokio::select! {
            answer = &mut answer => answer,
            ended = &mut connection => { ended?; answer.await }
        }
    }

    /// Refuses a host that has only private addresses, unless it is allowed. A host that has no address yet may get one.
    ///
    /// # Errors
    /// The host has a private address.
    pub async fn check(&self, url: &WebhookUrl) -> Result<(), PostError> {
        match self.addresses(url).await {
            Err(refused @ PostError::PrivateAddress(_)) => Err(refused),
            _ => Ok(()),
        }
    }

    /// The addresses of a host that may be reached.
    async fn addresses(&self, url: &WebhookUrl) -> Result<Vec<SocketAddr>, PostError> {
        let (host, port) = (url.host(), url.port());
        let found: Vec<SocketAddr> = match host.parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, port)],
            Err(_) => {
                tokio::net::lookup_host((host, port)).await.map_err(|error| failed(url, error))?.collect()
            }
        };
        let is_allowed = self.allowed.contains(host) || self.allowed.contains(&url.authority());
        let is_usable = |address: &SocketAddr| is_allowed || is_public(address.ip());
        let usable: Vec<_> = found.iter().copied().filter(is_usable).take(ADDRESSES_MAX).collect();
        if usable.is_empty() && !found.is_empty() {
            return Err(PostError::PrivateAddress(host.to_owned()));
        }
        Ok(usable)
    }

    /// Connects to an allowed address of a host. The name is resolved once, so no later answer leads elsewhere.
    async fn connect(&self, url: &WebhookUrl) -> Result<TcpStream, PostError> {
        let mut error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in self.addresses(url).await? {
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(refused) => error = refused,
            }
        }
        Err(failed(url, error))
    }

    fn request(
        &self,
        url: &WebhookUrl,
        headers: &[(&'static str, String)],
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, PostError> {
        let request = Request::post(&*url.path())
            .header(HOST, url.authority())
            .header(USER_AGENT, format!("{}/{VERSION}", self.agent));
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, value));
        Ok(request.body(Full::new(body))?)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("allowed", &self.allowed).finish_non_exhaustive()
    }
}

fn failed(url: &WebhookUrl, source: io::Error) -> PostError {
    PostError::Connect { host: url.host().to_owned(), source }
}

fn retry_after(headers: &HeaderMap) -> Option<u64> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()
}

/// The certificates of authorities: those of a file, or of the system.
fn authorities(file: Option<&Path>) -> Result<RootCertStore, SetupError> {
    let mut roots = RootCertStore::empty();
    let (from, certificates) = match file {
        Some(file) => {
            let from = file.display().to_string();
            let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            let unread = |error: rustls::pki_types::pem::Error| SetupError::Read {
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
    if roots.is_empty() { Err(SetupError::NoAuthority { from }) } else { Ok(roots) }
}
