//! Keeps the lag behind LEDGER that answers of the query service carry, for each group of requests. It sends nothing.

use std::sync::{Arc, Mutex, PoisonError};

use muster_contract::lag::{Lagging, RollupLag};

/// The lag of the newest answer, or the worst lag of a group of requests.
#[derive(Debug, Default)]
pub(super) struct LagCell {
    lag: Mutex<Option<RollupLag>>,
    /// The cell of all requests; `None` in that cell itself.
    outer: Option<Arc<Self>>,
}

impl LagCell {
    /// A cell for a group of requests.
    pub(super) fn within(outer: &Arc<Self>) -> Self {
        Self { outer: Some(Arc::clone(outer)), ..Self::default() }
    }

    /// Records the lag of an answer. The cell of a group keeps the worst one: several rollups answer, and one that has read all of
    /// LEDGER does not vouch for the others. The outermost cell has the lag of the newest answer.
    pub(super) fn record(&self, answer: Option<RollupLag>) {
        let mut lag = self.lag.lock().unwrap_or_else(PoisonError::into_inner);
        *lag = match (*lag, answer) {
            (Some(one), Some(two)) if self.outer.is_some() => Some(worst(one, two)),
            (one, two) if self.outer.is_some() => one.or(two),
            (_, answer) => answer,
        };
        drop(lag);
        if let Some(outer) = &self.outer {
            outer.record(answer);
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
    fn a_group_of_requests_keeps_the_worst_lag_of_its_answers() {
        let at = |second| muster_contract::Timestamp::from_second(second).ok();
        let lagging = |facts, second| RollupLag {
            lagging: at(second).map(|since| Lagging { facts, since }),
            ..RollupLag::default()
        };
        let newest = Arc::new(LagCell::default());
        let group = || LagCell::within(&newest);
        let (one, other) = (group(), group());
        one.record(Some(lagging(7, 20)));
        other.record(None);
        one.record(None);
        assert_eq!((one.get(), other.get()), (Some(lagging(7, 20)), None), "no other answer changes it");
        assert_eq!(newest.get(), None, "the outermost has the newest alone");
        one.record(Some(lagging(5, 10)));
        assert_eq!((one.get(), newest.get()), (Some(lagging(7, 10)), Some(lagging(5, 10))));
    }
}
