//! The keeper of the mirrors that people read: makes them, watches them and restores them.
//!
//! It has credentials of its own (`--readers-creds`), of an account that holds nothing but mirrors: so what it may delete is
//! never the stream itself. Any number of services may run one. Without credentials there are no mirrors: on an open
//! server people read the streams themselves, and a keeper says so and ends.

use std::path::Path;
use std::time::Duration;

use muster_service::error::chain;
use muster_service::health::{Health, Latch};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio_util::sync::CancellationToken;

use crate::bus::Bus;
use crate::config::BusConfig;
use crate::mirror::{MIRRORED, MirrorMemory, MirrorSettings, MirrorState};
use crate::mirror_consumers::RemovedConsumers;
use crate::topology::VIEWS_STREAM;

/// Time between two looks at the mirrors.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time without progress after which a mirror that lags is reported in the log, and again after each such time.
const STALLED_AFTER: Duration = Duration::from_secs(30);

/// Which mirror a number is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfMirror {
    stream: &'static str,
}

/// What the keeper counts.
#[derive(Debug, Clone, Default)]
pub struct KeeperMetrics {
    lag: Family<OfMirror, Gauge>,
    replaced: Family<OfMirror, Counter>,
    consumers: Family<OfMirror, Gauge>,
    removed_consumers: Family<OfMirror, Counter>,
    foreign_consumers: Family<OfMirror, Counter>,
}

impl KeeperMetrics {
    /// Registers them.
    pub fn register(health: &Health) -> Self {
        let own = Self::default();
        health.metrics(|registry| {
            registry.register("mirror_lag", "Messages that a mirror lacks", own.lag.clone());
            registry.register("mirror_replaced", "Times that a mirror was made anew", own.replaced.clone());
            registry.register("mirror_consumers", "Consumers on a mirror", own.consumers.clone());
            let help = "Consumers removed from a mirror that had too many";
            registry.register("mirror_consumers_removed", help, own.removed_consumers.clone());
            let help = "Consumers removed from a mirror that delivered to nobody's inbox";
            registry.register("mirror_consumers_foreign", help, own.foreign_consumers.clone());
        });
        own
    }
}

/// Keeps the mirrors.
#[derive(Debug)]
pub struct Keeper {
    config: BusConfig,
    settings: MirrorSettings,
    metrics: KeeperMetrics,
    mirrors: Vec<MirrorWatch>,
}

/// One mirror, and what is remembered of it.
#[derive(Debug)]
struct MirrorWatch {
    stream: &'static str,
    progress: Progress,
    memory: MirrorMemory,
}

/// How far a mirror was, and for how many looks.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    last_seq: u64,
    looks: u32,
}

impl Progress {
    /// Whether a mirror that lags has made no progress for [`STALLED_AFTER`], once for each such time.
    fn is_stalled(&mut self, last_seq: u64, lag: u64) -> bool {
        let is_same = lag > 0 && last_seq == self.last_seq;
        let looks = if is_same { self.looks + 1 } else { 0 };
        let is_stalled = LOOK_EVERY * looks >= STALLED_AFTER;
        *self = Self { last_seq, looks: if is_stalled { 0 } else { looks } };
        is_stalled
    }
}

impl Keeper {
    /// A keeper of every mirror, which connects as `own` does, with credentials of its own.
    pub fn new(own: &BusConfig, creds: &Path, settings: MirrorSettings, metrics: KeeperMetrics) -> Self {
        let name = format!("{} keeper", own.name);
        let config = BusConfig { creds: Some(creds.to_owned()), inbox_prefix: None, name, ..own.clone() };
        let watch =
            |stream| MirrorWatch { stream, progress: Progress::default(), memory: MirrorMemory::default() };
        let mirrors = MIRRORED.map(watch).into();
        Self { config, settings, metrics, mirrors }
    }

    /// The same for the mirror of the bucket `views` alone, where there is no LEDGER.
    #[must_use]
    pub fn of_views(mut self) -> Self {
        self.mirrors.retain(|mirror| mirror.stream == VIEWS_STREAM);
        self
    }

    /// Keeps the mirrors until `stop`; `made` is released once all are there.
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
                "there are no mirrors: this server lets everybody in, and people read the streams themselves; \
                 leave --readers-creds out, or set accounts up with `muster auth init`"
            );
            made.release();
            return;
        }
        let mut made = Some(made);
        let keeping = async {
            loop {
                let mut all = true;
                for at in 0..self.mirrors.len() {
                    all &= self.look(&bus, at).await;
                }
                if all && let Some(made) = made.take() {
                    made.release();
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        stop.run_until_cancelled(keeping).await;
    }

    /// Looks at one mirror; whether it is there.
    async fn look(&mut self, bus: &Bus, at: usize) -> bool {
        let MirrorWatch { stream, memory, .. } = self.mirrors[at];
        match bus.keep_mirror(stream, &self.settings, memory).await {
            Ok((state, memory)) => {
                self.mirrors[at].memory = memory;
                self.note(stream, &state);
                if let MirrorState::Kept { last_seq, lag, consumers } = state {
                    if self.mirrors[at].progress.is_stalled(last_seq, lag) {
                        tracing::warn!(stream, lag, "a mirror makes no progress; the server keeps trying");
                    }
                    if consumers > 0 {
                        self.remove_consumers(bus, stream).await;
                    }
                }
                state != MirrorState::NoOrigin
            }
            Err(error) => {
                self.mirrors[at].memory = memory.after_failure();
                tracing::warn!(stream, error = chain(&error), "cannot look after a mirror; trying again");
                false
            }
        }
    }

    fn note(&self, stream: &'static str, state: &MirrorState) {
        let label = OfMirror { stream };
        match state {
            MirrorState::NoOrigin => tracing::warn!(stream, "there is nothing to mirror yet"),
            MirrorState::Created => tracing::info!(stream, "mirror created"),
            MirrorState::Updated => tracing::info!(stream, "changed the settings of a mirror"),
            MirrorState::Ahead { last_seq, origin_seq } => {
                tracing::warn!(
                    stream,
                    last_seq,
                    origin_seq,
                    "a mirror holds more than its origin; looking again"
                );
            }
            MirrorState::Replaced(why) => {
                self.metrics.replaced.get_or_create(&label).inc();
                tracing::warn!(stream, why, "mirror made anew");
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
        let label = OfMirror { stream };
        if foreign > 0 {
            self.metrics.foreign_consumers.get_or_create(&label).inc_by(foreign as u64);
            tracing::warn!(stream, foreign, "removed consumers of a mirror that delivered to nobody's inbox");
        }
        if excess > 0 {
            self.metrics.removed_consumers.get_or_create(&label).inc_by(excess as u64);
            tracing::warn!(stream, excess, "removed consumers of a mirror that had too many");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_that_lags_without_progress_is_reported_once_in_a_while() {
        let looks = u32::try_from(STALLED_AFTER.as_secs() / LOOK_EVERY.as_secs()).unwrap();
        let mut progress = Progress::default();
        assert!(!progress.is_stalled(5, 1));
        let reported = (0..3 * looks).filter(|_| progress.is_stalled(5, 1)).count();
        assert_eq!(reported, 3);
        assert!((0..3 * looks).all(|look| !progress.is_stalled(u64::from(look), 9)), "it makes progress");
        assert!((0..3 * looks).all(|_| !progress.is_stalled(7, 0)), "it lacks nothing");
    }
}
