//! The bounds of a listener.

use axum::extract::Extension;
use axum::routing::get;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc::unbounded_channel;

use super::*;

/// Longest wait for anything in these tests.
const PATIENCE: Duration = Duration::from_secs(20);
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

fn limits() -> Limits {
    Limits { connections: 3, header: Duration::from_millis(200), ..Limits::PEOPLE }
}

async fn serving(limits: Limits) -> (SocketAddr, ListenerMetrics, CancellationToken) {
    let peer = async |Extension(peer): Extension<Peer>| format!("{} certificates", peer.certificates.len());
    serving_router(limits, Router::new().route("/", get(peer))).await
}

async fn serving_router(limits: Limits, router: Router) -> (SocketAddr, ListenerMetrics, CancellationToken) {
    let (metrics, stop) = (ListenerMetrics::default(), CancellationToken::new());
    let addr = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = Listener::bind(addr, None, limits, metrics.clone()).await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(listener.serve(router, stop.clone()));
    (addr, metrics, stop)
}

/// The bytes that the server sends until it closes the connection.
async fn until_closed(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("the server closes");
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn a_request_knows_its_peer_and_a_connection_has_several() {
    let (addr, ..) = serving(limits()).await;
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(&[REQUEST, REQUEST].concat()).await.unwrap();
    let answer = until_closed(&mut stream).await;
    assert_eq!(answer.matches("0 certificates").count(), 2, "{answer}");
}

#[tokio::test]
async fn a_header_that_comes_slowly_or_is_too_long_ends_the_connection() {
    let (addr, ..) = serving(limits()).await;
    let mut slow = TcpStream::connect(addr).await.unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\nHos").await.unwrap();
    assert!(!until_closed(&mut slow).await.contains("200"));
    let mut long = TcpStream::connect(addr).await.unwrap();
    let header = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "a".repeat(HEADER_BYTES_MAX));
    let _ = long.write_all(header.as_bytes()).await;
    let answer = until_closed(&mut long).await;
    assert!(!answer.contains("200"), "{answer}");
}

#[tokio::test]
async fn at_the_bound_the_oldest_connection_of_the_busiest_address_is_closed() {
    let slow = Limits { header: PATIENCE * 2, ..limits() };
    let (addr, metrics, _stop) = serving(slow).await;
    let mut open = Vec::new();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(b"GET").await.unwrap();
        open.push(stream);
    }
    assert_eq!(until_closed(&mut open[0]).await, "");
    assert_eq!(metrics.evicted.get(), 1);
    open[3].write_all(&REQUEST[3..]).await.unwrap();
    let mut byte = [0];
    timeout(PATIENCE, open[3].read_exact(&mut byte)).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_list_forgets_connections_that_have_ended() {
    let mut connections = Connections {
        open: JoinSet::new(),
        oldest_first: VecDeque::new(),
        metrics: ListenerMetrics::default(),
    };
    let add = |connections: &mut Connections, exchange: BoxFuture<'static, ()>| {
        connections.evict(Limits::PEOPLE.connections);
        connections.add(IpAddr::from([127, 0, 0, 1]), exchange);
    };
    add(&mut connections, Box::pin(std::future::pending()));
    for _ in 0..10 * LISTED_MIN {
        add(&mut connections, Box::pin(std::future::ready(())));
        tokio::task::yield_now().await;
        assert!(connections.oldest_first.len() <= 2 * LISTED_MIN, "{}", connections.oldest_first.len());
    }
    assert!(!connections.oldest_first[0].1.is_finished(), "an open one stays, and is the oldest");
    assert_eq!(connections.metrics.evicted.get(), 0);
}

#[tokio::test]
async fn an_old_connection_takes_no_further_request() {
    let young = Limits { age: Duration::from_millis(50), header: PATIENCE * 2, ..limits() };
    let (addr, ..) = serving(young).await;
    let mut stream = TcpStream::connect(addr).await.unwrap();
    assert_eq!(until_closed(&mut stream).await, "");
}

#[tokio::test]
async fn a_request_under_way_ends_when_its_client_goes_away() {
    let (events, mut seen) = unbounded_channel();
    let handler = move || {
        let events = events.clone();
        async move {
            let _ = events.send("begun");
            let _guard = OnDrop(|| _ = events.send("ended"));
            std::future::pending::<()>().await;
        }
    };
    let patient = Limits { header: PATIENCE * 2, ..limits() };
    let (addr, ..) = serving_router(patient, Router::new().route("/", get(handler))).await;
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(REQUEST).await.unwrap();
    assert_eq!(timeout(PATIENCE, seen.recv()).await.unwrap(), Some("begun"));
    drop(stream);
    assert_eq!(timeout(PATIENCE, seen.recv()).await.unwrap(), Some("ended"));
}

#[tokio::test]
async fn a_connection_takes_few_bytes_beside_its_buffers() {
    const BYTES_MAX: usize = 2048;
    let (router, stop) = (Router::new(), CancellationToken::new());
    let exchange = Exchange { router, tls: None, limits: Limits::PEOPLE, stop };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let connection = exchange.run(TcpStream::connect(addr).await.unwrap(), addr);
    let bytes = size_of_val(&*connection);
    assert!(bytes <= BYTES_MAX, "{bytes}");
}
