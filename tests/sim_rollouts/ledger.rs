//! LEDGER as planners read it: messages arrive late and in parts, stop for a while, get lost, or are read again from the first one.
//! In the calm, people read the real fold of the whole LEDGER.

use std::time::Duration;

use muster_contract::fact::{Fact, Liveness, LivenessFact};
use muster_contract::limits::PARTITIONS;
use muster_contract::query::Output;
use muster_contract::status::StatusQuery;
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeploymentId, Timestamp};
use muster_domain::fold::{Fleet, Position};
use muster_domain::rollout::Lines;
use muster_planner::ledger::{Ledger, LedgerEvent, LedgerFact};
use muster_tests::facts;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::wire::{Answer, Operation, Port, Process};
use super::world::{Event, Millis, Sabotage, World};

/// Messages of a batch, at most.
const BATCH_MAX: usize = 40;
/// Time between two questions for LEDGER's end.
const END_ASKED_EVERY: Duration = Duration::from_secs(1);
/// The lease of every pulse in seconds: no world has an ingest that stops.
const LEASE_SECONDS: u64 = 1_000_000;

/// Messages of LEDGER; `None` if the planner must start again at the first message.
pub(crate) type Batch = Option<Vec<LedgerFact>>;

/// The delivery of LEDGER to planners.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    /// Planners that wait for further messages, with their positions.
    waiting: Vec<(Process, u64, Answer<Batch>)>,
    is_expecting: bool,
    /// LEDGER delivers nothing until then; if true, it does not answer questions for its end either.
    pub(crate) stalled: Option<(Millis, bool)>,
    /// Whether the next planner that asks must start again at the first message.
    restarts: bool,
}

/// The connection of a planner to LEDGER.
#[derive(Debug)]
pub(crate) struct PlannerLedger {
    port: Port,
    read_through: u64,
    batch: Option<oneshot::Receiver<Batch>>,
    end: Option<(Instant, oneshot::Receiver<(u64, Timestamp)>)>,
    ask_at: Instant,
}

impl PlannerLedger {
    pub(crate) fn new(port: Port) -> Self {
        Self { port, read_through: 0, batch: None, end: None, ask_at: Instant::now() }
    }
}

impl Ledger for PlannerLedger {
    async fn next(&mut self) -> LedgerEvent {
        loop {
            let after = self.read_through;
            let port = &self.port;
            let batch = self.batch.get_or_insert_with(|| port.send(|way| Operation::Facts(after, way)));
            if self.end.is_none() && self.ask_at <= Instant::now() {
                self.ask_at = Instant::now() + END_ASKED_EVERY;
                self.end = Some((Instant::now(), port.send(Operation::LedgerEnd)));
            }
            let ask_at = self.ask_at;
            let end = async {
                match &mut self.end {
                    Some((asked_at, answer)) => (*asked_at, answer.await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                batch = batch => {
                    self.batch = None;
                    match batch {
                        Ok(Some(facts)) => {
                            self.read_through = facts.last().map_or(after, |(at, _)| at.ledger_seq);
                            return LedgerEvent::Facts(facts);
                        }
                        Ok(None) => {
                            self.read_through = 0;
                            return LedgerEvent::Restarted;
                        }
                        // The answer is lost: the question is asked again.
                        Err(_) => {}
                    }
                }
                (asked_at, answer) = end => {
                    self.end = None;
                    if let Ok((last_seq, at)) = answer {
                        return LedgerEvent::End { last_seq, at, asked_at };
                    }
                }
                () = sleep_until(ask_at), if ask_at > Instant::now() => {}
            }
        }
    }
}

/// The lines of a deployment.
pub(crate) fn lines(fleet: &Fleet, id: &DeploymentId) -> Lines {
    let query = StatusQuery { id: Some(id.clone()), output: Output::Detail, ..StatusQuery::default() };
    let mut lines = Lines::default();
    // LEDGER may not know of the deployment yet.
    if let Ok(answer) = fleet.status_answer(&query, None, usize::MAX) {
        lines.read_page(answer.as_of.ledger_seq, true);
        lines.of_devices = answer.targets.into_iter().map(|line| (line.key.clone(), line)).collect();
    }
    lines
}

impl World {
    /// Appends a pulse of each partition.
    pub(crate) fn append_pulses(&mut self) {
        let at = self.time();
        for partition in 0..PARTITIONS {
            self.hub.append(at, LedgerSubject::Hub(partition), facts::pulse(at, LEASE_SECONDS));
        }
    }

    /// Schedules a delivery to waiting planners.
    pub(crate) fn expect_feed(&mut self) {
        if !std::mem::replace(&mut self.feed.is_expecting, true) {
            let delay = self.rng_millis(5..400);
            self.after(delay, Event::Feed);
        }
    }

    /// Delivers new messages to waiting planners.
    pub(crate) fn feed(&mut self) {
        if let Some((until, _)) = self.feed.stalled.filter(|(until, _)| *until > self.now) {
            self.after(until - self.now, Event::Feed);
            return;
        }
        self.feed.stalled = None;
        self.feed.is_expecting = false;
        for (process, after, way) in std::mem::take(&mut self.feed.waiting) {
            self.read_ledger(process, after, way);
        }
    }

    /// A planner asks for the messages after a position.
    pub(crate) fn read_ledger(&mut self, process: Process, after: u64, way: Answer<Batch>) {
        let is_stalled = self.feed.stalled.is_some_and(|(until, _)| until > self.now);
        if self.feed.restarts && after > 0 {
            self.feed.restarts = false;
            self.answer(way, None);
        } else if is_stalled || self.hub.ledger.len() as u64 <= after {
            self.feed.waiting.push((process, after, way));
        } else {
            let most = self.rng.usize(1..=BATCH_MAX);
            let batch = self.batch(after, most);
            self.answer(way, Some(batch));
        }
    }

    fn batch(&self, after: u64, most: usize) -> Vec<LedgerFact> {
        let facts = self.hub.ledger.iter().enumerate().skip(usize::try_from(after).unwrap()).take(most);
        let fact = |(at, (stored_at, subject, fact)): (usize, &(Timestamp, LedgerSubject, Fact))| {
            let position = Position { ledger_seq: at as u64 + 1, stored_at: *stored_at };
            (position, Some((subject.clone(), self.delivered(fact.clone()))))
        };
        facts.map(fact).collect()
    }

    /// The fact as LEDGER delivers it: a sabotaged LEDGER changes it.
    fn delivered(&self, fact: Fact) -> Fact {
        match fact {
            Fact::Liveness(fact) if self.sabotage == Sabotage::HearsEverybody => {
                Fact::Liveness(LivenessFact { state: Liveness::Fresh, ..fact })
            }
            fact => fact,
        }
    }

    /// A planner asks for LEDGER's end.
    pub(crate) fn end_of_ledger(&mut self, way: Answer<(u64, Timestamp)>) {
        let is_cut_off = self.feed.stalled.is_some_and(|(until, is_cut_off)| is_cut_off && until > self.now);
        if !is_cut_off {
            let answer = (self.hub.ledger.len() as u64, self.time());
            self.answer(way, answer);
        }
    }

    /// LEDGER delivers nothing for a while.
    pub(crate) fn stall_ledger(&mut self, length: Millis) {
        self.feed.stalled = Some((self.now + length, self.rng.bool()));
        self.expect_feed();
    }

    /// Makes a planner read LEDGER from its first message.
    pub(crate) const fn restart_reader(&mut self) {
        self.feed.restarts = true;
    }

    /// Forgets the request of a process that has died.
    pub(crate) fn forget_reader(&mut self, process: Process) {
        self.feed.waiting.retain(|(of, ..)| *of != process);
    }
}
