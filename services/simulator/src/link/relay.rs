//! One connection: connects to the server once the link is open, pumps both directions, and ends as the link ends it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::bucket::Bucket;
use super::condition::{Condition, Direction, Shape};
use super::pump::{BrokenConnection, Pump};
use super::{LinkState, Traffic};

/// Time the server gets to take a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// The state that all connections of a link share.
#[derive(Debug, Clone)]
pub(super) struct ConnectionContext {
    server: Arc<str>,
    pub(super) state: watch::Receiver<LinkState>,
    pub(super) traffic: Arc<Traffic>,
    buckets: Arc<[Mutex<Bucket>; 2]>,
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// In good order.
    Closed,
    /// By a reset.
    Reset,
}

impl ConnectionContext {
    pub(super) fn new(server: String, state: watch::Receiver<LinkState>, traffic: Arc<Traffic>) -> Self {
        let now = Instant::now();
        let bucket = || Mutex::new(Bucket::new(None, now));
        Self { server: server.into(), state, traffic, buckets: Arc::new([bucket(), bucket()]) }
    }

    /// When bytes that come now have passed the narrowest part of the link, which all its connections share.
    pub(super) fn through(&self, direction: Direction, shape: &Shape, bytes: usize, now: Instant) -> Instant {
        // An instant is whole at any moment, so a panic elsewhere cannot have left half of one.
        let mut bucket = self.buckets[direction as usize].lock().unwrap_or_else(PoisonError::into_inner);
        bucket.set_rate(shape.rate(direction), now);
        bucket.reserve(bytes, now)
    }
}

/// Carries a connection until it ends.
pub(super) async fn forward(mut client: TcpStream, mut road: ConnectionContext, mut rng: fastrand::Rng) {
    // A small packet is as late as a large one; only the link's own shape may delay it.
    let _ = client.set_nodelay(true);
    let mut server = match connect(&mut road).await {
        Ok(server) => server,
        Err(end) => return finish(end, &[&client]),
    };
    road.traffic.connections.fetch_add(1, Ordering::AcqRel);
    let end = both_ways(&mut client, &mut server, &road, &mut rng).await;
    finish(end, &[&client, &server]);
}

/// A connection is made through an open link only: its first packet would wait as long as the link does not carry.
async fn connect(road: &mut ConnectionContext) -> Result<TcpStream, End> {
    let decided = |condition: Condition| !matches!(condition, Condition::Stalled | Condition::HalfOpen(_));
    let state = road.state.wait_for(|state| decided(state.effective().condition)).await;
    match state.map_err(|_| End::Reset)?.effective().condition {
        Condition::Cut => return Err(End::Reset),
        Condition::Closed => return Err(End::Closed),
        Condition::Open | Condition::Stalled | Condition::HalfOpen(_) => {}
    }
    let connected = timeout(CONNECT_PATIENCE, TcpStream::connect(&*road.server)).await;
    let server = connected.map_err(|_| End::Reset)?.map_err(|_| End::Reset)?;
    // As above.
    let _ = server.set_nodelay(true);
    Ok(server)
}

async fn both_ways(
    client: &mut TcpStream,
    server: &mut TcpStream,
    road: &ConnectionContext,
    rng: &mut fastrand::Rng,
) -> End {
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let up = Pump::new(Direction::Up, from_client, to_server, road, rng.fork());
    let down = Pump::new(Direction::Down, from_server, to_client, road, rng.fork());
    let mut state = road.state.clone();
    let ends = |state: &LinkState| matches!(state.effective().condition, Condition::Cut | Condition::Closed);
    tokio::select! {
        // First: a change of the setting precedes bytes of the ends.
        biased;
        ended = state.wait_for(ends) => match ended.map(|state| state.effective().condition) {
            Ok(Condition::Closed) => End::Closed,
            _ => End::Reset,
        },
        carried = async { tokio::try_join!(up.run(), down.run()) } => match carried {
            Ok(_) => End::Closed,
            Err(BrokenConnection) => End::Reset,
        },
    }
}

/// Ends the connections: dropping a stream closes it, with a reset if one is set before.
fn finish(end: End, streams: &[&TcpStream]) {
    for stream in streams.iter().filter(|_| end == End::Reset) {
        // It may have ended by itself already.
        let _ = stream.set_zero_linger();
    }
}
