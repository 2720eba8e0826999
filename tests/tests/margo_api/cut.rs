//! A proxy between a gateway and NATS that breaks at one publish: before the server gets it, or before the gateway gets the
//! answer. From then on it passes nothing, as if the gateway had died at that step.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// The side of the publish on which the link breaks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cut {
    /// The server does not get the publish.
    Before,
    /// The server gets it, and its answer is lost.
    After,
}

/// Publishes that count as steps: a write to the bucket, and a report.
const STEPS: [&str; 2] = ["$KV.http_devices.", "muster.report."];

/// A link proxy that passes everything until a step.
pub(crate) struct LinkProxy {
    pub(crate) addr: SocketAddr,
    state: Arc<State>,
}

struct State {
    server: SocketAddr,
    /// The step at which it breaks, counted from [`LinkProxy::break_at`]; 0 before that.
    step: AtomicUsize,
    seen: AtomicUsize,
    cut: Cut,
    is_broken: AtomicBool,
    broken: Notify,
}

impl LinkProxy {
    pub(crate) async fn to(server: SocketAddr, cut: Cut) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let state = Arc::new(State {
            server,
            step: AtomicUsize::new(0),
            seen: AtomicUsize::new(0),
            cut,
            is_broken: AtomicBool::new(false),
            broken: Notify::new(),
        });
        let shared = state.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, shared.clone()));
            }
        });
        Self { addr, state }
    }

    /// Sets the step at which it breaks, counted from now.
    pub(crate) fn break_at(&self, step: usize) {
        self.state.seen.store(0, Ordering::SeqCst);
        self.state.step.store(step, Ordering::SeqCst);
    }

    /// Waits until it is broken.
    pub(crate) async fn broken(&self) {
        self.state.broken.notified().await;
    }
}

async fn pass(client: TcpStream, state: Arc<State>) {
    let Ok(server) = TcpStream::connect(state.server).await else { return };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        _ = to_nats(BufReader::new(from_client), to_server, &state) => {}
        _ = to_gateway(from_server, to_client, &state) => {}
    }
    if state.is_broken.load(Ordering::SeqCst) {
        // The connection stays open and silent until the gateway is killed.
        std::future::pending::<()>().await;
    }
}

/// Passes the gateway's frames to the server, one at a time.
async fn to_nats(
    mut from: BufReader<OwnedReadHalf>,
    mut to: OwnedWriteHalf,
    state: &State,
) -> std::io::Result<()> {
    loop {
        let mut frame = Vec::new();
        if from.read_until(b'\n', &mut frame).await? == 0 {
            return Ok(());
        }
        let line = String::from_utf8_lossy(&frame).into_owned();
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_publish = matches!(words.first(), Some(&("PUB" | "HPUB")));
        if let Some(size) = words.last().and_then(|size| size.parse::<usize>().ok()).filter(|_| is_publish) {
            let at = frame.len();
            frame.resize(at + size + 2, 0);
            from.read_exact(&mut frame[at..]).await?;
        }
        let is_step = is_publish && STEPS.iter().any(|step| words[1].starts_with(step));
        let step = state.step.load(Ordering::SeqCst);
        let is_last = is_step && step > 0 && state.seen.fetch_add(1, Ordering::SeqCst) + 1 == step;
        if is_last {
            state.is_broken.store(true, Ordering::SeqCst);
            if matches!(state.cut, Cut::After) {
                to.write_all(&frame).await?;
                to.flush().await?;
            }
            state.broken.notify_one();
            std::future::pending::<()>().await;
        }
        if state.is_broken.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        to.write_all(&frame).await?;
    }
}

/// Passes the server's bytes to the gateway.
async fn to_gateway(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, state: &State) -> std::io::Result<()> {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut bytes).await?;
        if count == 0 {
            return Ok(());
        }
        if state.is_broken.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        to.write_all(&bytes[..count]).await?;
    }
}
