//! A notice, made of the present and of what was told last: what it says, whether it is news, and what of it fits into a
//! message. No IO.

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

/// What the present says of a subscription, as it was seen: whoever looks holds up the fold, so it is judged afterwards.
pub(super) enum Seen {
    /// A state, or that there is nothing.
    Told(Box<Sight>),
    /// It cannot be told any more.
    TooWide,
}

/// A state as it was seen, or why there is none, and what has changed.
pub(super) struct Sight {
    as_of: AsOf,
    state: Result<(NoticeState, NoticeOmitted), String>,
    changes: Changes,
}

/// What follows from it.
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

/// Looks at the present for a subscription. `since` is what this life of it was told last; of another LEDGER, nobody
/// remembers what has changed.
pub(super) fn see(
    fleet: &Fleet,
    subscription: &Subscription,
    since: Option<Told>,
    same_ledger: bool,
) -> Seen {
    let state = match fleet.notice_state(subscription, NOTICE_TARGETS_MAX) {
        Err(NothingToTell::TooWide) => return Seen::TooWide,
        // What was well when somebody subscribed is wrong only because what it names has gone.
        state => state.map_err(|error| error.to_string()),
    };
    let since = since.filter(|told| told.event != NoticeEvent::Ended);
    let changes = match since {
        None => Changes::default(),
        Some(told) if same_ledger => fleet.changes_since(subscription, told.ledger_seq),
        Some(_) => Changes { incomplete: true, ..Changes::default() },
    };
    Seen::Told(Box::new(Sight { as_of: fleet.as_of(), state, changes }))
}

impl Seen {
    /// What follows from it, for whoever is told on this.
    pub(super) fn found(self, on: TellOn) -> Found {
        let Self::Told(sight) = self else { return Found::TooWide };
        let Sight { as_of, state, changes } = *sight;
        let state = state.map(|(state, omitted)| fitting(state, omitted));
        let digest = match &state {
            Ok((state, _)) => state.digest(on),
            Err(_) => Digest::of_value(&NoticeEvent::Gone),
        };
        Found::Told(Box::new(Findings { as_of, state, changes, digest }))
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
            // They would be those of the targets that are listed, which nobody asked for.
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
    /// True where it is not what was told last.
    pub(super) fn is_news(&self, told: Option<Told>) -> bool {
        told.is_none_or(|told| told.event == NoticeEvent::Ended || told.digest != self.digest)
    }

    /// The notice of this number, after what this life of the subscription was told last.
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

#[cfg(test)]
mod tests {
    use muster_contract::Timestamp;

    use super::*;

    #[test]
    fn of_another_ledger_nobody_remembers_what_has_changed() {
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
            let Found::Told(findings) = seen.found(TellOn::Change) else { panic!("it can be told") };
            assert!(findings.is_news(Some(told)));
            let notice = findings.notice(&about.name, 2, Some(told), false);
            assert_eq!(notice.omitted.more_changes, more_changes);
        }
    }
}
