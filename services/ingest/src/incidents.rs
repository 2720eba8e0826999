//! Records incidents that services of the hub report on `muster.ingest.incident`. Ingest answers once LEDGER has stored the
//! incident. It bounds the rate of each type: further incidents are counted in the next one of the type.
//!
//! These facts need no fence: they do not change the state of a partition, and LEDGER recognises an incident that two services
//! report by its id.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use muster_bus::event::traced;
use muster_bus::{Bus, Call, EndpointSpec, Fault, Outgoing, PublishError, ServiceSpec, Trace};
use muster_contract::incident::{Incident, IncidentAnswer, IncidentKind, IncidentRequest};
use muster_contract::limits::ERROR_MESSAGE_BYTES_MAX;
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::question;
use muster_contract::subjects::{LedgerSubject, REQUEST_INCIDENT, stream};
use muster_contract::{Timestamp, decode};
use muster_service::clock::Clock;
use muster_service::error::chain;
use muster_service::health::Latch;
use tokio_util::sync::CancellationToken;

/// Incidents of one type that are recorded at once.
const BURST: u32 = 10;
/// Time in which another one may be recorded: six a minute.
const REFILL: Duration = Duration::from_secs(10);
/// Bytes of a request: its longest text, and room for the rest.
const REQUEST_BYTES_MAX: usize = 4 * ERROR_MESSAGE_BYTES_MAX;

const _: () = assert!(REQUEST_BYTES_MAX > ERROR_MESSAGE_BYTES_MAX + 1024);

const SERVICE: &str = "muster-incidents";

/// Records incidents. Clones share the rate limits.
#[derive(Debug, Clone)]
pub(crate) struct IncidentRecorder {
    bus: Bus,
    clock: Arc<dyn Clock>,
    limits: Arc<Mutex<HashMap<&'static str, RateLimit>>>,
}

/// The rate limit of one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RateLimit {
    left: u32,
    refilled_at: Timestamp,
    /// Incidents that were counted and not recorded since the last recorded one.
    others: u64,
}

impl RateLimit {
    const fn new(now: Timestamp) -> Self {
        Self { left: BURST, refilled_at: now, others: 0 }
    }

    /// The number of counted incidents that this one stands for, if it may be recorded; otherwise it is counted.
    fn admit(&mut self, now: Timestamp) -> Option<u64> {
        let passed = now.duration_since(self.refilled_at).as_millis();
        // After the clock was set back it refills nothing until it has reached its old time.
        let refills = u32::try_from(passed / REFILL.as_millis() as i128).unwrap_or(0);
        if refills > 0 {
            self.left = self.left.saturating_add(refills).min(BURST);
            self.refilled_at = now;
        }
        if self.left == 0 {
            self.others = self.others.saturating_add(1);
            return None;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.others))
    }
}

impl IncidentRecorder {
    /// The clock by which it records.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A recorder that has recorded nothing yet.
    pub(crate) fn new(bus: Bus, clock: Arc<dyn Clock>) -> Self {
        Self { bus, clock, limits: Arc::default() }
    }

    /// Answers requests until `stop`; then it finishes the ones that it has received.
    pub(crate) async fn serve(self, offered: Latch, stop: CancellationToken) {
        let bus = self.bus.clone();
        let handler = move |call| self.clone().handle(call);
        let spec = ServiceSpec {
            name: SERVICE,
            version: env!("CARGO_PKG_VERSION"),
            description: "Incidents of the hub and of devices, as services see them",
            endpoints: vec![EndpointSpec { name: "incident", subject: REQUEST_INCIDENT.to_owned() }],
        };
        bus.offer(spec, handler, || offered.release(), stop).await;
    }

    async fn handle(self, call: Call) -> Result<Bytes, Fault> {
        let request = read(&call.payload)?;
        let ledger_seq = self.record(&request).await.map_err(|error| {
            let message = format!("cannot record the incident: {}; ask again", chain(&error));
            ErrorBody { code: ErrorCode::NotReady, message }
        })?;
        // It cannot fail: the answer is an object with a number.
        Ok(serde_json::to_vec(&IncidentAnswer { ledger_seq }).unwrap_or_default().into())
    }

    /// Writes an incident into LEDGER and returns its sequence; `None` if it is only counted.
    ///
    /// # Errors
    /// LEDGER has not confirmed it.
    pub(crate) async fn record(&self, request: &IncidentRequest) -> Result<Option<u64>, PublishError> {
        let now = self.clock.now();
        let Some(others) = self.admit(&request.what, now) else { return Ok(None) };
        let stored = self.bus.publish(message(request, others, now)).await;
        if stored.is_err() {
            self.return_admission(&request.what, others);
        }
        stored.map(|stored| Some(stored.sequence))
    }

    fn admit(&self, what: &IncidentKind, now: Timestamp) -> Option<u64> {
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        limits.entry(what.name()).or_insert_with(|| RateLimit::new(now)).admit(now)
    }

    /// Returns the admission of an incident that LEDGER did not store: it will be reported again.
    fn return_admission(&self, what: &IncidentKind, others: u64) {
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(limit) = limits.get_mut(what.name()) {
            limit.left = (limit.left + 1).min(BURST);
            limit.others = limit.others.saturating_add(others);
        }
    }
}

fn read(payload: &[u8]) -> Result<IncidentRequest, ErrorBody> {
    let bad = |message| ErrorBody { code: ErrorCode::BadRequest, message };
    if payload.len() > REQUEST_BYTES_MAX {
        let rule = format!("the request has {} bytes; {REQUEST_BYTES_MAX} are allowed", payload.len());
        return Err(bad(rule));
    }
    let request: IncidentRequest = question::read(payload)?;
    request.check().map_err(|violation| bad(format!("the request cannot be read: {violation}")))?;
    Ok(request)
}

fn message(request: &IncidentRequest, others: u64, now: Timestamp) -> Outgoing {
    let mut rng = Rng::new();
    let fact = Incident { others, ..Incident::new(now, request.what.clone()) };
    Outgoing {
        headers: traced(Some(Trace::random(&mut rng))),
        message_id: Some(request.id()),
        expected_stream: Some(stream::LEDGER),
        ..Outgoing::new(LedgerSubject::Incident(request.key()).to_string(), decode::to_bytes(&fact))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_has_a_burst_then_six_a_minute_and_counts_the_rest() {
        let at = |second: i64| Timestamp::from_second(1_000 + second).unwrap();
        let mut limit = RateLimit::new(at(0));
        let recorded = (0..40).filter(|_| limit.admit(at(0)).is_some()).count();
        assert_eq!(recorded, BURST as usize);
        assert_eq!(limit.admit(at(9)), None);
        assert_eq!(limit.admit(at(10)), Some(31));
        assert_eq!(limit.admit(at(10)), None);
        assert_eq!(limit.admit(at(5)), None, "a clock that was set back");
        assert_eq!(limit.admit(at(20)), Some(2));
        let recorded = (0..40).filter(|_| limit.admit(at(10_000)).is_some()).count();
        assert_eq!(recorded, BURST as usize);
    }

    #[test]
    fn an_unreadable_request_is_refused_with_a_reason() {
        for (payload, words) in [
            (&br#"{"type":"other"}"#[..], "unknown variant `other`"),
            (br#"{"type":"clockSkew","seconds":9}"#, "found by ingest itself"),
            (b"no", "not a question: "),
        ] {
            let refused = read(payload).unwrap_err();
            assert!(refused.code == ErrorCode::BadRequest && refused.message.contains(words), "{refused:?}");
        }
        assert!(read(&[b' '; REQUEST_BYTES_MAX + 1]).is_err());
    }
}
