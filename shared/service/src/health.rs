//! What the process says of itself over HTTP: `/live`, `/ready`, `/metrics`.
//!
//! `/live` says only that the loop turns. `/ready` is a latch: each part that has to be there before the process
//! is of use holds a [`Latch`] and releases it once; losing a connection later does not make the process unready,
//! but the body says so ([`Health::note`]).
//! `/metrics` is OpenMetrics text. A metric's labels must come from a set that is fixed in the code: no device, no
//! deployment, no subject.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::http_listener::HttpListener;
use crate::life::{Life, Stage};

/// Prefix of every metric's name.
const METRICS_PREFIX: &str = "muster";
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Why health cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is taken, not ours, or not allowed.
    #[error("cannot serve health and metrics on {addr}; free it or choose another with --http-addr")]
    Bind {
        /// The address wanted.
        addr: SocketAddr,
        /// What the machine says.
        #[source]
        source: io::Error,
    },
}

/// Readiness and metrics of one process. Clones share them.
#[derive(Debug, Clone)]
pub struct Health {
    shared: Arc<Shared>,
}

/// Holds the process unready until it is released. If it is dropped unreleased, the part never came and the
/// process stays unready.
#[derive(Debug)]
#[must_use = "the process is not ready until the latch is released"]
pub struct Latch {
    health: Health,
    part: Cow<'static, str>,
}

#[derive(Debug)]
struct Shared {
    stop: CancellationToken,
    missing: Mutex<Vec<Cow<'static, str>>>,
    notes: Mutex<BTreeMap<&'static str, String>>,
    registry: Mutex<Registry>,
}

impl Health {
    /// Health of a process that is asked to stop by `stop`: it is not ready from then on.
    pub(crate) fn new(stop: CancellationToken) -> Self {
        let registry = Mutex::new(Registry::with_prefix(METRICS_PREFIX));
        Self {
            shared: Arc::new(Shared { stop, missing: Mutex::default(), notes: Mutex::default(), registry }),
        }
    }

    /// Says that the process is not ready without `part`, in words for a person.
    pub fn latch(&self, part: impl Into<Cow<'static, str>>) -> Latch {
        let part = part.into();
        lock(&self.shared.missing).push(part.clone());
        Latch { health: self.clone(), part }
    }

    /// Says how a part is now, in the body of `/ready`; it changes nothing of whether the process is ready.
    pub fn note(&self, part: &'static str, state: impl Into<String>) {
        lock(&self.shared.notes).insert(part, state.into());
    }

    /// What is missing before the process is ready; empty if it is.
    pub fn missing(&self) -> Vec<String> {
        if self.shared.stop.is_cancelled() {
            return vec!["stopping".to_owned()];
        }
        lock(&self.shared.missing).iter().map(ToString::to_string).collect()
    }

    /// Registers metrics. Their names get the prefix `muster_`; counters the suffix `_total`.
    pub fn metrics<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        register(&mut lock(&self.shared.registry))
    }

    /// All metrics as OpenMetrics text.
    pub fn metrics_text(&self) -> String {
        let mut text = String::new();
        // Writing into a string fails only if a metric cannot show itself; then what came before is shown.
        let _ = encode(&mut text, &lock(&self.shared.registry));
        text
    }
}

impl Latch {
    /// Says that the part is there.
    pub fn release(self) {
        let mut missing = lock(&self.health.shared.missing);
        if let Some(at) = missing.iter().position(|part| *part == self.part) {
            missing.remove(at);
        }
    }
}

/// Serves the health of a life until it has drained. Gives the address it listens on.
///
/// # Errors
/// When it cannot listen on `addr`.
pub async fn serve(life: &Life, addr: SocketAddr) -> Result<SocketAddr, Error> {
    let bind = |source| Error::Bind { addr, source };
    let listener = TcpListener::bind(addr).await.map_err(bind)?;
    let local = listener.local_addr().map_err(bind)?;
    let evicted = Counter::default();
    life.health().metrics(|registry| {
        let help = "HTTP connections that were closed for newer ones, because as many were open as may be";
        registry.register("http_evicted_connections", help, evicted.clone());
    });
    let http = HttpListener::new(router(life.health().clone()), evicted);
    let token = life.token(Stage::Serve);
    life.spawn(Stage::Serve, "http", async move { http.serve(listener, token).await });
    Ok(local)
}

fn router(health: Health) -> Router {
    Router::new()
        .route("/live", get(async || "alive\n"))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .fallback(async || (StatusCode::NOT_FOUND, "there is /live, /ready and /metrics\n"))
        .with_state(health)
}

async fn ready(State(health): State<Health>) -> impl IntoResponse {
    let missing = health.missing();
    let (status, first) = match missing.is_empty() {
        true => (StatusCode::OK, "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready:\n"),
    };
    let mut body = first.to_owned();
    // Writing into a string does not fail.
    for part in missing {
        let _ = writeln!(body, "  {part}");
    }
    for (part, state) in lock(&health.shared.notes).iter() {
        let _ = writeln!(body, "{part}: {state}");
    }
    (status, body)
}

async fn metrics(State(health): State<Health>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, METRICS_TYPE)], health.metrics_text())
}

/// Neither the list nor the registry is ever left half-changed, so a panic elsewhere does not spoil them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
