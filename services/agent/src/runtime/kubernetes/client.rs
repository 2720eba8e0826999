//! A client of the Kubernetes API over HTTP/1.1: single requests with bounds and retries, and streams of watches. It handles
//! paths and JSON, and knows no kind.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use muster_service::backoff::FullJitter;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use super::kubeconfig::{ClusterAccess, Token};

/// Time limit of one attempt at a request.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(30);
/// Attempts at a request that the API server could not serve at once.
const ATTEMPTS_MAX: u32 = 5;
/// The same while it answers that it has too many requests: it works, and its answer says when to come again.
const THROTTLED_ATTEMPTS_MAX: u32 = 20;
/// Delays between attempts, beyond the time that an answer asks for (`Retry-After`, up to the maximum): requests that were refused
/// together do not come again together.
const DELAY_MIN: Duration = Duration::from_millis(100);
const DELAY_MAX: Duration = Duration::from_secs(5);
/// Bytes of an answer. A page of objects is the largest.
const ANSWER_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Objects of a page of a list.
pub(super) const PAGE_OBJECTS: usize = 500;
/// Characters of an answer without a `Status` that an error quotes.
const QUOTED_CHARS_MAX: usize = 200;
/// Requests of one task that may be under way at once, and connections kept for further requests: a new one costs a handshake of TLS.
pub(super) const CONCURRENT_MAX: usize = 24;

/// The status code of a missing object or kind.
pub(super) const NOT_FOUND: u16 = 404;
/// Status codes of a server that cannot serve now: too many requests, and its own errors from this one on.
const TOO_MANY_REQUESTS: u16 = 429;
const SERVER_ERROR: u16 = 500;
/// The content type of JSON.
pub(super) const JSON: &str = "application/json";
/// The content type of an object's metadata, without its content.
pub(super) const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// The content type of a list of metadata.
pub(super) const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// The content type of server-side apply; JSON is YAML.
const APPLY: &str = "application/apply-patch+yaml";
/// The field manager of everything that the agent applies.
pub(super) const FIELD_MANAGER: &str = "muster";

/// The error of a request.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    #[error("the API server {server} does not answer")]
    Unreachable {
        server: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the API server {server} has not answered within {limit:?}")]
    Late { server: String, limit: Duration },
    #[error("the API server refuses: {message} ({code} {reason})")]
    Refused { code: u16, reason: String, message: String, retry_after: Option<Duration> },
    #[error("the API server's answer has more than {ANSWER_BYTES_MAX} bytes")]
    Large,
    #[error("cannot parse the API server's answer")]
    Garbled(#[source] serde_json::Error),
    #[error("cannot read the token of the API server")]
    Token(#[source] io::Error),
}

/// A `Status` of the API server.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ApiStatus {
    pub(super) code: u16,
    pub(super) reason: String,
    pub(super) message: String,
}

type Sender = SendRequest<Full<Bytes>>;

/// A client of one API server.
pub(super) struct ApiClient {
    access: ClusterAccess,
    idle: Mutex<Vec<Sender>>,
}

/// One request.
#[derive(Debug, Clone)]
struct Call<'a> {
    method: Method,
    path: &'a str,
    accept: &'static str,
    content_type: &'static str,
    body: Bytes,
}

impl ApiError {
    /// The status code of an answer.
    pub(super) const fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the API server is unreachable, or cannot serve requests now.
    pub(super) fn is_outage(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Late { .. } => true,
            Self::Refused { code, .. } => *code == TOO_MANY_REQUESTS || *code >= SERVER_ERROR,
            _ => false,
        }
    }

    const fn attempts_max(&self) -> u32 {
        match self {
            Self::Refused { code: TOO_MANY_REQUESTS, .. } => THROTTLED_ATTEMPTS_MAX,
            _ => ATTEMPTS_MAX,
        }
    }

    const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

impl ApiClient {
    pub(super) fn new(access: ClusterAccess) -> Self {
        Self { access, idle: Mutex::default() }
    }

    /// Reads an object or a list.
    pub(super) async fn get(&self, path: &str, accept: &'static str) -> Result<Value, ApiError> {
        self.call(Call { method: Method::GET, path, accept, content_type: JSON, body: Bytes::new() }).await
    }

    /// Reads an object; `None` if there is none.
    pub(super) async fn find(&self, path: &str, accept: &'static str) -> Result<Option<Value>, ApiError> {
        found(self.get(path, accept).await)
    }

    /// Applies an object with the field manager of Muster. If another manager owns a field, that is a conflict.
    pub(super) async fn apply(&self, path: &str, object: &Value) -> Result<Value, ApiError> {
        let path = format!("{path}?fieldManager={FIELD_MANAGER}&force=false");
        self.send(Method::PATCH, &path, APPLY, object).await
    }

    /// Deletes an object, and what it owns in the background; `false` if there is none.
    pub(super) async fn delete(&self, path: &str) -> Result<bool, ApiError> {
        let options = serde_json::json!({"propagationPolicy": "Background"});
        found(self.send(Method::DELETE, path, JSON, &options).await).map(|answer| answer.is_some())
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &'static str,
        body: &Value,
    ) -> Result<Value, ApiError> {
        let body = Bytes::from(body.to_string());
        self.call(Call { method, path, accept: JSON, content_type, body }).await
    }

    /// Sends a request, again after an outage: each request of the agent is idempotent.
    async fn call(&self, call: Call<'_>) -> Result<Value, ApiError> {
        let (mut delays, mut rng) = (FullJitter::new(DELAY_MIN, DELAY_MAX), fastrand::Rng::new());
        let mut attempt = 1;
        loop {
            let limited = timeout(ATTEMPT_LIMIT, self.attempt(&call)).await;
            let late = || ApiError::Late { server: self.access.authority.clone(), limit: ATTEMPT_LIMIT };
            match limited.unwrap_or_else(|_| Err(late())) {
                Err(error) if error.is_outage() && attempt < error.attempts_max() => {
                    let asked = error.retry_after().unwrap_or_default().min(DELAY_MAX);
                    sleep(asked + delays.next(&mut rng)).await;
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }

    async fn attempt(&self, call: &Call<'_>) -> Result<Value, ApiError> {
        let mut sender = match self.pop_idle() {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        let response = self.request(&mut sender, call).await?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| {
            if error.is::<LengthLimitError>() { ApiError::Large } else { self.unreachable(error) }
        })?;
        self.push_idle(sender);
        let body = body.to_bytes();
        if !head.status.is_success() {
            return Err(refused(head.status.as_u16(), &head.headers, &body));
        }
        serde_json::from_slice(&body).map_err(ApiError::Garbled)
    }

    /// Opens a stream of events.
    pub(super) async fn stream(&self, path: &str, accept: &'static str) -> Result<EventStream, ApiError> {
        let call = Call { method: Method::GET, path, accept, content_type: JSON, body: Bytes::new() };
        let opening = async {
            let mut sender = self.connect().await?;
            let response = self.request(&mut sender, &call).await?;
            let (head, body) = response.into_parts();
            if !head.status.is_success() {
                let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map(|body| body.to_bytes());
                return Err(refused(head.status.as_u16(), &head.headers, &body.unwrap_or_default()));
            }
            Ok(EventStream {
                _sender: sender,
                body,
                buffer: Vec::new(),
                server: self.access.authority.clone(),
            })
        };
        let late = |_| ApiError::Late { server: self.access.authority.clone(), limit: ATTEMPT_LIMIT };
        timeout(ATTEMPT_LIMIT, opening).await.map_err(late)?
    }

    async fn request(&self, sender: &mut Sender, call: &Call<'_>) -> Result<Response<Incoming>, ApiError> {
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(format!("{}{}", self.access.path_prefix, call.path))
            .header(HOST, &self.access.authority)
            .header(USER_AGENT, concat!("muster-agent/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, call.accept);
        if !call.body.is_empty() {
            request = request.header(CONTENT_TYPE, call.content_type);
        }
        if let Some(token) = self.token()? {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::new(call.body.clone())).map_err(|error| self.unreachable(error))?;
        sender.send_request(request).await.map_err(|error| self.unreachable(error))
    }

    fn token(&self) -> Result<Option<String>, ApiError> {
        match &self.access.token {
            Token::None => Ok(None),
            Token::Fixed(token) => Ok(Some(token.clone())),
            Token::File(path) => {
                let token = std::fs::read_to_string(path).map_err(ApiError::Token)?;
                Ok(Some(token.trim().to_owned()))
            }
        }
    }

    async fn connect(&self) -> Result<Sender, ApiError> {
        let tcp =
            TcpStream::connect(&self.access.authority).await.map_err(|error| self.unreachable(error))?;
        tcp.set_nodelay(true).map_err(|error| self.unreachable(error))?;
        let Some(tls) = &self.access.tls else { return self.handshake(TokioIo::new(tcp)).await };
        let name = ServerName::try_from(self.access.server_name.clone());
        let name = name.map_err(|error| self.unreachable(error))?;
        let connector = TlsConnector::from(Arc::clone(tls));
        let stream = connector.connect(name, tcp).await.map_err(|error| self.unreachable(error))?;
        self.handshake(TokioIo::new(stream)).await
    }

    async fn handshake<T>(&self, io: T) -> Result<Sender, ApiError>
    where
        T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    {
        let (sender, connection) = http1::handshake(io).await.map_err(|error| self.unreachable(error))?;
        // Each request returns the errors of its connection.
        tokio::spawn(async move { _ = connection.await });
        Ok(sender)
    }

    fn pop_idle(&self) -> Option<Sender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(sender) = idle.pop() {
            if sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    fn push_idle(&self, sender: Sender) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < CONCURRENT_MAX {
            idle.push(sender);
        }
    }

    fn unreachable(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ApiError {
        ApiError::Unreachable { server: self.access.authority.clone(), source: source.into() }
    }
}

impl std::fmt::Debug for ApiClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiClient").field("server", &self.access.authority).finish_non_exhaustive()
    }
}

/// The lines of an open watch.
pub(super) struct EventStream {
    /// Keeps the connection open.
    _sender: Sender,
    body: Incoming,
    buffer: Vec<u8>,
    server: String,
}

impl EventStream {
    /// The next event; `None` if the server ended the stream.
    pub(super) async fn next(&mut self) -> Result<Option<Value>, ApiError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return serde_json::from_slice(&line).map(Some).map_err(ApiError::Garbled);
            }
            if self.buffer.len() > ANSWER_BYTES_MAX {
                return Err(ApiError::Large);
            }
            let lost = |source| ApiError::Unreachable { server: self.server.clone(), source };
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(lost(error.into())),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

/// The token of the next page of a list; empty after the last page.
pub(super) fn next_page(page: &Value) -> String {
    page.pointer("/metadata/continue").and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn refused(code: u16, headers: &hyper::HeaderMap, body: &[u8]) -> ApiError {
    let status: ApiStatus = serde_json::from_slice(body).unwrap_or_default();
    let retry_after = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let message = if status.message.is_empty() {
        String::from_utf8_lossy(body).chars().take(QUOTED_CHARS_MAX).collect()
    } else {
        status.message
    };
    ApiError::Refused {
        code,
        reason: status.reason,
        message,
        retry_after: retry_after.map(Duration::from_secs),
    }
}

fn found(answer: Result<Value, ApiError>) -> Result<Option<Value>, ApiError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.code() == Some(NOT_FOUND) => Ok(None),
        Err(error) => Err(error),
    }
}
