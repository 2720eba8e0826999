//! Fair shares of something bounded, by a key (a requester). Pure: no IO, no clock, no randomness.
//!
//! - [`Quota`] counts the units of each key and refuses those beyond its [`Share`].
//! - [`FairQueue`] keeps waiting items: bounded by key and in total, served round robin by key, and first in, first out
//!   within a key.
//! - [`FairScheduler`] starts items while its quota allows and queues the others in a [`FairQueue`].
//!
//! A reserve for some keys is the part of the whole that the shares of all other keys leave.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// The limits of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The most units of the key.
    pub of_key: usize,
    /// The most units of all keys together while this key takes more.
    pub of_all: usize,
}

/// The exceeded limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exceeded {
    /// The limit of the key.
    Key(usize),
    /// The limit of all keys together while this key takes more.
    All(usize),
}

impl Share {
    /// The whole: only the total limits the key.
    pub const fn whole(total: usize) -> Self {
        Self { of_key: total, of_all: total }
    }

    /// Whether a key with `held` units may take one more while all keys have `total`.
    ///
    /// # Errors
    /// The bound that refuses.
    pub const fn check(self, held: usize, total: usize) -> Result<(), Exceeded> {
        // A key that may take the whole has no limit of its own to report.
        if held >= self.of_key && self.of_key < self.of_all {
            return Err(Exceeded::Key(self.of_key));
        }
        if total >= self.of_all { Err(Exceeded::All(self.of_all)) } else { Ok(()) }
    }
}

/// The units of each key.
#[derive(Debug, Clone)]
pub struct Quota<K> {
    held: HashMap<K, usize>,
    total: usize,
}

impl<K> Default for Quota<K> {
    fn default() -> Self {
        Self { held: HashMap::new(), total: 0 }
    }
}

impl<K: Hash + Eq + Clone> Quota<K> {
    /// Whether the key may take one more.
    ///
    /// # Errors
    /// The bound that refuses.
    pub fn check(&self, key: &K, share: Share) -> Result<(), Exceeded> {
        share.check(self.held_by(key), self.total)
    }

    /// Takes one unit for the key.
    ///
    /// # Errors
    /// The bound that refuses.
    pub fn acquire(&mut self, key: &K, share: Share) -> Result<(), Exceeded> {
        self.check(key, share)?;
        *self.held.entry(key.clone()).or_default() += 1;
        self.total += 1;
        Ok(())
    }

    /// Returns one unit of the key. A key without units is unchanged.
    pub fn release(&mut self, key: &K) {
        let Some(held) = self.held.get_mut(key) else { return };
        *held -= 1;
        self.total -= 1;
        if *held == 0 {
            self.held.remove(key);
        }
    }

    /// The units of the key.
    pub fn held_by(&self, key: &K) -> usize {
        self.held.get(key).copied().unwrap_or_default()
    }

    /// The units of all keys.
    pub const fn total(&self) -> usize {
        self.total
    }
}

/// Waiting items, by key.
#[derive(Debug, Clone)]
pub struct FairQueue<K, T> {
    /// The items of each key; no queue is empty.
    queues: HashMap<K, VecDeque<T>>,
    /// The keys of the queues in the order of their turns.
    turns: VecDeque<K>,
    len: usize,
}

impl<K, T> Default for FairQueue<K, T> {
    fn default() -> Self {
        Self { queues: HashMap::new(), turns: VecDeque::new(), len: 0 }
    }
}

impl<K: Hash + Eq + Clone, T> FairQueue<K, T> {
    /// Appends an item of a key.
    ///
    /// # Errors
    /// The item, and the exceeded limit.
    pub fn push(&mut self, key: K, share: Share, item: T) -> Result<(), (T, Exceeded)> {
        let waiting = self.queues.get(&key).map_or(0, VecDeque::len);
        if let Err(exceeded) = share.check(waiting, self.len) {
            return Err((item, exceeded));
        }
        if waiting == 0 {
            self.turns.push_back(key.clone());
        }
        self.queues.entry(key).or_default().push_back(item);
        self.len += 1;
        Ok(())
    }

    /// Removes and returns the first item of the next key.
    pub fn pop(&mut self) -> Option<(K, T)> {
        self.pop_where(|_| true)
    }

    /// Removes and returns the first item of the next key that is `eligible`. That key then comes after all others.
    pub fn pop_where(&mut self, eligible: impl Fn(&K) -> bool) -> Option<(K, T)> {
        let at = self.turns.iter().position(eligible)?;
        let key = self.turns.remove(at)?;
        let queue = self.queues.get_mut(&key)?;
        let item = queue.pop_front()?;
        self.len -= 1;
        if queue.is_empty() {
            self.queues.remove(&key);
        } else {
            self.turns.push_back(key.clone());
        }
        Some((key, item))
    }

    /// The number of waiting items.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether no item waits.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Removes all items.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The result of a submission.
#[derive(Debug, PartialEq, Eq)]
pub enum Submitted<T> {
    /// The caller starts the item now.
    Start(T),
    /// The item waits.
    Queued,
    /// The queue of its key, or of all keys, is full.
    Refused(T, Exceeded),
}

/// The limits of running and of waiting items, by key.
#[derive(Debug, Clone, Copy)]
pub struct Shares<K> {
    /// The limits of running items.
    pub running: fn(&K) -> Share,
    /// The limits of waiting items.
    pub queued: fn(&K) -> Share,
}

/// Running items, and items that wait until they may run.
///
/// Once [`Self::start_next`] returns `None`, no waiting item may run: its key, or all keys together, run as many as its
/// share allows.
#[derive(Debug)]
pub struct FairScheduler<K, T> {
    shares: Shares<K>,
    running: Quota<K>,
    queue: FairQueue<K, T>,
}

impl<K: Hash + Eq + Clone, T> FairScheduler<K, T> {
    /// A scheduler without items.
    pub fn new(shares: Shares<K>) -> Self {
        Self { shares, running: Quota::default(), queue: FairQueue::default() }
    }

    /// Submits an item. One that the caller starts counts as running until [`Self::finish`].
    pub fn submit(&mut self, key: K, item: T) -> Submitted<T> {
        // If an item of this key waits, it came first and may not run now, so this one may not either.
        if self.running.acquire(&key, (self.shares.running)(&key)).is_ok() {
            return Submitted::Start(item);
        }
        let share = (self.shares.queued)(&key);
        match self.queue.push(key, share, item) {
            Ok(()) => Submitted::Queued,
            Err((item, exceeded)) => Submitted::Refused(item, exceeded),
        }
    }

    /// Handles the end of one of a key's items. [`Self::start_next`] then returns the item to start in its place.
    pub fn finish(&mut self, key: &K) {
        self.running.release(key);
    }

    /// A waiting item that may run now. The caller calls it after [`Self::finish`] until it returns `None`.
    pub fn start_next(&mut self) -> Option<(K, T)> {
        let (running, share) = (&self.running, self.shares.running);
        let (next, item) = self.queue.pop_where(|key| running.check(key, share(key)).is_ok())?;
        // The check above passed, so this succeeds.
        let _ = self.running.acquire(&next, share(&next));
        Some((next, item))
    }

    /// The number of running items.
    pub const fn running(&self) -> usize {
        self.running.total()
    }

    /// The number of waiting items.
    pub const fn queued(&self) -> usize {
        self.queue.len()
    }
}

#[cfg(test)]
mod tests;
