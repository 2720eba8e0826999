//! Waits until a process is ready, in the four ways of [`Readiness`]. Says nothing of a process that has ended: who
//! waits here watches for that beside.

use std::path::Path;
use std::time::Duration;

use muster_contract::profile::Readiness;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Time between two looks at a port or a file.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long one connection may take to be accepted.
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// Completes when the process is ready: one that started at `since` and works in `dir`. A job never is before it ends.
pub(super) async fn until_ready(readiness: &Readiness, since: Instant, dir: &Path) {
    match readiness {
        Readiness::Exit => std::future::pending().await,
        Readiness::Uptime { lasting } => sleep_until(since + *lasting).await,
        Readiness::Tcp { port, host } => {
            while !accepts(host, port.get()).await {
                sleep(LOOK_EVERY).await;
            }
        }
        Readiness::File { path } => {
            while !tokio::fs::try_exists(dir.join(path)).await.unwrap_or(false) {
                sleep(LOOK_EVERY).await;
            }
        }
    }
}

/// Whether the port that a process will be asked for is somebody else's already: then an open port proves nothing.
pub(super) async fn is_taken(readiness: &Readiness) -> bool {
    match readiness {
        Readiness::Tcp { port, host } => accepts(host, port.get()).await,
        Readiness::Exit | Readiness::Uptime { .. } | Readiness::File { .. } => false,
    }
}

/// What is missing, as the end of the sentence "not ready within 5s: ".
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
