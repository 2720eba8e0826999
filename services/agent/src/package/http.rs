//! The HTTP client of fetching: small documents into memory, archives into a file. A transfer that ended early goes on where
//! it ended. Redirects never leave TLS, and take no credentials to another host.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_contract::canonical::Digest;
use tokio::time::Instant;
use ureq::http::header::{ACCEPT, AUTHORIZATION, CONTENT_RANGE, ETAG, IF_RANGE, RANGE};
use ureq::http::{Response, StatusCode};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use super::error::PackageError;
use super::progress::FetchControl;
use super::settings::{PACKAGE_BYTES_MAX, PackageSettings};
use super::source::shown;
use crate::relay::budget::Rate;

/// Time limit of a connection, handshake included.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);
/// Longest silence of a server within an answer.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// Redirects that are followed.
const REDIRECTS_MAX: u32 = 5;
/// Bytes that are read at once; the rate limit pauses after each.
const CHUNK_BYTES: usize = 16 * 1024;
/// Time between two log lines about one transfer.
pub(super) const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

const _: () = assert!(SILENCE_LIMIT.as_secs() >= CONNECT_LIMIT.as_secs());

/// The client.
#[derive(Debug)]
pub(super) struct HttpClient {
    /// Refuses everything but https.
    strict: Agent,
    /// For servers on this device; follows no redirect, which could lead to a server without TLS elsewhere.
    local: Agent,
    rate: Option<Rate>,
}

/// A file to download.
#[derive(Debug, Clone)]
pub(super) struct Download {
    /// The URL of the file.
    pub(super) url: String,
    /// The `Authorization` header.
    pub(super) authorization: Option<String>,
    /// Its size, if that is known before.
    pub(super) bytes: Option<u64>,
    /// The digest that it must have; the caller verifies it.
    pub(super) digest: Option<Digest>,
}

/// A request for a small document.
#[derive(Debug, Clone, Copy)]
pub(super) struct Get<'a> {
    /// The URL of the file.
    pub(super) url: &'a str,
    /// The `Accept` header.
    pub(super) accept: &'a str,
    /// The `Authorization` header.
    pub(super) authorization: Option<&'a str>,
    /// Most bytes of the document.
    pub(super) max: u64,
}

impl HttpClient {
    /// A client that trusts the authorities of the system and of the settings.
    ///
    /// # Errors
    /// The file of authorities cannot be used.
    pub(super) fn new(settings: &PackageSettings) -> Result<Self, PackageError> {
        let roots = RootCerts::Specific(Arc::new(authorities(settings.ca.as_deref())?));
        let agent = |https_only, redirects| {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let tls =
                TlsConfig::builder().root_certs(roots.clone()).unversioned_rustls_crypto_provider(provider);
            let config = Agent::config_builder()
                .https_only(https_only)
                .http_status_as_error(false)
                .max_redirects(redirects)
                .timeout_resolve(Some(CONNECT_LIMIT))
                .timeout_connect(Some(CONNECT_LIMIT))
                .timeout_per_read(Some(SILENCE_LIMIT))
                .timeout_recv_response(Some(SILENCE_LIMIT))
                .user_agent(concat!("muster-agent/", env!("CARGO_PKG_VERSION")))
                .tls_config(tls.build());
            config.build().new_agent()
        };
        Ok(Self { strict: agent(true, REDIRECTS_MAX), local: agent(false, 0), rate: settings.rate })
    }

    /// Gets a document, whatever its status is.
    pub(super) fn get(&self, get: Get<'_>) -> Result<(Response<()>, Vec<u8>), PackageError> {
        let mut request = self.agent(get.url).get(get.url).header(ACCEPT, get.accept);
        if let Some(authorization) = get.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let (head, mut body) = request.call().map_err(|error| unreachable(get.url, error))?.into_parts();
        let body = body.with_config().limit(get.max).read_to_vec().map_err(|error| match error {
            ureq::Error::BodyExceedsLimit(max) => PackageError::Large { address: shown(get.url), max },
            error => unreachable(get.url, error),
        })?;
        Ok((Response::from_parts(head, ()), body))
    }

    /// Downloads a file to `part`, from where an earlier transfer of it ended.
    ///
    /// # Errors
    /// The transfer ended early; what came is kept for the next one.
    pub(super) fn download(
        &self,
        download: &Download,
        part: &Path,
        control: &FetchControl,
    ) -> Result<(), PackageError> {
        let written = |source| PackageError::Write { path: part.to_owned(), source };
        let mut file = File::options().create(true).append(true).open(part).map_err(written)?;
        let have = file.seek(SeekFrom::End(0)).map_err(written)?;
        if download.bytes.is_some_and(|bytes| have >= bytes) {
            return Ok(());
        }
        let answer = self.ask(download, part, have)?;
        let is_rest = answer.status() == StatusCode::PARTIAL_CONTENT && starts_at(&answer, have);
        if !is_rest {
            require_success(&answer, &download.url)?;
            file.set_len(0).map_err(written)?;
        }
        store_etag(part, &answer);
        let mut transfer = Transfer::start(
            download,
            if is_rest { have } else { 0 },
            answer.body().content_length(),
            control,
        )?;
        let mut body = answer.into_body().into_reader();
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            if control.stop.is_cancelled() {
                return Err(PackageError::Cancelled);
            }
            let read = body.read(&mut chunk).map_err(|error| unreachable(&download.url, error))?;
            if read == 0 {
                return transfer.ended();
            }
            file.write_all(&chunk[..read]).map_err(written)?;
            transfer.advance(read)?;
            if let Some(rate) = self.rate {
                std::thread::sleep(rate.time_of(read as u64));
            }
        }
    }

    fn ask(&self, download: &Download, part: &Path, have: u64) -> Result<Response<Body>, PackageError> {
        let mut request = self.agent(&download.url).get(&download.url);
        if let Some(authorization) = &download.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        // Without a digest, only the server's own mark tells that the rest belongs to what is here.
        let mark = fs::read_to_string(etag_path(part)).ok();
        if have > 0 && (download.digest.is_some() || mark.is_some()) {
            request = request.header(RANGE, format!("bytes={have}-"));
            if let Some(mark) = mark {
                request = request.header(IF_RANGE, mark);
            }
        }
        let answer = request.call().map_err(|error| unreachable(&download.url, error))?;
        if answer.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            // The part is no beginning of that file: the next attempt begins anew.
            let _ = fs::remove_file(part);
        }
        Ok(answer)
    }

    fn agent(&self, url: &str) -> &Agent {
        if url.starts_with("http://") { &self.local } else { &self.strict }
    }
}

/// A transfer that runs.
struct Transfer<'a> {
    control: &'a FetchControl,
    address: String,
    have: u64,
    bytes: Option<u64>,
    logged_at: Instant,
}

impl<'a> Transfer<'a> {
    fn start(
        download: &Download,
        have: u64,
        rest: Option<u64>,
        control: &'a FetchControl,
    ) -> Result<Self, PackageError> {
        let bytes = download.bytes.or_else(|| rest.map(|rest| have.saturating_add(rest)));
        let (address, logged_at) = (shown(&download.url), Instant::now());
        let mut transfer = Self { control, address, have, bytes, logged_at };
        if bytes.is_some_and(|bytes| bytes > PACKAGE_BYTES_MAX) {
            return Err(PackageError::large(&transfer.address));
        }
        transfer.advance(0)?;
        Ok(transfer)
    }

    fn advance(&mut self, read: usize) -> Result<(), PackageError> {
        self.have += read as u64;
        if self.have > self.bytes.unwrap_or(PACKAGE_BYTES_MAX).min(PACKAGE_BYTES_MAX) {
            return Err(PackageError::large(&self.address));
        }
        self.control.advance(self.have, self.bytes);
        if self.logged_at.elapsed() >= PROGRESS_INTERVAL {
            self.logged_at = Instant::now();
            let Self { address, have, bytes, .. } = self;
            tracing::info!(package = address, bytes = have, total = bytes, "fetching a package");
        }
        Ok(())
    }

    fn ended(&self) -> Result<(), PackageError> {
        match self.bytes {
            Some(bytes) if self.have < bytes => {
                let early = format!("the server ended after {} of {bytes} bytes", self.have);
                Err(unreachable(&self.address, io::Error::new(io::ErrorKind::UnexpectedEof, early)))
            }
            _ => Ok(()),
        }
    }
}

/// An error for an answer that is no success.
pub(super) fn require_success<T>(answer: &Response<T>, url: &str) -> Result<(), PackageError> {
    let status = answer.status();
    if status == StatusCode::OK {
        return Ok(());
    }
    let hint = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ": give the agent credentials (--package-auth)",
        StatusCode::NOT_FOUND => ": no such package, or no right to see it",
        StatusCode::RANGE_NOT_SATISFIABLE => ": the next attempt begins anew",
        _ => "",
    };
    Err(PackageError::Refused { address: shown(url), status: status.as_u16(), hint })
}

/// Whether an answer begins with the byte that was asked for.
fn starts_at(answer: &Response<Body>, byte: u64) -> bool {
    let range = answer.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    range.is_some_and(|range| range.starts_with(&format!("bytes {byte}-")))
}

/// Stores the mark of the file that is being downloaded, if it is one that identifies each byte of it.
fn store_etag(part: &Path, answer: &Response<Body>) {
    let mark = answer.headers().get(ETAG).and_then(|value| value.to_str().ok());
    let path = etag_path(part);
    // Without it the next transfer begins anew.
    let _ = match mark.filter(|mark| mark.starts_with('"')) {
        Some(mark) => fs::write(path, mark),
        None => fs::remove_file(path),
    };
}

fn etag_path(part: &Path) -> std::path::PathBuf {
    part.with_extension("etag")
}

/// Certificates of the authorities of the system, and of a file.
fn authorities(path: Option<&Path>) -> Result<Vec<Certificate<'static>>, PackageError> {
    let system = rustls_native_certs::load_native_certs().certs;
    let mut all: Vec<_> = system.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    let Some(path) = path else { return Ok(all) };
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| PackageError::Certificates {
        path: path.to_owned(),
        source,
    };
    let pem = fs::read(path).map_err(|error| failed(error.into()))?;
    let before = all.len();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| failed(error.into()))? {
            all.push(certificate);
        }
    }
    if all.len() == before { Err(failed("it has no certificate".into())) } else { Ok(all) }
}

fn unreachable(url: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> PackageError {
    PackageError::Unreachable { address: shown(url), source: source.into() }
}
