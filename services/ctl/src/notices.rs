//! Notices as they come: subscribed to once, followed over broken links and restarts of either side, each shown once.
//!
//! The hub pushes a notice; the client also polls for the newest after a broken link and at intervals. It confirms each shown
//! notice, so that the next run under the same name does not show it again.

use std::time::Duration;

use muster_bus::{Link, Subscription as Live};
use muster_contract::decode;
use muster_contract::notify::{
    ConfirmRequest, EndReason, HubPosition, MissedAnswer, MissedQuery, Notice, NoticeEvent, Subscription,
    SubscriptionAnswer, UnsubscribeRequest,
};
use muster_contract::query::{ErrorCode, PAGE_MAX};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

use crate::ask::{AskError, Hub, PAGES_MAX, understood};
use crate::error::CtlError;

/// Time between two looks for the newest notice, where none comes by itself.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Time until a hub that has not answered is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(15);
/// Attempts to list what was missed, and the time between two: the hub may have to rebuild a point of the past.
const MISSED_ATTEMPTS_MAX: usize = 10;
const MISSED_PAUSE: Duration = Duration::from_secs(1);
/// Part of its lease after which a subscription is renewed.
const RENEWALS_IN_A_LEASE: u32 = 4;

/// The notices of one subscription.
pub struct Notices {
    hub: Hub,
    subscription: Subscription,
    live: Live,
    link: watch::Receiver<Link>,
    looks: Interval,
    renewals: Interval,
    /// Number of the last notice that was given out, or that an earlier run has confirmed.
    shown: u64,
    /// Up to where the last notice that was given out reads.
    position: Option<(u64, Vec<HubPosition>)>,
    /// The subscription existed before, and an earlier run has shown its newest notice.
    is_told: bool,
    /// No notice was given out since the start or the last reconnect.
    is_back: bool,
    /// The newest may be one that was not given out.
    look_now: bool,
    /// A confirmation is due, or the hub has not answered it yet.
    confirm_now: bool,
    /// Whether the hub answered when it was asked last.
    answered: watch::Sender<bool>,
}

/// A notice, and the document as it came.
pub struct Read {
    /// The parsed notice.
    pub notice: Notice,
    /// All of it, also what a newer hub says.
    pub value: Value,
    /// It may cover changes that it does not list: it is the first after the start or a reconnect, notices before it were
    /// replaced, or it found no room for all.
    pub is_after_a_gap: bool,
}

impl Notices {
    /// Subscribes, or goes on with a subscription of the same name that is about the same.
    ///
    /// # Errors
    /// When nobody answers, or the subscription is refused.
    pub async fn open(hub: &Hub, subscription: Subscription) -> Result<Self, CtlError> {
        // Listening begins before there is anything to hear.
        let live = hub.bus().notices_of(&subscription.name).await?;
        let answer: SubscriptionAnswer = understood(&hub.notify("subscribe", &subscription).await?)?;
        let lease = Duration::from_secs(subscription.lease_seconds);
        Ok(Self {
            hub: hub.clone(),
            live,
            link: hub.bus().link(),
            looks: every(LOOK_EVERY),
            renewals: every(lease / RENEWALS_IN_A_LEASE),
            shown: answer.seen,
            position: None,
            is_told: answer.resumed && answer.seen > 0 && answer.seen == answer.told,
            is_back: true,
            look_now: true,
            confirm_now: false,
            answered: watch::Sender::new(true),
            subscription,
        })
    }

    /// Whether the hub answered the last request, or sent a notice since.
    pub fn answered(&self) -> watch::Receiver<bool> {
        self.answered.subscribe()
    }

    /// Whether an earlier run has shown every notice: the next one is new.
    pub const fn is_told(&self) -> bool {
        self.is_told
    }

    /// The newest notice, where an earlier run has shown it: it is not given out again, but says how it is. None where
    /// one that was not shown will be given out, or where it cannot be read now.
    ///
    /// # Errors
    /// It does not parse as a notice.
    pub async fn known(&self) -> Result<Option<Notice>, CtlError> {
        if !self.is_told {
            return Ok(None);
        }
        let newest = self.hub.bus().notice_last(&self.subscription.name).await;
        let Some(value) = newest.ok().flatten().and_then(|entry| entry.value.ok()) else {
            return Ok(None);
        };
        let garbled = |source| CtlError::Notice { name: self.subscription.name.clone(), source };
        let notice: Notice = decode::parse(&value).map_err(garbled)?;
        Ok(Some(notice).filter(|notice| notice.number == self.shown))
    }

    /// The next notice that was not given out yet. Cancel-safe: a question that was left without its answer is asked again.
    /// A caller that drops it more often than the hub answers never gets a notice, so it must keep the future over other events.
    ///
    /// # Errors
    /// When a message is not a notice, or a subscription that had to be made anew is refused.
    pub async fn next(&mut self) -> Result<Read, CtlError> {
        loop {
            if self.confirm_now {
                self.confirm().await?;
                self.confirm_now = false;
            }
            if self.look_now {
                let newest = self.hub.bus().notice_last(&self.subscription.name).await;
                self.look_now = false;
                // If the read fails, the next one finds it.
                if let Some(value) = newest.ok().flatten().and_then(|entry| entry.value.ok())
                    && let Some(read) = self.read_notice(&value)?
                {
                    return Ok(read);
                }
            }
            tokio::select! {
                message = self.live.next() => if let Some(message) = message
                    && let Some(read) = self.read_notice(&message.payload)? {
                    return Ok(read);
                },
                _ = self.looks.tick() => self.look_now = true,
                Ok(()) = self.link.changed() => if self.link.borrow_and_update().is_up() {
                    (self.is_back, self.look_now) = (true, true);
                },
                _ = self.renewals.tick() => self.confirm_now = true,
            }
        }
    }

    fn read_notice(&mut self, bytes: &[u8]) -> Result<Option<Read>, CtlError> {
        let garbled = |source| CtlError::Notice { name: self.subscription.name.clone(), source };
        let notice: Notice = decode::parse(bytes).map_err(garbled)?;
        if notice.number <= self.shown {
            return Ok(None);
        }
        let omitted = notice.omitted;
        let is_partial =
            self.is_back || notice.number > self.shown + 1 || omitted.more_changes || omitted.changes > 0;
        let is_after_a_gap = self.shown > 0 && notice.event != NoticeEvent::Present && is_partial;
        self.is_back = false;
        self.shown = notice.number;
        self.position = Some((notice.as_of.ledger_seq, notice.hubs.clone()));
        self.answered.send_replace(true);
        if notice.reason == Some(EndReason::Expired) {
            // We were away for longer than the lease: the next confirmation subscribes anew.
            self.renewals.reset_immediately();
            return Ok(None);
        }
        // Cannot fail: it was a notice just now.
        let value = serde_json::from_slice(bytes).unwrap_or_default();
        Ok(Some(Read { notice, value, is_after_a_gap }))
    }

    /// Every change after the last confirmed notice up to this one, page by page.
    ///
    /// # Errors
    /// When nobody answers, or the hub cannot list them.
    pub async fn missed(&self, upto: &Notice) -> Result<Vec<MissedAnswer>, AskError> {
        let mut query = MissedQuery {
            name: self.subscription.name.clone(),
            after: None,
            to: Some(upto.as_of.ledger_seq),
            hubs: upto.hubs.clone(),
            filter: None,
            next: None,
            limit: Some(PAGE_MAX),
        };
        let (mut pages, mut attempts) = (Vec::new(), 0);
        while pages.len() < PAGES_MAX {
            let page = match self.hub.notify("missed", &query).await {
                // An older hub has no such request.
                Err(AskError::Refused(body))
                    if body.code == ErrorCode::NotReady && attempts < MISSED_ATTEMPTS_MAX =>
                {
                    attempts += 1;
                    sleep(MISSED_PAUSE).await;
                    continue;
                }
                answer => understood::<MissedAnswer>(&answer?)?,
            };
            query.next.clone_from(&page.next);
            let is_last = page.next.is_none();
            pages.push(page);
            if is_last {
                return Ok(pages);
            }
        }
        Err(AskError::Endless { what: "missed" })
    }

    /// Marks the last notice as handled; `next` confirms it to the hub before it returns another.
    pub(crate) const fn confirm_soon(&mut self) {
        self.confirm_now = true;
    }

    /// Confirms to the hub that the last notice was handled and that the subscriber is alive. A hub without an answer is asked later.
    ///
    /// # Errors
    /// When the subscription had ended and is refused now.
    pub async fn confirm(&mut self) -> Result<(), CtlError> {
        let name = self.subscription.name.clone();
        let (ledger_seq, hubs) = match self.position.clone() {
            Some((seq, hubs)) => (Some(seq), hubs),
            None => (None, Vec::new()),
        };
        let request = ConfirmRequest { name, number: self.shown, ledger_seq, hubs };
        let answer = self.hub.notify("confirm", &request).await;
        let is_unanswered = matches!(answer, Err(AskError::NoService { .. } | AskError::Request { .. }));
        self.answered.send_replace(!is_unanswered);
        match answer {
            Err(AskError::Refused(body)) if body.code == ErrorCode::NotFound => self.subscribe_again().await,
            // The stream is a new one, whose numbers begin anew.
            Err(AskError::Refused(body)) if body.code == ErrorCode::BadRequest => {
                (self.shown, self.position, self.look_now) = (0, None, true);
                Ok(())
            }
            _ if is_unanswered => {
                // Sooner than the renewal of the lease: a person who waits must learn whether a hub answers.
                self.renewals.reset_after(ASK_AGAIN.min(self.renewals.period()));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn subscribe_again(&mut self) -> Result<(), CtlError> {
        let answer = match self.hub.notify("subscribe", &self.subscription).await {
            // A hub that is only just coming back: who was away for longer than a lease meets it often.
            Err(error) if error.may_pass() => {
                self.renewals.reset_after(LOOK_EVERY);
                return Ok(());
            }
            answer => answer?,
        };
        let answer: SubscriptionAnswer = understood(&answer)?;
        (self.shown, self.position) = (answer.seen, None);
        self.look_now = true;
        Ok(())
    }

    /// Ends the subscription. That nobody answers is no failure: it ends by itself.
    pub async fn close(self) {
        let request = UnsubscribeRequest { name: self.subscription.name };
        let _ = self.hub.notify("unsubscribe", &request).await;
    }
}

/// True where no notice follows.
pub fn is_last(notice: &Notice) -> bool {
    notice.event == NoticeEvent::Ended
}

fn every(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    ticks
}
