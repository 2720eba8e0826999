//! Tests which points serve which questions, and whose.

use muster_bus::Role;
use muster_domain::fold::Fleet;

use super::rebuild_cache::NOW_FOR;
use super::*;

fn entry(wanted: RebuildTarget, of_now: bool, done: Option<Duration>) -> CachedRebuild {
    let (_, stage) = watch::channel(RebuildStage::Waiting);
    let now = Instant::now();
    let done_at = done.map(|ago| now.checked_sub(ago).unwrap());
    CachedRebuild { wanted, requester: Requester::Unverified, of_now, stage, asked_at: now, done_at }
}

fn about(moment: i64, by: u64) -> RebuildTarget {
    RebuildTarget::EventTime { moment: Timestamp::from_second(moment).unwrap(), then: 7, by }
}

#[test]
fn a_repeated_request_for_the_present_gets_the_finished_rebuild() {
    let (recent, long) = (Some(NOW_FOR / 2), Some(NOW_FOR));
    let now = |wanted| RebuildRequest { wanted, now_since: Some(3) };
    // there, asked for, whether it serves
    let table = [
        (entry(RebuildTarget::At(9), true, None), now(RebuildTarget::At(12)), true, "it waits or is read"),
        (
            entry(RebuildTarget::At(9), true, recent),
            now(RebuildTarget::At(12)),
            true,
            "it was done a moment ago",
        ),
        (entry(RebuildTarget::At(9), true, long), now(RebuildTarget::At(12)), false, "it was done long ago"),
        (
            entry(RebuildTarget::At(9), false, None),
            now(RebuildTarget::At(12)),
            false,
            "somebody named that fact",
        ),
        (entry(RebuildTarget::At(9), true, None), RebuildTarget::At(12).into(), false, "this fact is named"),
        (
            entry(RebuildTarget::At(2), true, None),
            now(RebuildTarget::At(12)),
            false,
            "it does not know what it must",
        ),
        (entry(about(5, 9), true, recent), now(about(5, 12)), true, "the same moment"),
        (entry(about(5, 9), true, recent), now(about(6, 12)), false, "another moment"),
        (entry(about(5, 9), true, recent), now(RebuildTarget::At(12)), false, "another kind"),
        (entry(RebuildTarget::Verified, true, None), now(RebuildTarget::At(12)), false, "no point"),
    ];
    for (there, asked, serves, why) in table {
        assert_eq!(there.stands_in_for(asked), serves, "{why}");
    }
}

fn user(key: &str, role: Role) -> Requester {
    Requester::User { key: key.to_owned(), name: key.to_owned(), role: Some(role) }
}

/// A responder without a worker.
fn rebuilds() -> Rebuilds {
    let projection = Arc::new(Projection::new(Timestamp::UNIX_EPOCH, Fleet::default()));
    let origin = projection.read(|now| now.origin);
    let rebuild_cache =
        RebuildCache { origin, entries: Vec::new(), waiting: FairQueue::default(), is_ended: false };
    Rebuilds {
        projection,
        rebuild_cache: Arc::new(Mutex::new(rebuild_cache)),
        work: Arc::default(),
        places: Permits::new(ASKERS),
        requester: Requester::Unverified,
    }
}

#[test]
fn rebuilds_wait_in_fair_shares_and_take_turns() {
    let rebuilds = rebuilds();
    let mut seq = 0;
    let mut enter = |requester: &Requester| {
        seq += 1;
        rebuilds.clone().for_requester(requester.clone()).enter(RebuildTarget::At(seq).into()).map(drop)
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
    assert!(rebuilds.clone().for_requester(c).enter(RebuildTarget::At(1).into()).is_ok());
    let order: Vec<_> =
        std::iter::from_fn(|| locked(&rebuilds.rebuild_cache).waiting.pop().map(|(of, _)| of)).collect();
    assert_eq!(
        order.iter().position(|of| *of == ops),
        Some(2),
        "one turn of each other comes first: {order:?}"
    );
}

#[test]
fn an_open_server_bounds_rebuilds_by_their_total_alone() {
    let rebuilds = rebuilds();
    let entered = (1..=100).take_while(|seq| rebuilds.enter(RebuildTarget::At(*seq).into()).is_ok()).count();
    assert_eq!(entered, WAITING.total());
    let places: Vec<_> = std::iter::from_fn(|| rebuilds.acquire_slot()).take(100).collect();
    assert_eq!(places.len(), ASKERS.total());
}

#[test]
fn no_other_user_evicts_a_point_of_an_operator() {
    let origin = rebuilds().projection.read(|now| now.origin);
    let mut rebuild_cache =
        RebuildCache { origin, entries: Vec::new(), waiting: FairQueue::default(), is_ended: false };
    let now = Instant::now();
    let keep = |rebuild_cache: &mut RebuildCache, seq, requester: Requester| {
        let past = Arc::new(Past { fleet: Fleet::default(), certainty: None });
        let (_, stage) = watch::channel(RebuildStage::Done(Ok(Rebuilt::Past(past))));
        let asked_at = now - Duration::from_millis(1000 - seq);
        let wanted = RebuildTarget::At(seq);
        rebuild_cache.entries.push(CachedRebuild {
            wanted,
            requester,
            of_now: false,
            stage,
            asked_at,
            done_at: Some(now),
        });
        rebuild_cache.tidy();
    };
    keep(&mut rebuild_cache, 1, user("O", Role::Operator));
    keep(&mut rebuild_cache, 2, user("B", Role::Viewer));
    (3..20).for_each(|seq| keep(&mut rebuild_cache, seq, user("A", Role::Viewer)));
    let kept: Vec<_> = rebuild_cache.entries.iter().map(|entry| entry.wanted).collect();
    // Among viewers, the oldest point of the viewer with the most points is evicted.
    assert_eq!(kept, [1, 2, 19].map(RebuildTarget::At));
}
