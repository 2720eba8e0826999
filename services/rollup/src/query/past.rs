//! Answers questions about the past: any question at a point, and questions about points themselves.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_bus::Requester;
use muster_contract::DeviceKey;
use muster_contract::canonical::Digest;
use muster_contract::changes::ChangesQuery;
use muster_contract::history::{DiffQuery, DigestsAnswer, MomentAnswer, Point, digest_of_digests};
use muster_contract::query::{ErrorBody, ErrorCode, Query};
use muster_contract::question::{bad, checked_limit, fitting, found, json, parsed_after, read, read_query};
use muster_domain::fold::{Fleet, Page};
use tokio::time::Instant;

use super::manifests::{Manifests, READS_AFTER};
use super::present::{Answer, look_up};
use super::{groups, status};
use crate::history::point::Points;
use crate::history::point_in_time::{PATIENCE, RebuildRequest, RebuildTarget, Rebuilds};
use crate::history::rebuild::Past;

/// Endpoints that are always about points.
pub(super) const ENDPOINTS: [&str; 5] = ["moment", "digests", "diff", "changes", "verify"];

/// Answers questions about the past. Clones share everything.
#[derive(Debug, Clone)]
pub(crate) struct History {
    points: Points,
    rebuilds: Rebuilds,
}

impl History {
    /// Creates a responder for points that `points` resolves and `rebuilds` reaches.
    pub(crate) const fn new(points: Points, rebuilds: Rebuilds) -> Self {
        Self { points, rebuilds }
    }

    /// The answer to a question about the past.
    ///
    /// # Errors
    /// The reason, for the asker.
    pub(super) async fn answer(
        self,
        endpoint: &'static str,
        question: Bytes,
        manifests: Option<&Manifests>,
        requester: Requester,
    ) -> Result<Bytes, ErrorBody> {
        let this = Self { rebuilds: self.rebuilds.for_requester(requester), ..self };
        let place = this.rebuilds.acquire_slot();
        let deadline = Instant::now() + if place.is_some() { PATIENCE } else { Duration::ZERO };
        match endpoint {
            "diff" => this.diff(&question, deadline).await,
            "changes" => this.changes(&question, deadline).await,
            "verify" => {
                read_query(endpoint, &question)?;
                json(&*this.rebuilds.verified(deadline).await?).map(Bytes::from)
            }
            "moment" => {
                let query = read_query(endpoint, &question)?;
                checked_limit(query.limit)?;
                let past = this.past(query.point, deadline).await?;
                let answer = MomentAnswer { as_of: past.fleet.as_of(), event_time: past.certainty.clone() };
                json(answer).map(Bytes::from)
            }
            "digests" => {
                let query = read_query(endpoint, &question)?;
                let limit = checked_limit(query.limit)?;
                let past = this.past(query.point, deadline).await?;
                blocking(move || digests(&past.fleet, &query, limit)).await
            }
            status::ENDPOINT => {
                let question = status::StatusQuestion::read(&question)?;
                let past = this.past(question.point(), deadline).await?;
                let look = |limit| {
                    let (question, past) = (question.clone(), Arc::clone(&past));
                    blocking(move || question.read_fleet(&past.fleet, limit))
                };
                question.answer(look, manifests, deadline + READS_AFTER).await
            }
            _ if groups::ENDPOINTS.contains(&endpoint) => {
                let question = groups::GroupQuestion::read(endpoint, &question)?;
                let past = this.past(question.point(), deadline).await?;
                blocking(move || question.answer_of(&past.fleet)).await
            }
            _ => {
                let query = read_query(endpoint, &question)?;
                let limit = checked_limit(query.limit)?;
                let past = this.past(query.point, deadline).await?;
                let look = move |limit| look_up(&past.fleet, endpoint, &query, limit).map(Answer::abridged);
                blocking(move || fitting(limit, look)).await
            }
        }
    }

    async fn past(&self, point: Point, deadline: Instant) -> Result<Arc<Past>, ErrorBody> {
        let asked = self.points.asked(point, deadline).await?;
        self.rebuilds.past(asked, deadline).await
    }

    async fn diff(&self, question: &Bytes, deadline: Instant) -> Result<Bytes, ErrorBody> {
        let query: DiffQuery = read(question)?;
        let limit = checked_limit(query.limit)?;
        let after: Option<DeviceKey> = parsed_after(query.after.as_deref())?;
        let (from, earlier) = self.side("from", query.from, deadline).await?;
        let (to, later) = self.side("to", query.to, deadline).await?;
        if from > to {
            return Err(bad(format!("from: ledger {from} is after ledger {to}, to which it is compared")));
        }
        // A recent rebuild of the present serves only if it contains both points.
        let later = RebuildRequest { now_since: later.now_since.map(|_| from), ..later };
        let earlier = self.rebuilds.past(earlier, deadline).await?;
        let later = self.rebuilds.past(later, deadline).await?;
        blocking(move || {
            let (id, site) = (&query.id, query.site.as_ref());
            fitting(limit, |limit| {
                let page = Page { after: after.clone(), limit };
                let answer = later.fleet.diff(&earlier.fleet, id, site, &page);
                let nowhere =
                    || format!("deployment '{id}' was targeted nowhere and left nowhere at either point");
                found(answer, nowhere)
            })
        })
        .await
    }

    async fn changes(&self, question: &Bytes, deadline: Instant) -> Result<Bytes, ErrorBody> {
        let query: ChangesQuery = read(question)?;
        let limit = checked_limit(query.limit)?;
        if query.from.is_now() {
            return Err(bad(
                "from: is missing; name a time or a sequence of LEDGER, and the changes after it are listed"
                    .to_owned(),
            ));
        }
        let (from, _) = self.side("from", query.from, deadline).await?;
        let (to, _) = self.side("to", query.to, deadline).await?;
        if from > to {
            return Err(bad(format!("from: ledger {from} is after ledger {to} (`to`); exchange the points")));
        }
        let record = self.rebuilds.changes(from, to, deadline).await?;
        blocking(move || fitting(limit, |limit| Ok(record.answer(&query, limit)))).await
    }

    /// The fact that one side of a comparison is as of.
    async fn side(
        &self,
        side: &str,
        point: Point,
        deadline: Instant,
    ) -> Result<(u64, RebuildRequest), ErrorBody> {
        match self.points.asked(point, deadline).await {
            Ok(asked @ RebuildRequest { wanted: RebuildTarget::At(seq), .. }) => Ok((seq, asked)),
            Ok(_) => Err(bad(format!(
                "{side}: name a time or a sequence; an event time is no point of a comparison"
            ))),
            Err(error) => Err(ErrorBody { message: format!("{side}: {}", error.message), ..error }),
        }
    }
}

fn digests(fleet: &Fleet, query: &Query, limit: usize) -> Result<Bytes, ErrorBody> {
    let all = fleet.digests();
    let (of, digest): (u64, Digest) = (all.len() as u64, digest_of_digests(&all));
    fitting(limit, |limit| {
        let rest = all.iter().filter(|(key, _)| query.after.as_ref().is_none_or(|after| *key > after));
        let mut page: Vec<_> = rest.take(limit + 1).map(|(key, digest)| (key.clone(), *digest)).collect();
        let more = page.len() > limit;
        page.truncate(limit);
        let next = page.last().filter(|_| more).map(|(key, _)| key.clone());
        Ok(DigestsAnswer { as_of: fleet.as_of(), digest, of, views: page.into_iter().collect(), next })
    })
}

/// A large past takes its time to be looked through; others are answered meanwhile.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ErrorBody> + Send + 'static,
) -> Result<T, ErrorBody> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(ErrorBody { code: ErrorCode::Internal, message: error.to_string() }))
}
