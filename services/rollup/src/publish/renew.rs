//! Decides until when each view is valid and when it is renewed.
//!
//! A view is renewed at half of its validity, so that any view shows within its validity that the rollup is
//! dead. Where there are many views the validity is longer, so that renewals stay a small part of the traffic.
//!
//! While LEDGER does not store that the hub stopped listening, no view may be believed: the rollup takes the
//! validity back from all of them ([`to_end`]).

use std::collections::BTreeMap;
use std::time::Duration;

use muster_bus::CachedEntry;
use muster_contract::Timestamp;
use muster_contract::subjects::ViewKey;

/// Shortest time for which a view may be believed, unless `--view-validity` sets another.
pub(crate) const VALID_MIN: Duration = Duration::from_secs(120);
/// Most views written again in a second for nothing but their time.
pub(crate) const RENEWALS_PER_SECOND: usize = 50;
/// The same of views whose time is over.
pub(crate) const REVIVALS_PER_SECOND: usize = 1_000;
/// Renewals of a view within its time.
const RENEWALS_EACH: usize = 2;

// A small fleet has the shortest time.
const _: () = assert!(validity(1_000, VALID_MIN).as_secs() == VALID_MIN.as_secs());
// With this many views the rate limit decides: the longer validity respects it.
const _: () =
    assert!(100_000 * RENEWALS_EACH <= RENEWALS_PER_SECOND * validity(100_000, VALID_MIN).as_secs() as usize);

/// The validity of each of so many views after their rollup has read LEDGER to its end; `shortest` of few views.
pub const fn validity(views: usize, shortest: Duration) -> Duration {
    let seconds = (views * RENEWALS_EACH).div_ceil(RENEWALS_PER_SECOND) as u64;
    if seconds < shortest.as_secs() { shortest } else { Duration::from_secs(seconds) }
}

/// The views that may still be believed after `vouched_at`.
pub(crate) fn to_end(held: &BTreeMap<ViewKey, CachedEntry>, vouched_at: Timestamp) -> Vec<ViewKey> {
    let is_believed =
        |held: &CachedEntry| held.is_view() && held.valid_until().is_none_or(|until| until > vouched_at);
    held.iter().filter(|(_, held)| is_believed(held)).map(|(key, _)| key.clone()).collect()
}

/// The views whose time is half over, those that end first before others, as many as one second renews.
pub fn due(held: &BTreeMap<ViewKey, CachedEntry>, now: Timestamp, shortest: Duration) -> Vec<ViewKey> {
    let half = validity(held.len(), shortest) / RENEWALS_EACH as u32;
    let ends_soon = |until: Option<Timestamp>| {
        until.is_none_or(|until| {
            Duration::try_from(until.duration_since(now)).is_ok_and(|left| left < half) || until < now
        })
    };
    let views = held.iter().filter(|(_, held)| held.is_view() && ends_soon(held.valid_until()));
    let mut views: Vec<_> = views.map(|(key, held)| (held.valid_until(), key)).collect();
    views.sort_unstable();
    let over = views.partition_point(|(until, _)| until.is_none_or(|until| until < now));
    views.truncate(over.clamp(RENEWALS_PER_SECOND, REVIVALS_PER_SECOND));
    views.into_iter().map(|(_, key)| key.clone()).collect()
}

#[cfg(test)]
mod tests {
    use muster_bus::ViewIdentity;
    use muster_contract::canonical::Digest;
    use muster_contract::view::AsOf;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn held(until: Option<i64>) -> CachedEntry {
        let as_of = AsOf { ledger_seq: 1, at: at(0) };
        CachedEntry::of_view(
            1,
            ViewIdentity { digest: Digest::of_bytes(b"a"), as_of, valid_until: until.map(at) },
        )
    }

    #[test]
    fn a_view_is_renewed_when_half_of_its_time_has_passed() {
        let key = |name: &str| ViewKey::parse(&format!("site.{name}")).unwrap();
        let all = BTreeMap::from([
            (key("fresh"), held(Some(120))),
            (key("half"), held(Some(60))),
            (key("over"), held(Some(-10))),
            (key("older-release"), held(None)),
            (key("nothing"), CachedEntry::NOTHING),
        ]);
        let names: std::collections::BTreeSet<_> = due(&all, at(1), VALID_MIN).into_iter().collect();
        assert_eq!(names, ["half", "older-release", "over"].map(key).into());
        let ended: std::collections::BTreeSet<_> = to_end(&all, at(60)).into_iter().collect();
        assert_eq!(ended, ["fresh", "older-release"].map(key).into());
    }

    #[test]
    fn many_views_live_longer_and_those_that_end_first_are_renewed_first() {
        let views: BTreeMap<_, _> = (0..200)
            .map(|number| {
                (ViewKey::parse(&format!("site.s{number}")).unwrap(), held(Some(i64::from(number % 50))))
            })
            .collect();
        let soon = due(&views, at(0), VALID_MIN);
        assert_eq!(soon.len(), RENEWALS_PER_SECOND);
        assert_eq!(due(&views, at(1_000), VALID_MIN).len(), views.len(), "all of them are over");
        let last = soon.iter().map(|key| views[key].valid_until()).max().flatten();
        assert!(last <= Some(at(12)), "{last:?}");
        assert_eq!(validity(100_000, VALID_MIN), Duration::from_secs(4_000));
    }
}
