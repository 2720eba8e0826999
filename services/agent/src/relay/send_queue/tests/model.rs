//! A queue, an outbox and a hub with random answers: every row is sent, and none twice at once.

use proptest::prelude::*;

use super::*;

/// An event; its numbers select a row.
#[derive(Debug, Clone)]
enum Event {
    Write(u8),
    OutboxChange,
    Fill,
    Answer(usize, bool),
    /// The share is full.
    Refuse(usize),
    Resume,
    Note,
    Restart,
    Requeue(usize),
    Ahead,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (0_u8..4).prop_map(Event::Write),
        2 => Just(Event::OutboxChange),
        4 => Just(Event::Fill),
        6 => (any::<usize>(), prop::bool::weighted(0.95)).prop_map(|(at, good)| Event::Answer(at, good)),
        2 => any::<usize>().prop_map(Event::Refuse),
        2 => Just(Event::Resume),
        2 => Just(Event::Note),
        1 => Just(Event::Restart),
        1 => any::<usize>().prop_map(Event::Requeue),
        3 => Just(Event::Ahead),
    ];
    prop::collection::vec(event, 0..150)
}

/// A queue, its outbox, and the rows under way.
struct World {
    queue: SendQueue,
    rows: Rows,
    under_way: Vec<u64>,
    /// Rows that were read ahead.
    ahead: Option<Batch>,
}

impl World {
    fn fill(&mut self) {
        while let Some(ask) = self.queue.read_request() {
            let batch = self.ahead.take().unwrap_or_else(|| self.rows.read(&ask));
            let offered = self.queue.accept(batch).unwrap();
            if offered.is_empty() {
                return;
            }
            for row in offered {
                assert!(!self.under_way.contains(&row.seq), "{} is under way already", row.seq);
                self.under_way.push(row.seq);
            }
        }
    }

    fn answer(&mut self, at: usize, answer: Result<(), PublishErrorKind>) {
        if self.under_way.is_empty() {
            return;
        }
        let seq = self.under_way.remove(at % self.under_way.len());
        match self.queue.answered(seq, answer, Duration::ZERO) {
            AnswerOutcome::Continue => {}
            // Rows that were read ahead may no longer be the next ones.
            AnswerOutcome::Pause => self.ahead = None,
            AnswerOutcome::Restart => self.restart(),
        }
    }

    fn note(&mut self) {
        if let Some((_, seqs)) = self.queue.acknowledged() {
            self.rows.sent.extend(&seqs);
            self.queue.marked(&seqs);
        }
    }

    fn read_ahead(&mut self) {
        if self.ahead.is_none() {
            self.ahead = self.queue.read_ahead_request().map(|ask| self.rows.read(&ask));
        }
    }

    fn outbox_changed(&mut self) {
        self.ahead = None;
        self.queue.outbox_changed();
    }

    fn restart(&mut self) {
        self.ahead = None;
        self.under_way.clear();
        self.queue.start_session(self.rows.epoch());
    }

    fn happens(&mut self, event: &Event) {
        match *event {
            Event::Write(deployment) => self.rows.write(char::from(b'a' + deployment)),
            Event::OutboxChange => self.outbox_changed(),
            Event::Fill => self.fill(),
            Event::Answer(at, good) => self.answer(at, if good { OK } else { Err(Transient) }),
            Event::Refuse(at) => self.answer(at, Err(SubjectFull)),
            Event::Resume => self.queue.resume(),
            Event::Note => self.note(),
            Event::Restart => self.restart(),
            Event::Ahead => self.read_ahead(),
            Event::Requeue(at) => {
                if let Some(seq) = self.rows.sent.iter().nth(at % self.rows.sent.len().max(1)).copied() {
                    self.rows.sent.remove(&seq);
                }
            }
        }
    }
}

proptest! {
    /// After any events: no row is under way twice, and after the last change of the outbox none is left.
    #[test]
    fn every_row_goes_and_none_twice_at_once(events in events(), rows in 1_usize..9) {
        let window = SendLimits { rows, bytes: 10_000 };
        let (queue, rows) = (SendQueue::new(window), Rows::default());
        let mut world = World { queue, rows, under_way: Vec::new(), ahead: None };
        world.restart();
        for event in events {
            world.happens(&event);
        }
        world.outbox_changed();
        world.queue.resume();
        for _ in 0..1_000 {
            world.fill();
            world.read_ahead();
            while !world.under_way.is_empty() {
                world.answer(0, OK);
            }
            world.note();
        }
        let all: Vec<u64> = world.rows.deployments.keys().copied().collect();
        prop_assert!(world.rows.sent.iter().copied().eq(all), "{:?}", world.rows.sent);
        prop_assert!(world.queue.is_idle());
    }
}
