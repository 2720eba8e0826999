//! The outbox against a model of device and hub: after any events in any order, with the database reopened at any point, the
//! numbers add up and the hub has the last report of every deployment.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const DEPLOYMENTS: [&str; 4] = ["a", "b", "c", "d"];
/// Small, so that short runs fold and drop; larger than the number of deployments, so that the newest always fit.
const ROWS: u64 = 8;

/// An event.
#[derive(Debug, Clone)]
enum Event {
    Append {
        deployment: usize,
        state: State,
    },
    Capabilities,
    /// The relay reads; the hub gets some of these rows, and the device learns of some of those.
    Send {
        rows: usize,
        arrive: usize,
        acked: usize,
    },
    Receipt,
    /// The hub is restored from an earlier backup.
    Restore,
    Reopen,
    Wait {
        seconds: i64,
    },
}

fn any_event() -> impl Strategy<Value = Event> {
    let append = (0..DEPLOYMENTS.len(), prop::sample::select(State::ALL.to_vec()))
        .prop_map(|(deployment, state)| Event::Append { deployment, state });
    let send = (1..6_usize, 0..6_usize, 0..6_usize).prop_map(|(rows, arrive, acked)| Event::Send {
        rows,
        arrive,
        acked,
    });
    prop_oneof![
        12 => append,
        1 => Just(Event::Capabilities),
        5 => send,
        3 => Just(Event::Receipt),
        1 => Just(Event::Restore),
        1 => Just(Event::Reopen),
        2 => (1..90_i64).prop_map(|seconds| Event::Wait { seconds }),
    ]
}

/// The hub's numbers and reports of one epoch.
#[derive(Debug, Clone, Default)]
struct Hub {
    received: BTreeMap<u64, Body>,
    coalesced: SeqRanges,
    head: u64,
}

impl Hub {
    fn take(&mut self, row: &Row, head: u64) {
        self.received.insert(row.seq, row.body.read().unwrap());
        self.coalesced.extend(&row.coalesced);
        self.head = self.head.max(head);
    }

    fn missing(&self) -> SeqRanges {
        let mut held = self.coalesced.clone();
        self.received.keys().for_each(|seq| _ = held.insert(*seq));
        held.missing(self.head)
    }

    /// The hub's newest report of each deployment.
    fn believes(&self) -> BTreeMap<Option<DeploymentId>, &Body> {
        self.received.values().map(|body| (body.deployment().cloned(), body)).collect()
    }
}

struct World {
    dir: tempfile::TempDir,
    device: (Db, Outbox),
    now: i64,
    marks: u64,
    /// The last report of each deployment, and the records that must be stored.
    last: BTreeMap<Option<DeploymentId>, Body>,
    records: BTreeMap<DeploymentId, DeploymentRecord>,
    /// Every row as it was first sent: it must never change.
    sent: BTreeMap<u64, Row>,
    hub: Hub,
    backup: Hub,
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let device = open(dir.path(), Limits { rows: ROWS, ..AMPLE }).await;
        device.1.fix_epoch(at(0)).await.unwrap();
        let mut world = Self {
            dir,
            device,
            now: 0,
            marks: 0,
            last: BTreeMap::new(),
            records: BTreeMap::new(),
            sent: BTreeMap::new(),
            hub: Hub::default(),
            backup: Hub::default(),
        };
        world.append(capabilities()).await;
        world
    }

    async fn append(&mut self, entry: NewReport) {
        match &entry.change {
            RecordChange::None => {}
            RecordChange::Store(record) => {
                _ = self.records.insert(record.id().clone(), (**record).clone());
            }
            RecordChange::Remove(id) => _ = self.records.remove(id),
        }
        self.last.insert(entry.body.deployment().cloned(), entry.body.clone());
        self.device.1.append(one(entry)).await.unwrap();
    }

    async fn send(&mut self, rows: usize, arrive: usize, acked: usize) {
        let batch = self.device.1.read(ReadRequest { rows, ..all() }).await.unwrap();
        for (at, row) in batch.rows.iter().enumerate() {
            let first = self.sent.entry(row.seq).or_insert_with(|| row.clone());
            assert_eq!((&first.body, &first.coalesced), (&row.body, &row.coalesced), "a fork of {}", row.seq);
            if at < arrive {
                self.hub.take(row, batch.head);
            }
        }
        let acked: Vec<_> = seqs(&batch).into_iter().take(acked.min(arrive)).collect();
        self.device.1.mark_sent(batch.epoch.unwrap(), acked, at(self.now)).await.unwrap();
    }

    async fn receipt(&mut self) {
        let epoch = self.device.1.summary().await.unwrap().epoch.unwrap();
        let missing: Vec<_> = self.hub.missing().iter().collect();
        let receipt = receipt(epoch, self.hub.head, &missing);
        let received = self.device.1.receive(receipt, at(self.now)).await.unwrap();
        assert!(matches!(received, ReceiptOutcome::Applied { .. }), "{received:?}");
        self.backup = self.hub.clone();
    }

    async fn happen(&mut self, event: Event) {
        match event {
            Event::Append { deployment, state } => {
                self.marks += 1;
                self.append(entry(DEPLOYMENTS[deployment], state, self.marks)).await;
            }
            Event::Capabilities => self.append(capabilities()).await,
            Event::Send { rows, arrive, acked } => self.send(rows, arrive, acked).await,
            Event::Receipt => self.receipt().await,
            Event::Restore => self.hub = self.backup.clone(),
            Event::Reopen => {
                self.device.0.close().await;
                self.device = open(self.dir.path(), Limits { rows: ROWS, ..AMPLE }).await;
            }
            Event::Wait { seconds } => self.now += seconds,
        }
    }

    /// Every assigned number is in the outbox, declared by one of its rows, or known to the hub.
    async fn check(&self) {
        let summary = self.device.1.summary().await.unwrap();
        assert!(summary.rows <= ROWS, "{summary:?}");
        let records = store::records(&self.device.0).await.unwrap();
        assert!(records.iter().eq(self.records.values()), "{records:?}");
        let held = self.device.0.run(held_numbers).await.unwrap();
        let mut known = held;
        for (seq, row) in &self.sent {
            known.insert(*seq);
            known.extend(&row.coalesced);
        }
        assert!(known.missing(summary.head).is_empty(), "lost: {}", known.missing(summary.head));
    }

    /// A good link: everything arrives, and rows that the hub asks for are sent again.
    async fn catch_up(&mut self) {
        for _ in 0..40 {
            self.now += 61;
            self.send(READ_ROWS_MAX, READ_ROWS_MAX, READ_ROWS_MAX).await;
            let head = self.device.1.summary().await.unwrap().head;
            self.hub.head = self.hub.head.max(head);
            self.receipt().await;
            let summary = self.device.1.summary().await.unwrap();
            if summary.unsent == 0 && self.hub.missing().is_empty() && self.hub.head == summary.head {
                return;
            }
        }
        panic!("still missing: {}", self.hub.missing());
    }
}

fn held_numbers(connection: &crate::db::Connection) -> crate::db::SqlResult<SeqRanges> {
    let mut held = SeqRanges::new();
    let mut statement = connection.prepare("SELECT seq, coalesced FROM outbox")?;
    let mut found = statement.query([])?;
    while let Some(row) = found.next()? {
        held.insert(row.get(0)?);
        if let Some(text) = row.get::<_, Option<String>>(1)? {
            held.extend(&rows::from_text(&text)?);
        }
    }
    Ok(held)
}

/// The same except for the time: a record may have been reported again.
fn same(one: &Body, other: &Body) -> bool {
    let (Body::Status(one), Body::Status(other)) = (one, other) else { return false };
    *one == StatusBody { observed_at: one.observed_at, ..other.clone() }
}

fn run(events: Vec<Event>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut world = World::new().await;
        for event in events {
            world.happen(event).await;
            world.check().await;
        }
        world.catch_up().await;
        let hub = world.hub.believes();
        for id in world.records.keys() {
            let (told, last) = (hub[&Some(id.clone())], &world.last[&Some(id.clone())]);
            assert!(same(told, last), "{id}: {told:?}");
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_invented_or_changed(events in prop::collection::vec(any_event(), 0..60)) {
        run(events);
    }
}
