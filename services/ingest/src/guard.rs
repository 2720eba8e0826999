//! Watches over the streams after every reconnect, and over the ways in now and then. A server that comes back without its
//! memory has lost PRESENCE, and somebody may remove UPLINK: what is missing is made. A server that comes back with an older
//! LEDGER (set back to a backup) has forgotten what this process takes for held: it must end, and the next start reads LEDGER
//! anew. Going on would let devices forget reports that nobody holds.

use std::time::Duration;

use fastrand::Rng;
use muster_bus::{Bus, Link, ReadError};
use muster_contract::subjects::stream;
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::error::SetBack;
use crate::outlet::HighWater;

/// Time between two looks at whether the ways in are there.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How long such a look may wait for a server that is choosing a leader.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// Least and longest upper bound of the delay before LEDGER is looked at again.
const RETRY_MIN: Duration = Duration::from_millis(50);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Looks after every reconnect, until `stop`.
///
/// # Errors
/// LEDGER ends before what this process knows of it.
pub async fn watch(bus: Bus, high_water: HighWater, stop: CancellationToken) -> Result<(), SetBack> {
    let mut link = bus.link();
    let mut seen = *link.borrow_and_update();
    let watching = async {
        loop {
            match timeout(LOOK_EVERY, link.changed()).await {
                // The bus is gone, and the process with it.
                Ok(Err(_)) => return Ok(()),
                Ok(Ok(())) => {}
                Err(_) => {
                    make_ways_in(&bus).await;
                    continue;
                }
            }
            let now = *link.borrow_and_update();
            if now.is_up() && now != seen {
                converge(&bus, now).await;
                look(&bus, &high_water).await?;
                seen = now;
            }
        }
    };
    stop.run_until_cancelled(watching).await.unwrap_or(Ok(()))
}

/// Compares LEDGER's end with what is known of it, for as long as it takes to see it.
async fn look(bus: &Bus, high_water: &HighWater) -> Result<(), SetBack> {
    // Taken first: what is confirmed while LEDGER answers may be above what it answers.
    let known = high_water.now();
    let (mut retry, mut chance) = (FullJitter::new(RETRY_MIN, RETRY_MAX), Rng::new());
    loop {
        match bus.stream_state(stream::LEDGER).await {
            Ok(ledger) if ledger.last_seq < known => return Err(SetBack { known, ends_at: ledger.last_seq }),
            Ok(_) => return Ok(()),
            Err(error) => tracing::debug!(error = chain(&error), "cannot see LEDGER's end yet"),
        }
        tokio::time::sleep(retry.next(&mut chance)).await;
    }
}

/// Makes UPLINK and PRESENCE if they are gone: devices have what was lost with them.
async fn make_ways_in(bus: &Bus) {
    for name in [stream::UPLINK, stream::PRESENCE] {
        if let Err(ReadError::Missing { .. }) = bus.stream_state(name).await {
            tracing::warn!("{name} is gone, or nobody leads it; making it if it is missing");
            let link = *bus.link().borrow();
            // Whoever waits for a leader is asked again at the next look.
            let _ = timeout(LOOK_MAX, converge(bus, link)).await;
        }
    }
}

async fn converge(bus: &Bus, link: Link) {
    match bus.converge().await {
        Ok(()) => tracing::debug!(?link, "the streams stand"),
        Err(error) => tracing::error!(error = chain(&error), "the streams are not what they should be"),
    }
}
