//! How many reports of each partition wait in UPLINK, as the server says. Whoever reads a partition could tell only while it
//! reads: one that waits for LEDGER, or for its turn, would go on saying what was true before.

use std::time::Duration;

use muster_bus::Bus;
use muster_service::error::chain;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Time between two questions.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Keeps the gauge of each partition true until `stop`. What cannot be asked stays as it was.
pub async fn follow(bus: Bus, lags: Vec<(u16, Gauge)>, stop: CancellationToken) {
    let following = async {
        loop {
            for (partition, lag) in &lags {
                match bus.sound(*partition).await {
                    Ok(found) => _ = lag.set(i64::try_from(found.outstanding()).unwrap_or(i64::MAX)),
                    Err(error) => {
                        tracing::debug!(partition, error = chain(&error), "cannot ask what waits in UPLINK");
                    }
                }
            }
            sleep(ASK_EVERY).await;
        }
    };
    stop.run_until_cancelled(following).await;
}
