//! Composes a notice from the projection and the previous notice: its content, whether it is news, and what
//! fits into a message. It does no IO.

use bytes::Bytes;
use muster_contract::SubscriptionName;
use muster_contract::canonical::Digest;
use muster_contract::decode::to_bytes;
use muster_contract::limits::MESSAGE_BYTES_MAX;
use muster_contract::notify::{
    EndReason, NOTICE_TARGETS_MAX, Notice, NoticeEvent, NoticeOmitted, NoticeState, Subscription, TellOn,
};
use muster_contract::view::AsOf;
use muster_domain::fold::{Changes, Fleet, NothingToTell};

use super::register::Told;

/// A subscription's state as read from the projection: the read locks the fold, so it is judged afterwards.
pub(super) enum SubscriptionRead {
    /// A state, or that there is nothing.
    Told(Box<Sight>),
    /// The subscription can no longer be evaluated.
    TooWide,
}

/// The state that was read, or why there is none, and the changes.
pub(super) struct Sight {
    as_of: AsOf,
    state: Result<(NoticeState, NoticeOmitted), String>,
    changes: Changes,
}

/// The resulting action.
pub(super) enum FoundNotice {
    /// A state, or that there is nothing.
    Told(Box<Findings>),
    /// The subscription can no longer be evaluated.
    TooWide,
}

/// The notice's content, before it is compared with the previous one.
pub(super) struct Findings {
    pub(super) as_of: AsOf,
    state: Result<(NoticeState, NoticeOmitted), String>,
    changes: Changes,
    digest: Digest,
}

/// Reads the projection for a subscription. `since` is the last notice of this subscription; for another LEDGER
/// no changes are known.
pub(super) fn see(
    fleet: &Fleet,
    subscription: &Subscription,
    since: Option<Told>,
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
    SubscriptionRead::Told(Box::new(Sight { as_of: fleet.as_of(), state, changes }))
}

impl SubscriptionRead {
    /// Derives the content of the notice; `on` selects the part of the state that its digest covers.
    pub(super) fn found(self, on: TellOn) -> FoundNotice {
        let Self::Told(sight) = self else { return FoundNotice::TooWide };
        let Sight { as_of, state, changes } = *sight;
        let state = state.map(|(state, omitted)| fitting(state, omitted));
        let digest = match &state {
            Ok((state, _)) => state.digest(on),
            Err(_) => Digest::of_value(&NoticeEvent::Gone),
        };
        FoundNotice::Told(Box::new(Findings { as_of, state, changes, digest }))
    }
}

/// As much of a state as finds room. How many targets that is changes by halves: one more or less at every turn would be
/// news each time.
fn fitting(mut state: NoticeState, mut omitted: NoticeOmitted) -> (NoticeState, NoticeOmitted) {
    let mut targets_max = NOTICE_TARGETS_MAX;
    while targets_max > 0 && too_large(&state) {
        targets_max /= 2;
        omitted.targets += state.targets.len().saturating_sub(targets_max) as u64;
        state.targets.truncate(targets_max);
        if omitted.targets > 0 {
            // The apps would cover only the listed targets, which the subscriber did not ask for.
            state.apps = Vec::new();
        }
    }
    if too_large(&state) {
        state.view = None;
        omitted.view = true;
    }
    (state, omitted)
}

/// Half of a message is left for what has changed.
fn too_large(state: &NoticeState) -> bool {
    serde_json::to_vec(state).is_ok_and(|bytes| bytes.len() > MESSAGE_BYTES_MAX / 2)
}

impl Findings {
    /// True where it differs from the last notice.
    pub(super) fn is_news(&self, told: Option<Told>) -> bool {
        told.is_none_or(|told| told.event == NoticeEvent::Ended || told.digest != self.digest)
    }

    /// Composes the notice with this number, after the last notice of this subscription.
    pub(super) fn notice(
        self,
        name: &SubscriptionName,
        number: u64,
        told: Option<Told>,
        coalesced: bool,
    ) -> Notice {
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
            number,
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
pub(super) fn ending(
    name: &SubscriptionName,
    number: u64,
    told: Option<Told>,
    as_of: AsOf,
    reason: EndReason,
) -> Notice {
    let message = match reason {
        EndReason::Unsubscribed => "somebody has ended the subscription".to_owned(),
        EndReason::Expired => "nothing was heard of the subscriber for as long as its lease".to_owned(),
        EndReason::TooWide => NothingToTell::TooWide.to_string(),
    };
    Notice {
        api_version: Default::default(),
        kind: Default::default(),
        name: name.clone(),
        number,
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

/// Serializes the notice. Changes that do not fit are counted instead.
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

#[cfg(test)]
mod tests {
    use muster_contract::Timestamp;

    use super::*;

    #[test]
    fn changes_of_another_ledger_are_incomplete() {
        let (fleet, about) = (Fleet::default(), Subscription::named("a".parse().unwrap()));
        let told = Told {
            number: 1,
            event: NoticeEvent::Present,
            ledger_seq: 0,
            at: Timestamp::UNIX_EPOCH,
            digest: Digest::of_bytes(b"other"),
        };
        for (same_ledger, more_changes) in [(true, false), (false, true)] {
            let seen = see(&fleet, &about, Some(told), same_ledger);
            let FoundNotice::Told(findings) = seen.found(TellOn::Change) else { panic!("it can be told") };
            assert!(findings.is_news(Some(told)));
            let notice = findings.notice(&about.name, 2, Some(told), false);
            assert_eq!(notice.omitted.more_changes, more_changes);
        }
    }
}
