//! A link that can be broken: a TCP relay between clients and a server.
//!
//! It relays bytes and does not interpret NATS. Its [`Setting`] is a [`Condition`] (open, or a fault) and a [`Shape`] (rate
//! and delay). Both can change at any time, also for open connections.
//!
//! ```text
//! accept ─► relay: one a connection ─► pump: one a direction
//!                                        read ─► bucket (rate) ─► line (delay, order, bound) ─► write
//! ```
//!
//! Everything is bounded: a relay with a full line does not read, so the sender's buffers fill and it has to wait, as on a
//! real link; connections beyond [`CONNECTIONS_MAX`] wait to be accepted. A [`Switch`] has a link for each of its clients.

mod bucket;
mod condition;
mod line;
mod profile;
mod pump;
mod relay;
mod switch;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

pub use self::condition::{Condition, Direction, Setting, Shape};
pub use self::profile::{Fault, Profile};
use self::relay::ConnectionContext;
pub(crate) use self::switch::{OnLink, Sharing, Switch};

/// Connections one link carries at once; more wait in the kernel until one ends.
pub const CONNECTIONS_MAX: usize = 8192;
/// Pause after a connection could not be accepted (too many open files), so that the reason can pass.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A running link. Dropping it ends it and its connections.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    state: watch::Sender<LinkState>,
    traffic: Arc<Traffic>,
    stop: CancellationToken,
    _ends: DropGuard,
}

/// The setting of a link, and whether a person has cut the link.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LinkState {
    setting: Setting,
    is_cut_off: bool,
}

/// The traffic of a link.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    connections: AtomicU64,
    up: AtomicU64,
    down: AtomicU64,
    swallowed: AtomicU64,
}

impl Link {
    /// Opens a link to `server` (`HOST:PORT`) on a free port of the loopback interface.
    ///
    /// # Errors
    /// No port could be bound.
    pub async fn open(server: impl Display) -> std::io::Result<Self> {
        Self::between(SocketAddr::from(([127, 0, 0, 1], 0)), server, fastrand::u64(..)).await
    }

    /// Opens a link to `server` (`HOST:PORT`, looked up at every connection) on an address. `seed` decides the jitter.
    ///
    /// # Errors
    /// The address could not be bound.
    pub async fn between(listen: SocketAddr, server: impl Display, seed: u64) -> std::io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let (link, road) = Self::unheard(address, server.to_string());
        tokio::spawn(link.stop.clone().run_until_cancelled_owned(accept(listener, road, seed)));
        Ok(link)
    }

    /// A link that does not listen itself, and the road of what is connected through it.
    fn unheard(address: SocketAddr, server: String) -> (Self, ConnectionContext) {
        let (state, watched) = watch::channel(LinkState::default());
        let traffic = Arc::<Traffic>::default();
        let stop = CancellationToken::new();
        let road = ConnectionContext::new(server, watched, Arc::clone(&traffic));
        (Self { address, state, traffic, _ends: stop.clone().drop_guard(), stop }, road)
    }

    /// Where clients connect to.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the link's condition and leaves its shape. Connections that are open see it at once.
    pub fn set(&self, condition: Condition) {
        self.state.send_modify(|state| state.setting.condition = condition);
    }

    /// Sets the link's shape and leaves its condition. Bytes in flight continue in the new shape.
    pub fn shape(&self, shape: Shape) {
        self.state.send_modify(|state| state.setting.shape = shape);
    }

    /// Sets condition and shape at once.
    pub fn apply_setting(&self, setting: Setting) {
        self.state.send_modify(|state| state.setting = setting);
    }

    /// Cuts the link, whatever its setting is, or ends such a cut: then the newest setting holds.
    pub fn cut_off(&self, is_cut: bool) {
        self.state.send_if_modified(|state| std::mem::replace(&mut state.is_cut_off, is_cut) != is_cut);
    }

    /// The link's condition and shape; while a person has cut the link, its condition is [`Condition::Cut`].
    pub fn setting(&self) -> Setting {
        self.state.borrow().effective()
    }

    /// The link's condition.
    pub fn condition(&self) -> Condition {
        self.setting().condition
    }

    /// Connections carried to the server so far: it rises when a client is back after a cut.
    pub fn connections(&self) -> u64 {
        self.traffic.connections.load(Ordering::Acquire)
    }

    /// Bytes handed to the server ([`Direction::Up`]) or to clients so far.
    pub fn carried(&self, direction: Direction) -> u64 {
        self.traffic.of(direction).load(Ordering::Relaxed)
    }

    /// Bytes taken and thrown away so far, while the link was half open.
    pub fn swallowed(&self) -> u64 {
        self.traffic.swallowed.load(Ordering::Relaxed)
    }
}

impl LinkState {
    /// The setting under which the link carries.
    pub(crate) const fn effective(self) -> Setting {
        let Setting { condition, shape } = self.setting;
        Setting { condition: if self.is_cut_off { Condition::Cut } else { condition }, shape }
    }
}

impl Traffic {
    const fn of(&self, direction: Direction) -> &AtomicU64 {
        match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        }
    }
}

async fn accept(listener: TcpListener, road: ConnectionContext, seed: u64) {
    // Dropped with this future, which ends every relay with the link.
    let mut relays = JoinSet::new();
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut rng = fastrand::Rng::with_seed(seed);
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        while relays.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((client, _)) => {
                let carried = relay::forward(client, road.clone(), rng.fork());
                relays.spawn(async move {
                    carried.await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the link");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
