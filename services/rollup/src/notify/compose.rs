//! A notice, made of the present and of what was told last: what it says, whether it is news, and what of it fits into a
//! message. No IO.

use bytes::Bytes;
use muster_contract::SubscriptionName;
use muster_contract::canonical::Digest;
use muster_contract::decode::to_bytes;
use muster_contract::limits::MESSAGE_BYTES_MAX;
use muster_contract::notify::{
    EndReason, NOTICE_TARGETS_MAX, Notice, NoticeEvent, NoticeOmitted, NoticeState, Subscription,
};
use muster_contract::view::AsOf;
use muster_domain::fold::{Changes, Fleet, NothingToTell};

use super::register::Told;

/// What the present says of a subscription.
pub(super) enum Found {
    /// A state, or that there is nothing.
    Told(Box<Findings>),
    /// It cannot be told any more.
    TooWide,
}

/// What is to be told, before anybody asked whether it is news.
pub(super) struct Findings {
    pub(super) as_of: AsOf,
    state: Result<(NoticeState, NoticeOmitted), String>,
    changes: Changes,
    digest: Digest,
}

/// Looks at the present for a subscription.
pub(super) fn find(fleet: &Fleet, subscription: &Subscription, told: Option<Told>) -> Found {
    let mut targets_max = NOTICE_TARGETS_MAX;
    let state = loop {
        match fleet.notice_state(subscription, targets_max) {
            Err(NothingToTell::TooWide) => return Found::TooWide,
            // What was well when somebody subscribed is wrong only because what it names has gone.
            Err(error) => break Err(error.to_string()),
            Ok((state, _)) if targets_max > 0 && too_large(&state) => targets_max /= 2,
            Ok((mut state, mut omitted)) => {
                if too_large(&state) {
                    state.view = None;
                    omitted.view = true;
                }
                break Ok((state, omitted));
            }
        }
    };
    let digest = match &state {
        Ok((state, _)) => state.digest(subscription.on),
        Err(_) => Digest::of_value(&NoticeEvent::Gone),
    };
    let since = told.filter(|told| told.event != NoticeEvent::Ended).map(|told| told.ledger_seq);
    let changes = since.map(|since| fleet.changes_since(subscription, since)).unwrap_or_default();
    Found::Told(Box::new(Findings { as_of: fleet.as_of(), state, changes, digest }))
}

/// Half of a message is left for what has changed.
fn too_large(state: &NoticeState) -> bool {
    serde_json::to_vec(state).is_ok_and(|bytes| bytes.len() > MESSAGE_BYTES_MAX / 2)
}

impl Findings {
    /// True where it is not what was told last.
    pub(super) fn is_news(&self, told: Option<Told>) -> bool {
        told.is_none_or(|told| told.event == NoticeEvent::Ended || told.digest != self.digest)
    }

    /// The notice.
    pub(super) fn notice(self, name: &SubscriptionName, told: Option<Told>, coalesced: bool) -> Notice {
        let before = told.filter(|told| told.event != NoticeEvent::Ended);
        let (state, mut omitted, message) = match self.state {
            Ok((state, omitted)) => (Some(state), omitted, None),
            Err(words) => (None, NoticeOmitted::default(), Some(words)),
        };
        omitted.changes = self.changes.omitted;
        omitted.more_changes = self.changes.incomplete;
        let event = match (&state, before) {
            (None, _) => NoticeEvent::Gone,
            (Some(_), None) => NoticeEvent::Present,
            (Some(_), Some(_)) => NoticeEvent::Changed,
        };
        Notice {
            api_version: Default::default(),
            kind: Default::default(),
            name: name.clone(),
            number: told.map_or(0, |told| told.number) + 1,
            event,
            as_of: self.as_of,
            since: before.map(|told| told.ledger_seq),
            coalesced: coalesced && before.is_some(),
            state,
            changes: self.changes.listed,
            omitted,
            reason: None,
            message,
            digest: self.digest,
        }
    }
}

/// The last notice of a subscription.
pub(super) fn ending(name: &SubscriptionName, told: Option<Told>, as_of: AsOf, reason: EndReason) -> Notice {
    let message = match reason {
        EndReason::Unsubscribed => "somebody has ended the subscription".to_owned(),
        EndReason::Expired => "nothing was heard of the subscriber for as long as its lease".to_owned(),
        EndReason::TooWide => NothingToTell::TooWide.to_string(),
    };
    Notice {
        api_version: Default::default(),
        kind: Default::default(),
        name: name.clone(),
        number: told.map_or(0, |told| told.number) + 1,
        event: NoticeEvent::Ended,
        as_of,
        since: told.map(|told| told.ledger_seq),
        coalesced: false,
        state: None,
        changes: Vec::new(),
        omitted: NoticeOmitted::default(),
        reason: Some(reason),
        message: Some(message),
        digest: Digest::of_value(&reason),
    }
}

/// The notice as it is stored. Changes that find no room are counted instead.
pub(super) fn packed(mut notice: Notice) -> (Notice, Bytes) {
    loop {
        let bytes = to_bytes(&notice);
        if bytes.len() <= MESSAGE_BYTES_MAX || notice.changes.is_empty() {
            return (notice, bytes.into());
        }
        let kept = notice.changes.len() / 2;
        notice.omitted.changes += (notice.changes.len() - kept) as u64;
        notice.changes.truncate(kept);
    }
}
