//! Tests of the order of sending, as tables: an outbox of a few rows, events, and the rows that are sent.

use std::collections::BTreeMap;

mod model;

use PublishErrorKind::{Permanent, SubjectFull, Transient};

use super::*;
use crate::outbox::StoredBody;
use crate::report::{Body, CapabilitiesBody};
use muster_contract::{SeqRanges, Timestamp};

/// An event, one line of a table.
enum Event {
    /// A report of a deployment is written.
    Write(char),
    /// The outbox is read as requested; these rows are sent, in this order.
    Sends(&'static [u64]),
    /// Nothing is read now.
    Waits,
    Answer(u64, Result<(), PublishErrorKind>, AnswerOutcome),
    /// The outbox marks the confirmed rows.
    Marks(&'static [u64]),
    Restart,
    Reconnect,
    /// The pause after a full share is over.
    Resume,
    /// The hub asks for a row again.
    Requeue(u64),
    /// All rows have new numbers in another epoch; the session ends, the next one begins.
    Renew,
}

use Event::{Answer, Marks, Reconnect, Renew, Requeue, Restart, Resume, Sends, Waits, Write};

/// An outbox as the queue reads it: number → deployment, and the sent rows.
#[derive(Default)]
struct Rows {
    deployments: BTreeMap<u64, char>,
    sent: BTreeSet<u64>,
    renewals: u64,
}

impl Rows {
    fn epoch(&self) -> Epoch {
        (0..self.renewals).fold(Epoch::FIRST, |epoch, _| epoch.next())
    }

    fn write(&mut self, deployment: char) {
        self.deployments.insert(self.deployments.len() as u64 + 1, deployment);
    }

    fn is_newest(&self, seq: u64) -> bool {
        let deployment = self.deployments[&seq];
        self.deployments.range(seq + 1..).all(|(_, other)| *other != deployment)
    }

    fn read(&self, ask: &ReadRequest) -> Batch {
        let passed = |seq: &u64| ask.newest_first && *seq <= ask.after && !self.is_newest(*seq);
        let queued = |seq: &u64| !self.sent.contains(seq) && !ask.except.contains(seq) && !passed(seq);
        let mut seqs: Vec<u64> = self.deployments.keys().copied().filter(queued).collect();
        seqs.sort_by_key(|seq| (ask.newest_first && !self.is_newest(*seq), *seq));
        seqs.truncate(ask.rows);
        let rows = seqs.into_iter().map(|seq| row(seq, self.is_newest(seq))).collect();
        Batch {
            epoch: Some(self.epoch()),
            head: self.deployments.len() as u64,
            rows,
            hub_reads_batches: false,
            hub_has_dictionary: false,
        }
    }
}

fn row(seq: u64, newest: bool) -> Row {
    let body = Body::Capabilities(CapabilitiesBody {
        observed_at: Timestamp::UNIX_EPOCH,
        properties: serde_json::Map::new(),
        labels: BTreeMap::new(),
        agent_version: String::new(),
    });
    let body = StoredBody::of(&body).unwrap();
    Row {
        seq,
        newest,
        is_repeated: false,
        message_id: String::new(),
        bytes: 10,
        body,
        coalesced: SeqRanges::new(),
    }
}

fn play(case: &str, window: SendLimits, written: &str, events: Vec<Event>) {
    let (mut queue, mut rows) = (SendQueue::new(window), Rows::default());
    written.chars().for_each(|deployment| rows.write(deployment));
    queue.start_session(rows.epoch());
    for (at, event) in events.into_iter().enumerate() {
        let here = format!("{case}, event {at}");
        match event {
            Write(deployment) => {
                rows.write(deployment);
                queue.outbox_changed();
            }
            Sends(expected) => {
                let batch = queue
                    .read_request()
                    .map(|ask| rows.read(&ask))
                    .unwrap_or_else(|| panic!("{here}: reads nothing"));
                let offered = queue.accept(batch).unwrap_or_else(|| panic!("{here}: the session is over"));
                let sent: Vec<u64> = offered.iter().map(|row| row.seq).collect();
                assert_eq!(sent, expected, "{here}");
            }
            Waits => assert_eq!(queue.read_request(), None, "{here}"),
            Answer(seq, answer, next) => {
                assert_eq!(queue.answered(seq, answer, Duration::ZERO), next, "{here}");
            }
            Marks(expected) => {
                let (_, seqs) = queue.acknowledged().unwrap_or_else(|| panic!("{here}: nothing to mark"));
                assert_eq!(seqs, expected, "{here}");
                rows.sent.extend(&seqs);
                queue.marked(&seqs);
            }
            Restart => queue.start_session(rows.epoch()),
            Resume => queue.resume(),
            Reconnect => {
                queue.reconnected();
                queue.start_session(rows.epoch());
            }
            Requeue(seq) => {
                rows.sent.remove(&seq);
                queue.outbox_changed();
            }
            Renew => {
                rows.renewals += 1;
                queue.outbox_changed();
                let batch = queue
                    .read_request()
                    .map(|ask| rows.read(&ask))
                    .unwrap_or_else(|| panic!("{here}: reads nothing"));
                assert_eq!(queue.accept(batch), None, "{here}");
                queue.start_session(rows.epoch());
            }
        }
    }
}

const NARROW: SendLimits = SendLimits { rows: 4, bytes: 1_000 };
const OK: Result<(), PublishErrorKind> = Ok(());

#[test]
fn the_newest_of_each_deployment_go_first_then_the_backlog() {
    play("wide", SendLimits::default(), "abacb", vec![Sends(&[3, 4, 5, 1, 2]), Sends(&[]), Waits]);
    let narrow = vec![Sends(&[4, 5, 6, 1]), Waits, Answer(4, OK, AnswerOutcome::Continue), Sends(&[2])];
    play("narrow", NARROW, "abcabc", narrow);
}

#[test]
fn a_report_written_while_a_backlog_drains_goes_next() {
    let events = vec![
        Sends(&[6, 1, 2, 3]),
        Answer(6, OK, AnswerOutcome::Continue),
        Write('b'),
        Sends(&[7]),
        Waits,
        Answer(1, OK, AnswerOutcome::Continue),
        Sends(&[4]),
    ];
    play("overtaking", NARROW, "aaaaaa", events);
}

#[test]
fn once_everything_is_sent_reports_go_in_their_order_until_too_many_wait() {
    let events = vec![
        Sends(&[1]),
        Sends(&[]),
        Answer(1, OK, AnswerOutcome::Continue),
        Write('a'),
        Write('a'),
        Write('b'),
        Sends(&[2, 3, 4]),
        Write('a'),
        Write('b'),
        Write('a'),
        Sends(&[5]),
        Waits,
        Answer(2, OK, AnswerOutcome::Continue),
        Sends(&[6]),
        Answer(3, OK, AnswerOutcome::Continue),
        Sends(&[7]),
    ];
    play("live", NARROW, "a", events);
    let burst = vec![
        Sends(&[1]),
        Sends(&[]),
        Write('a'),
        Write('b'),
        Write('a'),
        Write('a'),
        Sends(&[2, 3, 4]),
        Waits,
    ];
    play("burst", NARROW, "a", burst);
}

#[test]
fn a_full_share_pauses_and_refused_rows_go_again_in_order() {
    let events = vec![
        Sends(&[6, 7, 1, 2]),
        Answer(6, OK, AnswerOutcome::Continue),
        Answer(7, Err(SubjectFull), AnswerOutcome::Pause),
        Waits,
        Answer(1, Err(SubjectFull), AnswerOutcome::Continue),
        // Written meanwhile: it waits too, and is sent with the newest.
        Write('a'),
        Waits,
        Answer(2, Err(SubjectFull), AnswerOutcome::Continue),
        Waits,
        Resume,
        Sends(&[7]),
        Waits,
        Answer(7, OK, AnswerOutcome::Continue),
        Sends(&[8, 1]),
        Answer(8, OK, AnswerOutcome::Continue),
        Answer(1, Err(SubjectFull), AnswerOutcome::Pause),
        Resume,
        Sends(&[1]),
        Answer(1, OK, AnswerOutcome::Continue),
        Sends(&[2, 3]),
    ];
    play("full share", NARROW, "aaaaaab", events);
}

#[test]
fn a_full_share_on_an_ended_link_does_not_delay_the_next_link() {
    let events = vec![
        Sends(&[2, 1]),
        Answer(2, Err(SubjectFull), AnswerOutcome::Pause),
        Waits,
        Reconnect,
        Sends(&[2, 1]),
    ];
    play("new link", NARROW, "aa", events);
}

#[test]
fn the_window_bounds_rows_and_bytes_but_lets_a_large_row_pass_alone() {
    play("bytes", SendLimits { rows: 8, bytes: 25 }, "aaaa", vec![Sends(&[4, 1]), Sends(&[])]);
    play(
        "large",
        SendLimits { rows: 8, bytes: 5 },
        "aa",
        vec![Sends(&[2]), Waits, Answer(2, OK, AnswerOutcome::Continue), Sends(&[1])],
    );
}

#[test]
fn after_a_transient_failure_all_that_was_under_way_goes_again_in_order() {
    let events = vec![
        Sends(&[3, 1, 2]),
        Answer(3, OK, AnswerOutcome::Continue),
        Answer(1, Err(Transient), AnswerOutcome::Restart),
        Restart,
        Sends(&[1, 2]),
        Answer(1, OK, AnswerOutcome::Continue),
        Answer(2, OK, AnswerOutcome::Continue),
        Marks(&[1, 2, 3]),
        Sends(&[]),
        Waits,
    ];
    play("failure", NARROW, "aaa", events);
}

#[test]
fn an_answer_from_before_a_restart_changes_nothing() {
    let events = vec![Sends(&[1]), Restart, Answer(1, OK, AnswerOutcome::Continue), Sends(&[1])];
    play("late", NARROW, "a", events);
}

#[test]
fn a_row_refused_for_good_delays_no_other_until_the_next_connection() {
    let events = vec![
        Sends(&[2, 1]),
        Answer(2, Err(Permanent), AnswerOutcome::Continue),
        Answer(1, OK, AnswerOutcome::Continue),
        Marks(&[1]),
        Sends(&[]),
        Restart,
        Sends(&[]),
        Reconnect,
        Sends(&[2]),
    ];
    play("parked", NARROW, "aa", events);
}

#[test]
fn what_the_hub_asks_for_again_is_sent_again() {
    let events = vec![
        Sends(&[2, 1]),
        Answer(2, OK, AnswerOutcome::Continue),
        Answer(1, OK, AnswerOutcome::Continue),
        Marks(&[1, 2]),
        Requeue(1),
        Sends(&[1]),
    ];
    play("again", NARROW, "aa", events);
}

#[test]
fn in_a_new_epoch_nothing_of_the_old_one_counts() {
    let events = vec![
        Sends(&[2, 1]),
        Answer(2, OK, AnswerOutcome::Continue),
        Renew,
        Answer(1, OK, AnswerOutcome::Continue),
        Sends(&[2, 1]),
    ];
    play("renewed", NARROW, "aa", events);
}

/// A link that takes `after` to answer the rows under way: the congestion window at the end.
fn width_over(rounds: usize, after: impl Fn(usize) -> Duration) -> usize {
    let mut queue = SendQueue::new(SendLimits::default());
    queue.start_session(Epoch::FIRST);
    let mut next = 1;
    for _ in 0..rounds {
        let window = queue.window();
        let rows = (next..next + window as u64).map(|seq| row(seq, false)).collect::<Vec<_>>();
        next += window as u64;
        let batch = Batch {
            epoch: Some(Epoch::FIRST),
            head: next,
            rows,
            hub_reads_batches: false,
            hub_has_dictionary: false,
        };
        for row in queue.accept(batch).unwrap() {
            assert_eq!(queue.answered(row.seq, OK, after(window)), AnswerOutcome::Continue);
        }
        let noted: Vec<u64> = queue.acknowledged().unwrap().1;
        queue.marked(&noted);
    }
    queue.window()
}

#[test]
fn the_window_fits_the_link() {
    let rows_a_second = |rate: f64| move |window: usize| Duration::from_secs_f64(window as f64 / rate);
    assert_eq!(width_over(10, rows_a_second(10_000.0)), IN_FLIGHT_MAX, "a wide link");
    assert_eq!(width_over(10, |_| Duration::from_millis(700)), IN_FLIGHT_MAX, "a long way, and wide");
    let thin = width_over(50, rows_a_second(12.0));
    assert!((12..=36).contains(&thin), "between one second and three: {thin}");
    assert_eq!(width_over(200, rows_a_second(0.5)), WINDOW_MIN, "never less");
}

#[test]
fn after_a_pause_the_window_grows_by_one_row_for_each_answer() {
    for after in [Duration::ZERO, Duration::from_secs(2), SLOW_ANSWER * 2] {
        let mut queue = SendQueue::new(SendLimits::default());
        queue.start_session(Epoch::FIRST);
        let send = |queue: &mut SendQueue, seq| {
            let batch = Batch {
                epoch: Some(Epoch::FIRST),
                head: seq,
                rows: vec![row(seq, false)],
                hub_reads_batches: false,
                hub_has_dictionary: false,
            };
            assert_eq!(queue.accept(batch).unwrap().len(), 1);
        };
        send(&mut queue, 1);
        queue.answered(1, Err(SubjectFull), after);
        queue.resume();
        assert_eq!(queue.window(), WINDOW_PROBE);
        for expected in WINDOW_PROBE + 1..=WINDOW_MIN {
            send(&mut queue, 1);
            assert_eq!(queue.answered(1, OK, after), AnswerOutcome::Continue);
            assert_eq!(queue.window(), expected, "{after:?}");
        }
        // The minimum is no reason to grow: a failed session finds out nothing.
        send(&mut queue, 1);
        queue.answered(1, Err(SubjectFull), after);
        queue.resume();
        send(&mut queue, 1);
        assert_eq!(queue.answered(1, Err(Transient), after), AnswerOutcome::Restart);
        assert_eq!(queue.window(), WINDOW_PROBE);
    }
}

#[test]
fn a_failed_attempt_halves_the_window_and_a_new_connection_begins_anew() {
    let mut queue = SendQueue::new(SendLimits::default());
    let mut widths = Vec::new();
    for seq in 1..=4 {
        queue.start_session(Epoch::FIRST);
        queue
            .accept(Batch {
                epoch: Some(Epoch::FIRST),
                head: 1,
                rows: vec![row(seq, true)],
                hub_reads_batches: false,
                hub_has_dictionary: false,
            })
            .unwrap();
        assert_eq!(queue.answered(seq, Err(Transient), Duration::ZERO), AnswerOutcome::Restart);
        widths.push(queue.window());
    }
    assert_eq!(widths, [16, 8, 8, 8]);
    queue.reconnected();
    assert_eq!(queue.window(), WINDOW_START);
}

#[test]
fn a_backlog_is_read_on_unless_the_outbox_has_changed() {
    let mut queue = SendQueue::new(NARROW);
    let mut rows = Rows::default();
    "abaaaaaaaaaa".chars().for_each(|deployment| rows.write(deployment));
    queue.start_session(rows.epoch());
    let mut sent = Vec::new();
    while let Some(ask) = queue.read_request() {
        assert!(ask.except.len() <= 2, "only the two that went first: {:?}", ask.except);
        let offered = queue.accept(rows.read(&ask)).unwrap();
        for row in &offered {
            assert_eq!(queue.answered(row.seq, OK, Duration::ZERO), AnswerOutcome::Continue);
        }
        sent.extend(offered.iter().map(|row| row.seq));
    }
    assert_eq!(sent, [2, 12, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    queue.outbox_changed();
    let ask = queue.read_request().unwrap();
    assert_eq!((ask.after, ask.except.len()), (0, 12), "nothing twice");
}

#[test]
fn what_is_written_while_rows_wait_for_the_budget_goes_before_them() {
    let (mut queue, mut rows) = (SendQueue::new(NARROW), Rows::default());
    queue.start_session(rows.epoch());
    // Everything is sent: from now on rows are sent as they are written.
    assert_eq!(queue.accept(rows.read(&queue.read_request().unwrap())).unwrap().len(), 0);
    for _ in 0..3 {
        rows.write('a');
    }
    rows.write('b');
    queue.outbox_changed();
    assert!(!queue.read_request().unwrap().newest_first);
    queue.expect_backlog();
    let ask = ReadRequest { bytes: 25, ..queue.read_request().unwrap() };
    let mut batch = rows.read(&ask);
    batch.rows.truncate(2);
    let sent: Vec<u64> = queue.accept(batch).unwrap().iter().map(|row| row.seq).collect();
    assert_eq!(sent, [3, 4], "the newest of each, then what they supersede");
}
