//! A sending, an outbox and a hub that answers by lot: every row goes, and none twice at once.

use proptest::prelude::*;

use super::*;

/// One thing that happens to a sending; numbers pick among what is there.
#[derive(Debug, Clone)]
enum Chance {
    Write(u8),
    News,
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

fn chances() -> impl Strategy<Value = Vec<Chance>> {
    let chance = prop_oneof![
        4 => (0_u8..4).prop_map(Chance::Write),
        2 => Just(Chance::News),
        4 => Just(Chance::Fill),
        6 => (any::<usize>(), prop::bool::weighted(0.95)).prop_map(|(at, good)| Chance::Answer(at, good)),
        2 => any::<usize>().prop_map(Chance::Refuse),
        2 => Just(Chance::Resume),
        2 => Just(Chance::Note),
        1 => Just(Chance::Restart),
        1 => any::<usize>().prop_map(Chance::Requeue),
        3 => Just(Chance::Ahead),
    ];
    prop::collection::vec(chance, 0..150)
}

/// A sending, the outbox it reads, and what is on its way.
struct World {
    sending: Sending,
    rows: Rows,
    under_way: Vec<u64>,
    /// What was read ahead.
    ahead: Option<Batch>,
}

impl World {
    fn fill(&mut self) {
        while let Some(ask) = self.sending.ask() {
            let batch = self.ahead.take().unwrap_or_else(|| self.rows.read(&ask));
            let offered = self.sending.offer(batch).unwrap();
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
        match self.sending.answered(seq, answer, Duration::ZERO) {
            Next::Continue => {}
            // What was read ahead may not be what goes next.
            Next::Pause => self.ahead = None,
            Next::Restart => self.restart(),
        }
    }

    fn note(&mut self) {
        if let Some((_, seqs)) = self.sending.acknowledged() {
            self.rows.sent.extend(&seqs);
            self.sending.noted(&seqs);
        }
    }

    fn read_ahead(&mut self) {
        if self.ahead.is_none() {
            self.ahead = self.sending.ask_ahead().map(|ask| self.rows.read(&ask));
        }
    }

    fn news(&mut self) {
        self.ahead = None;
        self.sending.news();
    }

    fn restart(&mut self) {
        self.ahead = None;
        self.under_way.clear();
        self.sending.begin(self.rows.epoch());
    }

    fn happens(&mut self, chance: &Chance) {
        match *chance {
            Chance::Write(deployment) => self.rows.write(char::from(b'a' + deployment)),
            Chance::News => self.news(),
            Chance::Fill => self.fill(),
            Chance::Answer(at, good) => self.answer(at, if good { OK } else { Err(Transient) }),
            Chance::Refuse(at) => self.answer(at, Err(SubjectFull)),
            Chance::Resume => self.sending.resume(),
            Chance::Note => self.note(),
            Chance::Restart => self.restart(),
            Chance::Ahead => self.read_ahead(),
            Chance::Requeue(at) => {
                if let Some(seq) = self.rows.sent.iter().nth(at % self.rows.sent.len().max(1)).copied() {
                    self.rows.sent.remove(&seq);
                }
            }
        }
    }
}

proptest! {
    /// Whatever happens in whatever order: no row is under way twice, and once the news are heard, none is left.
    #[test]
    fn every_row_goes_and_none_twice_at_once(chances in chances(), rows in 1_usize..9) {
        let window = Window { rows, bytes: 10_000 };
        let (sending, rows) = (Sending::new(window), Rows::default());
        let mut world = World { sending, rows, under_way: Vec::new(), ahead: None };
        world.restart();
        for chance in chances {
            world.happens(&chance);
        }
        world.news();
        world.sending.resume();
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
        prop_assert!(world.sending.is_idle());
    }
}
