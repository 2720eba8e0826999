//! Serves a router over HTTP/1 with bounds, so that no client takes the listener from the others.
//!
//! - A connection carries one request: it has a deadline for the header and one for the whole exchange.
//! - Connections are bounded: a new connection at the bound closes the oldest one. A client that sends its request at once is
//!   answered before [`CONNECTIONS_MAX`] others have connected after it; idle connections are what is closed.
//!
//! It knows no routes, and has no TLS: the listener is for the machine and its monitoring.

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

/// Open connections at once.
pub(crate) const CONNECTIONS_MAX: usize = 128;
/// Time in which a client has to send the whole header of its request.
pub(crate) const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a connection from its accept to the end of the response.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest header in bytes.
pub(crate) const HEADER_BYTES_MAX: usize = 16 * 1024;
/// Most fields of a header.
const HEADER_FIELDS_MAX: usize = 64;
/// Time in which open requests may end once the process has nothing else left to do.
pub(crate) const CLOSE_GRACE: Duration = Duration::from_secs(1);
/// Delay after a failed accept, such as one for want of file descriptors.
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
    /// The connections that are open, oldest first, among some that have ended.
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
        // The rest is aborted when the set is dropped.
        let _ = timeout(CLOSE_GRACE, ended).await;
    }

    fn open(&mut self, stream: TcpStream, stop: CancellationToken) {
        while self.connections.try_join_next().is_some() {}
        self.evict_oldest();
        let service = TowerToHyperService::new(self.router.clone());
        let connection = self.http.serve_connection(TokioIo::new(stream), service);
        let exchange = async move {
            let mut connection = pin!(connection);
            // A client that breaks off, or is too slow, needs no answer and no word in the log.
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

    /// Makes room for one more connection.
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
