//! Schedules views that are written with spare capacity alone: those of deployments that devices report and no
//! desired state names.
//!
//! A device can invent such deployments, so the views of deployments with targets, of sites, groups and the
//! fleet, and defined views come first. At most [`TURN_MAX`] are written at a turn, the longest due first, and
//! a rest follows. The module is pure: time is an argument, and the caller classifies the views.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_bus::WRITE_INTERVAL;
use muster_contract::subjects::ViewKey;
use muster_domain::fold::Fleet;
use tokio::time::Instant;

/// Views of a turn: the delay that a prior view may see.
pub(super) const TURN_MAX: usize = 64;
/// The rest after a turn, as a multiple of the turn's duration.
const REST: u32 = 4;
/// The longest rest.
const REST_MAX: Duration = Duration::from_secs(1);

// A view that comes first is delayed by one turn, which is shorter than the interval between two writes of one view: a write
// takes well under a millisecond.
const _: () = assert!(TURN_MAX as u128 <= WRITE_INTERVAL.as_millis());

/// Whether a view is written before those of deployments without targets.
pub(super) fn comes_first(fleet: &Fleet, key: &ViewKey) -> bool {
    match key {
        ViewKey::Deployment(id) => fleet.is_targeted(id),
        ViewKey::Site(_) | ViewKey::Fleet | ViewKey::Group(..) | ViewKey::Defined(_) => true,
    }
}

/// The views that wait, and since when each is due.
#[derive(Debug)]
pub(super) struct SpareViews {
    due: BTreeMap<ViewKey, Instant>,
    /// Nothing is written until then.
    rest_until: Instant,
}

impl SpareViews {
    /// An empty schedule, whose first view may be written at once.
    pub(super) const fn new(now: Instant) -> Self {
        Self { due: BTreeMap::new(), rest_until: now }
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.due.len()
    }

    /// Adds a view that is due at this time; of two times the earlier counts.
    pub(super) fn insert(&mut self, key: ViewKey, at: Instant) {
        let due = self.due.entry(key).or_insert(at);
        *due = at.min(*due);
    }

    /// Removes a view that comes first now, or is gone; returns when it was due.
    pub(super) fn remove(&mut self, key: &ViewKey) -> Option<Instant> {
        self.due.remove(key)
    }

    /// When the next turn is.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.values().min().map(|at| self.rest_until.max(*at))
    }

    /// Removes and returns the views of a turn, if one is due: the longest due.
    pub(super) fn drain_turn(&mut self, now: Instant) -> Vec<ViewKey> {
        if self.rest_until > now {
            return Vec::new();
        }
        let mut due: Vec<_> = self.due.iter().filter(|(_, at)| **at <= now).collect();
        if due.len() > TURN_MAX {
            due.select_nth_unstable_by_key(TURN_MAX, |(key, at)| (**at, *key));
            due.truncate(TURN_MAX);
        }
        let keys: Vec<ViewKey> = due.into_iter().map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| _ = self.due.remove(key));
        keys
    }

    /// Ends a turn. If none of its views could be written, the next turn is not before `retry_at`.
    pub(super) fn end_turn(&mut self, took: Duration, now: Instant, retry_at: Option<Instant>) {
        let rested = now + (took * REST).min(REST_MAX);
        self.rest_until = retry_at.map_or(rested, |at| rested.max(at));
    }

    /// Takes out everything.
    pub(super) fn drain_all(&mut self) -> BTreeMap<ViewKey, Instant> {
        std::mem::take(&mut self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> ViewKey {
        ViewKey::Deployment(format!("invented-{number}").parse().unwrap())
    }

    #[test]
    fn a_turn_holds_the_longest_due_and_a_rest_follows() {
        let begun = Instant::now();
        let ms = Duration::from_millis;
        let mut spare = SpareViews::new(begun);
        // The names' order is not the order of time.
        (0..3 * TURN_MAX)
            .for_each(|number| spare.insert(key(number), begun + ms((3 * TURN_MAX - number) as u64)));
        assert_eq!(spare.next(), Some(begun + ms(1)));
        assert!(spare.drain_turn(begun).is_empty(), "none is due yet");
        let now = begun + ms(1000);
        let turn = spare.drain_turn(now);
        assert_eq!((turn.len(), spare.len()), (TURN_MAX, 2 * TURN_MAX));
        assert!((2 * TURN_MAX..3 * TURN_MAX).all(|number| turn.contains(&key(number))), "{turn:?}");
        spare.end_turn(ms(20), now, None);
        assert_eq!((spare.next(), spare.drain_turn(now + ms(79)).len()), (Some(now + ms(80)), 0));
        assert_eq!(spare.drain_turn(now + ms(80)).len(), TURN_MAX);
        spare.end_turn(REST_MAX, now, None);
        assert_eq!(spare.next(), Some(now + REST_MAX), "nobody waits for long");
        spare.end_turn(ms(1), now, Some(now + 2 * REST_MAX));
        assert_eq!(spare.next(), Some(now + 2 * REST_MAX), "the bus is not asked before it may answer");
        assert!(spare.remove(&key(0)).is_some() && spare.remove(&key(0)).is_none());
        assert_eq!(spare.drain_all().len(), TURN_MAX - 1);
    }

    #[test]
    fn a_view_that_changes_again_is_due_when_it_was() {
        let begun = Instant::now();
        let mut spare = SpareViews::new(begun);
        spare.insert(key(1), begun);
        spare.insert(key(1), begun + WRITE_INTERVAL);
        assert_eq!((spare.next(), spare.len()), (Some(begun), 1));
    }
}
