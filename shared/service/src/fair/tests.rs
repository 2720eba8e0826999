//! Bounds and order of fair shares, over random histories.

use proptest::prelude::*;

use super::*;

const ALL: usize = 6;
const OF_KEY: usize = 3;
const RESERVE: usize = 2;

/// Key 0 may use the reserve, the others may not.
const fn running(key: &u8) -> Share {
    let of_all = if *key == 0 { ALL } else { ALL - RESERVE };
    Share { of_key: OF_KEY, of_all }
}

const fn queued(_: &u8) -> Share {
    Share { of_key: 4, of_all: 10 }
}

const SHARES: Shares<u8> = Shares { running, queued };

/// A scheduler, and the items it started that have not ended, in their order.
struct Bench {
    scheduler: FairScheduler<u8, u32>,
    started: Vec<(u8, u32)>,
    refused: usize,
}

impl Bench {
    fn new() -> Self {
        Self { scheduler: FairScheduler::new(SHARES), started: Vec::new(), refused: 0 }
    }

    fn submit(&mut self, key: u8, item: u32) {
        match self.scheduler.submit(key, item) {
            Submitted::Start(item) => self.started.push((key, item)),
            Submitted::Queued => {}
            Submitted::Refused(..) => self.refused += 1,
        }
    }

    /// Ends the item at an index of those that run; gives those that start in its place.
    fn finish(&mut self, at: usize) -> Vec<(u8, u32)> {
        if self.started.is_empty() {
            return Vec::new();
        }
        let (key, _) = self.started.remove(at % self.started.len());
        self.scheduler.finish(&key);
        let next: Vec<_> = std::iter::from_fn(|| self.scheduler.start_next()).collect();
        self.started.extend(&next);
        next
    }

    fn running_of(&self, key: u8) -> usize {
        self.started.iter().filter(|(of, _)| *of == key).count()
    }

    /// Every bound holds, and nothing waits that may run.
    fn check(&self) {
        let (scheduler, others) = (&self.scheduler, self.started.iter().filter(|(key, _)| *key != 0).count());
        assert_eq!(scheduler.running(), self.started.len());
        assert!(self.started.len() <= ALL);
        assert!(others <= ALL - RESERVE, "{others} run in what is reserved");
        for (key, waiting) in &scheduler.queue.queues {
            assert!(self.running_of(*key) <= OF_KEY);
            assert!((1..=4).contains(&waiting.len()), "{key}: {}", waiting.len());
            assert!(scheduler.running.check(key, running(key)).is_err(), "{key} waits and may run");
        }
        let waiting: usize = scheduler.queue.queues.values().map(VecDeque::len).sum();
        assert_eq!(
            (scheduler.queued(), scheduler.queue.turns.len()),
            (waiting, scheduler.queue.queues.len())
        );
        assert!(waiting <= 10);
    }
}

proptest! {
    #[test]
    fn bounds_hold_and_nothing_waits_that_may_run(steps in prop::collection::vec((0_u8..4, 0_usize..8, any::<bool>()), 0..200)) {
        let (mut bench, mut submitted) = (Bench::new(), 0);
        for (key, at, is_submit) in steps {
            if is_submit {
                bench.submit(key, submitted);
                submitted += 1;
            } else {
                bench.finish(at);
            }
            bench.check();
        }
        // Every accepted item is started once, and the items of a key in their order.
        let mut seen = bench.started.clone();
        while !bench.started.is_empty() {
            seen.extend(bench.finish(0));
            bench.check();
        }
        prop_assert_eq!(bench.scheduler.queued(), 0);
        for key in 0..4 {
            let of_key: Vec<u32> = seen.iter().filter(|(of, _)| *of == key).map(|(_, item)| *item).collect();
            let in_order = of_key.windows(2).all(|pair| pair[0] < pair[1]);
            prop_assert!(in_order, "{:?}", of_key);
        }
    }

    #[test]
    fn a_key_waits_at_most_one_turn_of_each_other(flood in 1_usize..50, others in 1_u8..5) {
        let share = Share { of_key: 100, of_all: 1000 };
        let mut queue = FairQueue::default();
        for item in 0..flood {
            prop_assert!(queue.push(0_u8, share, item).is_ok());
        }
        for key in 1..=others {
            prop_assert!(queue.push(key, share, 0).is_ok());
        }
        let order: Vec<u8> = std::iter::from_fn(|| queue.pop()).map(|(key, _)| key).collect();
        for key in 1..=others {
            let at = order.iter().position(|of| *of == key);
            prop_assert!(at.is_some_and(|at| at <= usize::from(others)), "{:?}", order);
        }
        prop_assert_eq!(order.len(), flood + usize::from(others));
    }
}

#[test]
fn a_refusal_names_the_bound() {
    let mut bench = Bench::new();
    (0..20).for_each(|item| bench.submit(1, item));
    assert_eq!((bench.running_of(1), bench.scheduler.queued(), bench.refused), (OF_KEY, 4, 13));
    assert_eq!(bench.scheduler.submit(1, 99), Submitted::Refused(99, Exceeded::Key(4)));
    (0..5).for_each(|item| bench.submit(2, item));
    (0..5).for_each(|item| bench.submit(3, item));
    assert_eq!(bench.scheduler.submit(3, 99), Submitted::Refused(99, Exceeded::All(10)));
    // The reserve is there while the others have taken all they can.
    assert_eq!(bench.scheduler.submit(0, 99), Submitted::Start(99));
}

#[test]
fn a_quota_gives_back_what_was_taken_and_keeps_no_empty_key() {
    let mut quota = Quota::default();
    let share = Share { of_key: 2, of_all: 3 };
    assert_eq!([1, 1, 1].map(|key| quota.acquire(&key, share)), [Ok(()), Ok(()), Err(Exceeded::Key(2))]);
    assert_eq!([2, 2].map(|key| quota.acquire(&key, share)), [Ok(()), Err(Exceeded::All(3))]);
    [1, 1, 1, 2].iter().for_each(|key| quota.release(key));
    assert_eq!((quota.total(), quota.held.len()), (0, 0));
}
