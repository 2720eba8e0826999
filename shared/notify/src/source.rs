//! The trait by which a service supplies the content of notices: the state after a subscription's filters, the changes
//! since a position, and the changes that a subscriber has missed.

use std::fmt::Debug;
use std::future::Future;

use bytes::Bytes;
use muster_bus::Requester;
use muster_contract::lag::RollupLag;
use muster_contract::notify::{
    ContentQuery, HubPosition, MissedQuery, Notice, NoticeContent, Subscription, SubscriptionRecord,
};
use muster_contract::query::ErrorBody;
use muster_contract::view::AsOf;
use muster_domain::fold::ChangedSince;
use tokio::sync::watch;

use crate::compose::SubscriptionRead;
use crate::origin::Origin;
use crate::register::Line;

/// A position up to which changes were evaluated, and what has changed before it.
#[derive(Debug)]
pub struct Evaluation {
    /// The LEDGER and the position.
    pub at: (Origin, u64),
    /// The objects that may have changed; any, if this is not known.
    pub changed: Option<ChangedSince>,
}

/// The states of several subscriptions, read at one moment.
pub struct Reading {
    /// The position.
    pub as_of: AsOf,
    /// Its LEDGER.
    pub origin: Origin,
    /// For each line in order its state; none where its subscription has ended.
    pub found: Vec<Option<SubscriptionRead>>,
}

/// The positions up to which a new subscription has nothing to catch up with.
#[derive(Debug, Clone, Default)]
pub struct Beginning {
    /// In LEDGER.
    pub ledger_seq: u64,
    /// In a federation, in the LEDGER of each hub.
    pub hubs: Vec<HubPosition>,
}

/// The state of a fleet, as a service knows it.
pub trait NoticeSource: Debug + Send + Sync + 'static {
    /// Changes whenever something may be news.
    fn changes(&self) -> watch::Receiver<u64>;

    /// Waits until there is something true to say.
    fn caught_up(&self) -> impl Future<Output = ()> + Send;

    /// The LEDGER that is read now.
    fn origin(&self) -> Origin;

    /// The changes since the last evaluation; none without a change, or while the service has not read everything.
    fn changed_since(&self, evaluated: Option<(Origin, u64)>) -> Option<Evaluation>;

    /// Reads what these subscriptions show; none while not everything is read.
    fn read(&self, lines: &[Line]) -> impl Future<Output = Option<Reading>> + Send;

    /// The sequence at which LEDGER ends; none while it cannot be read.
    fn last_seq(&self) -> impl Future<Output = Option<u64>> + Send;

    /// Checks that a subscription asks for something that can be evaluated.
    fn check(&self, wanted: &Subscription) -> impl Future<Output = Result<(), ErrorBody>> + Send;

    /// Where a subscription that begins now begins.
    fn beginning(&self) -> Beginning;

    /// The content of a notice about a filter, as of now.
    fn content(&self, query: ContentQuery) -> impl Future<Output = Result<NoticeContent, ErrorBody>> + Send;

    /// A page of the changes that a subscriber has missed. The record and the newest notice are absent where the request
    /// brings its own filter.
    fn missed(
        &self,
        request: MissedQuery,
        stored: Option<(SubscriptionRecord, Option<Notice>)>,
        requester: Requester,
    ) -> impl Future<Output = Result<Bytes, ErrorBody>> + Send;

    /// The lag that stands between the answers and LEDGER.
    fn lag(&self) -> RollupLag;
}
