//! Waits until a process is ready, by its [`Readiness`]. The caller watches for the end of the process meanwhile.

use std::path::Path;
use std::time::Duration;

use muster_contract::profile::Readiness;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Time between two polls of a port or a file.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time limit of one connection attempt.
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// Completes when the process is ready. It started at `since` in `dir`. A job is never ready before it ends.
pub(super) async fn until_ready(readiness: &Readiness, since: Instant, dir: &Path) {
    match readiness {
        Readiness::Exit => std::future::pending().await,
        Readiness::Uptime { lasting } => sleep_until(since + *lasting).await,
        Readiness::Tcp { port, host } => {
            while !accepts(host, port.get()).await {
                sleep(POLL_INTERVAL).await;
            }
        }
        Readiness::File { path } => {
            while !tokio::fs::try_exists(dir.join(path)).await.unwrap_or(false) {
                sleep(POLL_INTERVAL).await;
            }
        }
    }
}

/// Whether another process already accepts connections on the unit's port: then an open port proves nothing.
pub(super) async fn is_taken(readiness: &Readiness) -> bool {
    match readiness {
        Readiness::Tcp { port, host } => accepts(host, port.get()).await,
        Readiness::Exit | Readiness::Uptime { .. } | Readiness::File { .. } => false,
    }
}

/// The missing condition, as the end of the sentence "not ready within 5s: ".
pub(super) fn missing(readiness: &Readiness) -> String {
    match readiness {
        Readiness::Exit => "it has not ended".to_owned(),
        Readiness::Uptime { lasting } => format!("it has to stay up for {lasting:?}"),
        Readiness::Tcp { port, host } => format!("nothing accepts connections on {host}, port {port}"),
        Readiness::File { path } => format!("the file '{path}' is not there"),
    }
}

async fn accepts(host: &str, port: u16) -> bool {
    matches!(timeout(CONNECT_MAX, TcpStream::connect((host, port))).await, Ok(Ok(_)))
}
