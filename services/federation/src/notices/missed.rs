//! Answers `muster.notify.missed` at the top: hub after hub, each in the order of its LEDGER. A page is of one hub.
//!
//! The positions are those of the notices: the confirmed one, and the one up to which is asked.

use bytes::Bytes;
use muster_contract::HubName;
use muster_contract::changes::Changed;
use muster_contract::notify::{
    GoneRange, HubPosition, MissedAnswer, MissedQuery, Notice, Subscription, SubscriptionRecord, TellOn,
};
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::question::{bad, checked_limit, json};
use muster_contract::subjects::NOTIFY_PREFIX;

use super::HubsSource;
use crate::gather::parsed;

const MISSED: &str = "missed";

/// One hub's part of the missed changes.
struct Leg {
    hub: HubName,
    part: Subscription,
    /// The confirmed position; none for a hub that has come since.
    after: Option<u64>,
    to: u64,
}

/// One page of missed changes.
///
/// # Errors
/// The request is wrong, or the hub that is next does not answer.
pub(super) async fn answer(
    source: &HubsSource,
    request: MissedQuery,
    stored: Option<(SubscriptionRecord, Option<Notice>)>,
) -> Result<Bytes, ErrorBody> {
    checked_limit(request.limit)?;
    let Some((record, newest)) = stored else {
        return Err(bad("filter: a federation has none; give the name of a subscription".to_owned()));
    };
    if request.after.is_some() {
        return Err(bad("after: a federation has no one sequence; leave it out".to_owned()));
    }
    let until = match (request.hubs.as_slice(), newest) {
        ([], Some(newest)) => newest.hubs,
        ([], None) => record.seen_at.clone(),
        (hubs, _) => hubs.to_vec(),
    };
    let to = until.iter().map(|hub| hub.ledger_seq).sum();
    let legs = legs(source, &record, &until)?;
    let (at, next) = begun(&legs, request.next.as_deref())?;
    let Some(leg) = legs.get(at) else {
        return written(MissedAnswer {
            name: request.name,
            changes: Vec::new(),
            gone: Vec::new(),
            to,
            next: None,
        });
    };
    let mut page = page_of(source, leg, next, request.limit).await?;
    page.next = match page.next {
        Some(next) => Some(format!("{}/{next}", leg.hub)),
        None => legs.get(at + 1).map(|leg| format!("{}/", leg.hub)),
    };
    written(MissedAnswer { name: request.name, to, ..page })
}

fn written(answer: MissedAnswer) -> Result<Bytes, ErrorBody> {
    json(answer).map(Bytes::from)
}

/// The hubs concerned, in order, with their positions.
fn legs(
    source: &HubsSource,
    record: &SubscriptionRecord,
    until: &[HubPosition],
) -> Result<Vec<Leg>, ErrorBody> {
    let known = |positions: &[HubPosition], hub: &HubName| {
        positions.iter().find(|known| known.name == *hub).map(|known| known.ledger_seq)
    };
    let shares = source.shares(&record.subscription)?;
    if let Some(hub) = shares.missing.first() {
        let message =
            format!("the hub {hub} does not answer, and it alone has its changes; ask again in a moment");
        return Err(ErrorBody { code: ErrorCode::NotReady, message });
    }
    let legs = shares.asked.into_iter().filter_map(|(hub, part)| {
        let to = known(until, &hub)?;
        let after = known(&record.seen_at, &hub);
        // A hub's verdict is not that of the deployment.
        Some(Leg { hub, part: Subscription { on: TellOn::Change, ..part }, after, to })
    });
    Ok(legs.filter(|leg| leg.after != Some(leg.to)).collect())
}

/// Which leg is next, and from where.
fn begun(legs: &[Leg], next: Option<&str>) -> Result<(usize, Option<String>), ErrorBody> {
    let Some(text) = next else { return Ok((0, None)) };
    let wrong = || bad(format!("next: '{text}' is not the `next` of an answer"));
    let (hub, next) = text.split_once('/').ok_or_else(wrong)?;
    let at = legs.iter().position(|leg| leg.hub.as_str() == hub).ok_or_else(wrong)?;
    Ok((at, Some(next.to_owned()).filter(|next| !next.is_empty())))
}

async fn page_of(
    source: &HubsSource,
    leg: &Leg,
    next: Option<String>,
    limit: Option<usize>,
) -> Result<MissedAnswer, ErrorBody> {
    let (hub, to) = (leg.hub.clone(), leg.to);
    let name = leg.part.name.clone();
    let Some(after) = leg.after.filter(|after| *after <= to) else {
        // The hub is new, or has another LEDGER.
        let gone = vec![GoneRange { hub: Some(hub), from: 1, to }];
        return Ok(MissedAnswer { name, changes: Vec::new(), gone, to, next: None });
    };
    let query = MissedQuery {
        name,
        after: Some(after),
        to: Some(to),
        hubs: Vec::new(),
        filter: Some(leg.part.clone()),
        next,
        limit,
    };
    let subject = format!("{NOTIFY_PREFIX}.{MISSED}");
    let answer = source.hubs.ask_subject(&hub, subject, json(query)?.into()).await;
    let answer = answer.and_then(|answer| parsed::<MissedAnswer>(&hub, &answer));
    let mut page = answer.map_err(|fault| {
        let reply = serde_json::from_slice::<muster_contract::query::ErrorReply>(&fault.body);
        let internal = ErrorBody { code: ErrorCode::Internal, message: fault.message };
        reply.map_or(internal, |reply| reply.error)
    })?;
    page.changes.retain(|change| matches!(change.what, Changed::Standing { .. }));
    page.gone.iter_mut().for_each(|range| range.hub = Some(hub.clone()));
    Ok(page)
}
