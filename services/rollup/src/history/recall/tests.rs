//! Which points serve which questions, and whose.

use muster_bus::Role;
use muster_domain::fold::Fleet;

use super::shelf::NOW_FOR;
use super::*;

fn entry(wanted: Wanted, of_now: bool, done: Option<Duration>) -> Entry {
    let (_, stage) = watch::channel(Stage::Waiting);
    let now = Instant::now();
    let done_at = done.map(|ago| now.checked_sub(ago).unwrap());
    Entry { wanted, requester: Requester::Unverified, of_now, stage, asked_at: now, done_at }
}

fn about(moment: i64, by: u64) -> Wanted {
    Wanted::About { moment: Timestamp::from_second(moment).unwrap(), then: 7, by }
}

#[test]
fn who_asks_for_the_present_again_is_answered_of_what_was_made_of_it() {
    let (recent, long) = (Some(NOW_FOR / 2), Some(NOW_FOR));
    let now = |wanted| Asked { wanted, now_since: Some(3) };
    // there, asked for, whether it serves
    let table = [
        (entry(Wanted::At(9), true, None), now(Wanted::At(12)), true, "it waits or is read"),
        (entry(Wanted::At(9), true, recent), now(Wanted::At(12)), true, "it was done a moment ago"),
        (entry(Wanted::At(9), true, long), now(Wanted::At(12)), false, "it was done long ago"),
        (entry(Wanted::At(9), false, None), now(Wanted::At(12)), false, "somebody named that fact"),
        (entry(Wanted::At(9), true, None), Wanted::At(12).into(), false, "this fact is named"),
        (entry(Wanted::At(2), true, None), now(Wanted::At(12)), false, "it does not know what it must"),
        (entry(about(5, 9), true, recent), now(about(5, 12)), true, "the same moment"),
        (entry(about(5, 9), true, recent), now(about(6, 12)), false, "another moment"),
        (entry(about(5, 9), true, recent), now(Wanted::At(12)), false, "another kind"),
        (entry(Wanted::Verified, true, None), now(Wanted::At(12)), false, "no point"),
    ];
    for (there, asked, serves, why) in table {
        assert_eq!(there.stands_in_for(asked), serves, "{why}");
    }
}

fn user(key: &str, role: Role) -> Requester {
    Requester::User { key: key.to_owned(), name: key.to_owned(), role: Some(role) }
}

/// Who answers, where nobody makes anything.
fn recall() -> Recall {
    let present = Arc::new(Present::new(Timestamp::UNIX_EPOCH, Fleet::default()));
    let origin = present.look(|now| now.origin);
    let shelf = Shelf { origin, entries: Vec::new(), waiting: FairQueue::default(), is_ended: false };
    Recall {
        present,
        shelf: Arc::new(Mutex::new(shelf)),
        work: Arc::default(),
        places: Places::new(ASKERS),
        requester: Requester::Unverified,
    }
}

#[test]
fn rebuilds_wait_in_fair_shares_and_take_turns() {
    let recall = recall();
    let mut seq = 0;
    let mut enter = |requester: &Requester| {
        seq += 1;
        recall.clone().for_requester(requester.clone()).enter(Wanted::At(seq).into()).map(drop)
    };
    let [a, b, c] = ["A", "B", "C"].map(|key| user(key, Role::Viewer));
    for viewer in [&a, &b] {
        (0..WAITING.of_requester()).for_each(|_| enter(viewer).unwrap());
    }
    let refused = enter(&a).unwrap_err();
    assert!(
        refused.code == ErrorCode::TooManyRequests && refused.message.contains("3 points"),
        "{refused:?}"
    );
    assert_eq!(enter(&c).unwrap_err().code, ErrorCode::NotReady, "the rest is for operators");
    let ops = user("O", Role::Operator);
    (0..2).for_each(|_| enter(&ops).unwrap());
    assert_eq!(enter(&ops).unwrap_err().code, ErrorCode::NotReady);
    // One that waits already is no further one.
    assert!(recall.clone().for_requester(c).enter(Wanted::At(1).into()).is_ok());
    let order: Vec<_> =
        std::iter::from_fn(|| locked(&recall.shelf).waiting.pop().map(|(of, _)| of)).collect();
    assert_eq!(
        order.iter().position(|of| *of == ops),
        Some(2),
        "one turn of each other comes first: {order:?}"
    );
}

#[test]
fn an_open_server_bounds_rebuilds_by_their_total_alone() {
    let recall = recall();
    let entered = (1..=100).take_while(|seq| recall.enter(Wanted::At(*seq).into()).is_ok()).count();
    assert_eq!(entered, WAITING.total());
    let places: Vec<_> = std::iter::from_fn(|| recall.place()).take(100).collect();
    assert_eq!(places.len(), ASKERS.total());
}

#[test]
fn nobody_pushes_out_a_point_of_an_operator() {
    let origin = recall().present.look(|now| now.origin);
    let mut shelf = Shelf { origin, entries: Vec::new(), waiting: FairQueue::default(), is_ended: false };
    let now = Instant::now();
    let keep = |shelf: &mut Shelf, seq, requester: Requester| {
        let past = Arc::new(Past { fleet: Fleet::default(), hindsight: None });
        let (_, stage) = watch::channel(Stage::Done(Ok(Made::Past(past))));
        let asked_at = now - Duration::from_millis(1000 - seq);
        let wanted = Wanted::At(seq);
        shelf.entries.push(Entry { wanted, requester, of_now: false, stage, asked_at, done_at: Some(now) });
        shelf.tidy();
    };
    keep(&mut shelf, 1, user("O", Role::Operator));
    keep(&mut shelf, 2, user("B", Role::Viewer));
    (3..20).for_each(|seq| keep(&mut shelf, seq, user("A", Role::Viewer)));
    let kept: Vec<_> = shelf.entries.iter().map(|entry| entry.wanted).collect();
    // Of viewers' points, the oldest of the viewer that has most of them goes.
    assert_eq!(kept, [1, 2, 19].map(Wanted::At));
}
