//! The rollup: the real fold of LEDGER, which lags now and then, knows so after a while, and starts anew. It answers
//! `muster.query.deployment`.

use bytes::Bytes;
use muster_contract::lag::{Lagging, RollupLag};
use muster_contract::query::{
    DeploymentAnswer, ErrorBody, ErrorCode, ErrorReply, Output, Query, StandingLine,
};
use muster_contract::view::Freshness;
use muster_domain::fold::{Fleet, Page, Position};

use super::hub::Hub;
use super::world::{Event, Millis, SECOND, Sabotage, World};

/// Rows of a page in a world of several pages, and in any other.
const PAGES: [usize; 2] = [4, 1000];
/// Time after which a rollup that cannot read LEDGER says so.
const LAG_KNOWN_AFTER: Millis = 4 * SECOND;

/// A rollup.
#[derive(Debug, Default)]
pub(crate) struct Rollup {
    fleet: Fleet,
    read: usize,
    is_expecting: bool,
    /// Whether an answer may have several pages, each of another sequence.
    has_pages: bool,
    /// It reads nothing until then, since the other time.
    pub(crate) stalled: Option<(Millis, Millis)>,
}

impl Rollup {
    /// A rollup that has read nothing.
    pub(crate) fn new(has_pages: bool) -> Self {
        Self { has_pages, ..Self::default() }
    }

    fn fold(&mut self, hub: &Hub) {
        for (at, (stored_at, subject, fact)) in hub.ledger.iter().enumerate().skip(self.read) {
            let position = Position { ledger_seq: at as u64 + 1, stored_at: *stored_at };
            self.fleet.apply(position, subject, fact.clone());
        }
        self.read = hub.ledger.len();
    }

    /// A new process reads LEDGER from its beginning.
    pub(crate) fn restart(&mut self) {
        (self.fleet, self.read) = (Fleet::default(), 0);
    }

    /// The lines of a deployment.
    pub(crate) fn answer(&self, query: &Query, limit: usize) -> Option<DeploymentAnswer> {
        let after = query.after.as_ref().map(|after| after.parse().unwrap());
        self.fleet.deployment_answer(query.id.as_ref()?, Output::All, None, &Page { after, limit })
    }
}

/// The fold of all of LEDGER.
pub(crate) fn rebuilt(hub: &Hub) -> Rollup {
    let mut rollup = Rollup::default();
    rollup.fold(hub);
    rollup
}

impl World {
    /// LEDGER has more than the rollup has read.
    pub(crate) fn expect_fold(&mut self) {
        if !std::mem::replace(&mut self.rollup.is_expecting, true) {
            let delay = self.rng_millis(5..400);
            self.after(delay, Event::Fold);
        }
    }

    pub(crate) fn fold(&mut self) {
        if let Some((until, _)) = self.rollup.stalled.filter(|(until, _)| *until > self.now) {
            self.after(until - self.now, Event::Fold);
            return;
        }
        self.rollup.stalled = None;
        self.rollup.is_expecting = false;
        self.rollup.fold(&self.hub);
    }

    /// The answer of the query service.
    pub(crate) fn answer_query(&self, payload: &[u8]) -> Bytes {
        let query: Query = serde_json::from_slice(payload).unwrap();
        let refuse = |code, message: &str| {
            let error = ErrorBody { code, message: message.to_owned() };
            Bytes::from(serde_json::to_vec(&ErrorReply { error }).unwrap())
        };
        if self.rollup.read == 0 {
            return refuse(ErrorCode::NotReady, "still reading LEDGER");
        }
        let Some(mut answer) = self.rollup.answer(&query, PAGES[usize::from(!self.rollup.has_pages)]) else {
            return refuse(ErrorCode::NotFound, "no such deployment");
        };
        if self.sabotage == Sabotage::HearsEverybody {
            let heard =
                |line: StandingLine| StandingLine { freshness: Freshness::Fresh, known: true, ..line };
            answer.devices = answer.devices.into_iter().map(heard).collect();
        }
        let bytes = serde_json::to_vec(&answer).unwrap();
        match self.rollup.stalled {
            Some((_, since)) if since + LAG_KNOWN_AFTER < self.now => {
                let facts = (self.hub.ledger.len() - self.rollup.read) as u64;
                let lagging = Some(Lagging { facts, since: self.time_of(since) });
                RollupLag { lagging, ..RollupLag::default() }.mark(&bytes).into()
            }
            _ => bytes.into(),
        }
    }
}
