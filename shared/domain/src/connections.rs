//! Selects the connections to close: for each key above its limit the oldest ones.
//!
//! The table follows the servers' events and is replaced by their lists, which correct lost events. A repeated
//! open or close changes nothing. It does no IO and reads no clock.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;

use muster_contract::Timestamp;

/// The key of a connection, and how many it may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The public key of the user.
    pub key: String,
    /// The user's name.
    pub name: String,
    /// Connections that may be open at once.
    pub limit: usize,
}

/// A key with more connections than it may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excess<Id> {
    /// Whose.
    pub holder: Holder,
    /// How many are open.
    pub open: usize,
    /// The connections to end, oldest first.
    pub surplus: Vec<Id>,
}

/// All open connections, by key.
#[derive(Debug)]
pub struct ConnectionTable<Id> {
    keys: HashMap<String, OfKey<Id>>,
    key_of: HashMap<Id, (String, Timestamp)>,
    /// Keys whose connections have become more since the last look.
    grown: BTreeSet<String>,
}

#[derive(Debug)]
struct OfKey<Id> {
    holder: Holder,
    open: BTreeMap<(Timestamp, Id), ()>,
}

impl<Id> Default for ConnectionTable<Id> {
    fn default() -> Self {
        Self { keys: HashMap::new(), key_of: HashMap::new(), grown: BTreeSet::new() }
    }
}

impl<Id: Clone + Ord + Hash> ConnectionTable<Id> {
    /// Inserts a connection.
    pub fn insert(&mut self, id: Id, holder: Holder, started_at: Timestamp) {
        if self.key_of.contains_key(&id) {
            return;
        }
        self.key_of.insert(id.clone(), (holder.key.clone(), started_at));
        self.grown.insert(holder.key.clone());
        let of_key = self.keys.entry(holder.key.clone());
        let of_key = of_key.or_insert_with(|| OfKey { holder: holder.clone(), open: BTreeMap::new() });
        of_key.holder = holder;
        of_key.open.insert((started_at, id), ());
    }

    /// Removes a connection.
    pub fn remove(&mut self, id: &Id) {
        let Some((key, started_at)) = self.key_of.remove(id) else { return };
        let Some(of_key) = self.keys.get_mut(&key) else { return };
        of_key.open.remove(&(started_at, id.clone()));
        if of_key.open.is_empty() {
            self.keys.remove(&key);
        }
    }

    /// Keeps only the connections of a list, which holds every one that is open.
    pub fn retain(&mut self, listed: &HashSet<Id>) {
        let gone: Vec<Id> = self.key_of.keys().filter(|id| !listed.contains(*id)).cloned().collect();
        gone.iter().for_each(|id| self.remove(id));
    }

    /// The keys that have more connections than they may have, of those that have grown since the last call. Their
    /// surplus counts as ended from now on.
    pub fn drain_excess(&mut self) -> Vec<Excess<Id>> {
        let mut found = Vec::new();
        for key in std::mem::take(&mut self.grown) {
            let Some(of_key) = self.keys.get(&key) else { continue };
            let open = of_key.open.len();
            let many = open.saturating_sub(of_key.holder.limit);
            let surplus: Vec<Id> = of_key.open.keys().take(many).map(|(_, id)| id.clone()).collect();
            if surplus.is_empty() {
                continue;
            }
            let holder = of_key.holder.clone();
            surplus.iter().for_each(|id| self.remove(id));
            found.push(Excess { holder, open, surplus });
        }
        found
    }

    /// Open connections.
    pub fn len(&self) -> usize {
        self.key_of.len()
    }

    /// True without any connection.
    pub fn is_empty(&self) -> bool {
        self.key_of.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Open(u8, u8, u8),
        Close(u8),
        List(BTreeSet<u8>),
        Enforce,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => (any::<u8>(), 0..4_u8, 0..8_u8).prop_map(|(id, key, at)| Step::Open(id, key, at)),
            3 => any::<u8>().prop_map(Step::Close),
            1 => prop::collection::btree_set(any::<u8>(), 0..64).prop_map(Step::List),
            2 => Just(Step::Enforce),
        ];
        prop::collection::vec(step, 0..200)
    }

    fn holder(key: u8) -> Holder {
        Holder { key: key.to_string(), name: format!("user {key}"), limit: 1 + usize::from(key) }
    }

    fn at(second: u8) -> Timestamp {
        Timestamp::from_second(i64::from(second)).unwrap()
    }

    proptest! {
        /// Against a plain list: the table ends exactly the oldest ones above each key's limit, and no other.
        #[test]
        fn the_oldest_above_the_limit_end_and_no_other(steps in steps()) {
            let mut table = ConnectionTable::default();
            let mut model: Vec<(u8, u8, u8)> = Vec::new();
            for step in steps {
                match step {
                    Step::Open(id, key, second) => {
                        table.insert(id, holder(key), at(second));
                        if !model.iter().any(|(known, ..)| *known == id) {
                            model.push((id, key, second));
                        }
                    }
                    Step::Close(id) => {
                        table.remove(&id);
                        model.retain(|(known, ..)| *known != id);
                    }
                    Step::List(listed) => {
                        table.retain(&listed.iter().copied().collect());
                        model.retain(|(known, ..)| listed.contains(known));
                    }
                    Step::Enforce => {
                        let mut ended: Vec<u8> =
                            table.drain_excess().into_iter().flat_map(|excess| excess.surplus).collect();
                        let mut wanted = Vec::new();
                        for key in 0..4 {
                            let mut of_key: Vec<_> =
                                model.iter().filter(|(_, of, _)| *of == key).map(|(id, _, at)| (*at, *id)).collect();
                            of_key.sort_unstable();
                            let many = of_key.len().saturating_sub(holder(key).limit);
                            wanted.extend(of_key.into_iter().take(many).map(|(_, id)| id));
                        }
                        model.retain(|(id, ..)| !wanted.contains(id));
                        ended.sort_unstable();
                        wanted.sort_unstable();
                        prop_assert_eq!(ended, wanted);
                    }
                }
                prop_assert_eq!(table.len(), model.len());
            }
            table.drain_excess();
            for key in 0..4_u8 {
                let open = table.keys.get(&key.to_string()).map_or(0, |of_key| of_key.open.len());
                prop_assert!(open <= holder(key).limit);
            }
        }
    }

    #[test]
    fn a_key_at_its_limit_loses_nothing_and_one_above_loses_its_oldest() {
        let mut table = ConnectionTable::default();
        let holder = Holder { key: "U".to_owned(), name: "a/one".to_owned(), limit: 4 };
        (1..=4_u8).for_each(|id| table.insert(id, holder.clone(), at(id)));
        assert_eq!(table.drain_excess(), []);
        table.insert(5, holder.clone(), at(5));
        assert_eq!(table.drain_excess(), [Excess { holder, open: 5, surplus: vec![1] }]);
        assert_eq!(table.drain_excess(), [], "what was ended is not ended again");
    }
}
