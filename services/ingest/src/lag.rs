//! Measures how many reports of each partition wait in UPLINK, and how full QUARANTINE is, by the server's answers. The reader
//! of a partition knows the number of its reports only while it reads: while it waits for LEDGER, or stands by, its number
//! would be out of date.

use std::time::Duration;

use muster_bus::Bus;
use muster_contract::subjects::stream;
use muster_service::error::chain;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::metrics::QuarantineMetrics;

/// Time between two requests.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Updates the gauges until `stop`. After an error a gauge keeps its value.
pub(crate) async fn follow(
    bus: Bus,
    lags: Vec<(u16, Gauge)>,
    quarantine: QuarantineMetrics,
    stop: CancellationToken,
) {
    let following = async {
        loop {
            for (partition, lag) in &lags {
                match bus.consumer_progress(*partition).await {
                    Ok(found) => _ = lag.set(shown(found.outstanding())),
                    Err(error) => {
                        tracing::debug!(
                            partition,
                            error = chain(&error),
                            "cannot read how many reports wait in UPLINK"
                        );
                    }
                }
            }
            show_quarantine(&bus, &quarantine).await;
            sleep(ASK_EVERY).await;
        }
    };
    stop.run_until_cancelled(following).await;
}

async fn show_quarantine(bus: &Bus, metrics: &QuarantineMetrics) {
    match bus.stream_state(stream::QUARANTINE).await {
        Ok(state) => {
            metrics.reports.set(shown(state.messages));
            metrics.bytes.set(shown(state.bytes));
            metrics.bytes_max.set(state.bytes_max.map_or(0, shown));
        }
        Err(error) => tracing::debug!(error = chain(&error), "cannot read how full QUARANTINE is"),
    }
}

fn shown(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
