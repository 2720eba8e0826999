//! Serves a router over HTTP/1.1, or HTTP/2 for gRPC, with bounds, so that no client delays another.
//!
//! - HTTP/1.1: the header of a request has a deadline, which covers an idle connection too, and bounds of bytes and fields.
//!   HTTP/2: headers are bounded in bytes, requests under way in number, and pings find a dead client.
//! - A client that does not read ends its connection ([`stall`]); a connection has a greatest age, after which it takes no
//!   further request.
//! - Connections are bounded. At the bound, a new one closes the oldest of the address that has most of them.
//! - A request carries its [`Peer`]: the address, and the certificates that the client proved to have.
//!
//! Request bodies are bounded by those who read them.

mod stall;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use self::stall::StallGuard;
use crate::metrics::ListenerMetrics;

/// Time for the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest header in bytes.
pub(crate) const HEADER_BYTES_MAX: usize = 16 * 1024;
/// Longest list of header fields over HTTP/2, in bytes.
const HEADER_LIST_BYTES_MAX: u32 = 16 * 1024;
/// Most fields of a header.
const HEADER_FIELDS_MAX: usize = 64;
/// Time for open requests after the process was asked to stop.
const CLOSE_GRACE: Duration = Duration::from_secs(1);
/// Delay after a failed accept, such as one without a free file descriptor.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A list of fewer connections, open or ended, is not searched for ended ones.
const LISTED_MIN: usize = 64;

/// The bounds of a listener.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Most open connections.
    pub connections: usize,
    /// Time for the header of a request over HTTP/1.1, also of the next one; over HTTP/2 the interval of pings and the time for an
    /// answer.
    pub header: Duration,
    /// Longest wait for a client to read.
    pub stall: Duration,
    /// Age after which a connection takes no further request.
    pub age: Duration,
    /// Most requests under way on one connection of HTTP/2; `None` serves HTTP/1.1.
    pub streams: Option<u32>,
}

impl Limits {
    /// Those of people: 10,000 that follow the fleet, and room for others.
    pub(crate) const PEOPLE: Self = Self {
        connections: 16_000,
        header: Duration::from_secs(15),
        stall: Duration::from_secs(20),
        age: Duration::from_secs(60 * 60),
        streams: None,
    };
    /// The limits of devices. Connections are short, because only the handshake checks a certificate.
    pub(crate) const DEVICES: Self = Self {
        connections: 20_000,
        header: Duration::from_secs(60),
        stall: Duration::from_secs(20),
        age: Duration::from_secs(10 * 60),
        streams: None,
    };
    /// The limits of gRPC, with stall and age as for devices. `header` is the interval of pings and the time for their answers, so
    /// a dead client is found within twice that.
    pub(crate) const GRPC: Self =
        Self { connections: 1_000, header: Duration::from_secs(20), streams: Some(64), ..Self::DEVICES };
}

/// The other end of a connection, as an extension of each of its requests.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// Its address.
    pub addr: SocketAddr,
    /// The certificates of the client, its own first; empty without TLS, or if it was asked for none.
    pub certificates: Arc<[CertificateDer<'static>]>,
}

/// A bound address, ready to serve.
pub(crate) struct Listener {
    tcp: TcpListener,
    tls: Option<TlsAcceptor>,
    limits: Limits,
    metrics: ListenerMetrics,
}

impl Listener {
    /// Listens on an address, over TLS if there are settings for it.
    ///
    /// # Errors
    /// The address is in use, or this process may not use it.
    pub(crate) async fn bind(
        addr: SocketAddr,
        tls: Option<Arc<ServerConfig>>,
        limits: Limits,
        metrics: ListenerMetrics,
    ) -> io::Result<Self> {
        let tcp = TcpListener::bind(addr).await?;
        Ok(Self { tcp, tls: tls.map(TlsAcceptor::from), limits, metrics })
    }

    /// The address it listens on.
    ///
    /// # Errors
    /// The system does not say.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Serves until `stop`; requests under way then have [`CLOSE_GRACE`] to end.
    pub(crate) async fn serve(self, router: Router, stop: CancellationToken) {
        let Self { tcp, tls, limits, metrics } = self;
        let mut connections = Connections { open: JoinSet::new(), oldest_first: VecDeque::new(), metrics };
        let exchange = Exchange { router, tls, limits, stop: stop.clone() };
        let mut accepts = true;
        while let Some(accepted) = stop.run_until_cancelled(tcp.accept()).await {
            match accepted {
                Ok((stream, addr)) => {
                    accepts = true;
                    connections.evict(limits.connections);
                    connections.add(addr.ip(), exchange.clone().run(stream, addr));
                }
                Err(error) => {
                    if std::mem::take(&mut accepts) {
                        tracing::warn!(%error, "cannot accept HTTP connections; trying again");
                    }
                    sleep(ACCEPT_RETRY).await;
                }
            }
        }
        drop(tcp);
        let ended = async { while connections.open.join_next().await.is_some() {} };
        // Dropping the set aborts the others.
        let _ = timeout(CLOSE_GRACE, ended).await;
    }
}

/// The open connections.
struct Connections {
    open: JoinSet<()>,
    /// The open connections and about as many that have ended at most, oldest first.
    oldest_first: VecDeque<(IpAddr, AbortHandle)>,
    metrics: ListenerMetrics,
}

impl Connections {
    fn add(&mut self, addr: IpAddr, exchange: impl Future<Output = ()> + Send + 'static) {
        let gauge = self.metrics.connections.clone();
        let counted = async move {
            gauge.inc();
            let _guard = OnDrop(|| _ = gauge.dec());
            exchange.await;
        };
        let handle = self.open.spawn(counted);
        self.oldest_first.push_back((addr, handle));
    }

    /// Closes a connection if as many are open as may be: the oldest of the address that has most.
    fn evict(&mut self, max: usize) {
        while self.open.try_join_next().is_some() {}
        // A handle keeps memory of its connection. To look at all each time that half have ended costs each connection two looks, and
        // more near the bound.
        if self.oldest_first.len() >= max.min(2 * self.open.len() + LISTED_MIN) {
            self.oldest_first.retain(|(_, connection)| !connection.is_finished());
        }
        if self.oldest_first.len() < max {
            return;
        }
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        self.oldest_first.iter().for_each(|(addr, _)| *counts.entry(*addr).or_default() += 1);
        let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(addr, _)| addr);
        let oldest = self.oldest_first.iter().position(|(addr, _)| Some(*addr) == most);
        if let Some((_, connection)) = oldest.and_then(|at| self.oldest_first.remove(at)) {
            connection.abort();
            self.metrics.evicted.inc();
        }
    }
}

/// Runs a function when it is dropped, also by an abort.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Everything that the connections of a listener share.
#[derive(Clone)]
struct Exchange {
    router: Router,
    tls: Option<TlsAcceptor>,
    limits: Limits,
    stop: CancellationToken,
}

impl Exchange {
    /// Serves one connection, from its accept to its end. Each protocol has an allocation of its own size: one future for all of them
    /// would have the size of the largest, and most connections are event streams that last long.
    fn run(self, stream: TcpStream, addr: SocketAddr) -> BoxFuture<'static, ()> {
        // Events are small and must not wait for more.
        let _ = stream.set_nodelay(true);
        // Below TLS, which takes frames into a buffer of its own while the client reads none.
        let stream = StallGuard::new(stream, self.limits.stall);
        match self.tls.clone() {
            None => self.serve(stream, Peer { addr, certificates: Arc::default() }),
            Some(acceptor) => Box::pin(self.shake_hands(acceptor, stream, addr)),
        }
    }

    async fn shake_hands(self, acceptor: TlsAcceptor, stream: StallGuard<TcpStream>, addr: SocketAddr) {
        // A client that cannot shake hands gets no answer and no line in the log.
        let handshake = Box::pin(timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)));
        let Ok(Ok(stream)) = handshake.await else { return };
        let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let certificates = certificates.iter().map(|one| one.clone().into_owned()).collect();
        self.serve(stream, Peer { addr, certificates }).await;
    }

    fn serve<S>(self, stream: S, peer: Peer) -> BoxFuture<'static, ()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { router, limits, stop, .. } = self;
        let router = TowerToHyperService::new(router);
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            router.call(request)
        });
        let stream = TokioIo::new(stream);
        match limits.streams {
            None => Box::pin(serve_http1(stream, service, limits, stop)),
            Some(streams) => Box::pin(serve_http2(stream, service, limits, streams, stop)),
        }
    }
}

/// Serves a connection of HTTP/2 until its end, its age or `stop`.
async fn serve_http2<S, H>(stream: S, service: H, limits: Limits, streams: u32, stop: CancellationToken)
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    H: hyper::service::HttpService<
            Incoming,
            ResBody = axum::body::Body,
            Error: Into<axum::BoxError>,
            Future: Send + 'static,
        >,
{
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .keep_alive_interval(limits.header)
        .keep_alive_timeout(limits.header);
    let connection = pin!(http.serve_connection(stream, service));
    until_end(connection, |connection| connection.graceful_shutdown(), limits.age, &stop).await;
}

/// Serves a connection of HTTP/1.1 until its end, its age or `stop`.
async fn serve_http1<S, H>(stream: S, service: H, limits: Limits, stop: CancellationToken)
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin,
    H: hyper::service::HttpService<Incoming, ResBody = axum::body::Body, Error: Into<axum::BoxError>>,
{
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.header)
        .max_buf_size(HEADER_BYTES_MAX)
        .max_headers(HEADER_FIELDS_MAX);
    let connection = pin!(http.serve_connection(stream, service));
    until_end(connection, |connection| connection.graceful_shutdown(), limits.age, &stop).await;
}

/// Waits for the end of a connection. From its age or `stop` on, the connection takes no further request.
async fn until_end<C: Future>(
    mut connection: Pin<&mut C>,
    shut_down: impl FnOnce(Pin<&mut C>),
    age: Duration,
    stop: &CancellationToken,
) {
    tokio::select! {
        _ = connection.as_mut() => return,
        () = sleep(age) => {}
        () = stop.cancelled() => {}
    }
    shut_down(connection.as_mut());
    let _ = connection.await;
}

// The least that the HTTP library takes.
const _: () = assert!(HEADER_BYTES_MAX >= 8 * 1024);

#[cfg(test)]
mod tests;
