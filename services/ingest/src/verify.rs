//! Receipts in DOWNLINK that no ingest wrote, or that cannot be read: each is an incident, and the owner of the device's
//! partition writes the right one.
//!
//! Until then such a receipt costs its device no report: one that cannot be read is ignored, one that knows more than the device
//! ever sent makes it begin a new epoch, and what any other makes it count as covered it keeps for a day, in which the right
//! one asks for it. A receipt that is gone is not missed: the next report brings another. Where the partition has no owner yet,
//! or the hub does not know the device, the next receipt that is due replaces it. It does not find a receipt of ingest that is
//! older than it should be, which covers less.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use muster_bus::{Bus, Delivery, ReadError, Start};
use muster_contract::headers::{CE_SOURCE, CE_TYPE, CE_TYPE_PREFIX};
use muster_contract::incident::{ForeignDocument, IncidentKind, IncidentRequest};
use muster_contract::limits::VIEW_MESSAGE_BYTES_MAX;
use muster_contract::partition::partition_of;
use muster_contract::receipt::Receipt;
use muster_contract::state::cut;
use muster_contract::subjects::{self, stream};
use muster_contract::{Document, decode};
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use tokio_util::sync::CancellationToken;

use crate::desired::Wishes;
use crate::incidents::IncidentRecorder;
use crate::letter::EVENT_SOURCE;

/// Receipts read at once.
const BATCH: usize = 256;
/// Least and longest upper bound of the delay before another attempt to read.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Verifies the receipts of some partitions.
#[derive(Debug)]
pub struct ReceiptVerifier {
    bus: Bus,
    partitions: BTreeMap<u16, Arc<Wishes>>,
    incidents: IncidentRecorder,
    rng: Rng,
}

impl ReceiptVerifier {
    /// A verifier for these partitions.
    pub const fn new(
        bus: Bus,
        partitions: BTreeMap<u16, Arc<Wishes>>,
        incidents: IncidentRecorder,
        rng: Rng,
    ) -> Self {
        Self { bus, partitions, incidents, rng }
    }

    /// Verifies until `stop`: first the newest receipt of each device, then each as it is stored.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut retry = FullJitter::new(RETRY_MIN, RETRY_MAX);
        let verifying = async {
            loop {
                let Err(error) = self.follow(&mut retry).await;
                let retry_in = retry.next(&mut self.rng);
                tracing::warn!(error = chain(&error), ?retry_in, "cannot verify receipts");
                tokio::time::sleep(retry_in).await;
            }
        };
        stop.run_until_cancelled(verifying).await;
    }

    async fn follow(&self, retry: &mut FullJitter) -> Result<std::convert::Infallible, ReadError> {
        let filter = subjects::RECEIPTS;
        let mut replay = self.bus.replay(stream::DOWNLINK, &[filter], Start::LastPerSubject).await?;
        loop {
            let batch = replay.next_batch(BATCH).await?;
            retry.reset();
            for delivery in &batch {
                self.verify(delivery).await;
            }
        }
    }

    async fn verify(&self, delivery: &Delivery) {
        let Some(key) = subjects::device_of_receipt(&delivery.subject) else { return };
        let Some(partition) = self.partitions.get(&partition_of(&key)) else { return };
        let Some((cause, reason)) = foreign(delivery) else { return };
        tracing::warn!(
            device.site = %key.site, device.id = %key.device, downlink.seq = delivery.stream_seq, reason,
            "replacing a receipt that no ingest wrote"
        );
        partition.rewrite_receipt(key.clone());
        let reason = cut(format!("receipt: {reason}"), VIEW_MESSAGE_BYTES_MAX);
        let downlink_seq = delivery.stream_seq;
        let what = IncidentKind::ForeignDocument { downlink_seq, cause, reason, generation: None };
        if let Err(error) = self.incidents.record(&IncidentRequest::new(Some(key), what)).await {
            tracing::warn!(error = chain(&error), "cannot record the incident of a foreign receipt");
        }
    }
}

/// What is wrong with a receipt, in a word and in words; nothing where it can be one of ingest.
fn foreign(delivery: &Delivery) -> Option<(ForeignDocument, String)> {
    if delivery.payload.is_empty() {
        return Some((ForeignDocument::Empty, "it has no payload".to_owned()));
    }
    if let Err(refusal) = decode::parse::<Receipt>(&delivery.payload) {
        return Some((ForeignDocument::Unreadable, refusal.to_string()));
    }
    let header = |name| delivery.headers.get(name);
    let kind = header(CE_TYPE).and_then(|kind| kind.strip_prefix(CE_TYPE_PREFIX));
    let is_ours = header(CE_SOURCE) == Some(EVENT_SOURCE) && kind == Some(Receipt::KIND);
    (!is_ours).then(|| (ForeignDocument::NotPublished, "its headers do not name ingest".to_owned()))
}
