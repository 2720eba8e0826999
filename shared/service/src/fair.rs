//! Fair shares of something bounded, by the key of whoever takes part of it (a requester). Pure: no IO, no clock, no chance.
//!
//! - [`Quota`] counts what each key holds and refuses what is beyond its [`Share`].
//! - [`FairQueue`] keeps items that wait: bounded by key and in all, taken out round robin by key, first in first out within.
//! - [`FairScheduler`] starts items as room allows and lets the others wait in a [`FairQueue`].
//!
//! A reserve for some keys is what the shares of all others leave of the whole.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// How much one key may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Most that the key itself holds.
    pub of_key: usize,
    /// Most that all keys together hold while this key takes more.
    pub of_all: usize,
}

/// Which bound refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exceeded {
    /// The key holds as much as it may.
    Key(usize),
    /// All keys together hold as much as may be while this key takes more.
    All(usize),
}

impl Share {
    /// The whole: the key is bounded only by what there is.
    pub const fn whole(total: usize) -> Self {
        Self { of_key: total, of_all: total }
    }

    /// Whether a key that holds so much may take one more, where all hold `total`.
    ///
    /// # Errors
    /// The bound that refuses.
    pub const fn check(self, held: usize, total: usize) -> Result<(), Exceeded> {
        // A key that may take the whole is not told of a bound of its own.
        if held >= self.of_key && self.of_key < self.of_all {
            return Err(Exceeded::Key(self.of_key));
        }
        if total >= self.of_all { Err(Exceeded::All(self.of_all)) } else { Ok(()) }
    }
}

/// What each key holds.
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

    /// Takes one for the key.
    ///
    /// # Errors
    /// The bound that refuses.
    pub fn acquire(&mut self, key: &K, share: Share) -> Result<(), Exceeded> {
        self.check(key, share)?;
        *self.held.entry(key.clone()).or_default() += 1;
        self.total += 1;
        Ok(())
    }

    /// Gives one of the key back. A key that holds none is left as it is.
    pub fn release(&mut self, key: &K) {
        let Some(held) = self.held.get_mut(key) else { return };
        *held -= 1;
        self.total -= 1;
        if *held == 0 {
            self.held.remove(key);
        }
    }

    /// What the key holds.
    pub fn held_by(&self, key: &K) -> usize {
        self.held.get(key).copied().unwrap_or_default()
    }

    /// What all keys hold.
    pub const fn total(&self) -> usize {
        self.total
    }
}

/// Items that wait, by key.
#[derive(Debug, Clone)]
pub struct FairQueue<K, T> {
    /// No queue is empty.
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
    /// The item, and the bound that refuses it.
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

    /// Takes out the first item of the key whose turn it is.
    pub fn pop(&mut self) -> Option<(K, T)> {
        self.pop_where(|_| true)
    }

    /// Takes out the first item of the first key in turn that is `eligible`. That key's next turn is after all others'.
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

    /// Items that wait.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether none waits.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes out everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// What becomes of an item that comes in.
#[derive(Debug, PartialEq, Eq)]
pub enum Submitted<T> {
    /// There is room: it is to be started now.
    Start(T),
    /// It waits for its turn.
    Queued,
    /// Its key, or all keys together, have as many waiting as may.
    Refused(T, Exceeded),
}

/// Shares of what runs and of what waits, by key.
#[derive(Debug, Clone, Copy)]
pub struct Shares<K> {
    /// Of what runs at once.
    pub running: fn(&K) -> Share,
    /// Of what waits.
    pub queued: fn(&K) -> Share,
}

/// Items that run, and items that wait until they may.
///
/// Whatever waits may not run at that moment, once [`Self::start_next`] gives nothing: its key or all keys together run as many as its share allows.
#[derive(Debug)]
pub struct FairScheduler<K, T> {
    shares: Shares<K>,
    running: Quota<K>,
    queue: FairQueue<K, T>,
}

impl<K: Hash + Eq + Clone, T> FairScheduler<K, T> {
    /// A scheduler of nothing.
    pub fn new(shares: Shares<K>) -> Self {
        Self { shares, running: Quota::default(), queue: FairQueue::default() }
    }

    /// Takes an item in. One that is to be started counts as running until [`Self::finish`].
    pub fn submit(&mut self, key: K, item: T) -> Submitted<T> {
        // Whatever of this key waits has come first, and may not run now; so neither may this.
        if self.running.acquire(&key, (self.shares.running)(&key)).is_ok() {
            return Submitted::Start(item);
        }
        let share = (self.shares.queued)(&key);
        match self.queue.push(key, share, item) {
            Ok(()) => Submitted::Queued,
            Err((item, exceeded)) => Submitted::Refused(item, exceeded),
        }
    }

    /// One of a key's items has ended. [`Self::start_next`] gives what is to be started in its place.
    pub fn finish(&mut self, key: &K) {
        self.running.release(key);
    }

    /// An item that waits and may run now; to be called after [`Self::finish`] until there is none.
    pub fn start_next(&mut self) -> Option<(K, T)> {
        let (running, share) = (&self.running, self.shares.running);
        let (next, item) = self.queue.pop_where(|key| running.check(key, share(key)).is_ok())?;
        // Just checked.
        let _ = self.running.acquire(&next, share(&next));
        Some((next, item))
    }

    /// Items that run.
    pub const fn running(&self) -> usize {
        self.running.total()
    }

    /// Items that wait.
    pub const fn queued(&self) -> usize {
        self.queue.len()
    }
}

#[cfg(test)]
mod tests;
