//! A thin link: a TCP relay that carries so many bytes a second in each direction, and can be cut and mended.
//!
//! It counts what it carries, so that tests can say what a report costs on the wire, and keeps the first of it, so that they
//! can say what a device says first.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Bytes moved at once: little enough that the rate is even.
const CHUNK_BYTES: usize = 2 * 1024;
/// Bytes to the server that are kept: what a link of 256 kbit/s carries in two seconds.
const BEGINNING_BYTES: usize = 64_000;

/// A running link. Ends with this value.
#[derive(Debug)]
pub struct Thin {
    address: SocketAddr,
    whole: watch::Sender<bool>,
    counts: Arc<Counts>,
    _relay: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Counts {
    connections: AtomicU64,
    up: AtomicU64,
    down: AtomicU64,
    beginning: Mutex<Vec<u8>>,
}

impl Thin {
    /// Opens a link to `server` that carries so many bits a second each way.
    pub async fn open(server: SocketAddr, bits_a_second: u64) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (whole, watched) = watch::channel(true);
        let counts = Arc::new(Counts::default());
        let per_byte = Duration::from_nanos(8_000_000_000 / bits_a_second);
        let mut relay = JoinSet::new();
        relay.spawn(accept(listener, server, per_byte, watched, Arc::clone(&counts)));
        Self { address, whole, counts, _relay: relay }
    }

    /// Where clients connect to.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends every connection and turns new ones away, until it is mended.
    pub fn cut(&self) {
        self.whole.send_replace(false);
    }

    /// Lets connections through again.
    pub fn mend(&self) {
        self.whole.send_replace(true);
    }

    /// Connections carried so far.
    pub fn connections(&self) -> u64 {
        self.counts.connections.load(Ordering::Acquire)
    }

    /// Bytes carried to the server and back so far.
    pub fn bytes(&self) -> (u64, u64) {
        (self.counts.up.load(Ordering::Acquire), self.counts.down.load(Ordering::Acquire))
    }

    /// The first bytes carried to the server, as many as were, up to 64,000; those of one connection, if there was one.
    pub fn beginning(&self) -> Vec<u8> {
        self.counts.beginning.lock().unwrap().clone()
    }
}

async fn accept(
    listener: TcpListener,
    server: SocketAddr,
    per_byte: Duration,
    whole: watch::Receiver<bool>,
    counts: Arc<Counts>,
) {
    // Dropped with this future, which ends every connection with the link.
    let mut open = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        if *whole.borrow() {
            open.spawn(relay(client, server, per_byte, whole.clone(), Arc::clone(&counts)));
        }
        while open.try_join_next().is_some() {}
    }
}

async fn relay(
    client: TcpStream,
    server: SocketAddr,
    per_byte: Duration,
    mut whole: watch::Receiver<bool>,
    counts: Arc<Counts>,
) {
    let Ok(upstream) = TcpStream::connect(server).await else { return };
    counts.connections.fetch_add(1, Ordering::AcqRel);
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = upstream.into_split();
    tokio::select! {
        () = pump(from_client, to_server, per_byte, |bytes| counts.carried_up(bytes)) => {}
        () = pump(from_server, to_client, per_byte, |bytes| counts.carried_down(bytes)) => {}
        _ = whole.wait_for(|whole| !whole) => {}
    }
}

impl Counts {
    fn carried_up(&self, bytes: &[u8]) {
        self.up.fetch_add(bytes.len() as u64, Ordering::AcqRel);
        let mut beginning = self.beginning.lock().unwrap();
        let room = BEGINNING_BYTES - beginning.len();
        beginning.extend(&bytes[..bytes.len().min(room)]);
    }

    fn carried_down(&self, bytes: &[u8]) {
        self.down.fetch_add(bytes.len() as u64, Ordering::AcqRel);
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, per_byte: Duration, carried: impl Fn(&[u8])) {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut free_at = Instant::now();
    while let Ok(bytes @ 1..) = from.read(&mut chunk).await {
        free_at = free_at.max(Instant::now()) + per_byte * bytes as u32;
        sleep_until(free_at).await;
        if to.write_all(&chunk[..bytes]).await.is_err() {
            return;
        }
        carried(&chunk[..bytes]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_carries_no_faster_than_it_is_said_to() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let thin = Thin::open(listener.local_addr().unwrap(), 1_000_000).await;
        let mut client = TcpStream::connect(thin.address()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let begin = Instant::now();
        client.write_all(&[b'x'; 25_000]).await.unwrap();
        let mut got = vec![0; 25_000];
        server.read_exact(&mut got).await.unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(200), "{:?}", begin.elapsed());
        assert_eq!(thin.bytes().0, 25_000);
        assert_eq!(thin.beginning(), [b'x'; 25_000]);
        thin.cut();
        assert_eq!(client.read(&mut got).await.unwrap_or(0), 0, "the connection ends");
    }
}
