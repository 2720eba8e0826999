//! How much of something bounded each requester may take: operators have a reserve, and a requester that nobody vouches for is
//! bounded by the whole alone, because everybody on an open server is that one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_identity::Requester;
use muster_service::fair::{Exceeded, Quota, Share};

/// Bounds of something that requesters share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequesterBounds {
    total: usize,
    of_requester: usize,
    operator_reserve: usize,
}

impl RequesterBounds {
    /// So much in all, for one requester, and for operators alone.
    ///
    /// # Panics
    /// In a constant, at compile time: where one requester may take what others need, or an operator may not take a whole share
    /// of the reserve.
    pub const fn new(total: usize, of_requester: usize, operator_reserve: usize) -> Self {
        assert!(of_requester > 0 && operator_reserve > 0 && operator_reserve < total);
        assert!(
            2 * of_requester <= total - operator_reserve,
            "two requesters have their whole share at once"
        );
        Self { total, of_requester, operator_reserve }
    }

    /// What there is in all.
    pub const fn total(&self) -> usize {
        self.total
    }

    /// What one requester may take.
    pub const fn of_requester(&self) -> usize {
        self.of_requester
    }

    /// What a requester may take.
    pub fn share(&self, requester: &Requester) -> Share {
        match requester {
            Requester::Unverified => Share::whole(self.total),
            Requester::User { .. } if requester.is_operator() => {
                Share { of_key: self.of_requester, of_all: self.total }
            }
            Requester::User { .. } => {
                Share { of_key: self.of_requester, of_all: self.total - self.operator_reserve }
            }
        }
    }
}

/// Places that requesters share. Clones share them.
#[derive(Debug, Clone)]
pub struct Places {
    bounds: RequesterBounds,
    taken: Arc<Mutex<Quota<Requester>>>,
}

/// A place that is taken until this is dropped.
#[derive(Debug)]
pub struct Place {
    taken: Arc<Mutex<Quota<Requester>>>,
    requester: Requester,
}

impl Places {
    /// Places of which none is taken.
    pub fn new(bounds: RequesterBounds) -> Self {
        Self { bounds, taken: Arc::default() }
    }

    /// Takes a place.
    ///
    /// # Errors
    /// The bound that refuses.
    pub fn enter(&self, requester: &Requester) -> Result<Place, Exceeded> {
        locked(&self.taken).acquire(requester, self.bounds.share(requester))?;
        Ok(Place { taken: Arc::clone(&self.taken), requester: requester.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        locked(&self.taken).release(&self.requester);
    }
}

/// Counts are whole at any moment, so a panic elsewhere leaves no half of one.
fn locked(taken: &Mutex<Quota<Requester>>) -> MutexGuard<'_, Quota<Requester>> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use muster_identity::roles::Role;

    use super::*;

    const BOUNDS: RequesterBounds = RequesterBounds::new(8, 3, 2);

    fn user(key: &str, role: Role) -> Requester {
        Requester::User { key: key.to_owned(), name: key.to_owned(), role: Some(role) }
    }

    #[test]
    fn viewers_leave_operators_their_reserve() {
        let places = Places::new(BOUNDS);
        let viewers = ["a", "b", "c"].map(|key| user(key, Role::Viewer));
        let taken: Vec<_> = viewers.iter().flat_map(|viewer| [0; 9].map(|_| places.enter(viewer))).collect();
        assert_eq!(taken.iter().filter(|place| place.is_ok()).count(), 6);
        assert_eq!(taken[3].as_ref().unwrap_err(), &Exceeded::Key(3));
        assert_eq!(taken[18].as_ref().unwrap_err(), &Exceeded::All(6));
        let operator = user("o", Role::Operator);
        let first = places.enter(&operator).unwrap();
        let _second = places.enter(&operator).unwrap();
        assert_eq!(places.enter(&operator).unwrap_err(), Exceeded::All(8));
        drop(first);
        assert!(places.enter(&operator).is_ok(), "a place is given back");
    }

    #[test]
    fn who_is_not_vouched_for_is_bounded_by_the_whole_alone() {
        let places = Places::new(BOUNDS);
        let taken: Vec<_> = (0..9).map(|_| places.enter(&Requester::Unverified)).collect();
        assert!(taken[..8].iter().all(Result::is_ok));
        assert_eq!(taken[8].as_ref().unwrap_err(), &Exceeded::All(8));
    }
}
