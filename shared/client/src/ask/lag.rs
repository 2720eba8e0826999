//! The lag behind LEDGER that answers tell of, for questions that belong together. It asks nothing.

use std::sync::{Arc, Mutex, PoisonError};

use muster_contract::lag::{Lagging, RollupLag};

/// The lag behind LEDGER in answers of the query service.
#[derive(Debug, Default)]
pub(super) struct LagCell {
    lag: Mutex<Option<RollupLag>>,
    /// The cell that this one was made from.
    outer: Option<Arc<Self>>,
}

impl LagCell {
    /// A cell of its own.
    pub(super) fn within(outer: &Arc<Self>) -> Self {
        Self { outer: Some(Arc::clone(outer)), ..Self::default() }
    }

    /// Records what an answer says. A cell of its own keeps the worst of all answers: several rollups answer, and one that has read
    /// everything does not vouch for the others. The outermost has that of the newest.
    pub(super) fn record(&self, said: Option<RollupLag>) {
        let mut lag = self.lag.lock().unwrap_or_else(PoisonError::into_inner);
        *lag = match (*lag, said) {
            (Some(one), Some(two)) if self.outer.is_some() => Some(worst(one, two)),
            (one, two) if self.outer.is_some() => one.or(two),
            (_, said) => said,
        };
        drop(lag);
        if let Some(outer) = &self.outer {
            outer.record(said);
        }
    }

    pub(super) fn get(&self) -> Option<RollupLag> {
        *self.lag.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lag of two answers of one hub: its parts are not added up, because one rollup may have given both.
fn worst(one: RollupLag, two: RollupLag) -> RollupLag {
    let facts = [one, two].iter().filter_map(|lag| lag.lagging.map(|lagging| lagging.facts)).max();
    let joined = one.joined(two);
    let lagging = joined.lagging.map(|lagging| Lagging { facts: facts.unwrap_or(lagging.facts), ..lagging });
    RollupLag { lagging, ..joined }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_that_belong_together_keep_the_worst_lag_of_their_answers() {
        let at = |second| muster_contract::Timestamp::from_second(second).ok();
        let lagging = |facts, second| RollupLag {
            lagging: at(second).map(|since| Lagging { facts, since }),
            ..RollupLag::default()
        };
        let newest = Arc::new(LagCell::default());
        let own = || LagCell::within(&newest);
        let (one, other) = (own(), own());
        one.record(Some(lagging(7, 20)));
        other.record(None);
        one.record(None);
        assert_eq!((one.get(), other.get()), (Some(lagging(7, 20)), None), "no other answer changes it");
        assert_eq!(newest.get(), None, "the outermost has the newest alone");
        one.record(Some(lagging(5, 10)));
        assert_eq!((one.get(), newest.get()), (Some(lagging(7, 10)), Some(lagging(5, 10))));
    }
}
