//! Keeps the mirrors that people read: creates them, checks them and replaces them when they are wrong.
//!
//! The keeper has its own credentials (`--readers-creds`), of an account that holds nothing but mirrors, so it cannot
//! delete the streams themselves. Any number of services may run one. On an open server there are no mirrors, because
//! people read the streams themselves; the keeper logs that and ends.

use std::path::Path;
use std::time::Duration;

use muster_service::error::chain;
use muster_service::health::{Health, Latch};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::bus::Bus;
use crate::config::BusConfig;
use crate::mirror::{MIRRORED, MirrorMemory, MirrorSettings, MirrorState};
use crate::mirror_consumers::RemovedConsumers;
use crate::topology::VIEWS_STREAM;

/// Time between two checks of the mirrors.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time without progress after which the keeper logs that a mirror lags; it repeats that after each such time.
const STALLED_AFTER: Duration = Duration::from_secs(30);

/// The mirror of a metric.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MirrorLabel {
    stream: &'static str,
}

/// The metrics of the keeper.
#[derive(Debug, Clone, Default)]
pub struct KeeperMetrics {
    lag: Family<MirrorLabel, Gauge>,
    replaced: Family<MirrorLabel, Counter>,
    consumers: Family<MirrorLabel, Gauge>,
    removed_consumers: Family<MirrorLabel, Counter>,
    foreign_consumers: Family<MirrorLabel, Counter>,
}

impl KeeperMetrics {
    /// Registers them.
    pub fn register(health: &Health) -> Self {
        let own = Self::default();
        health.metrics(|registry| {
            registry.register("mirror_lag", "Messages that a mirror lacks", own.lag.clone());
            registry.register("mirror_replaced", "Times that a mirror was replaced", own.replaced.clone());
            registry.register("mirror_consumers", "Consumers on a mirror", own.consumers.clone());
            let help = "Consumers removed from a mirror that had too many";
            registry.register("mirror_consumers_removed", help, own.removed_consumers.clone());
            let help = "Consumers removed from a mirror because they delivered to no inbox";
            registry.register("mirror_consumers_foreign", help, own.foreign_consumers.clone());
        });
        own
    }
}

/// The task that keeps the mirrors.
#[derive(Debug)]
pub struct Keeper {
    config: BusConfig,
    settings: MirrorSettings,
    metrics: KeeperMetrics,
    mirrors: Vec<MirrorEntry>,
}

/// One mirror, with the results of earlier checks.
#[derive(Debug)]
struct MirrorEntry {
    stream: &'static str,
    progress: Progress,
    memory: MirrorMemory,
}

/// The last sequence of a mirror, and the number of checks that found it unchanged.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    last_seq: u64,
    checks: u32,
}

impl Progress {
    /// Whether a mirror that lags has made no progress for [`STALLED_AFTER`]; true once in each such time.
    fn is_stalled(&mut self, last_seq: u64, lag: u64) -> bool {
        let is_same = lag > 0 && last_seq == self.last_seq;
        let checks = if is_same { self.checks + 1 } else { 0 };
        let is_stalled = CHECK_INTERVAL * checks >= STALLED_AFTER;
        *self = Self { last_seq, checks: if is_stalled { 0 } else { checks } };
        is_stalled
    }
}

impl Keeper {
    /// A keeper of every mirror, which connects with the settings `own` and the credentials `creds`.
    pub fn new(own: &BusConfig, creds: &Path, settings: MirrorSettings, metrics: KeeperMetrics) -> Self {
        let name = format!("{} keeper", own.name);
        let config = BusConfig { creds: Some(creds.to_owned()), inbox_prefix: None, name, ..own.clone() };
        let watch =
            |stream| MirrorEntry { stream, progress: Progress::default(), memory: MirrorMemory::default() };
        let mirrors = MIRRORED.map(watch).into();
        Self { config, settings, metrics, mirrors }
    }

    /// The same for the mirror of the bucket `views` alone, on a server without LEDGER.
    #[must_use]
    pub fn of_views(mut self) -> Self {
        self.mirrors.retain(|mirror| mirror.stream == VIEWS_STREAM);
        self
    }

    /// Keeps the mirrors until `stop`; releases `made` once all exist.
    pub async fn run(mut self, made: Latch, stop: CancellationToken) {
        let bus = match Bus::connect(self.config.clone(), &stop).await {
            Ok(bus) => bus,
            Err(error) => {
                tracing::error!(error = chain(&error), "cannot keep the mirrors");
                return;
            }
        };
        if !bus.wire.client.server_info().auth_required {
            tracing::error!(
                "cannot keep mirrors: this server needs no credentials, and people read the streams themselves; \
                 omit --readers-creds, or set up accounts with `muster auth init`"
            );
            made.release();
            return;
        }
        let mut made = Some(made);
        let keeping = async {
            loop {
                let mut all = true;
                for at in 0..self.mirrors.len() {
                    all &= self.check(&bus, at).await;
                }
                if all && let Some(made) = made.take() {
                    made.release();
                }
                tokio::time::sleep(CHECK_INTERVAL).await;
            }
        };
        stop.run_until_cancelled(keeping).await;
    }

    /// Checks one mirror; true if it exists.
    async fn check(&mut self, bus: &Bus, at: usize) -> bool {
        let MirrorEntry { stream, memory, .. } = self.mirrors[at];
        match bus.keep_mirror(stream, &self.settings, memory, Instant::now()).await {
            Ok((state, memory)) => {
                self.mirrors[at].memory = memory;
                self.report(stream, &state);
                if let MirrorState::Kept { last_seq, lag, consumers } = state {
                    if self.mirrors[at].progress.is_stalled(last_seq, lag) {
                        tracing::warn!(stream, lag, "mirror makes no progress; it is replaced if that lasts");
                    }
                    if consumers > 0 {
                        self.remove_consumers(bus, stream).await;
                    }
                }
                state != MirrorState::NoOrigin
            }
            Err(error) => {
                self.mirrors[at].memory = memory.after_failure();
                tracing::warn!(stream, error = chain(&error), "cannot check a mirror; trying again");
                false
            }
        }
    }

    fn report(&self, stream: &'static str, state: &MirrorState) {
        let label = MirrorLabel { stream };
        match state {
            MirrorState::NoOrigin => tracing::warn!(stream, "cannot mirror a stream that does not exist yet"),
            MirrorState::Created => tracing::info!(stream, "created mirror"),
            MirrorState::Updated => tracing::info!(stream, "changed the settings of a mirror"),
            MirrorState::Ahead { last_seq, origin_seq } => {
                tracing::warn!(
                    stream,
                    last_seq,
                    origin_seq,
                    "mirror holds more than its origin; checking again"
                );
            }
            MirrorState::Replaced(why) => {
                self.metrics.replaced.get_or_create(&label).inc();
                tracing::warn!(stream, why, "replaced mirror");
            }
            MirrorState::Kept { lag, consumers, .. } => {
                let shown = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
                self.metrics.lag.get_or_create(&label).set(shown(*lag));
                self.metrics.consumers.get_or_create(&label).set(shown(*consumers));
            }
        }
    }

    async fn remove_consumers(&self, bus: &Bus, stream: &'static str) {
        let RemovedConsumers { foreign, excess } = match bus.remove_consumers(stream).await {
            Ok(removed) => removed,
            Err(error) => {
                tracing::warn!(
                    stream,
                    error = chain(&error),
                    "cannot remove consumers of a mirror; trying again"
                );
                return;
            }
        };
        let label = MirrorLabel { stream };
        if foreign > 0 {
            self.metrics.foreign_consumers.get_or_create(&label).inc_by(foreign as u64);
            tracing::warn!(stream, foreign, "removed consumers of a mirror that delivered to no inbox");
        }
        if excess > 0 {
            self.metrics.removed_consumers.get_or_create(&label).inc_by(excess as u64);
            tracing::warn!(stream, excess, "removed consumers of a mirror with too many");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_that_lags_without_progress_is_logged_at_intervals() {
        let checks = u32::try_from(STALLED_AFTER.as_secs() / CHECK_INTERVAL.as_secs()).unwrap();
        let mut progress = Progress::default();
        assert!(!progress.is_stalled(5, 1));
        let reported = (0..3 * checks).filter(|_| progress.is_stalled(5, 1)).count();
        assert_eq!(reported, 3);
        assert!((0..3 * checks).all(|check| !progress.is_stalled(u64::from(check), 9)), "it makes progress");
        assert!((0..3 * checks).all(|_| !progress.is_stalled(7, 0)), "it lacks nothing");
    }
}
