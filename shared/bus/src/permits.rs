//! Permits for a bounded resource that requesters share: each requester has a limit, and operators have a reserve. An
//! unverified requester is limited by the total alone, because on an open server every requester is unverified.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_identity::Requester;
use muster_service::fair::{Exceeded, Quota, Share};

/// Limits of a resource that requesters share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequesterBounds {
    total: usize,
    of_requester: usize,
    operator_reserve: usize,
}

impl RequesterBounds {
    /// Limits in all, for one requester, and the reserve for operators.
    ///
    /// # Panics
    /// In a constant, at compile time: if a limit is 0, the reserve is not below the total, or two requesters together
    /// exceed what the reserve leaves.
    pub const fn new(total: usize, of_requester: usize, operator_reserve: usize) -> Self {
        assert!(of_requester > 0 && operator_reserve > 0 && operator_reserve < total);
        assert!(
            2 * of_requester <= total - operator_reserve,
            "two requesters have their whole share at once"
        );
        Self { total, of_requester, operator_reserve }
    }

    /// The limit of all requesters together.
    pub const fn total(&self) -> usize {
        self.total
    }

    /// The limit of one requester.
    pub const fn of_requester(&self) -> usize {
        self.of_requester
    }

    /// The limits that apply to a requester.
    pub fn share(&self, requester: &Requester) -> Share {
        match requester {
            Requester::Unverified => Share::whole(self.total),
            _ if requester.is_operator() => Share { of_key: self.of_requester, of_all: self.total },
            Requester::User { .. } | Requester::Represented { .. } => {
                Share { of_key: self.of_requester, of_all: self.total - self.operator_reserve }
            }
        }
    }
}

/// A pool of permits. Clones share it.
#[derive(Debug, Clone)]
pub struct Permits {
    bounds: RequesterBounds,
    in_use: Arc<Mutex<Quota<Requester>>>,
}

/// A permit, returned when it is dropped.
#[derive(Debug)]
pub struct Permit {
    in_use: Arc<Mutex<Quota<Requester>>>,
    requester: Requester,
}

impl Permits {
    /// Permits, all of them free.
    pub fn new(bounds: RequesterBounds) -> Self {
        Self { bounds, in_use: Arc::default() }
    }

    /// Acquires a permit without waiting.
    ///
    /// # Errors
    /// The limit that is reached.
    pub fn acquire(&self, requester: &Requester) -> Result<Permit, Exceeded> {
        locked(&self.in_use).acquire(requester, self.bounds.share(requester))?;
        Ok(Permit { in_use: Arc::clone(&self.in_use), requester: requester.clone() })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        locked(&self.in_use).release(&self.requester);
    }
}

/// Every change of the counts is one step, so a panic elsewhere cannot leave them inconsistent.
fn locked(in_use: &Mutex<Quota<Requester>>) -> MutexGuard<'_, Quota<Requester>> {
    in_use.lock().unwrap_or_else(PoisonError::into_inner)
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
        let permits = Permits::new(BOUNDS);
        let viewers = ["a", "b", "c"].map(|key| user(key, Role::Viewer));
        let in_use: Vec<_> =
            viewers.iter().flat_map(|viewer| [0; 9].map(|_| permits.acquire(viewer))).collect();
        assert_eq!(in_use.iter().filter(|permit| permit.is_ok()).count(), 6);
        assert_eq!(in_use[3].as_ref().unwrap_err(), &Exceeded::Key(3));
        assert_eq!(in_use[18].as_ref().unwrap_err(), &Exceeded::All(6));
        let operator = user("o", Role::Operator);
        let first = permits.acquire(&operator).unwrap();
        let _second = permits.acquire(&operator).unwrap();
        assert_eq!(permits.acquire(&operator).unwrap_err(), Exceeded::All(8));
        drop(first);
        assert!(permits.acquire(&operator).is_ok(), "a dropped permit is free again");
    }

    #[test]
    fn an_unverified_requester_is_limited_by_the_total_alone() {
        let permits = Permits::new(BOUNDS);
        let in_use: Vec<_> = (0..9).map(|_| permits.acquire(&Requester::Unverified)).collect();
        assert!(in_use[..8].iter().all(Result::is_ok));
        assert_eq!(in_use[8].as_ref().unwrap_err(), &Exceeded::All(8));
    }
}
