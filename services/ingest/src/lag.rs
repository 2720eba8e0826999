//! Measures how many reports of each partition wait in UPLINK, by the server's answer. The reader of a partition knows their
//! number only while it reads: while it waits for LEDGER, or stands by, its number would be out of date.

use std::time::Duration;

use muster_bus::Bus;
use muster_service::error::chain;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Time between two requests.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Updates the gauge of each partition until `stop`. After an error the gauge keeps its value.
pub(crate) async fn follow(bus: Bus, lags: Vec<(u16, Gauge)>, stop: CancellationToken) {
    let following = async {
        loop {
            for (partition, lag) in &lags {
                match bus.consumer_progress(*partition).await {
                    Ok(found) => _ = lag.set(i64::try_from(found.outstanding()).unwrap_or(i64::MAX)),
                    Err(error) => {
                        tracing::debug!(
                            partition,
                            error = chain(&error),
                            "cannot read how many reports wait in UPLINK"
                        );
                    }
                }
            }
            sleep(ASK_EVERY).await;
        }
    };
    stop.run_until_cancelled(following).await;
}
