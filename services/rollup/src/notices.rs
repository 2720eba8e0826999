//! Reads the projection for notices: what a subscription shows now, and which standings have changed since its last
//! notice. [`missed`] recomputes from LEDGER what a subscriber has missed.

mod missed;

use std::sync::Arc;

use bytes::Bytes;
use muster_bus::{Bus, Requester};
use muster_contract::lag::RollupLag;
use muster_contract::notify::{
    ContentQuery, MissedQuery, NOTICE_TARGETS_MAX, Notice, NoticeContent, NoticeEvent, NoticeOmitted,
    Subscription, SubscriptionRecord,
};
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::question::bad;
use muster_contract::subjects::stream::LEDGER;
use muster_domain::fold::{Changes, Fleet, NothingToTell};
use muster_notify::NoticeSource;
use muster_notify::Origin;
use muster_notify::compose::{SubscriptionRead, SubscriptionState, fitting};
use muster_notify::register::{LastNotice, Line};
use muster_notify::source::{Beginning, Evaluation, Reading};
use tokio::sync::watch;

use crate::history::point_in_time::Rebuilds;
use crate::lag::LagState;
use crate::projection::{Projection, ProjectionState};

/// The projection as a source of notices.
#[derive(Debug)]
pub(crate) struct ProjectionSource {
    bus: Bus,
    projection: Arc<Projection>,
    rebuilds: Rebuilds,
    lag: Arc<LagState>,
}

impl ProjectionSource {
    /// Creates a source; `rebuilds` reaches the past, `lag` says how far the projection is behind LEDGER.
    pub(crate) const fn new(
        bus: Bus,
        projection: Arc<Projection>,
        rebuilds: Rebuilds,
        lag: Arc<LagState>,
    ) -> Self {
        Self { bus, projection, rebuilds, lag }
    }

    /// Reads the projection once everything is read.
    fn read_fold<T>(&self, look: impl FnOnce(&ProjectionState) -> T) -> Result<T, ErrorBody> {
        let looked = self.projection.read(|now| {
            let read_to = now.fleet.as_of().ledger_seq;
            if now.caught_up { Ok(look(now)) } else { Err(read_to) }
        });
        looked.map_err(|read_to| {
            let message = format!("still reading LEDGER (at {read_to}); ask again in a moment");
            ErrorBody { code: ErrorCode::NotReady, message }
        })
    }
}

impl NoticeSource for ProjectionSource {
    fn changes(&self) -> watch::Receiver<u64> {
        self.projection.read_to()
    }

    async fn caught_up(&self) {
        let mut caught_up = self.projection.caught_up();
        // The projection outlives this wait, so its sender cannot be dropped.
        let _ = caught_up.wait_for(|caught_up| *caught_up).await;
    }

    fn origin(&self) -> Origin {
        self.projection.read(|now| now.origin)
    }

    fn changed_since(&self, evaluated: Option<(Origin, u64)>) -> Option<Evaluation> {
        self.projection.read(|now| {
            let at = (now.origin, now.fleet.as_of().ledger_seq);
            if !now.caught_up || evaluated == Some(at) {
                return None;
            }
            let same_ledger = evaluated.filter(|(origin, _)| *origin == now.origin);
            Some(Evaluation { at, changed: same_ledger.map(|(_, seq)| now.fleet.changed_since(seq)) })
        })
    }

    async fn read(&self, lines: &[Line]) -> Option<Reading> {
        self.projection.read(|now| {
            let see = |line: &Line| {
                let same_ledger = line.notice_ledger == Some(now.origin);
                let record = line.record.as_ref()?;
                Some(read_subscription(&now.fleet, &record.subscription, line.last_notice(), same_ledger))
            };
            let reading = || Reading {
                as_of: now.fleet.as_of(),
                origin: now.origin,
                found: lines.iter().map(see).collect(),
            };
            now.caught_up.then(reading)
        })
    }

    async fn last_seq(&self) -> Option<u64> {
        self.bus.stream_state(LEDGER).await.ok().map(|ledger| ledger.last_seq)
    }

    async fn check(&self, wanted: &Subscription) -> Result<(), ErrorBody> {
        match self.read_fold(|now| now.fleet.notice_state(wanted, 0).map(drop))? {
            Ok(()) => Ok(()),
            Err(NothingToTell::Absent(_)) if wanted.wait_for => Ok(()),
            Err(NothingToTell::Absent(message)) => Err(ErrorBody { code: ErrorCode::NotFound, message }),
            Err(error) => Err(bad(error.to_string())),
        }
    }

    fn beginning(&self) -> Beginning {
        let ledger_seq = self.projection.read(|now| now.fleet.as_of().ledger_seq);
        Beginning { ledger_seq, hubs: Vec::new() }
    }

    async fn content(&self, query: ContentQuery) -> Result<NoticeContent, ErrorBody> {
        let ContentQuery { subscription, since } = query;
        subscription.check().map_err(|violation| bad(violation.within("subscription").to_string()))?;
        self.read_fold(|now| content(&now.fleet, &subscription, since))?
    }

    async fn missed(
        &self,
        request: MissedQuery,
        stored: Option<(SubscriptionRecord, Option<Notice>)>,
        requester: Requester,
    ) -> Result<Bytes, ErrorBody> {
        let read_to = self.read_fold(|now| now.fleet.as_of().ledger_seq)?;
        missed::answer(&self.rebuilds, request, stored, read_to, requester).await
    }

    fn lag(&self) -> RollupLag {
        self.lag.now()
    }
}

/// Reads the fold for a subscription. `since` is the last notice of this subscription; for another LEDGER no
/// changes are known.
fn read_subscription(
    fleet: &Fleet,
    subscription: &Subscription,
    since: Option<LastNotice>,
    same_ledger: bool,
) -> SubscriptionRead {
    let state = match fleet.notice_state(subscription, NOTICE_TARGETS_MAX) {
        Err(NothingToTell::TooWide) => return SubscriptionRead::TooWide,
        // A subscription that was valid becomes invalid only because something it names has gone.
        state => state.map_err(|error| error.to_string()),
    };
    let since = since.filter(|told| told.event != NoticeEvent::Ended);
    let changes = match since {
        None => Changes::default(),
        Some(told) if same_ledger => fleet.changes_since(subscription, told.ledger_seq),
        Some(_) => Changes { incomplete: true, ..Changes::default() },
    };
    SubscriptionRead::State(Box::new(SubscriptionState {
        as_of: fleet.as_of(),
        hubs: Vec::new(),
        state,
        changes,
    }))
}

/// The content of a notice about a filter.
fn content(
    fleet: &Fleet,
    subscription: &Subscription,
    since: Option<u64>,
) -> Result<NoticeContent, ErrorBody> {
    let changes = since.map(|since| fleet.changes_since(subscription, since)).unwrap_or_default();
    let (state, mut omitted, message) = match fleet.notice_state(subscription, NOTICE_TARGETS_MAX) {
        Ok((state, omitted)) => {
            let (state, omitted) = fitting(state, omitted);
            (Some(state), omitted, None)
        }
        Err(NothingToTell::Absent(message)) => (None, NoticeOmitted::default(), Some(message)),
        Err(error) => return Err(bad(error.to_string())),
    };
    (omitted.changes, omitted.more_changes) = (changes.omitted, changes.incomplete);
    Ok(NoticeContent { as_of: fleet.as_of(), state, changes: changes.listed, omitted, message })
}

#[cfg(test)]
mod tests {
    use muster_contract::Timestamp;
    use muster_contract::canonical::Digest;

    use super::*;

    #[test]
    fn changes_of_another_ledger_are_incomplete() {
        let (fleet, about) = (Fleet::default(), Subscription::named("a".parse().unwrap()));
        let told = LastNotice {
            number: 1,
            event: NoticeEvent::Present,
            ledger_seq: 0,
            at: Timestamp::UNIX_EPOCH,
            digest: Digest::of_bytes(b"other"),
        };
        for (same_ledger, more_changes) in [(true, false), (false, true)] {
            let SubscriptionRead::State(sight) = read_subscription(&fleet, &about, Some(told), same_ledger)
            else {
                panic!("it can be told")
            };
            assert_eq!(sight.changes.incomplete, more_changes);
        }
    }
}
