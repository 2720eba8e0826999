//! Serves a router over HTTP/1 with bounds, so that no client blocks the others.
//!
//! - A connection has one request, with a deadline for the header and one for the whole exchange.
//! - Connections are bounded: at the bound, a new connection closes the oldest one. A client that sends its request at once
//!   gets its answer before [`CONNECTIONS_MAX`] others have connected, so the listener closes idle connections.
//!
//! It has no TLS: the listener is for the machine and its monitoring.

use std::collections::VecDeque;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::counter::Counter;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// The most open connections.
pub(crate) const CONNECTIONS_MAX: usize = 128;
/// Time in which a client has to send the whole header of its request.
pub(crate) const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a connection from its accept to the end of the response.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest header in bytes.
pub(crate) const HEADER_BYTES_MAX: usize = 16 * 1024;
/// Most fields of a header.
const HEADER_FIELDS_MAX: usize = 64;
/// Time for open requests after every other task of the process has ended.
pub(crate) const CLOSE_GRACE: Duration = Duration::from_secs(1);
/// Delay after a failed accept, such as one without a free file descriptor.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

const _: () = assert!(HEADER_TIMEOUT.as_millis() < CONNECTION_TIMEOUT.as_millis());
// The least that the HTTP library takes.
const _: () = assert!(HEADER_BYTES_MAX >= 8 * 1024);

/// A router behind bounded connections.
#[derive(Debug)]
pub(crate) struct HttpListener {
    router: Router,
    http: http1::Builder,
    connections: JoinSet<()>,
    /// The open connections and some that have ended, oldest first.
    oldest_first: VecDeque<AbortHandle>,
    /// Connections that were closed for newer ones.
    evicted: Counter,
}

impl HttpListener {
    /// A listener without connections.
    pub(crate) fn new(router: Router, evicted: Counter) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(HEADER_BYTES_MAX)
            .max_headers(HEADER_FIELDS_MAX)
            .keep_alive(false);
        Self { router, http, connections: JoinSet::new(), oldest_first: VecDeque::new(), evicted }
    }

    /// Serves until `stop`; requests under way then have [`CLOSE_GRACE`] to end.
    pub(crate) async fn serve(mut self, listener: TcpListener, stop: CancellationToken) {
        while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok((stream, _)) => self.open(stream, stop.clone()),
                Err(error) => {
                    tracing::debug!(%error, "cannot accept an HTTP connection");
                    sleep(ACCEPT_RETRY).await;
                }
            }
        }
        drop(listener);
        let ended = async { while self.connections.join_next().await.is_some() {} };
        // Dropping the set aborts the others.
        let _ = timeout(CLOSE_GRACE, ended).await;
    }

    fn open(&mut self, stream: TcpStream, stop: CancellationToken) {
        while self.connections.try_join_next().is_some() {}
        self.evict_oldest();
        let service = TowerToHyperService::new(self.router.clone());
        let connection = self.http.serve_connection(TokioIo::new(stream), service);
        let exchange = async move {
            let mut connection = pin!(connection);
            // A client that disconnects, or is too slow, gets no answer and no line in the log.
            let served = timeout(CONNECTION_TIMEOUT, async {
                tokio::select! {
                    _ = connection.as_mut() => return,
                    () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
                }
                let _ = connection.await;
            });
            let _ = served.await;
        };
        self.oldest_first.push_back(self.connections.spawn(exchange));
    }

    /// Closes the oldest connection if as many are open as may be.
    fn evict_oldest(&mut self) {
        if self.oldest_first.len() < CONNECTIONS_MAX {
            return;
        }
        self.oldest_first.retain(|connection| !connection.is_finished());
        if self.oldest_first.len() >= CONNECTIONS_MAX
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            oldest.abort();
            self.evicted.inc();
        }
    }
}
