//! Reports as they come out of UPLINK, for one partition, and up to when all of them have come. Opens the way again for as
//! long as it takes.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_bus::deliveries::UNACKNOWLEDGED_MAX;
use muster_bus::{Bus, Deliveries, Delivery, ReadError, Sounding};
use muster_contract::Timestamp;
use muster_domain::border::UNSETTLED_MAX;
use muster_service::backoff::FullJitter;
use muster_service::error::chain;

/// Reports taken at once.
pub const BATCH: usize = 512;
/// How often the server is asked whether something waits, while nothing comes. Reports that come say it themselves: they
/// come in the order in which they were stored.
const SOUND_EVERY: Duration = Duration::from_secs(1);
/// Least and longest upper bound of the delay before another attempt to open the way.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(10);

// What waits for a sum, and one batch more, must not keep the server from delivering.
const _: () = assert!(UNSETTLED_MAX + BATCH < UNACKNOWLEDGED_MAX);

/// The reports of one partition.
pub struct Intake {
    bus: Bus,
    partition: u16,
    /// The next reports. Never given up half-way: the way may be mended meanwhile.
    reading: Option<Reading>,
    /// The last stream sequence that has come.
    handed_out: u64,
    /// The next word of the server on what waits: it may be long in coming, and no report waits for it.
    sounding: BoxFuture<'static, Result<Sounding, ReadError>>,
    retry: FullJitter,
    chance: Rng,
}

/// Deliveries, and what comes of them next.
type Reading = BoxFuture<'static, (Deliveries, Result<Vec<Delivery>, ReadError>)>;

/// What came.
#[derive(Debug, Default)]
pub struct Came {
    /// Reports, in the order in which they were stored. None where only the way was opened, or more is known now.
    pub reports: Vec<Delivery>,
    /// Every report stored up to this moment has come, if that is known.
    pub all_to: Option<Timestamp>,
}

impl fmt::Debug for Intake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Intake").field("partition", &self.partition).finish_non_exhaustive()
    }
}

impl Intake {
    /// The reports of a partition, from the first one not acknowledged.
    pub fn new(bus: Bus, partition: u16, chance: Rng) -> Self {
        let retry = FullJitter::new(RETRY_MIN, RETRY_MAX);
        let sounding = sound_later(&bus, partition);
        Self { bus, partition, reading: None, handed_out: 0, sounding, retry, chance }
    }

    /// What comes next. The first that comes says only that the way is open.
    pub async fn next(mut self) -> (Self, Came) {
        loop {
            let Some(reading) = &mut self.reading else {
                if self.open().await {
                    return (self, Came::default());
                }
                continue;
            };
            tokio::select! {
                biased;
                (deliveries, batch) = reading => if let Some(came) = self.take(deliveries, batch) {
                    return (self, came);
                },
                sounding = &mut self.sounding => {
                    let handed_out = self.handed_out;
                    self.sounding = sound_later(&self.bus, self.partition);
                    // One that failed is made up for by the next.
                    if let Some(at) = sounding.ok().and_then(|sounding| sounding.reached_by(handed_out)) {
                        return (self, Came { reports: Vec::new(), all_to: Some(at) });
                    }
                }
            }
        }
    }

    /// Opens the way; where it cannot, false after a while.
    async fn open(&mut self) -> bool {
        match self.bus.partition(self.partition).await {
            Ok(opened) => {
                self.reading = Some(read(opened));
                self.sounding = sound(&self.bus, self.partition);
                true
            }
            Err(error) => {
                let retry_in = self.retry.next(&mut self.chance);
                tracing::warn!(
                    partition = self.partition,
                    error = chain(&error),
                    ?retry_in,
                    "cannot take reports"
                );
                tokio::time::sleep(retry_in).await;
                false
            }
        }
    }

    fn take(&mut self, deliveries: Deliveries, batch: Result<Vec<Delivery>, ReadError>) -> Option<Came> {
        match batch {
            Ok(reports) => {
                self.retry.reset();
                self.reading = Some(read(deliveries));
                self.handed_out = reports.last().map_or(self.handed_out, |last| last.stream_seq);
                let all_to = reports.last().map(|last| last.stored_at);
                Some(Came { reports, all_to })
            }
            Err(error) => {
                tracing::warn!(
                    partition = self.partition,
                    error = chain(&error),
                    "reports stopped coming; opening the way again"
                );
                self.reading = None;
                None
            }
        }
    }
}

fn read(mut deliveries: Deliveries) -> Reading {
    async move {
        let batch = deliveries.next_batch(BATCH).await;
        (deliveries, batch)
    }
    .boxed()
}

fn sound_later(bus: &Bus, partition: u16) -> BoxFuture<'static, Result<Sounding, ReadError>> {
    let bus = bus.clone();
    async move {
        tokio::time::sleep(SOUND_EVERY).await;
        bus.sound(partition).await
    }
    .boxed()
}

fn sound(bus: &Bus, partition: u16) -> BoxFuture<'static, Result<Sounding, ReadError>> {
    let bus = bus.clone();
    async move { bus.sound(partition).await }.boxed()
}
