//! Reads the hubs for the notices of a federation: each hub answers with its part of a notice, and
//! [`Merge::notice_sum`] adds the parts. [`missed`] forwards a query for missed changes.
//!
//! Subscriptions and notices are stored at the federation, none at a hub. A hub within its lease that does not answer delays
//! the notice; a hub beyond its lease is named in the notice.

mod missed;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use muster_bus::{Fault, Requester};
use muster_contract::lag::RollupLag;
use muster_contract::notify::{
    ContentQuery, HubPosition, MissedQuery, NOTICE_TARGETS_MAX, Notice, NoticeContent, NoticeEvent,
    Subscription, SubscriptionRecord,
};
use muster_contract::query::{ErrorBody, ErrorCode, ErrorReply};
use muster_contract::question::{bad, json};
use muster_contract::subjects::NOTIFY_PREFIX;
use muster_contract::view::AsOf;
use muster_contract::{HubName, Timestamp};
use muster_domain::fold::Merge;
use muster_notify::NoticeSource;
use muster_notify::Origin;
use muster_notify::compose::{SubscriptionRead, SubscriptionState, fitting};
use muster_notify::register::Line;
use muster_notify::source::{Beginning, Evaluation, Reading};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::gather::{is_not_found, parsed};
use crate::handler::QueryHandler;
use crate::merged::Merged;
use crate::scatter::{HubQuery, Name, scatter};

const STATUS: &str = "status";
const CONTENT: &str = "content";
/// A federation has no LEDGER that could be replaced.
const ORIGIN: Origin = Origin { created_at: Timestamp::UNIX_EPOCH, restarts: 0 };

/// The hubs as a source of notices. Clones share everything.
#[derive(Debug, Clone)]
pub(crate) struct HubsSource {
    merged: Arc<Merged>,
    hubs: QueryHandler,
}

/// The parts of a subscription.
struct SubscriptionParts {
    /// Each hub that is heard with its part.
    asked: Vec<(HubName, Subscription)>,
    /// Hubs that are not heard.
    missing: Vec<HubName>,
}

/// Why a subscription cannot be read.
enum ReadFailure {
    /// A hub that is heard does not answer now.
    NotNow(String),
    /// It is wrong, or too wide for a hub.
    Refused(String),
}

impl HubsSource {
    /// Creates a source that asks over these connections.
    pub(crate) const fn new(merged: Arc<Merged>, hubs: QueryHandler) -> Self {
        Self { merged, hubs }
    }

    /// Splits a subscription by hub.
    fn shares(&self, subscription: &Subscription) -> Result<SubscriptionParts, ErrorBody> {
        let scattered = self.merged.read_merge(|merge| scatter(subscription.query(), merge))?;
        let heard: Vec<HubName> = self.merged.read_merge(|merge| merge.heard_names().cloned().collect());
        let mut shares = SubscriptionParts { asked: Vec::new(), missing: Vec::new() };
        for HubQuery { hub, query, .. } in scattered.hub_queries.into_iter().filter(|share| share.adds) {
            if heard.contains(&hub) {
                let part = Subscription { site: query.site, device: query.device, ..subscription.clone() };
                shares.asked.push((hub, part));
            } else {
                shares.missing.push(hub);
            }
        }
        Ok(shares)
    }

    /// Asks the hubs concerned for their contents.
    async fn contents(
        &self,
        shares: &SubscriptionParts,
        since: &[HubPosition],
        is_first: bool,
    ) -> Result<Vec<(HubName, NoticeContent)>, ReadFailure> {
        let mut asked = JoinSet::new();
        for (hub, part) in &shares.asked {
            let known = since.iter().find(|known| known.name == *hub).map(|known| known.ledger_seq);
            let (source, hub, part) = (self.clone(), hub.clone(), part.clone());
            asked.spawn(async move {
                let content = source.content_of(&hub, part, known).await;
                let content = content.map(|mut content| {
                    // Changes since an unknown position, or of another LEDGER, are not known.
                    let is_behind = known.is_none_or(|known| known > content.as_of.ledger_seq);
                    content.omitted.more_changes |= is_behind && !is_first;
                    content
                });
                (hub, content)
            });
        }
        let mut contents = Vec::new();
        for (hub, content) in asked.join_all().await {
            contents.push((hub, content?));
        }
        contents.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(contents)
    }

    /// Asks one hub for its content, of the names that it knows.
    async fn content_of(
        &self,
        hub: &HubName,
        part: Subscription,
        since: Option<u64>,
    ) -> Result<NoticeContent, ReadFailure> {
        let names = Name::all_of(&part.query());
        let query = ContentQuery { subscription: part.clone(), since };
        let content = self.ask_content(hub, &query).await?;
        if content.state.is_some() || names.len() < 2 {
            return Ok(content);
        }
        // It may know some of the names.
        let mut known = std::collections::BTreeSet::new();
        for name in names {
            let question = json(name.question()).map_err(|error| ReadFailure::Refused(error.message))?;
            match self.hubs.ask_subject(hub, format!("muster.query.{STATUS}"), question.into()).await {
                Ok(_) => _ = known.insert(name),
                Err(fault) if is_not_found(&fault) => {}
                Err(fault) => return Err(read_failure(&fault)),
            }
        }
        let whole = HubQuery { hub: hub.clone(), query: part.query(), adds: true };
        match whole.known_part(&known) {
            Some(query) if query != part.query() => {
                let part = Subscription { app: query.app, component: query.component, ..part };
                self.ask_content(hub, &ContentQuery { subscription: part, since }).await
            }
            _ => Ok(content),
        }
    }

    async fn ask_content(&self, hub: &HubName, query: &ContentQuery) -> Result<NoticeContent, ReadFailure> {
        let question = json(query).map_err(|error| ReadFailure::Refused(error.message))?;
        let subject = format!("{NOTIFY_PREFIX}.{CONTENT}");
        let answer = self.hubs.ask_subject(hub, subject, question.into()).await;
        answer.and_then(|answer| parsed(hub, &answer)).map_err(|fault| read_failure(&fault))
    }

    /// Reads a subscription's present state.
    async fn read_subscription(&self, line: &Line) -> Option<SubscriptionRead> {
        let subscription = &line.record.as_ref()?.subscription;
        let told = line.last_notice().filter(|told| told.event != NoticeEvent::Ended);
        let before: &[HubPosition] = if told.is_some() { &line.notice_hubs } else { &[] };
        let at = told.map_or(Timestamp::UNIX_EPOCH, |told| told.at);
        let nothing = |reason: String| {
            let (as_of, hubs) = reflected(Vec::new().iter(), &[], before, at);
            let (state, changes) = (Err(reason), Default::default());
            SubscriptionRead::State(Box::new(SubscriptionState { as_of, hubs, state, changes }))
        };
        let shares = match self.shares(subscription) {
            Ok(shares) => shares,
            Err(ErrorBody { code: ErrorCode::NotFound, message }) => return Some(nothing(message)),
            Err(_) => return Some(SubscriptionRead::NotNow),
        };
        let contents = match self.contents(&shares, before, told.is_none()).await {
            Ok(contents) => contents,
            Err(ReadFailure::NotNow(reason)) => {
                tracing::debug!(name = %subscription.name, reason, "cannot read a subscription now");
                return Some(SubscriptionRead::NotNow);
            }
            Err(ReadFailure::Refused(_)) => return Some(SubscriptionRead::TooWide),
        };
        let (as_of, hubs) = reflected(contents.iter(), &shares.missing, before, at);
        let (state, mut changes) = self
            .merged
            .read_merge(|merge| merge.notice_sum(subscription, contents, shares.missing, NOTICE_TARGETS_MAX));
        if told.is_none() {
            changes = Default::default();
        }
        let state = state.map(|(state, omitted)| fitting(state, omitted));
        Some(SubscriptionRead::State(Box::new(SubscriptionState { as_of, hubs, state, changes })))
    }
}

/// The positions that a notice reflects, and their sum: a hub that is missing keeps its position.
fn reflected<'c>(
    contents: impl Iterator<Item = &'c (HubName, NoticeContent)>,
    missing: &[HubName],
    before: &[HubPosition],
    at: Timestamp,
) -> (AsOf, Vec<HubPosition>) {
    let kept = before.iter().filter(|known| missing.contains(&known.name));
    let mut hubs: BTreeMap<HubName, u64> = kept.map(|known| (known.name.clone(), known.ledger_seq)).collect();
    let mut as_of = AsOf { ledger_seq: 0, at };
    for (hub, content) in contents {
        hubs.insert(hub.clone(), content.as_of.ledger_seq);
        as_of.at = as_of.at.max(content.as_of.at);
    }
    if hubs.is_empty() {
        hubs = before.iter().map(|known| (known.name.clone(), known.ledger_seq)).collect();
    }
    as_of.ledger_seq = hubs.values().sum();
    let hubs = hubs.into_iter().map(|(name, ledger_seq)| HubPosition { name, ledger_seq });
    (as_of, hubs.collect())
}

/// A refusal ends a subscription; anything else passes.
fn read_failure(fault: &Fault) -> ReadFailure {
    let message = serde_json::from_slice::<ErrorReply>(&fault.body)
        .map_or_else(|_| fault.message.clone(), |reply| reply.error.message);
    if fault.code == ErrorCode::BadRequest.number() {
        ReadFailure::Refused(message)
    } else {
        ReadFailure::NotNow(message)
    }
}

impl NoticeSource for HubsSource {
    fn changes(&self) -> watch::Receiver<u64> {
        self.merged.changes()
    }

    async fn caught_up(&self) {
        let mut whole = self.merged.whole();
        // The merged state outlives this wait, so its sender cannot be dropped.
        let _ = whole.wait_for(|whole| *whole).await;
    }

    fn origin(&self) -> Origin {
        ORIGIN
    }

    /// The sums do not say whom a change concerns: with each, every subscription is evaluated, once in its window.
    fn changed_since(&self, evaluated: Option<(Origin, u64)>) -> Option<Evaluation> {
        let at = (ORIGIN, *self.merged.changes().borrow());
        (evaluated != Some(at)).then_some(Evaluation { at, changed: None })
    }

    async fn read(&self, lines: &[Line]) -> Option<Reading> {
        let mut seen = JoinSet::new();
        for (at, line) in lines.iter().cloned().enumerate() {
            let source = self.clone();
            seen.spawn(async move { (at, source.read_subscription(&line).await) });
        }
        let mut found = seen.join_all().await;
        found.sort_by_key(|(at, _)| *at);
        let found = found.into_iter().map(|(_, read)| read).collect();
        Some(Reading { as_of: self.merged.read_merge(Merge::as_of), origin: ORIGIN, found })
    }

    async fn last_seq(&self) -> Option<u64> {
        Some(self.merged.read_merge(Merge::as_of).ledger_seq)
    }

    async fn check(&self, wanted: &Subscription) -> Result<(), ErrorBody> {
        let shares = match self.shares(wanted) {
            Err(error) if error.code == ErrorCode::NotFound && wanted.wait_for => return Ok(()),
            shares => shares?,
        };
        let contents = self.contents(&shares, &[], true).await.map_err(|failure| match failure {
            ReadFailure::NotNow(message) => ErrorBody { code: ErrorCode::NotReady, message },
            ReadFailure::Refused(message) => bad(message),
        })?;
        let (state, _) =
            self.merged.read_merge(|merge| merge.notice_sum(wanted, contents, shares.missing, 0));
        match state {
            Err(message) if !wanted.wait_for => Err(ErrorBody { code: ErrorCode::NotFound, message }),
            _ => Ok(()),
        }
    }

    fn beginning(&self) -> Beginning {
        let hubs = self
            .merged
            .read_merge(Merge::hub_list)
            .hubs
            .into_iter()
            .filter_map(|hub| Some(HubPosition { name: hub.name, ledger_seq: hub.as_of?.ledger_seq }));
        Beginning { ledger_seq: 0, hubs: hubs.collect() }
    }

    async fn content(&self, _query: ContentQuery) -> Result<NoticeContent, ErrorBody> {
        Err(bad("a federation does not answer `content`: ask a hub itself".to_owned()))
    }

    async fn missed(
        &self,
        request: MissedQuery,
        stored: Option<(SubscriptionRecord, Option<Notice>)>,
        _requester: Requester,
    ) -> Result<Bytes, ErrorBody> {
        missed::answer(self, request, stored).await
    }

    fn lag(&self) -> RollupLag {
        self.merged.lag().unwrap_or_default()
    }
}
