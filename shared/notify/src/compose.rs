//! Composes a notice from what its source has read and the previous notice: its content, whether it is news, and what
//! fits into a message. It does no IO.

use bytes::Bytes;
use muster_contract::SubscriptionName;
use muster_contract::canonical::Digest;
use muster_contract::decode::to_bytes;
use muster_contract::limits::MESSAGE_BYTES_MAX;
use muster_contract::notify::{
    EndReason, HubPosition, NOTICE_TARGETS_MAX, Notice, NoticeEvent, NoticeOmitted, NoticeState, TellOn,
};
use muster_contract::view::AsOf;
use muster_domain::fold::{Changes, NothingToTell};

use crate::register::LastNotice;

/// A subscription's state as its source reads it: reading may lock the source, so the state is judged afterwards.
pub enum SubscriptionRead {
    /// A state, or that there is nothing.
    State(Box<SubscriptionState>),
    /// The subscription can no longer be evaluated.
    TooWide,
    /// It cannot be evaluated now.
    NotNow,
}

/// The state that was read, or why there is none, and the changes.
pub struct SubscriptionState {
    /// The position that it reflects.
    pub as_of: AsOf,
    /// In a federation, the position in the LEDGER of each hub.
    pub hubs: Vec<HubPosition>,
    /// The state and what it leaves out, or the reason why nothing passes the filter.
    pub state: Result<(NoticeState, NoticeOmitted), String>,
    /// The changes since the last notice.
    pub changes: Changes,
}

/// The resulting action.
pub(crate) enum FoundNotice {
    /// A state, or that there is nothing.
    Content(Box<Findings>),
    /// The subscription can no longer be evaluated.
    TooWide,
    /// It cannot be evaluated now.
    NotNow,
}

/// The notice's content, before it is compared with the previous one.
pub(crate) struct Findings {
    pub(crate) as_of: AsOf,
    hubs: Vec<HubPosition>,
    state: Result<(NoticeState, NoticeOmitted), String>,
    changes: Changes,
    digest: Digest,
}

impl SubscriptionRead {
    /// Derives the content of the notice; `on` selects the part of the state that its digest covers.
    pub(crate) fn found(self, on: TellOn) -> FoundNotice {
        let sight = match self {
            Self::State(state) => *state,
            Self::TooWide => return FoundNotice::TooWide,
            Self::NotNow => return FoundNotice::NotNow,
        };
        let SubscriptionState { as_of, hubs, state, changes } = sight;
        let state = state.map(|(state, omitted)| fitting(state, omitted));
        let digest = match &state {
            Ok((state, _)) => state.digest(on),
            Err(_) => Digest::of_value(&NoticeEvent::Gone),
        };
        FoundNotice::Content(Box::new(Findings { as_of, hubs, state, changes, digest }))
    }
}

/// As much of a state as finds room. How many targets that is changes by halves: one more or less at every turn would be
/// news each time.
pub fn fitting(mut state: NoticeState, mut omitted: NoticeOmitted) -> (NoticeState, NoticeOmitted) {
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
    pub(crate) fn is_news(&self, told: Option<LastNotice>) -> bool {
        told.is_none_or(|told| told.event == NoticeEvent::Ended || told.digest != self.digest)
    }

    /// Composes the notice with this number, after the last notice of this subscription.
    pub(crate) fn notice(
        self,
        name: &SubscriptionName,
        number: u64,
        told: Option<LastNotice>,
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
            hubs: self.hubs,
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
pub(crate) fn ending(
    name: &SubscriptionName,
    number: u64,
    told: Option<LastNotice>,
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
        hubs: Vec::new(),
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
pub(crate) fn packed(mut notice: Notice) -> (Notice, Bytes) {
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
