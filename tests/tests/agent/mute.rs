//! A proxy of a server that answers pings and nothing else, although a client's messages arrive.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

const PING: &[u8] = b"PING\r\n";
const PONG: &[u8] = b"PONG\r\n";

/// A way to a server. Ends with this value.
pub(crate) struct Mute {
    pub(crate) address: SocketAddr,
    /// Connections up to this one are mute.
    muted: watch::Sender<u64>,
    connections: Arc<AtomicU64>,
    _relays: JoinSet<()>,
}

impl Mute {
    pub(crate) async fn open(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (muted, watched) = watch::channel(0);
        let connections = Arc::new(AtomicU64::new(0));
        let mut relays = JoinSet::new();
        let counted = Arc::clone(&connections);
        relays.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let number = counted.fetch_add(1, Ordering::AcqRel) + 1;
                open.spawn(relay(client, server, number, watched.clone()));
            }
        });
        Self { address, muted, connections, _relays: relays }
    }

    /// Makes every connection there is mute; new ones are not.
    pub(crate) fn mute(&self) {
        self.muted.send_replace(self.connections());
    }

    /// Connections made so far.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Acquire)
    }
}

async fn relay(client: TcpStream, server: SocketAddr, number: u64, muted: watch::Receiver<u64>) {
    let Ok(upstream) = TcpStream::connect(server).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = upstream.into_split();
    let is_mute = move || *muted.borrow() >= number;
    let (mut up, mut down) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    loop {
        tokio::select! {
            read = from_client.read(&mut up) => {
                let Ok(bytes @ 1..) = read else { return };
                let said = &up[..bytes];
                if is_mute() && said.windows(PING.len()).any(|part| part == PING) && to_client.write_all(PONG).await.is_err() {
                    return;
                }
                if to_server.write_all(said).await.is_err() {
                    return;
                }
            }
            read = from_server.read(&mut down) => {
                let Ok(bytes @ 1..) = read else { return };
                if !is_mute() && to_client.write_all(&down[..bytes]).await.is_err() {
                    return;
                }
            }
        }
    }
}
