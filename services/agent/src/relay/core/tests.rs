//! Tests of the order of the relay's effects: inputs go to a core with a small outbox, and the effects are compared.

use muster_bus::PublishErrorKind;
use muster_contract::{SeqRanges, Timestamp};
use std::collections::BTreeSet;

use super::*;
use crate::outbox::{ReadRequest, StoredBody, Summary};
use crate::report::{Body, CapabilitiesBody};

/// A relay core with a small outbox.
struct Trial {
    core: RelayCore,
    now: Instant,
    /// Rows that wait, and those that are marked.
    waiting: BTreeSet<u64>,
    epoch: Option<Epoch>,
    ahead: Option<ReadRequest>,
    under_way: Vec<Ticket>,
    /// Marks are stored.
    is_storing: bool,
    is_marking: bool,
    hub_reads_batches: bool,
    /// Rows that the hub asked for again.
    repeated: BTreeSet<u64>,
}

impl Trial {
    fn new(rows: u64) -> Self {
        Self::with(rows, None)
    }

    fn with(rows: u64, limit: Option<&str>) -> Self {
        let now = Instant::now();
        let budget = Budget::new(limit.map(|limit| limit.parse().unwrap()), now);
        Self {
            core: RelayCore::new(Duration::from_secs(30), budget, Rng::with_seed(1)),
            now,
            waiting: (1..=rows).collect(),
            epoch: Some(Epoch::FIRST),
            ahead: None,
            under_way: Vec::new(),
            is_storing: true,
            is_marking: true,
            hub_reads_batches: false,
            repeated: BTreeSet::new(),
        }
    }

    /// A connection comes up; with an epoch the receipt was fetched before.
    fn up(&mut self) -> Vec<String> {
        if self.epoch.is_some() {
            self.core.handle(Input::ReceiptFetched, self.now);
        }
        self.hand_in(Input::Link(Link::Up { since_count: self.core.session + 1 }))
    }

    fn hand_in(&mut self, input: Input) -> Vec<String> {
        self.core.handle(input, self.now);
        self.act()
    }

    fn pass(&mut self, time: Duration) -> Vec<String> {
        self.now += time;
        self.act()
    }

    /// Answers the oldest message under way.
    fn answer(&mut self, answer: Result<(), PublishErrorKind>) -> Vec<String> {
        let ticket = self.under_way.remove(0);
        self.hand_in(Input::Answer(ticket, answer))
    }

    /// Carries out every effect that is due.
    fn act(&mut self) -> Vec<String> {
        let mut done = Vec::new();
        while let Some(effect) = self.core.next_effect(self.now) {
            let input = match effect {
                Effect::ReadStatus => Some(self.status()),
                Effect::FixEpoch => {
                    done.push("fix epoch".to_owned());
                    Some(Input::EpochFixed(*self.epoch.get_or_insert(Epoch::FIRST)))
                }
                Effect::ReadRows(ask) => Some(self.read(&ask)),
                Effect::ReadAhead(ask) => {
                    self.ahead = Some(ask);
                    None
                }
                Effect::TakeReadAhead => self.ahead.take().map(|ask| self.read(&ask)),
                Effect::SendHeartbeat(heartbeat) => {
                    done.push(format!("heartbeat, {} unsent", heartbeat.unsent));
                    Some(Input::Written(500))
                }
                Effect::SendReport(report, ticket) => {
                    done.push(format!("send {}", report.row.seq));
                    self.under_way.push(ticket);
                    Some(Input::Written(report.row.bytes))
                }
                Effect::SendBatch(batch, ticket) => {
                    let seqs: Vec<_> = batch.rows.iter().map(|row| row.seq).collect();
                    done.push(format!("batch {}-{}", seqs[0], seqs[seqs.len() - 1]));
                    self.under_way.push(ticket);
                    Some(Input::Written(100))
                }
                Effect::MarkSent(_, seqs) => {
                    done.push(format!("mark {seqs:?}"));
                    if self.is_storing {
                        self.waiting.retain(|seq| !seqs.contains(seq));
                    }
                    self.is_marking.then_some(Input::Marked(self.is_storing))
                }
                Effect::MaintainOutbox => None,
                Effect::BeginBatch(_) | Effect::EndBatch => None,
                Effect::EndSession(delay) => {
                    self.under_way.clear();
                    done.push(if delay.is_some() { "end, wait" } else { "end" }.to_owned());
                    None
                }
            };
            input.into_iter().for_each(|input| self.core.handle(input, self.now));
        }
        done
    }

    fn status(&self) -> Input {
        let head = self.waiting.last().copied().unwrap_or_default();
        let summary =
            Summary { epoch: self.epoch, head, unsent: self.waiting.len() as u64, ..Summary::default() };
        Input::Status(DeviceStatus {
            summary,
            generation: 1,
            is_retired: false,
            is_storing: true,
            refused: None,
            token: None,
        })
    }

    fn read(&self, ask: &ReadRequest) -> Input {
        let body = Body::Capabilities(CapabilitiesBody {
            observed_at: Timestamp::UNIX_EPOCH,
            properties: serde_json::Map::new(),
            labels: Default::default(),
            agent_version: String::new(),
        });
        let row = |seq: &u64| Row {
            seq: *seq,
            newest: false,
            is_repeated: self.repeated.contains(seq),
            message_id: String::new(),
            bytes: 1_000,
            body: StoredBody::of(&body).unwrap(),
            coalesced: SeqRanges::new(),
        };
        let wanted = self.waiting.iter().filter(|seq| !ask.except.contains(seq) && **seq > ask.after);
        let rows = wanted.take(ask.rows.min((ask.bytes / 1_000).max(1))).map(row).collect();
        Input::Rows(Batch {
            epoch: self.epoch,
            head: self.waiting.last().copied().unwrap_or_default(),
            rows,
            hub_reads_batches: self.hub_reads_batches,
            hub_has_dictionary: false,
        })
    }
}

mod batches;

const OK: Result<(), PublishErrorKind> = Ok(());
const SOON: Duration = Duration::from_millis(200);

#[test]
fn a_session_begins_with_a_heartbeat_and_marks_what_is_confirmed() {
    let mut trial = Trial::new(2);
    assert_eq!(trial.act(), [""; 0], "without a connection");
    assert_eq!(trial.up(), ["fix epoch", "heartbeat, 2 unsent", "send 1", "send 2"]);
    assert_eq!(trial.answer(OK), [""; 0], "others may be confirmed in a moment");
    assert_eq!(trial.answer(OK), [""; 0]);
    assert_eq!(trial.pass(SOON), ["mark [1, 2]"]);
}

#[test]
fn a_lost_link_marks_what_is_confirmed_and_the_next_one_sends_the_rest() {
    let mut trial = Trial::new(2);
    trial.up();
    trial.answer(OK);
    assert_eq!(trial.hand_in(Input::Link(Link::Down)), ["mark [1]", "end"]);
    assert_eq!(trial.up(), ["fix epoch", "heartbeat, 1 unsent", "send 2"]);
}

#[test]
fn a_failure_ends_the_session_once_everything_confirmed_is_marked() {
    let mut trial = Trial::new(3);
    trial.up();
    trial.answer(OK);
    trial.is_marking = false;
    assert_eq!(trial.pass(SOON), ["mark [1]"]);
    trial.answer(OK);
    assert_eq!(trial.answer(Err(PublishErrorKind::Transient)), [""; 0], "marks are under way");
    assert_eq!(trial.hand_in(Input::Marked(true)), ["mark [2]"]);
    assert_eq!(trial.hand_in(Input::Marked(true)), ["end, wait"]);
    let again = ["fix epoch", "heartbeat, 1 unsent", "send 3"];
    assert_eq!(trial.pass(RETRY.1), again, "after the delay");
}

#[test]
fn an_answer_to_an_earlier_session_is_ignored() {
    let mut trial = Trial::new(1);
    trial.up();
    let late = trial.under_way[0];
    trial.hand_in(Input::Link(Link::Down));
    trial.up();
    trial.hand_in(Input::Answer(late, OK));
    assert_eq!(trial.pass(SOON), [""; 0], "nothing is marked");
}

#[test]
fn marks_that_cannot_be_stored_are_tried_again() {
    let mut trial = Trial::new(1);
    trial.up();
    trial.answer(OK);
    trial.is_storing = false;
    assert_eq!(trial.pass(SOON), ["mark [1]"]);
    assert_eq!(trial.pass(SOON), [""; 0]);
    trial.is_storing = true;
    assert_eq!(trial.pass(MARK_RETRY), ["mark [1]"]);
}

#[test]
fn a_new_database_fixes_its_epoch_after_the_receipt_was_fetched() {
    let mut trial = Trial::new(1);
    trial.epoch = None;
    assert_eq!(trial.up(), [""; 0]);
    assert_eq!(trial.hand_in(Input::ReceiptFetched), ["fix epoch", "heartbeat, 1 unsent", "send 1"]);
}

#[test]
fn an_old_database_sends_no_report_before_it_has_fetched_the_receipt() {
    let mut trial = Trial::new(1);
    let link = Input::Link(Link::Up { since_count: 1 });
    assert_eq!(trial.hand_in(link), ["fix epoch", "heartbeat, 1 unsent"]);
    assert_eq!(trial.hand_in(Input::ReceiptFetched), ["send 1"]);
}

#[test]
fn rows_of_another_epoch_end_the_session() {
    let mut trial = Trial::new(1);
    trial.up();
    trial.waiting.insert(2);
    trial.epoch = Some(Epoch::FIRST.next());
    assert_eq!(trial.hand_in(Input::OutboxChanged), ["end, wait"]);
}

#[test]
fn an_outbox_that_cannot_be_read_ends_the_session() {
    let mut trial = Trial::new(1);
    trial.core.handle(Input::Link(Link::Up { since_count: 1 }), trial.now);
    assert_eq!(trial.core.next_effect(trial.now), Some(Effect::ReadStatus));
    assert_eq!(trial.core.next_effect(trial.now), None, "an answer is awaited");
    assert_eq!(trial.hand_in(Input::StorageFailed), ["end, wait"]);
}

#[test]
fn a_full_share_pauses_sending_and_not_the_session() {
    let mut trial = Trial::new(2);
    trial.up();
    assert_eq!(trial.answer(Err(PublishErrorKind::SubjectFull)), [""; 0]);
    assert_eq!(trial.answer(Err(PublishErrorKind::SubjectFull)), [""; 0]);
    assert_eq!(trial.pass(FULL_PAUSE.1), ["send 1"], "one row asks whether there is room");
    assert_eq!(trial.answer(OK), ["send 2"]);
}

#[test]
fn on_a_link_with_a_limit_reports_wait_and_heartbeats_do_not() {
    let mut trial = Trial::with(4, Some("8kbit"));
    let first = trial.up();
    assert_eq!(first, ["fix epoch", "heartbeat, 4 unsent", "send 1"], "what is left of a second");
    let due = trial.core.deadline().unwrap();
    assert!(due > trial.now && due <= trial.now + Duration::from_secs(1), "{:?}", due - trial.now);
    assert_eq!(trial.hand_in(Input::StateChanged), ["heartbeat, 4 unsent"]);
    assert_eq!(trial.pass(Duration::from_secs(2)), ["send 2"]);
}

#[test]
fn an_agent_that_stops_sends_what_is_left_and_a_last_heartbeat() {
    let mut trial = Trial::new(2);
    trial.up();
    assert_eq!(trial.hand_in(Input::Stop), [""; 0]);
    trial.answer(OK);
    assert_eq!(trial.answer(OK), ["mark [1, 2]", "heartbeat, 0 unsent", "end"]);
    assert!(trial.core.has_stopped());
}

#[test]
fn an_agent_that_stops_waits_for_answers_no_longer_than_it_may() {
    let mut trial = Trial::new(1);
    trial.up();
    trial.hand_in(Input::Stop);
    assert_eq!(trial.core.deadline(), Some(trial.now + FLUSH));
    assert_eq!(trial.pass(FLUSH), ["heartbeat, 1 unsent", "end"]);
    assert!(trial.core.has_stopped());
}

#[test]
fn an_agent_that_stops_without_a_connection_or_an_epoch_is_done_at_once() {
    let mut without_link = Trial::new(1);
    without_link.hand_in(Input::Stop);
    assert!(without_link.core.has_stopped());
    let mut without_epoch = Trial::new(1);
    without_epoch.epoch = None;
    without_epoch.up();
    without_epoch.hand_in(Input::Stop);
    assert!(without_epoch.core.has_stopped());
    let mut between_sessions = Trial::new(1);
    between_sessions.up();
    between_sessions.answer(Err(PublishErrorKind::Transient));
    assert_eq!(between_sessions.hand_in(Input::Stop), ["fix epoch", "heartbeat, 1 unsent", "send 1"]);
    assert_eq!(between_sessions.answer(Err(PublishErrorKind::Transient)), ["end"]);
    assert!(between_sessions.core.has_stopped());
}

#[test]
fn an_agent_that_stops_before_the_receipt_was_fetched_is_done_at_once() {
    let mut trial = Trial::new(1);
    trial.hand_in(Input::Link(Link::Up { since_count: 1 }));
    assert_eq!(trial.hand_in(Input::Stop), ["heartbeat, 1 unsent", "end"]);
    assert!(trial.core.has_stopped());
}

#[test]
fn a_new_connection_is_not_delayed_by_a_failure_over_the_one_before() {
    let mut trial = Trial::new(2);
    trial.up();
    trial.answer(OK);
    trial.is_marking = false;
    trial.pass(SOON);
    assert_eq!(trial.answer(Err(PublishErrorKind::Transient)), [""; 0], "marks are under way");
    assert_eq!(trial.hand_in(Input::Link(Link::Up { since_count: 9 })), [""; 0]);
    trial.is_marking = true;
    let next = ["mark [1]", "end", "fix epoch", "heartbeat, 1 unsent", "send 2"];
    assert_eq!(trial.hand_in(Input::Marked(false)), next);
}
