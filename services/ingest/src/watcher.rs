//! Counts the connections of each key at all servers, and ends the oldest ones of a key that has more than its role may have.
//!
//! The server has no such limit, so the watcher enforces it afterwards: within [`CONNECTIONS_ENFORCED_WITHIN`] while it receives
//! the servers' events, otherwise within [`LIST_EVERY`] of its return. Any number of watchers may run: ending a closed connection
//! does nothing. The watcher ends further connections of the same key again; only `muster revoke` keeps the key from connecting.
//! It ignores users without a role of Muster.
//!
//! It does not decide which connections end ([`muster_domain::connections`]), and it does not read or write devices'
//! reports: the incident is the one fact it publishes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::{StreamExt as _, stream};
use muster_bus::event::{Trace, traced};
use muster_bus::{Bus, BusConfig, Connection, ConnectionEvent, ConnectionEvents, ConnectionId, Outgoing};
use muster_contract::decode;
use muster_contract::fact::{Incident, IncidentKind};
use muster_contract::limits::{CONNECTIONS_ENFORCED_WITHIN, CONNECTIONS_INCIDENT_EVERY};
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeviceKey, Timestamp};
use muster_domain::connections::{ConnectionTable, Excess, Holder};
use muster_identity::Role;
use muster_service::clock::Clock;
use muster_service::error::chain;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use crate::metrics::ConnectionMetrics;

/// Time between two lists of all connections, which correct the table after a lost event.
const LIST_EVERY: Duration = Duration::from_secs(60);
/// Time between two checks for due incidents, and before another attempt to list connections.
const TICK: Duration = Duration::from_secs(1);
/// The first incident of a key waits this long, so that it counts connections that opened together.
const INCIDENT_AFTER: Duration = Duration::from_secs(2);
/// Connections being ended at once.
const ENDING_MAX: usize = 32;

const _: () = assert!(INCIDENT_AFTER.as_secs() + TICK.as_secs() < CONNECTIONS_ENFORCED_WITHIN.as_secs());
const _: () = assert!(LIST_EVERY.as_secs() > CONNECTIONS_ENFORCED_WITHIN.as_secs());

/// Counts connections until it is stopped.
pub(crate) struct Watcher {
    system: BusConfig,
    ledger: Bus,
    clock: Arc<dyn Clock>,
    metrics: ConnectionMetrics,
    table: ConnectionTable<ConnectionId>,
    incidents: Incidents,
    rng: Rng,
}

/// The incidents of keys that had too many connections.
#[derive(Debug, Default)]
struct Incidents(HashMap<String, KeyIncidents>);

/// The incidents of one key.
#[derive(Debug)]
struct KeyIncidents {
    holder: Holder,
    /// When the next incident may be published.
    due_at: Timestamp,
    most_open: usize,
    ended: u64,
}

/// An incident that is due.
#[derive(Debug, PartialEq, Eq)]
struct Due {
    holder: Holder,
    most_open: usize,
    ended: u64,
}

impl Incidents {
    /// Records that connections of a key were ended.
    fn record(&mut self, holder: Holder, open: usize, ended: u64, now: Timestamp) {
        let of_key = self.0.entry(holder.key.clone()).or_insert_with(|| KeyIncidents {
            holder: holder.clone(),
            due_at: now + INCIDENT_AFTER,
            most_open: 0,
            ended: 0,
        });
        of_key.holder = holder;
        of_key.most_open = of_key.most_open.max(open);
        of_key.ended += ended;
    }

    /// The incidents that are due. The next one of each key is due an hour later; a key without further connections is forgotten
    /// then.
    fn due(&mut self, now: Timestamp) -> Vec<Due> {
        let mut due = Vec::new();
        self.0.retain(|_, of_key| {
            // A clock that was set back by more than that must not suppress the incidents of a key.
            let left = Duration::try_from(of_key.due_at.duration_since(now)).unwrap_or_default();
            let waits = !left.is_zero() && left <= CONNECTIONS_INCIDENT_EVERY;
            if waits {
                return true;
            }
            if of_key.most_open == 0 {
                return false;
            }
            let (most_open, ended) =
                (std::mem::take(&mut of_key.most_open), std::mem::take(&mut of_key.ended));
            of_key.due_at = now + CONNECTIONS_INCIDENT_EVERY;
            due.push(Due { holder: of_key.holder.clone(), most_open, ended });
            true
        });
        due
    }
}

impl Watcher {
    /// A watcher by a system-account user's settings that writes its incidents to LEDGER.
    pub(crate) fn new(
        system: BusConfig,
        ledger: Bus,
        clock: Arc<dyn Clock>,
        metrics: ConnectionMetrics,
    ) -> Self {
        let (table, incidents) = (ConnectionTable::default(), Incidents::default());
        Self { system, ledger, clock, metrics, table, incidents, rng: Rng::new() }
    }

    /// Counts until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let bus = match Bus::connect(self.system.clone(), &stop).await {
            Ok(bus) => bus,
            Err(_) if stop.is_cancelled() => return,
            Err(error) => {
                tracing::error!(
                    error = chain(&error),
                    "cannot count connections: the server does not accept --system-creds"
                );
                return;
            }
        };
        stop.run_until_cancelled(self.watch(&bus)).await;
        self.metrics.watching.set(0);
    }

    async fn watch(&mut self, bus: &Bus) {
        loop {
            match bus.connection_events().await {
                Ok(events) => self.follow(bus, events).await,
                Err(error) => {
                    tracing::warn!(error = chain(&error), "cannot follow connections; trying again");
                }
            }
            sleep(TICK).await;
        }
    }

    /// Follows events until the bus is gone. Begins with a list, and lists again after every reconnect.
    async fn follow(&mut self, bus: &Bus, mut events: ConnectionEvents) {
        let mut link = bus.link();
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut list_at = Instant::now();
        loop {
            tokio::select! {
                batch = events.next_batch() => match batch {
                    Some(batch) => self.apply(batch),
                    None => return,
                },
                changed = link.changed() => match changed {
                    Ok(()) => list_at = Instant::now(),
                    Err(_) => return,
                },
                _ = tick.tick() => {
                    if Instant::now() >= list_at {
                        list_at = Instant::now() + self.list(bus).await;
                    }
                    self.publish_due().await;
                }
            }
            self.enforce(bus).await;
        }
    }

    fn apply(&mut self, events: Vec<ConnectionEvent>) {
        for event in events {
            match event {
                ConnectionEvent::Opened(connection) => self.insert(connection),
                ConnectionEvent::Closed(id) => self.table.remove(&id),
            }
        }
    }

    fn insert(&mut self, connection: Connection) {
        let Connection { id, key, name, role, started_at } = connection;
        let Some(role) = Role::of(&role) else { return };
        self.table.insert(id, Holder { key, name, limit: role.connections_max() }, started_at);
    }

    /// Replaces the table by the servers' lists; when to list again. Events that come meanwhile are applied afterwards.
    async fn list(&mut self, bus: &Bus) -> Duration {
        match bus.connections().await {
            Ok(connections) => {
                let listed: HashSet<ConnectionId> =
                    connections.iter().map(|connection| connection.id.clone()).collect();
                self.table.retain(&listed);
                connections.into_iter().for_each(|connection| self.insert(connection));
                self.metrics.watching.set(1);
                LIST_EVERY
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "cannot list connections; trying again");
                self.metrics.watching.set(0);
                TICK
            }
        }
    }

    /// Ends the surplus of every key that has grown.
    async fn enforce(&mut self, bus: &Bus) {
        for Excess { holder, open, surplus } in self.table.drain_excess() {
            let ends = stream::iter(surplus).map(|id| {
                let bus = bus.clone();
                async move { bus.end_connection(&id).await }
            });
            let answers: Vec<_> = ends.buffer_unordered(ENDING_MAX).collect().await;
            let ended = answers.iter().filter(|answer| matches!(answer, Ok(true))).count() as u64;
            if let Some(Err(error)) = answers.iter().find(|answer| answer.is_err()) {
                tracing::warn!(
                    error = chain(error),
                    name = holder.name,
                    "cannot end connections; the next list finds them"
                );
            }
            self.metrics.ended.inc_by(ended);
            self.incidents.record(holder, open, ended, self.clock.now());
        }
        self.metrics.open.set(i64::try_from(self.table.len()).unwrap_or(i64::MAX));
    }

    async fn publish_due(&mut self) {
        let now = self.clock.now();
        for due in self.incidents.due(now) {
            let Due { holder, most_open, ended } = due;
            tracing::warn!(
                name = holder.name,
                key = holder.key,
                connections = most_open,
                limit = holder.limit,
                ended,
                "ended connections of a key above its limit; `muster revoke` keeps the key from connecting"
            );
            let message = incident(&holder, most_open, ended, now, &mut self.rng);
            if let Err(error) = self.ledger.publish(message).await {
                tracing::warn!(
                    error = chain(&error),
                    name = holder.name,
                    "cannot publish the incident; trying again"
                );
                self.incidents.record(holder, most_open, ended, now);
            }
        }
    }
}

/// The message of an incident. Its subject names the device if the key is a device's. Several watchers publish the same incident,
/// so its id consists of the key and the hour, and LEDGER stores the first.
fn incident(holder: &Holder, most_open: usize, ended: u64, now: Timestamp, rng: &mut Rng) -> Outgoing {
    let device = holder.name.parse::<DeviceKey>().ok();
    let subject = LedgerSubject::Incident(device).to_string();
    let hour = now.as_second() / CONNECTIONS_INCIDENT_EVERY.as_secs() as i64;
    let id = format!("connections-exceeded.{}.{hour}", holder.key);
    let what = IncidentKind::ConnectionsExceeded {
        key: holder.key.clone(),
        name: holder.name.clone(),
        connections: most_open as u64,
        limit: holder.limit as u64,
        disconnected: ended,
    };
    let document = Incident::new(now, what);
    Outgoing {
        headers: traced(Some(Trace::random(rng))),
        message_id: Some(id),
        ..Outgoing::new(subject, decode::to_bytes(&document))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_795_000_000 + second).unwrap()
    }

    fn holder() -> Holder {
        Holder { key: "UKEY".to_owned(), name: "plant7/press-4".to_owned(), limit: 4 }
    }

    #[test]
    fn one_incident_an_hour_a_key_counts_everything_since_the_last() {
        let mut incidents = Incidents::default();
        incidents.record(holder(), 5, 1, at(0));
        assert_eq!(incidents.due(at(1)), [], "the first one waits for what comes at once");
        incidents.record(holder(), 40, 36, at(1));
        assert_eq!(incidents.due(at(3)), [Due { holder: holder(), most_open: 40, ended: 37 }]);
        incidents.record(holder(), 5, 1, at(4));
        incidents.record(holder(), 5, 1, at(1_000));
        assert_eq!(incidents.due(at(3_602)), []);
        assert_eq!(incidents.due(at(3_603)), [Due { holder: holder(), most_open: 5, ended: 2 }]);
        assert_eq!(incidents.due(at(9_000)), []);
        assert!(incidents.0.is_empty(), "a key that is quiet is forgotten");
    }

    #[test]
    fn the_subject_of_an_incident_names_the_device_of_its_key() {
        let mut rng = Rng::with_seed(1);
        let message = incident(&holder(), 5, 1, at(0), &mut rng);
        assert_eq!(message.subject, "muster.incident.plant7.press-4");
        let same = incident(&holder(), 9, 2, at(1), &mut rng);
        assert_eq!(message.message_id, same.message_id, "LEDGER stores the first of several watchers'");
        let viewer = Holder { name: "viewer".to_owned(), ..holder() };
        assert_eq!(incident(&viewer, 5, 1, at(0), &mut rng).subject, "muster.incident._._");
    }
}
