//! Verifies the receipts in DOWNLINK. A receipt that no ingest wrote, or that cannot be parsed, is an incident, and the owner of
//! the device's partition replaces it. The owner also replaces a receipt of ingest that is out of date: a former owner that stood
//! still may have written it late.
//!
//! Until then a foreign receipt loses no report: a device ignores a receipt that it cannot parse, begins a new epoch if a receipt
//! covers more than the device ever sent, and keeps the reports that any other receipt covers for a day, in which the right
//! receipt requests them. A deleted receipt is replaced after the next report. If the partition has no owner yet, or the hub does
//! not know the device, the next receipt that is due replaces the foreign one.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use muster_bus::{Bus, Delivery, ReadError, Start};
use muster_contract::headers::{CE_SOURCE, CE_TYPE, CE_TYPE_PREFIX};
use muster_contract::incident::{ForeignDocument, IncidentKind, IncidentRequest};
use muster_contract::limits::VIEW_MESSAGE_BYTES_MAX;
use muster_contract::partition::partition_of;
use muster_contract::receipt::Receipt;
use muster_contract::state::cut;
use muster_contract::subjects::{self, stream};
use muster_contract::{Document, decode};
use muster_service::error::chain;
use muster_service::retry::{Backoff, retry_until};
use tokio_util::sync::CancellationToken;

use crate::desired::{DesiredQueue, StoredReceipt};
use crate::incidents::IncidentRecorder;
use crate::limits::READ_RETRY;
use crate::message::EVENT_SOURCE;

/// Receipts read at once.
const BATCH: usize = 256;

/// Verifies the receipts of some partitions.
#[derive(Debug)]
pub(crate) struct ReceiptVerifier {
    bus: Bus,
    partitions: BTreeMap<u16, Arc<DesiredQueue>>,
    incidents: IncidentRecorder,
}

impl ReceiptVerifier {
    /// A verifier for these partitions.
    pub(crate) const fn new(
        bus: Bus,
        partitions: BTreeMap<u16, Arc<DesiredQueue>>,
        incidents: IncidentRecorder,
    ) -> Self {
        Self { bus, partitions, incidents }
    }

    /// Verifies until `stop`: first the newest receipt of each device, then each as it is stored.
    pub(crate) async fn run(self, stop: CancellationToken) {
        retry_until(&stop, READ_RETRY, "cannot verify receipts", |backoff| self.follow(backoff)).await;
    }

    async fn follow(&self, backoff: Backoff) -> Result<Infallible, ReadError> {
        let filter = subjects::RECEIPTS;
        let mut replay = self.bus.replay(stream::DOWNLINK, &[filter], Start::LastPerSubject).await?;
        loop {
            let batch = replay.next_batch(BATCH).await?;
            backoff.reset();
            for delivery in &batch {
                self.verify(delivery).await;
            }
        }
    }

    async fn verify(&self, delivery: &Delivery) {
        let Some(key) = subjects::device_of_receipt(&delivery.subject) else { return };
        let Some(partition) = self.partitions.get(&partition_of(&key)) else { return };
        let (cause, reason) = match receipt_of_ingest(delivery) {
            Ok(receipt) => return partition.check_receipt(key, StoredReceipt::Ours(receipt)),
            Err(foreign) => foreign,
        };
        tracing::warn!(
            device.site = %key.site, device.id = %key.device, downlink.seq = delivery.stream_seq, reason,
            "replacing a receipt that no ingest wrote"
        );
        partition.check_receipt(key.clone(), StoredReceipt::Foreign);
        let reason = cut(format!("receipt: {reason}"), VIEW_MESSAGE_BYTES_MAX);
        let downlink_seq = delivery.stream_seq;
        let what = IncidentKind::ForeignDocument { downlink_seq, cause, reason, generation: None };
        if let Err(error) = self.incidents.record(&IncidentRequest::new(Some(key), what)).await {
            tracing::warn!(error = chain(&error), "cannot record the incident of a foreign receipt");
        }
    }
}

/// The receipt, if it can be one of ingest; otherwise the cause and the reason why not.
fn receipt_of_ingest(delivery: &Delivery) -> Result<Receipt, (ForeignDocument, String)> {
    if delivery.payload.is_empty() {
        return Err((ForeignDocument::Empty, "it has no payload".to_owned()));
    }
    let receipt = decode::parse::<Receipt>(&delivery.payload)
        .map_err(|refusal| (ForeignDocument::Unreadable, refusal.to_string()))?;
    let header = |name| delivery.headers.get(name);
    let kind = header(CE_TYPE).and_then(|kind| kind.strip_prefix(CE_TYPE_PREFIX));
    if header(CE_SOURCE) == Some(EVENT_SOURCE) && kind == Some(Receipt::KIND) {
        return Ok(receipt);
    }
    Err((ForeignDocument::NotPublished, "its headers do not name ingest".to_owned()))
}
