//! Watches over the streams: a server that comes back without its memory has lost PRESENCE, so whoever is connected
//! again makes what is missing.

use muster_bus::{Bus, Link};
use muster_service::error::chain;
use tokio_util::sync::CancellationToken;

/// Makes missing streams after every reconnect, until `stop`.
pub async fn watch(bus: Bus, stop: CancellationToken) {
    let mut link = bus.link();
    let mut converged = *link.borrow_and_update();
    let watching = async {
        // Ends when the bus is gone, and the process with it.
        while link.changed().await.is_ok() {
            let now = *link.borrow_and_update();
            if now.is_up() && now != converged {
                converge(&bus, now).await;
                converged = now;
            }
        }
    };
    stop.run_until_cancelled(watching).await;
}

async fn converge(bus: &Bus, link: Link) {
    match bus.converge().await {
        Ok(()) => tracing::debug!(?link, "the streams stand"),
        Err(error) => tracing::error!(error = chain(&error), "the streams are not what they should be"),
    }
}
