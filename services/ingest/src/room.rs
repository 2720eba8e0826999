//! Keeps the newest fact of each standing in a LEDGER that reaches its byte bound.
//!
//! At the bound LEDGER discards its oldest messages. Long before, this task reads the oldest half of LEDGER, in order, and hands
//! the facts to their partitions, which re-assert those that still hold. Each partition records the position through which its
//! facts are re-asserted and confirmed. From that follows how many bytes of reports ingest may admit before the server discards a
//! fact that is not re-asserted; further reports wait in UPLINK, and in the outboxes when UPLINK is full. The publisher
//! re-asserts desired states; until it has, they count as not re-asserted. This task requests the positions of the partitions of
//! other processes; a partition without an owner holds up all of them.
//!
//! It does not decide which facts hold ([`muster_domain::intake`]) or how many bytes fit ([`muster_domain::ledger_room`]).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use futures_util::future::join_all;
use muster_bus::event::{Trace, traced};
use muster_bus::{Bus, Delivery, Outgoing, ReadError, Replay, Start, StreamState};
use muster_contract::Timestamp;
use muster_contract::decode;
use muster_contract::fact::{Fact, Incident, IncidentKind};
use muster_contract::headers::REPORTS;
use muster_contract::limits::{LEDGER_INCIDENT_PERCENT, LEDGER_WARN_PERCENT, PARTITIONS};
use muster_contract::partition::partition_of;
use muster_contract::subjects::{LedgerSubject, ask_owner, stream};
use muster_domain::ledger_room::LedgerSize;
use muster_service::clock::Clock;
use muster_service::error::chain;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::metrics::LedgerMetrics;
use crate::session::{OldFacts, report_bytes_max, reports_declared};

/// Time between two checks while LEDGER has room.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// Time between two checks while LEDGER fills up.
const CHECK_NEARLY_FULL_EVERY: Duration = Duration::from_millis(25);
/// Facts read at once.
const BATCH: usize = 1000;
/// Batches between two checks.
const BATCHES: usize = 8;
/// How long no message may come before the check ends.
const SILENCE: Duration = Duration::from_millis(200);
/// Batches that may wait for one partition.
const QUEUED_MAX: usize = 4;
/// How long a batch may wait for room in the queue of a partition.
const QUEUED_WITHIN: Duration = Duration::from_secs(1);
/// Time between two requests to the owners of other partitions.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long an answer to such a request may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Time between two warnings that LEDGER is nearly full.
const WARN_EVERY: Duration = Duration::from_secs(60 * 60);
/// Time between two incidents that LEDGER is nearly full.
const INCIDENT_EVERY: Duration = Duration::from_secs(24 * 60 * 60);
/// Bytes that a fact has in addition to its report: headers, subject, fields of the hub.
const FACT_BYTES_ADDED: usize = 512;
/// The request to an owner for its position.
pub(crate) const REASSERTED: &[u8] = b"reasserted";

/// The state that a partition shares with the reader of LEDGER's oldest part.
#[derive(Debug)]
pub(crate) struct PartitionRoom {
    sender: mpsc::Sender<OldFacts>,
    queue: Mutex<mpsc::Receiver<OldFacts>>,
    /// The position through which every fact of the partition that holds is re-asserted and confirmed.
    reasserted: AtomicU64,
    is_owned: AtomicBool,
    sessions: AtomicU64,
    /// Bytes of the partition's reports that are admitted and not settled.
    unsettled: AtomicU64,
    gate: Arc<Gate>,
}

/// Bounds the bytes of reports that the partitions of this process admit.
#[derive(Debug)]
struct Gate {
    /// Bytes of all reports that this process admitted.
    admitted: AtomicU64,
    /// Bytes of the admitted reports whose facts LEDGER holds, or that will come again.
    settled: AtomicU64,
    /// The bound of `admitted`.
    limit: watch::Sender<u64>,
}

impl Gate {
    fn is_open(&self) -> bool {
        self.admitted.load(Ordering::Acquire) < *self.limit.borrow()
    }

    /// Admits reports if they fit. A batch that is larger than the whole room is admitted when every other report is settled.
    fn try_admit(&self, bytes: u64) -> bool {
        let (limit, settled) = (*self.limit.borrow(), self.settled.load(Ordering::Acquire));
        let fits = |admitted: u64| {
            let all = admitted.checked_add(bytes)?;
            (all <= limit || (admitted < limit && admitted <= settled)).then_some(all)
        };
        self.admitted.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).is_ok()
    }

    /// Sets how many bytes beyond the settled ones may be admitted, and wakes the partitions that wait.
    fn set(&self, settled: u64, allowance: u64) {
        self.limit.send_if_modified(|limit| {
            let was_bounded = *limit != u64::MAX;
            *limit = settled.saturating_add(allowance);
            was_bounded
        });
    }
}

impl PartitionRoom {
    fn new(gate: Arc<Gate>) -> Self {
        let (sender, queue) = mpsc::channel(QUEUED_MAX);
        Self {
            sender,
            queue: Mutex::new(queue),
            reasserted: AtomicU64::default(),
            is_owned: AtomicBool::default(),
            sessions: AtomicU64::default(),
            unsettled: AtomicU64::default(),
            gate,
        }
    }

    /// Records that this process owns the partition: facts after the confirmed position, which is returned, are handed over
    /// again.
    pub(crate) fn acquire(&self) -> u64 {
        self.is_owned.store(true, Ordering::Release);
        self.sessions.fetch_add(1, Ordering::AcqRel);
        self.reasserted()
    }

    /// Records that another process may own the partition.
    pub(crate) fn end(&self) {
        self.is_owned.store(false, Ordering::Release);
        let unsettled = self.unsettled.swap(0, Ordering::AcqRel);
        self.gate.settled.fetch_add(unsettled, Ordering::AcqRel);
    }

    /// The next facts. Cancel-safe: only one session of a partition calls this.
    pub(crate) async fn next(&self) -> OldFacts {
        match self.queue.lock().await.recv().await {
            Some(facts) => facts,
            // This value owns the sender.
            None => std::future::pending().await,
        }
    }

    /// Records the position through which every fact that holds is re-asserted and confirmed.
    pub(crate) fn confirm(&self, through: u64) {
        self.reasserted.fetch_max(through, Ordering::AcqRel);
    }

    /// The position of the last [`PartitionRoom::confirm`].
    pub(crate) fn reasserted(&self) -> u64 {
        self.reasserted.load(Ordering::Acquire)
    }

    /// Admits reports if LEDGER has room for their facts.
    pub(crate) fn try_admit(&self, reports: &[Delivery]) -> bool {
        let bytes = reports.iter().map(fact_bytes).sum();
        let is_admitted = self.gate.try_admit(bytes);
        if is_admitted {
            self.unsettled.fetch_add(bytes, Ordering::AcqRel);
        }
        is_admitted
    }

    /// Records that LEDGER holds everything that follows from a report.
    pub(crate) fn record_settled(&self, report: &Delivery) {
        let bytes = fact_bytes(report);
        self.unsettled.fetch_sub(bytes, Ordering::AcqRel);
        self.gate.settled.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Changes whenever more reports may be admitted.
    pub(crate) fn reopened(&self) -> watch::Receiver<u64> {
        self.gate.limit.subscribe()
    }
}

/// The rooms of the partitions of this process.
pub(crate) type Rooms = BTreeMap<u16, Arc<PartitionRoom>>;

/// Tracks LEDGER's size.
pub(crate) struct RoomKeeper {
    bus: Bus,
    clock: Arc<dyn Clock>,
    metrics: LedgerMetrics,
    rooms: Rooms,
    gate: Arc<Gate>,
    is_held: bool,
    replay: Option<Replay>,
    /// The position through which LEDGER was read.
    position: u64,
    sessions: u64,
    /// Desired states of the oldest part that were not published again yet, oldest first.
    documents: VecDeque<(u64, String)>,
    /// The positions of other processes' partitions.
    others: BTreeMap<u16, u64>,
    asked_at: Option<Instant>,
    warned_at: Option<Instant>,
    incident_at: Option<Instant>,
}

impl RoomKeeper {
    /// A keeper for these partitions. Their reports wait until its first check of LEDGER.
    pub(crate) fn new(
        bus: Bus,
        clock: Arc<dyn Clock>,
        metrics: LedgerMetrics,
        partitions: impl Iterator<Item = u16>,
    ) -> Self {
        let (admitted, settled) = (AtomicU64::default(), AtomicU64::default());
        let gate = Arc::new(Gate { admitted, settled, limit: watch::Sender::new(0) });
        let rooms =
            partitions.map(|partition| (partition, Arc::new(PartitionRoom::new(gate.clone())))).collect();
        Self {
            bus,
            clock,
            metrics,
            rooms,
            gate,
            is_held: false,
            replay: None,
            position: 0,
            sessions: 0,
            documents: VecDeque::new(),
            others: BTreeMap::new(),
            asked_at: None,
            warned_at: None,
            incident_at: None,
        }
    }

    /// The rooms of its partitions.
    pub(crate) fn rooms(&self) -> Rooms {
        self.rooms.clone()
    }

    /// Works until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let keeping = async {
            loop {
                let pause = match self.check().await {
                    Ok(pause) => pause,
                    Err(error) => {
                        tracing::debug!(error = chain(&error), "cannot check LEDGER's size; trying again");
                        self.replay = None;
                        CHECK_EVERY
                    }
                };
                sleep(pause).await;
            }
        };
        stop.run_until_cancelled(keeping).await;
    }

    async fn check(&mut self) -> Result<Duration, ReadError> {
        let size = self.open_gate().await?;
        self.metrics.bytes.set(i64::try_from(size.bytes).unwrap_or(i64::MAX));
        self.metrics.bytes_max.set(size.bytes_max.map_or(0, |most| i64::try_from(most).unwrap_or(i64::MAX)));
        self.report_fill(&size).await;
        let Some(through) = size.reassert_through() else {
            self.replay = None;
            return Ok(CHECK_EVERY);
        };
        self.follow_sessions();
        self.read(through, size.first_seq).await?;
        self.check_documents().await?;
        self.ask_others().await;
        self.metrics.reasserted.set(i64::try_from(self.reasserted()).unwrap_or(i64::MAX));
        Ok(CHECK_NEARLY_FULL_EVERY)
    }

    /// Sets how many bytes may be admitted from now on.
    async fn open_gate(&mut self) -> Result<LedgerSize, ReadError> {
        // Read first: a report that is settled while the server answers counts twice, never zero times.
        let (settled, reasserted) = (self.gate.settled.load(Ordering::Acquire), self.reasserted());
        let size = size_of(&self.bus.stream_state(stream::LEDGER).await?);
        let parts = u64::try_from(self.rooms.len()).unwrap_or(0);
        let allowance = match size.bytes_max {
            Some(_) => size.allowance(reasserted) / u64::from(PARTITIONS) * parts,
            None => u64::MAX,
        };
        self.gate.set(settled, allowance);
        let is_held = !self.gate.is_open();
        self.metrics.held.set(i64::from(is_held));
        if is_held && !std::mem::replace(&mut self.is_held, is_held) {
            tracing::warn!(
                ledger.first = size.first_seq,
                ledger.seq = reasserted,
                "holding reports in UPLINK: LEDGER is full, and its oldest facts are not re-asserted yet"
            );
        }
        self.is_held = is_held;
        Ok(size)
    }

    /// Goes back after a partition was taken again: its new session does not know the outcome of the facts handed to the last
    /// one.
    fn follow_sessions(&mut self) {
        let sessions = self.rooms.values().map(|room| room.sessions.load(Ordering::Acquire)).sum();
        if std::mem::replace(&mut self.sessions, sessions) != sessions {
            let ours = self.rooms.values().filter(|room| room.is_owned.load(Ordering::Acquire));
            self.position = ours.map(|room| room.reasserted()).min().unwrap_or(0).min(self.position);
            self.documents.retain(|(at, _)| *at <= self.position);
            self.replay = None;
        }
    }

    /// Reads further facts, at most through a position.
    async fn read(&mut self, through: u64, first_seq: u64) -> Result<(), ReadError> {
        // LEDGER may have discarded facts because of their age, or before this process started.
        if self.position + 1 < first_seq {
            tracing::debug!(
                ledger.seq = self.position,
                ledger.first = first_seq,
                "skipping facts that LEDGER has discarded"
            );
            self.position = first_seq - 1;
            self.replay = None;
        }
        for _ in 0..BATCHES {
            if self.position >= through {
                self.replay = None;
                return Ok(());
            }
            let replay = match &mut self.replay {
                Some(replay) => replay,
                None => {
                    let start = Start::After(self.position);
                    self.replay.insert(self.bus.replay(stream::LEDGER, &[], start).await?)
                }
            };
            let Ok(batch) = timeout(SILENCE, replay.next_batch(BATCH)).await else { return Ok(()) };
            let batch = batch?;
            let goes_beyond = batch.last().is_some_and(|last| last.stream_seq > through);
            let is_handed_over = self.hand_over(batch, through).await;
            if goes_beyond || !is_handed_over {
                // The reader is ahead of the position.
                self.replay = None;
                return Ok(());
            }
        }
        Ok(())
    }

    /// Hands facts to their partitions; false if the queue of one stays full.
    async fn hand_over(&mut self, batch: Vec<Delivery>, through: u64) -> bool {
        let mut facts: BTreeMap<u16, Vec<_>> = BTreeMap::new();
        let (mut documents, mut position) = (Vec::new(), self.position);
        for delivery in batch.into_iter().take_while(|delivery| delivery.stream_seq <= through) {
            position = delivery.stream_seq;
            let Some(subject) = LedgerSubject::parse(&delivery.subject) else { continue };
            if matches!(subject, LedgerSubject::Desired(_)) {
                documents.push((position, delivery.subject));
                continue;
            }
            let Some(partition) = subject.device().map(partition_of) else { continue };
            if self.rooms.contains_key(&partition)
                && let Ok(fact) = Fact::parse(&subject, &delivery.payload)
            {
                facts.entry(partition).or_default().push((position, subject, fact));
            }
        }
        for (partition, room) in &self.rooms {
            if !room.is_owned.load(Ordering::Acquire) {
                continue;
            }
            let own = facts.remove(partition).unwrap_or_default();
            let old = OldFacts { facts: own, after: self.position, through: position };
            let sent = room.sender.send(old);
            // The other partitions ignore the facts that they receive twice.
            if timeout(QUEUED_WITHIN, sent).await.is_err() {
                return false;
            }
        }
        self.position = position;
        self.documents.extend(documents);
        true
    }

    /// Forgets the documents that LEDGER holds in a newer copy.
    async fn check_documents(&mut self) -> Result<(), ReadError> {
        while let Some((position, subject)) = self.documents.front() {
            let last = self.bus.last(stream::LEDGER, subject).await?;
            if last.is_some_and(|last| last.stream_seq == *position) {
                break;
            }
            self.documents.pop_front();
        }
        Ok(())
    }

    async fn ask_others(&mut self) {
        if self.asked_at.is_some_and(|at| at.elapsed() < ASK_EVERY) {
            return;
        }
        self.asked_at = Some(Instant::now());
        let is_owned =
            |number: &u16| self.rooms.get(number).is_some_and(|room| room.is_owned.load(Ordering::Acquire));
        let questions = (0..PARTITIONS).filter(|number| !is_owned(number)).map(async |number| {
            let asked =
                self.bus.request(&ask_owner(number), Bytes::from_static(REASSERTED), ANSWER_WITHIN).await;
            let position = asked.ok().and_then(|words| std::str::from_utf8(&words).ok()?.parse().ok());
            position.map(|position: u64| (number, position))
        });
        let answers: Vec<(u16, u64)> = join_all(questions).await.into_iter().flatten().collect();
        for (number, position) in answers {
            let known = self.others.entry(number).or_default();
            *known = position.max(*known);
        }
    }

    /// The position through which every fact of every partition that holds is re-asserted.
    fn reasserted(&self) -> u64 {
        let of = |number: u16| {
            let other = self.others.get(&number).copied().unwrap_or(0);
            self.rooms.get(&number).map_or(other, |room| room.reasserted().max(other))
        };
        let facts = (0..PARTITIONS).map(of).min().unwrap_or(0);
        let documents = self.documents.front().map_or(self.position, |(position, _)| position - 1);
        facts.min(documents)
    }

    async fn report_fill(&mut self, size: &LedgerSize) {
        let Some((percent, bytes_max)) = size.percent().zip(size.bytes_max) else { return };
        let is_due = |at: Option<Instant>, every| at.is_none_or(|at| at.elapsed() >= every);
        if percent >= LEDGER_WARN_PERCENT && is_due(self.warned_at, WARN_EVERY) {
            self.warned_at = Some(Instant::now());
            tracing::warn!(
                percent,
                bytes = size.bytes,
                bytes_max,
                "LEDGER is filling up; at its bound it keeps the newest fact of each standing and discards older ones"
            );
        }
        if percent >= LEDGER_INCIDENT_PERCENT && is_due(self.incident_at, INCIDENT_EVERY) {
            let what = IncidentKind::LedgerNearlyFull { bytes: size.bytes, bytes_max };
            match self.bus.publish(incident(what, self.clock.now())).await {
                Ok(_) => self.incident_at = Some(Instant::now()),
                Err(error) => {
                    tracing::debug!(error = chain(&error), "cannot publish the incident; trying again");
                }
            }
        }
    }
}

/// An incident of the hub. Every ingest reports the same one, so its id contains the day, and LEDGER stores the first.
fn incident(what: IncidentKind, now: Timestamp) -> Outgoing {
    let day = now.as_second() / INCIDENT_EVERY.as_secs() as i64;
    let document = Incident::new(now, what);
    Outgoing {
        headers: traced(Some(Trace::random(&mut Rng::new()))),
        message_id: Some(format!("ledger-nearly-full.{day}")),
        ..Outgoing::new(LedgerSubject::Incident(None).to_string(), decode::to_bytes(&document))
    }
}

/// The approximate size of the facts of a message's reports in LEDGER. The content of a batch is not decoded for it, so a batch
/// counts for as much as it may hold.
fn fact_bytes(message: &Delivery) -> u64 {
    let reports = reports_declared(message.headers.get(REPORTS));
    (report_bytes_max(message) + reports * FACT_BYTES_ADDED) as u64
}

fn size_of(state: &StreamState) -> LedgerSize {
    let StreamState { first_seq, last_seq, bytes, bytes_max, .. } = *state;
    LedgerSize { first_seq, last_seq, bytes, bytes_max }
}
