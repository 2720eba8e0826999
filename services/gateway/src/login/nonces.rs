//! Remembers used nonces, so that nobody can replay a recorded proof of a program. A nonce carries its own end, and is
//! forgotten then.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Most nonces that a gateway remembers; while there are as many, no program logs in.
const NONCES_MAX: usize = 10_000;

/// The used nonces, each with its end in Unix seconds.
#[derive(Debug, Default)]
pub(super) struct Nonces(Mutex<HashMap<String, i64>>);

impl Nonces {
    /// Uses a nonce up; false if it was used before, has expired, or cannot be remembered.
    pub(super) fn use_up(&self, nonce: &str, ends: i64, now: i64) -> bool {
        // Each change is one step.
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        used.retain(|_, ends| *ends > now);
        let is_new = ends > now && used.len() < NONCES_MAX && !used.contains_key(nonce);
        is_new && used.insert(nonce.to_owned(), ends).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_counts_once_and_only_before_its_end() {
        let nonces = Nonces::default();
        assert!(nonces.use_up("a", 10, 0) && nonces.use_up("b", 10, 0));
        assert!(!nonces.use_up("a", 10, 9) && !nonces.use_up("c", 10, 10));
        assert!(nonces.use_up("d", 20, 11));
        assert_eq!(nonces.0.lock().unwrap().len(), 1, "an expired nonce is forgotten");
        (0..2 * NONCES_MAX).for_each(|at| _ = nonces.use_up(&at.to_string(), 99, 12));
        assert_eq!(nonces.0.lock().unwrap().len(), NONCES_MAX);
    }
}
