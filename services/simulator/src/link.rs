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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

pub use self::condition::{Condition, Direction, Setting, Shape};
pub use self::profile::{Fault, Profile, UnknownProfile};
use self::relay::ConnectionContext;
pub use self::switch::{CLIENTS_MAX, OnLink, Sharing, Switch};

/// Connections one link carries at once; more wait in the kernel until one ends.
pub const CONNECTIONS_MAX: usize = 8192;
/// Pause after a connection could not be accepted (too many open files), so that the reason can pass.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A running link. Dropping it ends it and its connections.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    setting: watch::Sender<Setting>,
    /// The setting that returns when a person's cut ends; `None` while nobody cuts the link.
    behind_cut: Mutex<Option<Setting>>,
    traffic: Arc<Traffic>,
    stop: CancellationToken,
    _ends: DropGuard,
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
        let (setting, watched) = watch::channel(Setting::default());
        let traffic = Arc::<Traffic>::default();
        let stop = CancellationToken::new();
        let road = ConnectionContext::new(server, watched, Arc::clone(&traffic));
        let behind_cut = Mutex::default();
        (Self { address, setting, behind_cut, traffic, _ends: stop.clone().drop_guard(), stop }, road)
    }

    /// Where clients connect to.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the link's condition and leaves its shape. Connections that are open see it at once.
    pub fn set(&self, condition: Condition) {
        self.change(|setting| setting.condition = condition);
    }

    /// Sets the link's shape and leaves its condition. Bytes in flight continue in the new shape.
    pub fn shape(&self, shape: Shape) {
        self.change(|setting| setting.shape = shape);
    }

    /// Sets condition and shape at once.
    pub fn apply_setting(&self, setting: Setting) {
        self.change(|known| *known = setting);
    }

    /// Cuts the link until it is called with `false`. Then the setting holds that was made meanwhile.
    pub fn cut_off(&self, is_cut: bool) {
        let mut behind = self.behind_cut.lock().unwrap_or_else(PoisonError::into_inner);
        match (is_cut, behind.take()) {
            (true, known) => {
                *behind = Some(known.unwrap_or_else(|| *self.setting.borrow()));
                self.setting.send_if_modified(|setting| {
                    std::mem::replace(&mut setting.condition, Condition::Cut) != Condition::Cut
                });
            }
            (false, Some(setting)) => _ = self.setting.send_replace(setting),
            (false, None) => {}
        }
    }

    /// Changes the setting: that of the link, or the one that returns after a cut. A setting is whole at any moment, so a panic
    /// elsewhere cannot have left half of one.
    fn change(&self, change: impl FnOnce(&mut Setting)) {
        let mut behind = self.behind_cut.lock().unwrap_or_else(PoisonError::into_inner);
        match behind.as_mut() {
            Some(setting) => change(setting),
            None => self.setting.send_modify(change),
        }
    }

    /// The link's condition and shape.
    pub fn setting(&self) -> Setting {
        *self.setting.borrow()
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
                tracing::warn!(%error, "a connection to the link could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
