//! Reads the reports of one partition from UPLINK, and determines up to which time all of them were received. Opens the consumer
//! again whenever it fails.

use std::fmt;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_bus::{Bus, ConsumerProgress, Deliveries, Delivery, ReadError};
use muster_contract::Timestamp;
use muster_service::error::chain;
use muster_service::retry::retry;

use crate::limits::{BATCH, READ_RETRY};

/// How often the server is asked whether reports wait, while none comes. Reports that come show it themselves, because they come
/// in the order in which they were stored.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Reads the reports of one partition.
pub(crate) struct ReportReader {
    bus: Bus,
    partition: u16,
    /// The read in progress; `None` while the consumer is closed. It is never dropped half-way, because a batch would be lost.
    reading: Option<Reading>,
    /// The sequence of the last delivered report.
    delivered_through: u64,
    /// The server's next answer about waiting reports. It may be slow, and no report waits for it.
    progress: BoxFuture<'static, Result<ConsumerProgress, ReadError>>,
}

/// The consumer with the result of its next read.
type Reading = BoxFuture<'static, (Deliveries, Result<Vec<Delivery>, ReadError>)>;

/// The result of a read.
#[derive(Debug, Default)]
pub(crate) struct ReceivedReports {
    /// Reports in the order in which they were stored. None if only the consumer was opened, or only the time below is new.
    pub(crate) reports: Vec<Delivery>,
    /// Every report stored up to this time was delivered, if that is known.
    pub(crate) complete_through: Option<Timestamp>,
}

impl fmt::Debug for ReportReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReportReader").field("partition", &self.partition).finish_non_exhaustive()
    }
}

impl ReportReader {
    /// A reader that begins at the first report that is not acknowledged.
    pub(crate) fn new(bus: Bus, partition: u16) -> Self {
        let progress = progress_later(&bus, partition);
        Self { bus, partition, reading: None, delivered_through: 0, progress }
    }

    /// The next batch. The first one is empty and means that the consumer is open.
    pub(crate) async fn next(mut self) -> (Self, ReceivedReports) {
        loop {
            let Some(reading) = &mut self.reading else {
                self.open().await;
                return (self, ReceivedReports::default());
            };
            tokio::select! {
                biased;
                (deliveries, batch) = reading => if let Some(batch) = self.apply_read(deliveries, batch) {
                    return (self, batch);
                },
                progress = &mut self.progress => {
                    let delivered_through = self.delivered_through;
                    self.progress = progress_later(&self.bus, self.partition);
                    // A failed answer is replaced by the next one.
                    if let Some(at) = progress.ok().and_then(|progress| progress.reached_by(delivered_through)) {
                        return (self, ReceivedReports { reports: Vec::new(), complete_through: Some(at) });
                    }
                }
            }
        }
    }

    /// Opens the consumer.
    async fn open(&mut self) {
        let failure = format!("cannot read reports of partition {} yet", self.partition);
        let opened = retry(READ_RETRY, failure, |_| self.bus.partition(self.partition)).await;
        self.reading = Some(read(opened));
        self.progress = progress_now(&self.bus, self.partition);
    }

    fn apply_read(
        &mut self,
        deliveries: Deliveries,
        batch: Result<Vec<Delivery>, ReadError>,
    ) -> Option<ReceivedReports> {
        match batch {
            Ok(reports) => {
                self.reading = Some(read(deliveries));
                self.delivered_through =
                    reports.last().map_or(self.delivered_through, |last| last.stream_seq);
                let complete_through = reports.last().map(|last| last.stored_at);
                Some(ReceivedReports { reports, complete_through })
            }
            Err(error) => {
                tracing::warn!(
                    partition = self.partition,
                    error = chain(&error),
                    "cannot read further reports of the partition; opening the consumer again"
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

fn progress_later(bus: &Bus, partition: u16) -> BoxFuture<'static, Result<ConsumerProgress, ReadError>> {
    let bus = bus.clone();
    async move {
        tokio::time::sleep(PROGRESS_EVERY).await;
        bus.consumer_progress(partition).await
    }
    .boxed()
}

fn progress_now(bus: &Bus, partition: u16) -> BoxFuture<'static, Result<ConsumerProgress, ReadError>> {
    let bus = bus.clone();
    async move { bus.consumer_progress(partition).await }.boxed()
}
