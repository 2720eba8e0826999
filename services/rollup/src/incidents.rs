//! Answers `muster.query.incidents`: the newest incident of each type of the hub itself, for a day after its
//! newest occurrence.
//!
//! Neither views nor the fold hold these incidents: they are read from LEDGER at the start and followed. Their
//! age is measured by the hub's clock at the question; no fact ends them.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use muster_bus::{Bus, Call, Delivery, EndpointSpec, Fault, ReadError, ServiceSpec, Start, with_lag};
use muster_contract::incident::{HUB_INCIDENT_SHOWN_SECONDS, HubIncident, Incident, IncidentsAnswer};
use muster_contract::question::read_query;
use muster_contract::subjects::{LedgerSubject, QUERY_PREFIX, stream};
use muster_contract::{Timestamp, decode};
use muster_service::clock::Clock;
use muster_service::health::Latch;
use muster_service::retry::{Backoff, RetryPolicy, retry_until};
use tokio_util::sync::CancellationToken;

use crate::lag::LagState;
use crate::projection::Projection;

/// Incidents read at once.
const BATCH: usize = 500;
/// Occurrences of one type that are counted: more than ingest records of a type in a day.
const OCCURRENCES_MAX: usize = 20_000;
/// Delays before LEDGER is read again.
const RETRY: RetryPolicy = RetryPolicy { min: Duration::from_millis(200), max: Duration::from_secs(10) };
const SERVICE: &str = "muster-query-incidents";

/// The occurrences of each type.
#[derive(Debug, Default)]
struct ByType(BTreeMap<&'static str, Occurrences>);

#[derive(Debug)]
struct Occurrences {
    newest: (u64, Incident),
    /// When each was, and for how many it stands.
    times: VecDeque<(Timestamp, u64)>,
}

/// The incidents of the hub. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct HubIncidents {
    bus: Bus,
    projection: Arc<Projection>,
    clock: Arc<dyn Clock>,
    lag: Arc<LagState>,
    known: Arc<Mutex<ByType>>,
}

impl ByType {
    fn insert(&mut self, ledger_seq: u64, incident: Incident) {
        let time = (incident.at, incident.others.saturating_add(1));
        match self.0.get_mut(incident.what.name()) {
            Some(known) => {
                known.newest = (ledger_seq, incident);
                known.times.push_back(time);
                if known.times.len() > OCCURRENCES_MAX {
                    known.times.pop_front();
                }
            }
            None => {
                let name = incident.what.name();
                self.0.insert(name, Occurrences { newest: (ledger_seq, incident), times: [time].into() });
            }
        }
    }

    /// The incidents shown now, the newest first.
    fn shown(&self, now: Timestamp) -> Vec<HubIncident> {
        let is_shown =
            |at: Timestamp| now.duration_since(at).as_secs() < HUB_INCIDENT_SHOWN_SECONDS.cast_signed();
        let shown = self.0.values().filter(|known| is_shown(known.newest.1.at)).map(|known| {
            let times = known.times.iter().filter(|(at, _)| is_shown(*at));
            let count = times.map(|(_, count)| *count).fold(0, u64::saturating_add);
            let (ledger_seq, incident) = known.newest.clone();
            HubIncident { ledger_seq, count, incident }
        });
        let mut shown: Vec<_> = shown.collect();
        shown.sort_by_key(|incident| std::cmp::Reverse(incident.ledger_seq));
        shown
    }
}

impl HubIncidents {
    /// Nothing is known yet.
    pub(crate) fn new(
        bus: Bus,
        projection: Arc<Projection>,
        clock: Arc<dyn Clock>,
        lag: Arc<LagState>,
    ) -> Self {
        Self { bus, projection, clock, lag, known: Arc::default() }
    }

    /// Follows LEDGER until `stop`.
    pub(crate) async fn follow(self, stop: CancellationToken) {
        retry_until(&stop, RETRY, "cannot read incidents of the hub", |backoff| self.read(backoff)).await;
    }

    async fn read(&self, backoff: Backoff) -> Result<Infallible, ReadError> {
        let subject = LedgerSubject::Incident(None).to_string();
        let mut replay = self.bus.replay(stream::LEDGER, &[&subject], Start::First).await?;
        *self.known() = ByType::default();
        loop {
            let batch = replay.next_batch(BATCH).await?;
            backoff.reset();
            let mut known = self.known();
            batch.iter().filter_map(read).for_each(|(seq, incident)| known.insert(seq, incident));
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, ByType> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers questions until `stop`; those already taken are answered then.
    pub(crate) async fn serve(self, offered: Latch, stop: CancellationToken) {
        let spec = ServiceSpec {
            name: SERVICE,
            version: env!("CARGO_PKG_VERSION"),
            description: "Incidents of the hub itself",
            endpoints: vec![EndpointSpec { name: "incidents", subject: format!("{QUERY_PREFIX}.incidents") }],
        };
        let bus = self.bus.clone();
        let handler = move |call: Call| {
            let answer = read_query(call.endpoint, &call.payload).map(|_| self.answer());
            let answer = with_lag(answer.map_err(Fault::from), call.endpoint, &self.lag.now());
            async move { answer }
        };
        bus.offer(spec, handler, || offered.release(), stop).await;
    }

    fn answer(&self) -> Bytes {
        let as_of = self.projection.read(|now| now.fleet.as_of());
        let incidents = self.known().shown(self.clock.now());
        // Cannot fail: the answer is an object with string keys.
        serde_json::to_vec(&IncidentsAnswer { as_of, incidents }).unwrap_or_default().into()
    }
}

/// Nothing where a later release has recorded what this one cannot read.
fn read(delivery: &Delivery) -> Option<(u64, Incident)> {
    Some((delivery.stream_seq, decode::parse(&delivery.payload).ok()?))
}

#[cfg(test)]
mod tests {
    use muster_contract::incident::IncidentKind;

    use super::*;

    #[test]
    fn the_newest_of_each_type_is_shown_for_a_day_with_how_many_there_were() {
        let at = |hour: i64| Timestamp::from_second(hour * 3600).unwrap();
        let full = |hour, others| Incident {
            others,
            ..Incident::new(at(hour), IncidentKind::LedgerNearlyFull { bytes: 9, bytes_max: 10 })
        };
        let replaced = IncidentKind::LedgerReplaced {
            known_created_at: at(0),
            known_seq: 1,
            created_at: at(1),
            last_seq: 1,
        };
        let mut known = ByType::default();
        known.insert(1, full(1, 0));
        known.insert(2, Incident::new(at(2), replaced));
        known.insert(3, full(20, 5));
        let shown = |hour| -> Vec<(u64, u64)> {
            known.shown(at(hour)).iter().map(|shown| (shown.ledger_seq, shown.count)).collect()
        };
        assert_eq!(shown(20), [(3, 7), (2, 1)]);
        assert_eq!(shown(25), [(3, 6), (2, 1)], "the first is a day old");
        assert_eq!(shown(26), [(3, 6)]);
        assert_eq!(shown(44), []);
    }
}
