//! The pace of one stream of a view: one view a second on average, and as new as possible.
//!
//! A busy view is written ten times a second, and less often where the hub is busy. A stream that took the newest view at its
//! second would send one that is as old as the time since that write, so it takes a view that arrives shortly before. Each stream
//! has its own seconds, so that streams which were opened at different times stay apart; after a late view, which may have been late for all streams, its next second begins at random.
//! Time and chance are arguments.

use std::time::Duration;

use tokio::time::Instant;

use super::stream::ALIVE_INTERVAL;

/// Time for one view. In any time a stream sends at most one view more than it has begun seconds.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long before its time a view may be sent that has just arrived: more than the time between two writes of a busy view.
const EARLY: Duration = Duration::from_millis(300);

const _: () = assert!(EARLY.as_millis() * 2 < INTERVAL.as_millis());
const _: () = assert!(EARLY.as_millis() > muster_bus::WRITE_INTERVAL.as_millis());
// A wait for a fresh view is over before the stream looks at something else: no view is missed between two waits.
const _: () = assert!(ALIVE_INTERVAL.as_millis() > INTERVAL.as_millis() + EARLY.as_millis());

/// When a stream may send its next view.
#[derive(Debug)]
pub(super) struct Pace {
    next: Instant,
}

impl Pace {
    /// The first view may be sent at once.
    pub(super) const fn new(now: Instant) -> Self {
        Self { next: now }
    }

    /// When any view is due that the client does not have.
    pub(super) const fn due_at(&self) -> Instant {
        self.next
    }

    /// From when a view is due that has just arrived.
    pub(super) fn fresh_from(&self) -> Instant {
        self.next.checked_sub(EARLY).unwrap_or(self.next)
    }

    /// Whether a view is due now.
    pub(super) fn is_due(&self, now: Instant, is_fresh: bool) -> bool {
        now >= if is_fresh { self.fresh_from() } else { self.next }
    }

    /// Plans the view after the one that is sent now.
    pub(super) fn advance(&mut self, now: Instant, chance: f64) {
        let planned = self.next + INTERVAL;
        let is_in_time = planned + EARLY >= now + INTERVAL;
        let anew = now + INTERVAL - 2 * EARLY + (2 * EARLY).mul_f64(chance);
        self.next = if is_in_time { planned } else { planned.max(anew) };
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    /// The times of the views that a stream sends in a minute, if a view arrives every so many milliseconds.
    fn sent(begun: Instant, every: impl Fn(&mut Rng) -> u64, rng: &mut Rng) -> Vec<(Instant, Instant)> {
        let (mut pace, mut sent) = (Pace::new(begun), Vec::new());
        let (mut arrived, mut has) = (begun, None);
        while arrived < begun + 60 * INTERVAL {
            let next_arrival = arrived + Duration::from_millis(every(rng));
            for (now, is_fresh) in [(arrived, true), (pace.due_at().max(arrived), false)] {
                if now < next_arrival && has != Some(arrived) && pace.is_due(now, is_fresh) {
                    pace.advance(now, rng.f64());
                    sent.push((now, arrived));
                    has = Some(arrived);
                }
            }
            arrived = next_arrival;
        }
        sent
    }

    #[test]
    fn a_busy_view_is_sent_once_a_second_and_as_it_arrives() {
        let (begun, mut rng) = (Instant::now(), Rng::with_seed(1));
        let sent = sent(begun, |rng| rng.u64(100..150), &mut rng);
        assert!((59..=61).contains(&sent.len()), "{}", sent.len());
        assert!(sent.iter().all(|(now, arrived)| now == arrived));
        let gaps = sent.windows(2).map(|pair| pair[1].0 - pair[0].0);
        assert!(gaps.max().unwrap() <= INTERVAL + Duration::from_millis(150));
    }

    #[test]
    fn no_stream_gets_more_than_a_view_a_second_and_one() {
        for seed in 0..100 {
            let (begun, mut rng) = (Instant::now(), Rng::with_seed(seed));
            let most = rng.u64(2..3000);
            let sent = sent(begun, |rng| rng.u64(1..most), &mut rng);
            for (at, (first, _)) in sent.iter().enumerate() {
                for (later, (last, _)) in sent.iter().enumerate().skip(at + 1) {
                    let most = (*last - *first).as_secs() as usize + 2;
                    assert!(
                        later - at < most,
                        "seed {seed}: {} views in {:?}",
                        later - at + 1,
                        *last - *first
                    );
                }
            }
        }
    }

    #[test]
    fn streams_that_were_late_together_go_on_apart() {
        let (begun, ms) = (Instant::now(), Duration::from_millis);
        for late in [400, 900, 1_500] {
            let next = |chance| {
                let mut pace = Pace::new(begun);
                pace.advance(begun + ms(late), chance);
                pace.due_at() - begun
            };
            assert!(next(0.9) >= next(0.6) + ms(100), "{late} ms late");
        }
    }

    #[test]
    fn streams_that_paused_together_go_on_apart() {
        let begun = Instant::now();
        let next = |chance| {
            let mut pace = Pace::new(begun);
            pace.advance(begun + 5 * INTERVAL, chance);
            pace.due_at() - begun
        };
        assert_eq!([next(0.0), next(1.0)], [6 * INTERVAL - 2 * EARLY, 6 * INTERVAL]);
    }
}
