//! The past of hubs in memory: facts in order, folded anew up to the requested point, as a rollup does from
//! LEDGER.

use std::sync::{Arc, Mutex};

use muster_contract::DeviceKey;
use muster_contract::canonical::Digest;
use muster_contract::groups::GroupQuery;
use muster_contract::history::{DiffQuery, DigestsAnswer, MomentAnswer, Point, digest_of_digests};
use muster_contract::parts::{PartsAnswer, PartsQuery};
use muster_contract::query::{ErrorBody, ErrorCode, Query};
use muster_contract::question::{
    bad, checked_limit, fitting, found, json, parsed_after, point_of, read, read_of_a_point,
};
use muster_contract::subjects::ViewKey;
use muster_domain::fold::{EventTimeFold, Fleet, Page};

use crate::hubs::{answer, refused};
use crate::ledger::{Entry, position};

/// Facts with their places, in order.
#[derive(Default)]
pub(crate) struct Book {
    pub(crate) facts: Vec<(usize, Entry)>,
    /// Points that were asked for: folding is what takes the time.
    held: Mutex<Vec<(Point, Arc<FleetAtPoint>)>>,
}

/// The fleet as of a point, and what that is.
type FleetAtPoint = (Fleet, MomentAnswer);

impl std::fmt::Debug for Book {
    /// Their number alone: the fleets of the present tell the rest.
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{} facts", self.facts.len())
    }
}

impl Book {
    /// The answer of a hub with these facts, about the past or the present.
    pub(crate) fn answer(&self, now: &Fleet, endpoint: &str, question: &[u8]) -> Result<Vec<u8>, ErrorBody> {
        if endpoint == "diff" {
            return self.diff(&read(question)?);
        }
        let point = point_of(question)?;
        let then = if point.is_now() { None } else { Some(self.then(point)?) };
        let fleet = then.as_ref().map_or(now, |then| &then.0);
        match endpoint {
            "moment" => json(then.map(|then| then.1.clone())),
            "digests" => digests(fleet, &read_of_a_point(question)?),
            "parts" => json(parts(fleet, &read_of_a_point(question)?)),
            "labels" | "groups" | "group" => groups(fleet, endpoint, &read_of_a_point(question)?),
            "fleet" => json(fleet.fleet_view()),
            "deployments" => {
                let query: Query = read_of_a_point(question)?;
                let page =
                    Page { after: parsed_after(query.after.as_deref())?, limit: checked_limit(query.limit)? };
                let list = fleet.deployments_answer(&query, &page);
                json(list.map_err(|refusal| refused(&refusal))?)
            }
            _ => answer(fleet, endpoint, question),
        }
    }

    /// The state at a point.
    pub(crate) fn then(&self, point: Point) -> Result<Arc<FleetAtPoint>, ErrorBody> {
        let mut held = self.held.lock().unwrap();
        if let Some((_, then)) = held.iter().find(|(of, _)| *of == point) {
            return Ok(Arc::clone(then));
        }
        let then = Arc::new(self.made(point)?);
        held.push((point, Arc::clone(&then)));
        Ok(then)
    }

    fn made(&self, point: Point) -> Result<FleetAtPoint, ErrorBody> {
        let last = |is_in: &dyn Fn(usize) -> bool| {
            let seqs = self.facts.iter().filter(|(at, _)| is_in(*at)).map(|(at, _)| position(*at).ledger_seq);
            seqs.last().unwrap_or_default()
        };
        let by = match (point.at, point.at_seq) {
            (Some(_), Some(_)) => return Err(bad("at and atSeq: name one of the two".to_owned())),
            (Some(time), None) => last(&|at| position(at).stored_at <= time),
            (None, Some(seq)) => seq,
            (None, None) => last(&|_| true),
        };
        let Some(moment) = point.about else {
            let fleet = self.fold(by);
            let as_of = fleet.as_of();
            return Ok((fleet, MomentAnswer { as_of, about: None, hubs: Vec::new() }));
        };
        let then = last(&|at| position(at).stored_at <= moment);
        if then > by {
            return Err(bad(format!("about: {moment} is after the point at which it is to be known")));
        }
        let mut hindsight = EventTimeFold::of(self.fold(then), moment);
        for (at, entry) in self.within(then, by) {
            hindsight.apply(position(*at), &entry.subject, entry.fact.clone());
        }
        let (fleet, about) = hindsight.finish();
        let as_of = fleet.as_of();
        Ok((fleet, MomentAnswer { as_of, about: Some(about), hubs: Vec::new() }))
    }

    fn within(&self, after: u64, by: u64) -> impl Iterator<Item = &(usize, Entry)> {
        self.facts.iter().filter(move |(at, _)| (after + 1..=by).contains(&position(*at).ledger_seq))
    }

    fn fold(&self, by: u64) -> Fleet {
        let mut fleet = Fleet::default();
        for (at, entry) in self.within(0, by) {
            fleet.apply(position(*at), &entry.subject, entry.fact.clone());
        }
        fleet
    }

    fn diff(&self, query: &DiffQuery) -> Result<Vec<u8>, ErrorBody> {
        let (earlier, later) = (self.then(query.from)?, self.then(query.to)?);
        let (earlier, later) = (&earlier.0, &later.0);
        if earlier.as_of().ledger_seq > later.as_of().ledger_seq {
            return Err(bad("from: is after the point to which it is compared".to_owned()));
        }
        let (limit, after) =
            (checked_limit(query.limit)?, parsed_after::<DeviceKey>(query.after.as_deref())?);
        fitting(limit, |limit| {
            let page = Page { after: after.clone(), limit };
            found(later.diff(earlier, &query.id, query.site.as_ref(), &page), || "nowhere".to_owned())
        })
    }
}

fn digests(fleet: &Fleet, query: &Query) -> Result<Vec<u8>, ErrorBody> {
    let (all, limit) = (fleet.digests(), checked_limit(query.limit)?);
    let (of, digest): (u64, Digest) = (all.len() as u64, digest_of_digests(&all));
    let rest = all.into_iter().filter(|(key, _)| query.after.as_ref().is_none_or(|after| key > after));
    // Small pages, so that a federation has to ask on.
    let mut page: Vec<_> = rest.take(limit.min(3) + 1).collect();
    let more = page.len() > limit.min(3);
    page.truncate(limit.min(3));
    let next = page.last().filter(|_| more).map(|(key, _)| key.clone());
    json(DigestsAnswer { as_of: fleet.as_of(), digest, of, views: page.into_iter().collect(), next })
}

/// At most so many rows of each key, and not of the last key where there are several, so that a federation has to ask on.
const ROWS: usize = 2;

fn parts(fleet: &Fleet, query: &PartsQuery) -> PartsAnswer {
    let mut answer = PartsAnswer { as_of: fleet.as_of(), parts: Default::default(), gone: Vec::new() };
    let told = query.keys.len().div_ceil(2);
    for key in query.keys.iter().take(told) {
        match fleet.part(&ViewKey::parse(key).unwrap(), query.skip, ROWS) {
            Some(part) => _ = answer.parts.insert(key.clone(), part),
            None => answer.gone.push(key.clone()),
        }
    }
    answer
}

fn groups(fleet: &Fleet, endpoint: &str, query: &GroupQuery) -> Result<Vec<u8>, ErrorBody> {
    let limit = checked_limit(query.limit)?;
    let none = || ErrorBody { code: ErrorCode::NotFound, message: "no group".to_owned() };
    match (endpoint, &query.label, &query.value) {
        ("labels", ..) => json(fleet.labels_answer(&Page { after: None, limit })),
        ("groups", Some(label), _) => {
            let page = Page { after: parsed_after(query.after.as_deref())?, limit };
            json(fleet.groups_answer(label, query.id.as_ref(), &page).map_err(|_| none())?)
        }
        (_, Some(label), Some(value)) => json(fleet.group_view(label, value).ok_or_else(none)?),
        _ => Err(none()),
    }
}
