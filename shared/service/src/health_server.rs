//! Serves `/live`, `/ready` and `/metrics` over HTTP.
//!
//! `/live` answers as long as the process answers. `/ready` has status 200 once every [`Latch`](crate::health::Latch) is
//! released, and its body has the state of each part. `/metrics` is OpenMetrics text.

use std::fmt::Write;
use std::io;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::metrics::counter::Counter;
use tokio::net::TcpListener;

use crate::health::Health;
use crate::http_listener::HttpListener;
use crate::stage::Stage;
use crate::supervisor::Supervisor;

const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The process cannot serve health.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HealthServerError {
    /// Another process has the address, this machine does not have it, or this process may not use it.
    #[error("cannot serve health and metrics on {addr}; free it or choose another with --http-addr")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

/// Serves the health of a process until it has drained; returns the address it listens on.
///
/// # Errors
/// It cannot listen on `addr`.
pub(crate) async fn serve(
    supervisor: &Supervisor,
    addr: SocketAddr,
) -> Result<SocketAddr, HealthServerError> {
    let bind = |source| HealthServerError::Bind { addr, source };
    let listener = TcpListener::bind(addr).await.map_err(bind)?;
    let local = listener.local_addr().map_err(bind)?;
    let evicted = Counter::default();
    supervisor.health().metrics(|registry| {
        let help = "HTTP connections that were closed for newer ones, because as many were open as may be";
        registry.register("http_evicted_connections", help, evicted.clone());
    });
    let http = HttpListener::new(router(supervisor.health().clone()), evicted);
    let token = supervisor.token(Stage::Serve);
    supervisor.spawn(Stage::Serve, "http", async move { http.serve(listener, token).await });
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
    let (status, first) = if missing.is_empty() {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready:\n")
    };
    let mut body = first.to_owned();
    // Writing into a string does not fail.
    for part in missing {
        let _ = writeln!(body, "  {part}");
    }
    for (part, state) in health.notes() {
        let _ = writeln!(body, "{part}: {state}");
    }
    (status, body)
}

async fn metrics(State(health): State<Health>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, METRICS_TYPE)], health.metrics_text())
}

#[cfg(test)]
mod tests;
