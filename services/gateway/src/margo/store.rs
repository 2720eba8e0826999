//! Reads accepted clients and records from the bucket `http_devices`, desired states and receipts from DOWNLINK; writes records,
//! and publishes reports to UPLINK. [`record`] has the rules of numbering.

use std::time::Duration;

use muster_bus::event::attributes;
use muster_bus::{Bus, Delivery, Outgoing, PublishError, PublishErrorKind, ReadError, Trace};
use muster_contract::decode::{self, Document};
use muster_contract::desired::DesiredState;
use muster_contract::http_device::{HttpClient, HttpDevice, client_subject, device_subject};
use muster_contract::presence::Heartbeat;
use muster_contract::receipt::Receipt;
use muster_contract::subjects::{self, stream};
use muster_contract::{DeviceKey, Timestamp};
use muster_service::error::chain;
use tokio::time::sleep;

use super::{problems, record};
use crate::problem::Problem;

/// Attempts to store a record that other gateways change at the same time.
const ATTEMPTS_MAX: u32 = 12;
/// Longest delay before the first repetition; it doubles with each, up to [`RETRY_DOUBLINGS_MAX`] times.
const RETRY_DELAY: Duration = Duration::from_millis(10);
/// Most doublings of the delay.
const RETRY_DOUBLINGS_MAX: u32 = 3;

/// A record as the bucket holds it, and the receipt of its device.
#[derive(Debug)]
pub(crate) struct LoadedRecord {
    record: HttpDevice,
    receipt: Option<Receipt>,
    revision: u64,
    /// The bucket does not have this record yet.
    is_new: bool,
}

/// The streams of the hub. Clones share the connection.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    bus: Bus,
}

impl Store {
    /// The streams behind a connection.
    pub(crate) const fn new(bus: Bus) -> Self {
        Self { bus }
    }

    /// The entry of a client by its SPIFFE id; `None` if it was never accepted.
    ///
    /// # Errors
    /// The hub cannot be asked now.
    pub(crate) async fn client(&self, spiffe_id: &str) -> Result<Option<HttpClient>, Problem> {
        let entry = self.last(stream::HTTP_DEVICES, &client_subject(spiffe_id)).await?;
        entry.map(|entry| serde_json::from_slice(&entry.payload)).transpose().map_err(|error| {
            tracing::error!(
                error = chain(&error),
                client.id = spiffe_id,
                "cannot read the entry of a client"
            );
            problems::internal("the entry of this client cannot be read")
        })
    }

    /// The desired state of a device with its sequence in DOWNLINK; `None` if there is none.
    ///
    /// # Errors
    /// The hub cannot be asked now, or holds no valid document.
    pub(crate) async fn desired(&self, key: &DeviceKey) -> Result<Option<(u64, DesiredState)>, Problem> {
        let Some(last) = self.last(stream::DOWNLINK, &subjects::desired(key)).await? else { return Ok(None) };
        match decode::parse(&last.payload) {
            Ok(desired) => Ok(Some((last.stream_seq, desired))),
            Err(error) => {
                tracing::error!(error = chain(&error), device.id = %key, "cannot read a desired state");
                Err(problems::internal("the desired state of this device cannot be read"))
            }
        }
    }

    /// Changes the record of a device: `change` gets it with the receipt, and returns whether to store it. After a conflict with
    /// another gateway it runs again. A record that is missing, or was set back, begins an epoch.
    ///
    /// A replica that is behind may answer the read. Only a store proves that `change` got the newest record, even if the record
    /// is unchanged: the bucket refuses a record that was made from an older one.
    ///
    /// # Errors
    /// The hub cannot be asked, `change` refuses, or too many others change the record.
    pub(crate) async fn update<T>(
        &self,
        key: &DeviceKey,
        now: Timestamp,
        change: impl FnMut(&mut HttpDevice, Option<&Receipt>) -> Result<(T, bool), Problem>,
    ) -> Result<T, Problem> {
        self.update_loaded(key, now, None, change).await.map(|(result, _)| result)
    }

    /// Does what [`Store::update`] does, but begins with `loaded`, the record that an earlier update returned: it reads the record
    /// only after a conflict. Also returns the record after `change`; the bucket has it only if it was to be stored.
    ///
    /// # Errors
    /// Those of [`Store::update`].
    pub(crate) async fn update_loaded<T>(
        &self,
        key: &DeviceKey,
        now: Timestamp,
        mut loaded: Option<LoadedRecord>,
        mut change: impl FnMut(&mut HttpDevice, Option<&Receipt>) -> Result<(T, bool), Problem>,
    ) -> Result<(T, LoadedRecord), Problem> {
        let mut attempt = 0;
        while attempt < ATTEMPTS_MAX {
            let is_old = loaded.is_some();
            let mut found = match loaded.take() {
                Some(loaded) => loaded,
                None => self.record(key, now).await?,
            };
            let (result, is_to_store) = change(&mut found.record, found.receipt.as_ref())?;
            if !is_to_store && !found.is_new {
                return Ok((result, found));
            }
            match self.store(key, &found.record, found.revision).await {
                Ok(revision) => return Ok((result, LoadedRecord { revision, is_new: false, ..found })),
                // One other request of the device between the two updates suffices, so this conflict takes no attempt and no delay.
                Err(error) if error.kind == PublishErrorKind::Conflict && is_old => {}
                Err(error) if error.kind == PublishErrorKind::Conflict => {
                    sleep(delay(attempt)).await;
                    attempt += 1;
                }
                Err(error) => return Err(refused(&error)),
            }
        }
        Err(problems::unavailable("too many requests of this device are under way; try again"))
    }

    async fn record(&self, key: &DeviceKey, now: Timestamp) -> Result<LoadedRecord, Problem> {
        let (own, receipt) = (device_subject(key), subjects::receipt(key));
        let (entry, receipt) =
            tokio::join!(self.last(stream::HTTP_DEVICES, &own), self.last(stream::DOWNLINK, &receipt));
        let receipt: Option<Receipt> = receipt?.and_then(|receipt| decode::parse(&receipt.payload).ok());
        let Some(entry) = entry? else {
            let record = record::begin(receipt.as_ref(), now);
            return Ok(LoadedRecord { record, receipt, revision: 0, is_new: true });
        };
        let known: HttpDevice = serde_json::from_slice(&entry.payload).map_err(|error| {
            tracing::error!(error = chain(&error), device.id = %key, "cannot read the record of a device");
            problems::internal("the record of this device cannot be read")
        })?;
        let revision = entry.stream_seq;
        match receipt.as_ref().filter(|receipt| record::is_set_back(&known, receipt)) {
            Some(ahead) => {
                tracing::warn!(device.id = %key, "began an epoch: the hub has numbers that the record lacks");
                let record = record::renew(&known, ahead, now);
                Ok(LoadedRecord { record, receipt, revision, is_new: true })
            }
            None => Ok(LoadedRecord { record: known, receipt, revision, is_new: false }),
        }
    }

    /// Stores a record in place of the one with a revision; returns its own revision.
    async fn store(&self, key: &DeviceKey, record: &HttpDevice, revision: u64) -> Result<u64, PublishError> {
        // Cannot fail: an object of texts and numbers.
        let document = serde_json::to_vec(record).unwrap_or_default();
        let message = Outgoing {
            expected_stream: Some(stream::HTTP_DEVICES),
            expected_last_subject_sequence: Some(revision),
            ..Outgoing::new(device_subject(key), document)
        };
        self.bus.publish(message).await.map(|stored| stored.sequence)
    }

    /// Publishes a report and waits until UPLINK has it.
    ///
    /// # Errors
    /// UPLINK has not confirmed the report, which it may have stored.
    pub(crate) async fn publish<T: Document>(&self, key: &DeviceKey, report: &T) -> Result<(), Problem> {
        let message = Outgoing {
            headers: self.headers(key, T::KIND),
            expected_stream: Some(stream::UPLINK),
            ..Outgoing::new(subjects::report(key), decode::to_bytes(report))
        };
        self.bus.publish(message).await.map(drop).map_err(|error| refused(&error))
    }

    /// Publishes a heartbeat and waits until PRESENCE has it.
    ///
    /// # Errors
    /// PRESENCE has not confirmed it.
    pub(crate) async fn vouch(&self, key: &DeviceKey, heartbeat: &Heartbeat) -> Result<(), Problem> {
        let message = Outgoing {
            headers: self.headers(key, Heartbeat::KIND),
            expected_stream: Some(stream::PRESENCE),
            ..Outgoing::new(subjects::presence(key), decode::to_bytes(heartbeat))
        };
        self.bus.publish(message).await.map(drop).map_err(|error| refused(&error))
    }

    /// Publishes a heartbeat. There is no answer.
    pub(crate) async fn beat<T: Document>(&self, key: &DeviceKey, heartbeat: &T) {
        let (headers, payload) = (self.headers(key, T::KIND), decode::to_bytes(heartbeat));
        let sent = self.bus.publish_core(&subjects::presence(key), headers, payload.into()).await;
        if let Err(error) = sent {
            tracing::debug!(error = chain(&error), device.id = %key, "cannot send a heartbeat");
        }
    }

    fn headers(&self, key: &DeviceKey, kind: &str) -> muster_bus::Headers {
        let id = fastrand::u128(..);
        attributes(&format!("muster/{key}"), kind, format!("{id:032x}"), Trace::of_id(id))
    }

    async fn last(&self, stream: &str, subject: &str) -> Result<Option<Delivery>, Problem> {
        self.bus.last(stream, subject).await.map_err(|error: ReadError| {
            tracing::debug!(error = chain(&error), "cannot read for a device");
            problems::unavailable("the hub does not answer now")
        })
    }
}

/// A random delay before a repetition, longer with each.
fn delay(attempt: u32) -> Duration {
    RETRY_DELAY.mul_f64(fastrand::f64() * f64::from(1 << attempt.min(RETRY_DOUBLINGS_MAX)))
}

fn refused(error: &PublishError) -> Problem {
    match error.kind {
        PublishErrorKind::SubjectFull => {
            problems::too_many("the hub has not stored the last reports of this device yet")
        }
        PublishErrorKind::Permanent => {
            tracing::error!(error = chain(error), "the hub refuses a document of a device");
            problems::internal("the hub refuses this document")
        }
        PublishErrorKind::Transient | PublishErrorKind::Conflict => {
            tracing::debug!(error = chain(error), "cannot store for a device");
            problems::unavailable("the hub does not confirm the write now")
        }
    }
}
