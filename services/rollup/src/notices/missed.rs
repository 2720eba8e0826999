//! Answers `muster.notify.missed`: recomputes from LEDGER the changes between the confirmed position of a subscriber and a
//! notice. No changes are stored for subscribers, so a subscriber that is away costs nothing.
//!
//! The fold is rebuilt as of the confirmed position, and the facts after it are applied one by one. Where LEDGER has
//! forgotten facts, or one fact changed too much, the answer names the range.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use muster_bus::Requester;
use muster_contract::notify::{
    GoneRange, MissedAnswer, MissedQuery, Notice, Subscription, SubscriptionRecord,
};
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::question::{bad, checked_limit, fitting};
use muster_domain::fold::ChangeRecord;
use tokio::time::Instant;

use crate::history::point_in_time::{PATIENCE, Rebuilds};

/// A position within the missed changes: `next` of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MissedCursor {
    /// Changes after this sequence,
    after: u64,
    /// up to this one,
    to: u64,
    /// but the first so many.
    skip: usize,
}

impl fmt::Display for MissedCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { after, to, skip } = self;
        write!(f, "{after}.{to}.{skip}")
    }
}

impl FromStr for MissedCursor {
    type Err = ErrorBody;

    fn from_str(text: &str) -> Result<Self, ErrorBody> {
        let wrong = || bad(format!("next: '{text}' is not the `next` of an answer"));
        let mut parts = text.split('.');
        let mut number = || parts.next()?.parse::<u64>().ok();
        let (after, to, skip) = (number(), number(), number());
        let (Some(after), Some(to), Some(skip), None) = (after, to, skip, parts.next()) else {
            return Err(wrong());
        };
        let skip = usize::try_from(skip).map_err(|_| wrong())?;
        Ok(Self { after, to, skip })
    }
}

/// One page of missed changes.
///
/// # Errors
/// The request is wrong, or the past cannot be rebuilt in time.
pub(super) async fn answer(
    rebuilds: &Rebuilds,
    request: MissedQuery,
    stored: Option<(SubscriptionRecord, Option<Notice>)>,
    read_to: u64,
    requester: Requester,
) -> Result<Bytes, ErrorBody> {
    let limit = checked_limit(request.limit)?;
    let cursor = cursor(&request, stored.as_ref(), read_to)?;
    let filter = request.filter.or(stored.map(|(record, _)| record.subscription));
    let Some(filter) = filter else { return Err(bad("filter: is missing".to_owned())) };
    let rebuilds = rebuilds.clone().for_requester(requester);
    let place = rebuilds.acquire_slot();
    let deadline = Instant::now() + if place.is_some() { PATIENCE } else { Duration::ZERO };
    let record = rebuilds.remaining_changes(cursor.after, cursor.to, deadline).await?;
    let page = move || {
        fitting(limit, |limit| Ok(page(record.as_deref(), &filter, cursor, limit)))
            .map(|answer: Vec<u8>| Bytes::from(answer))
    };
    let done = tokio::task::spawn_blocking(page).await;
    done.unwrap_or_else(|error| Err(ErrorBody { code: ErrorCode::Internal, message: error.to_string() }))
}

/// The position that a request asks for.
fn cursor(
    request: &MissedQuery,
    stored: Option<&(SubscriptionRecord, Option<Notice>)>,
    read_to: u64,
) -> Result<MissedCursor, ErrorBody> {
    if !request.hubs.is_empty() {
        return Err(bad("hubs: this is one hub; give `to`".to_owned()));
    }
    let cursor = match &request.next {
        Some(next) => next.parse()?,
        None => {
            let (confirmed, newest) = match stored {
                Some((record, newest)) => {
                    let newest = newest.as_ref().map(|notice| notice.as_of.ledger_seq);
                    (Some(record.seen_seq), newest.or(Some(record.seen_seq)))
                }
                None => (None, None),
            };
            let missing = |field: &str| bad(format!("{field}: is required with filter"));
            let after = request.after.or(confirmed).ok_or_else(|| missing("after"))?;
            let to = request.to.or(newest).ok_or_else(|| missing("to"))?;
            // Without a newer notice nothing was missed.
            MissedCursor { after, to: if request.to.is_none() { to.max(after) } else { to }, skip: 0 }
        }
    };
    let MissedCursor { after, to, .. } = cursor;
    if to > read_to {
        return Err(bad(format!(
            "to: LEDGER is read up to {read_to}, which is before {to}; was it replaced?"
        )));
    }
    if after > to {
        return Err(bad(format!("after: ledger {after} is after ledger {to} (`to`)")));
    }
    Ok(cursor)
}

fn page(
    record: Option<&ChangeRecord>,
    filter: &Subscription,
    cursor: MissedCursor,
    limit: usize,
) -> MissedAnswer {
    let MissedCursor { after, to, skip } = cursor;
    let name = filter.name.clone();
    let Some(record) = record else {
        let gone = (after < to).then_some(GoneRange { hub: None, from: after + 1, to });
        return MissedAnswer { name, changes: Vec::new(), gone: gone.into_iter().collect(), to, next: None };
    };
    let mut changes = record.passing(filter, skip);
    let is_last = changes.len() <= limit;
    changes.truncate(limit);
    let next = if !is_last {
        Some(MissedCursor { skip: skip + limit, ..cursor })
    } else if record.to().ledger_seq > record.from().ledger_seq && record.is_cut() {
        // One record has room for so many changes; the next page begins another.
        Some(MissedCursor { after: record.to().ledger_seq, to, skip: 0 })
    } else {
        None
    };
    let gone = if skip == 0 { gone(record, after) } else { Vec::new() };
    MissedAnswer { name, changes, gone, to, next: next.map(|next| next.to_string()) }
}

/// The ranges whose changes are not in the record.
fn gone(record: &ChangeRecord, after: u64) -> Vec<GoneRange> {
    let start = record.from().ledger_seq;
    let trimmed = (after < start).then_some((after + 1, start));
    let incomplete = record.incomplete().iter().map(|seq| (*seq, *seq));
    trimmed.into_iter().chain(incomplete).map(|(from, to)| GoneRange { hub: None, from, to }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(request: serde_json::Value) -> MissedQuery {
        serde_json::from_value(request).unwrap()
    }

    fn stored(seen_seq: u64) -> (SubscriptionRecord, Option<Notice>) {
        let record = serde_json::json!({"apiVersion": "muster/v1", "kind": "SubscriptionRecord",
            "subscription": {"name": "a"}, "seen": 1, "seenSeq": seen_seq});
        (serde_json::from_value(record).unwrap(), None)
    }

    #[test]
    fn missed_changes_begin_after_the_confirmed_notice_or_a_given_position() {
        let stored = stored(7);
        let at = |request| cursor(&asked(request), Some(&stored), 20).map(|it| (it.after, it.to));
        assert_eq!(at(serde_json::json!({"name": "a"})).unwrap(), (7, 7), "there is no notice");
        assert_eq!(at(serde_json::json!({"name": "a", "after": 3, "to": 9})).unwrap(), (3, 9));
        assert_eq!(at(serde_json::json!({"name": "a", "next": "3.9.100"})).unwrap(), (3, 9));
        for (request, field) in [
            (serde_json::json!({"name": "a", "to": 21}), "to:"),
            (serde_json::json!({"name": "a", "after": 9, "to": 8}), "after:"),
            (serde_json::json!({"name": "a", "next": "3.9"}), "next:"),
            (serde_json::json!({"name": "a", "hubs": [{"name": "north", "ledgerSeq": 1}]}), "hubs:"),
        ] {
            let refused = at(request).unwrap_err();
            assert!(refused.message.starts_with(field), "{refused:?}");
        }
        let alone = asked(serde_json::json!({"name": "a", "filter": {"name": "a"}, "after": 3}));
        assert!(cursor(&alone, None, 20).unwrap_err().message.starts_with("to:"));
    }

    #[test]
    fn n10_what_is_gone_is_named_as_a_range() {
        let filter = Subscription::named("a".parse().unwrap());
        let answer = page(None, &filter, MissedCursor { after: 3, to: 9, skip: 0 }, 10);
        assert_eq!(answer.gone, [GoneRange { hub: None, from: 4, to: 9 }]);
        assert!(answer.changes.is_empty() && answer.next.is_none());
    }
}
