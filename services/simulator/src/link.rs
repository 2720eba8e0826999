//! A link that can be broken: a TCP relay between a client and a server on this machine.
//!
//! It knows bytes and connections, not NATS. What it can do to a link: cut it (connections end, new ones are
//! turned away), stall it (connections stay open and carry nothing, as with a pulled cable), open it again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Bytes moved at once, per direction and connection.
const CHUNK_BYTES: usize = 16 * 1024;

/// What a link does with what it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// Carries everything.
    Open,
    /// Carries nothing; every connection has ended.
    Cut,
    /// Carries nothing; connections look alive.
    Stalled,
}

/// A running link. Dropping it ends it and its connections.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    condition: watch::Sender<Condition>,
    connections: Arc<AtomicU64>,
    _stop: DropGuard,
}

impl Link {
    /// Opens a link to `server` on a free port of the loopback interface.
    ///
    /// # Errors
    /// No port could be bound.
    pub async fn open(server: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (condition, watched) = watch::channel(Condition::Open);
        let connections = Arc::new(AtomicU64::new(0));
        let stop = CancellationToken::new();
        let relay = accept(listener, server, watched, Arc::clone(&connections));
        tokio::spawn(stop.clone().run_until_cancelled_owned(relay));
        Ok(Self { address, condition, connections, _stop: stop.drop_guard() })
    }

    /// Where clients connect to.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the link's condition. Connections that are open see it at once.
    pub fn set(&self, condition: Condition) {
        self.condition.send_replace(condition);
    }

    /// The link's condition.
    pub fn condition(&self) -> Condition {
        *self.condition.borrow()
    }

    /// Connections carried to the server so far: it rises when a client is back after a cut.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Acquire)
    }
}

async fn accept(
    listener: TcpListener,
    server: SocketAddr,
    condition: watch::Receiver<Condition>,
    connections: Arc<AtomicU64>,
) {
    // Dropped with this future, which ends every relay with the link.
    let mut relays = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = relays.join_next() => continue,
        };
        let Ok((client, _)) = accepted else { continue };
        if *condition.borrow() == Condition::Cut {
            continue;
        }
        relays.spawn(relay(client, server, condition.clone(), Arc::clone(&connections)));
    }
}

async fn relay(
    client: TcpStream,
    server: SocketAddr,
    mut condition: watch::Receiver<Condition>,
    connections: Arc<AtomicU64>,
) {
    let Ok(upstream) = TcpStream::connect(server).await else { return };
    connections.fetch_add(1, Ordering::AcqRel);
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = upstream.into_split();
    let up = pump(from_client, to_server, condition.clone());
    let down = pump(from_server, to_client, condition.clone());
    tokio::select! {
        () = up => {}
        () = down => {}
        _ = condition.wait_for(|now| *now == Condition::Cut) => {}
    }
}

/// Moves bytes one way until either end closes. While the link is stalled they wait in the kernel's buffers.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut condition: watch::Receiver<Condition>) {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        if condition.wait_for(|now| *now != Condition::Stalled).await.is_err() {
            return;
        }
        let read = tokio::select! {
            read = from.read(&mut chunk) => read,
            changed = condition.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        match read {
            Ok(bytes) if bytes > 0 => {
                if to.write_all(&chunk[..bytes]).await.is_err() {
                    return;
                }
            }
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(5);

    async fn echo_server() -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    tokio::io::copy(&mut from, &mut to).await
                });
            }
        });
        address
    }

    async fn says(stream: &mut TcpStream, text: &[u8]) -> std::io::Result<bool> {
        stream.write_all(text).await?;
        let mut back = vec![0; text.len()];
        stream.read_exact(&mut back).await?;
        Ok(back == text)
    }

    #[tokio::test]
    async fn an_open_link_carries_both_ways() {
        let link = Link::open(echo_server().await).await.unwrap();
        let mut client = TcpStream::connect(link.address()).await.unwrap();
        assert!(tokio::time::timeout(DEADLINE, says(&mut client, b"hello")).await.unwrap().unwrap());
        assert_eq!(link.connections(), 1);
    }

    #[tokio::test]
    async fn a_cut_ends_connections_and_turns_new_ones_away_until_it_is_mended() {
        let link = Link::open(echo_server().await).await.unwrap();
        let mut client = TcpStream::connect(link.address()).await.unwrap();
        says(&mut client, b"hello").await.unwrap();
        link.set(Condition::Cut);
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(DEADLINE, client.read_to_end(&mut rest)).await.unwrap();
        assert!(ended.is_err() || rest.is_empty(), "the connection must end");
        let mut turned_away = TcpStream::connect(link.address()).await.unwrap();
        assert!(tokio::time::timeout(DEADLINE, says(&mut turned_away, b"x")).await.unwrap().is_err());
        link.set(Condition::Open);
        let mut back = TcpStream::connect(link.address()).await.unwrap();
        assert!(tokio::time::timeout(DEADLINE, says(&mut back, b"again")).await.unwrap().unwrap());
    }

    #[tokio::test]
    async fn a_stalled_link_holds_what_it_was_given_and_delivers_it_afterwards() {
        let link = Link::open(echo_server().await).await.unwrap();
        let mut client = TcpStream::connect(link.address()).await.unwrap();
        says(&mut client, b"hello").await.unwrap();
        link.set(Condition::Stalled);
        client.write_all(b"later").await.unwrap();
        let mut back = [0; 5];
        let held = tokio::time::timeout(Duration::from_millis(200), client.read_exact(&mut back)).await;
        assert!(held.is_err(), "nothing may come through a stalled link");
        link.set(Condition::Open);
        tokio::time::timeout(DEADLINE, client.read_exact(&mut back)).await.unwrap().unwrap();
        assert_eq!(&back, b"later");
    }
}
