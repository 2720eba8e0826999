//! Holds the subscriptions of NOTICES and the last notice of each. It does no IO: entries of the stream are
//! applied in their order.
//!
//! The register needs no persistence: the newest notice itself is stored in the stream. [`webhooks`] has the part about webhooks.

mod webhooks;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_bus::{NoticeAbsence, NoticeEntry, NoticeKind, Requester};
use muster_contract::SubscriptionName;
use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_contract::decode;
use muster_contract::notify::{
    EndReason, HubPosition, Notice, NoticeEvent, SubscriptionLine, SubscriptionOwner, SubscriptionRecord,
};
use muster_contract::query::ErrorBody;
use muster_contract::view::AsOf;
use muster_service::error::chain;
use tokio::time::Instant;

use self::webhooks::AskingGateways;
use crate::origin::Origin;
use crate::ownership::{Action, Reserved, is_allowed, owner_of, share, too_many};

/// The subscriptions, shared by notifier, request handler and metrics.
pub type SharedRegister = Arc<Mutex<Register>>;

pub(crate) fn held(register: &SharedRegister) -> MutexGuard<'_, Register> {
    // The register is a copy of the stream's content: after a panic elsewhere it is at worst out of date.
    register.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All subscriptions by name.
#[derive(Debug, Default)]
pub struct Register {
    lines: BTreeMap<SubscriptionName, Line>,
    reserved: Reserved,
    /// The gateways that ask for notices of webhooks.
    gateways: AskingGateways,
    /// True once everything that the stream held at the start is read.
    known: bool,
}

/// One name: its subscription and its last notice.
#[derive(Debug, Clone, Default)]
pub struct Line {
    /// The subscription; none where it has ended.
    pub record: Option<SubscriptionRecord>,
    /// The reason for the end.
    pub ended: Option<EndReason>,
    /// Revision of the subscription.
    pub revision: u64,
    /// The last notice.
    pub last: Option<LastNotice>,
    /// In a federation, the positions in the LEDGERs of the hubs that the last notice reflects.
    pub notice_hubs: Vec<HubPosition>,
    /// The notice's revision; 0 where there is none.
    pub notice_revision: u64,
    /// The notice's LEDGER, if it is the current one.
    pub notice_ledger: Option<Origin>,
    /// Since when, at least, its webhook has a notice to deliver.
    pub(crate) waits_since: Option<Timestamp>,
    /// When this process last published a notice to it, or read one.
    pub told_at: Option<Instant>,
    /// Since when another process has published more than this process has read, or LEDGER was last seen to
    /// reach that far.
    pub ahead_since: Option<Instant>,
}

/// The part of a notice by which the next one is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastNotice {
    /// Its number.
    pub number: u64,
    /// Its event.
    pub event: NoticeEvent,
    /// The position of the notice.
    pub ledger_seq: u64,
    /// When LEDGER stored that fact.
    pub at: Timestamp,
    /// Digest of its content.
    pub digest: Digest,
}

impl From<&Notice> for LastNotice {
    fn from(notice: &Notice) -> Self {
        let Notice { number, event, as_of, digest, .. } = notice;
        let AsOf { ledger_seq, at } = *as_of;
        Self { number: *number, event: *event, ledger_seq, at, digest: *digest }
    }
}

impl Register {
    /// Applies an entry while this LEDGER is read. Returns the name where a notice may be due.
    pub fn apply(&mut self, entry: &NoticeEntry, ledger: Origin) -> Option<SubscriptionName> {
        let name: SubscriptionName = entry.name.parse().ok()?;
        let line = self.lines.entry(name.clone()).or_default();
        let due = match entry.kind {
            NoticeKind::Subscription => {
                self.reserved.remove(&name);
                line.apply_subscription(entry)
            }
            NoticeKind::Notice => line.apply_notice(entry, ledger),
        };
        line.update_waiting(entry.stored_at);
        due.then_some(name)
    }

    /// The line of a name.
    pub fn line(&self, name: &SubscriptionName) -> Option<&Line> {
        self.lines.get(name)
    }

    /// The line of a name, to be changed.
    pub fn line_mut(&mut self, name: &SubscriptionName) -> Option<&mut Line> {
        self.lines.get_mut(name)
    }

    /// Forgets a name without anything left to publish.
    pub fn forget(&mut self, name: &SubscriptionName) {
        if self.lines.get(name).is_some_and(Line::is_over) {
            self.lines.remove(name);
        }
    }

    /// Forgets everything: the stream is another one now.
    pub fn clear(&mut self) {
        *self = Self { gateways: std::mem::take(&mut self.gateways), ..Self::default() };
    }

    /// Marks the stream's initial content as read.
    pub fn set_known(&mut self) {
        self.known = true;
    }

    /// Whether the subscriptions are known.
    pub const fn is_known(&self) -> bool {
        self.known
    }

    /// All lines.
    pub fn iter(&self) -> impl Iterator<Item = (&SubscriptionName, &Line)> {
        self.lines.iter()
    }

    /// Subscriptions that have not ended.
    pub fn live(&self) -> usize {
        self.lines.values().filter(|line| line.record.is_some()).count()
    }

    /// Reserves a subscription of a requester, which is about to be written, within the limits.
    ///
    /// # Errors
    /// The bound that refuses, for the requester.
    pub fn reserve(&mut self, name: &SubscriptionName, requester: &Requester) -> Result<(), ErrorBody> {
        let owner = owner_of(requester);
        let (mut of_owner, mut total) = (0, 0);
        for (_, other) in self.owners().filter(|(other, _)| *other != name) {
            total += 1;
            of_owner += usize::from(other.map(|other| &other.key) == owner.as_ref().map(|owner| &owner.key));
        }
        share(requester, total).check(of_owner, total).map_err(too_many)?;
        self.reserved.insert(name.clone(), owner);
        Ok(())
    }

    /// Names that are subscribed or reserved, with their owners.
    fn owners(&self) -> impl Iterator<Item = (&SubscriptionName, Option<&SubscriptionOwner>)> {
        let record = |name| self.lines.get(name).and_then(|line: &Line| line.record.as_ref());
        let live = self.lines.keys().filter_map(move |name| Some((name, record(name)?.owner.as_ref())));
        live.chain(self.reserved.iter().filter(move |(name, _)| record(name).is_none()))
    }

    /// Releases a reserved name that was not stored.
    pub fn release(&mut self, name: &SubscriptionName) {
        self.reserved.remove(name);
    }

    /// Subscriptions after a name that a requester may see, in order, and whether there are more.
    pub fn page(
        &self,
        requester: &Requester,
        after: Option<&SubscriptionName>,
        limit: usize,
    ) -> (Vec<SubscriptionLine>, bool) {
        let live = self.lines.iter().filter(|(name, _)| after.is_none_or(|after| *name > after));
        let lines = live.filter_map(|(_, line)| line.shown());
        let mut lines = lines.filter(|line| is_allowed(requester, line.owner.as_ref(), Action::List));
        let page: Vec<_> = lines.by_ref().take(limit).collect();
        (page, lines.next().is_some())
    }
}

impl Line {
    fn apply_subscription(&mut self, entry: &NoticeEntry) -> bool {
        if entry.revision <= self.revision {
            return false;
        }
        self.revision = entry.revision;
        let (record, ended) = match &entry.value {
            Ok(value) => match decode::parse::<SubscriptionRecord>(value) {
                Ok(record) => (Some(record), None),
                Err(refusal) => {
                    tracing::warn!(name = entry.name, error = chain(&refusal), "cannot read a subscription");
                    return false;
                }
            },
            Err(NoticeAbsence::Ended) => (None, Some(EndReason::Unsubscribed)),
            Err(NoticeAbsence::Expired) => (None, Some(EndReason::Expired)),
        };
        let about = |record: &Option<SubscriptionRecord>| {
            record.as_ref().map(|it| (it.subscription.clone(), it.began))
        };
        // A renewed lease or a confirmed notice is not news. A new subscription under the name has had no
        // notice yet.
        let due = about(&self.record) != about(&record) || ended.is_some();
        (self.record, self.ended) = (record, ended);
        due
    }

    fn apply_notice(&mut self, entry: &NoticeEntry, ledger: Origin) -> bool {
        if entry.revision <= self.notice_revision {
            return false;
        }
        self.notice_revision = entry.revision;
        let notice = entry.value.as_ref().ok().and_then(|value| decode::parse::<Notice>(value).ok());
        // If it cannot be read, its number is lost with it; the next one begins anew.
        self.last = notice.as_ref().map(LastNotice::from);
        self.notice_hubs = notice.map(|notice| notice.hubs).unwrap_or_default();
        let of_this = |told: &LastNotice| told.ledger_seq == 0 || told.at >= ledger.created_at;
        self.notice_ledger = self.last.filter(of_this).map(|_| ledger);
        self.record.is_none()
    }

    /// The last notice of the subscription since it began under this name.
    pub fn last_notice(&self) -> Option<LastNotice> {
        self.last.filter(|told| told.number > self.began())
    }

    /// The number of the next notice.
    pub fn next_number(&self) -> u64 {
        self.last.map_or(0, |told| told.number).max(self.began()) + 1
    }

    fn began(&self) -> u64 {
        self.record.as_ref().map_or(0, |record| record.began)
    }

    /// True where it has ended and the end was published, or there is no subscriber.
    pub fn is_over(&self) -> bool {
        self.record.is_none() && self.last.is_none_or(|told| told.event == NoticeEvent::Ended)
    }

    fn shown(&self) -> Option<SubscriptionLine> {
        let SubscriptionRecord { subscription, seen, owner, .. } = self.record.clone()?;
        Some(SubscriptionLine { subscription, owner, seen, told: self.last.map_or(0, |told| told.number) })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use bytes::Bytes;
    use muster_contract::decode::to_bytes;
    use muster_contract::notify::{
        SUBSCRIPTIONS_MAX, SUBSCRIPTIONS_OF_USER_IF_SCARCE, SUBSCRIPTIONS_OF_USER_MAX,
        SUBSCRIPTIONS_OPERATOR_RESERVE, SUBSCRIPTIONS_SCARCE_FROM, Subscription,
    };

    use super::*;
    use crate::ownership::tests::user;

    const LEDGER: Origin = Origin { created_at: Timestamp::UNIX_EPOCH, restarts: 0 };

    fn record(revision: u64, seen: u64, window_ms: u64) -> NoticeEntry {
        record_of(revision, seen, window_ms, 0)
    }

    fn record_of(revision: u64, seen: u64, window_ms: u64, began: u64) -> NoticeEntry {
        let subscription = Subscription { window_ms, ..Subscription::named("a".parse().unwrap()) };
        let record = SubscriptionRecord {
            api_version: Default::default(),
            kind: Default::default(),
            subscription,
            seen,
            seen_seq: 0,
            seen_at: Vec::new(),
            began,
            owner: None,
            webhook: None,
        };
        entry(NoticeKind::Subscription, revision, Ok(to_bytes(&record).into()))
    }

    fn entry(kind: NoticeKind, revision: u64, value: Result<Bytes, NoticeAbsence>) -> NoticeEntry {
        let stored_at = Timestamp::UNIX_EPOCH;
        NoticeEntry { kind, name: "a".to_owned(), value, revision, stored_at, pending: 0 }
    }

    #[test]
    fn n09_a_renewal_is_no_news_and_an_ended_subscription_is_forgotten() {
        let mut register = Register::default();
        let name = Some("a".parse().unwrap());
        assert_eq!(register.apply(&record(1, 0, 3000), LEDGER), name);
        assert_eq!(register.apply(&record(2, 7, 3000), LEDGER), None, "a confirmation is nothing to tell");
        assert_eq!(register.apply(&record(3, 7, 9000), LEDGER), name, "another window is");
        assert_eq!(register.apply(&record(2, 0, 3000), LEDGER), None, "what is older changes nothing");
        assert_eq!(register.live(), 1);
        let expired = entry(NoticeKind::Subscription, 4, Err(NoticeAbsence::Expired));
        assert_eq!(register.apply(&expired, LEDGER), name);
        assert_eq!(register.line(name.as_ref().unwrap()).unwrap().ended, Some(EndReason::Expired));
        register.forget(name.as_ref().unwrap());
        assert_eq!((register.live(), register.iter().count()), (0, 0), "nobody was ever told anything");
    }

    #[test]
    fn a_recreated_name_has_had_no_notice() {
        let (mut register, name) = (Register::default(), "a".parse().unwrap());
        register.apply(&record(1, 0, 3000), LEDGER);
        let at = AsOf { ledger_seq: 9, at: Timestamp::UNIX_EPOCH };
        let notice = crate::compose::ending(&name, 7, None, at, EndReason::Expired);
        let notice = Notice { event: NoticeEvent::Gone, reason: None, ..notice };
        register.apply(&entry(NoticeKind::Notice, 2, Ok(to_bytes(&notice).into())), LEDGER);
        let line = register.line(&name).unwrap();
        assert_eq!((line.last_notice().unwrap().number, line.next_number()), (7, 8));
        // It ended and was created again before its end was published.
        assert_eq!(register.apply(&record_of(3, 7, 3000, 7), LEDGER).as_ref(), Some(&name));
        let line = register.line(&name).unwrap();
        assert_eq!((line.last_notice(), line.next_number()), (None, 8));
        assert_eq!(register.apply(&record_of(4, 7, 3000, 7), LEDGER), None, "renewed");
    }

    #[test]
    fn a_notice_of_an_older_ledger_does_not_count() {
        let (mut register, name) = (Register::default(), "a".parse().unwrap());
        let at = AsOf { ledger_seq: 9, at: Timestamp::UNIX_EPOCH };
        let notice = crate::compose::ending(&name, 1, None, at, EndReason::Expired);
        let newer = Origin { created_at: "2026-11-20T08:00:00Z".parse().unwrap(), restarts: 0 };
        for (revision, ledger, notice_ledger) in [(1, LEDGER, Some(LEDGER)), (2, newer, None)] {
            register.apply(&entry(NoticeKind::Notice, revision, Ok(to_bytes(&notice).into())), ledger);
            assert_eq!(register.line(&name).unwrap().notice_ledger, notice_ledger);
        }
    }

    fn owned(name: &str, revision: u64, requester: &Requester) -> NoticeEntry {
        let record = SubscriptionRecord {
            api_version: Default::default(),
            kind: Default::default(),
            subscription: Subscription::named(name.parse().unwrap()),
            seen: 0,
            seen_seq: 0,
            seen_at: Vec::new(),
            began: 0,
            owner: owner_of(requester),
            webhook: None,
        };
        NoticeEntry {
            name: name.to_owned(),
            ..entry(NoticeKind::Subscription, revision, Ok(to_bytes(&record).into()))
        }
    }

    /// Subscribes as long as the requester may; how often that went.
    fn fill(register: &mut Register, prefix: &str, requester: &Requester) -> usize {
        let names = (0..2 * SUBSCRIPTIONS_MAX).map(|number| format!("{prefix}-{number}"));
        names.take_while(|name| register.reserve(&name.parse().unwrap(), requester).is_ok()).count()
    }

    #[test]
    fn users_who_take_all_leave_some_to_others_and_to_operators() {
        let mut register = Register::default();
        let mut viewer =
            |at: usize| fill(&mut register, &format!("v{at}"), &user(&format!("V{at}"), "viewer"));
        let greedy = SUBSCRIPTIONS_SCARCE_FROM / SUBSCRIPTIONS_OF_USER_MAX;
        assert!((0..greedy).all(|at| viewer(at) == SUBSCRIPTIONS_OF_USER_MAX));
        assert_eq!(viewer(greedy), SUBSCRIPTIONS_SCARCE_FROM % SUBSCRIPTIONS_OF_USER_MAX);
        let open_to_all = SUBSCRIPTIONS_MAX - SUBSCRIPTIONS_OPERATOR_RESERVE;
        let others = (open_to_all - SUBSCRIPTIONS_SCARCE_FROM) / SUBSCRIPTIONS_OF_USER_IF_SCARCE;
        assert!((1..=others).all(|at| viewer(greedy + at) == SUBSCRIPTIONS_OF_USER_IF_SCARCE));
        assert_eq!(viewer(greedy + others + 1), 0);
        let refused = register.reserve(&"more".parse().unwrap(), &user("V0", "viewer")).unwrap_err();
        assert!(refused.message.contains("for users with fewer than 4"), "{refused:?}");
        assert_eq!(fill(&mut register, "o", &user("O", "operator")), SUBSCRIPTIONS_OF_USER_MAX);
        // An open server proves no requester: one quota applies, which is the whole.
        let rest = SUBSCRIPTIONS_OPERATOR_RESERVE - SUBSCRIPTIONS_OF_USER_MAX;
        assert_eq!(fill(&mut register, "u", &Requester::Unverified), rest);
        let refused = register.reserve(&"more".parse().unwrap(), &Requester::Unverified).unwrap_err();
        assert!(refused.message.contains("there are 1000 subscriptions"), "{refused:?}");
    }

    #[test]
    fn a_reservation_counts_once_until_it_is_confirmed() {
        let (mut register, alice) = (Register::default(), user("A", "viewer"));
        assert_eq!(fill(&mut register, "a", &alice), SUBSCRIPTIONS_OF_USER_MAX);
        for number in 0..SUBSCRIPTIONS_OF_USER_MAX {
            register.apply(&owned(&format!("a-{number}"), 1 + number as u64, &alice), LEDGER);
        }
        let next = "next".parse().unwrap();
        assert!(register.reserve(&next, &alice).is_err());
        assert!(register.reserve(&"a-0".parse().unwrap(), &alice).is_ok(), "it is counted already");
        register.release(&"a-0".parse().unwrap());
        let ended = NoticeEntry { value: Err(NoticeAbsence::Ended), ..owned("a-1", 999, &alice) };
        register.apply(&ended, LEDGER);
        assert!(register.reserve(&next, &alice).is_ok(), "one has ended");
        register.release(&next);
        assert!(register.reserve(&next, &alice).is_ok(), "it was never written");
        assert!(register.reserve(&"more".parse().unwrap(), &alice).is_err());
        // Another rollup reads the same from the stream.
        let mut standby = Register::default();
        for number in 2..=SUBSCRIPTIONS_OF_USER_MAX + 1 {
            standby.apply(&owned(&format!("a-{number}"), 1 + number as u64, &alice), LEDGER);
        }
        assert!(
            standby.reserve(&next, &alice).is_err() && standby.reserve(&next, &user("B", "viewer")).is_ok()
        );
        let seen = |requester: &Requester| standby.page(requester, None, usize::MAX).0.len();
        let all = SUBSCRIPTIONS_OF_USER_MAX;
        assert_eq!([&alice, &user("B", "viewer"), &user("O", "operator")].map(seen), [all, 0, all]);
    }

    #[test]
    fn a_page_says_whether_there_is_more() {
        let mut register = Register::default();
        register.apply(&record(1, 0, 3000), LEDGER);
        let anybody = Requester::Unverified;
        assert_eq!(register.page(&anybody, None, 1).0.len(), 1);
        assert!(!register.page(&anybody, None, 1).1);
        assert!(register.page(&anybody, Some(&"a".parse().unwrap()), 1).0.is_empty());
    }
}
