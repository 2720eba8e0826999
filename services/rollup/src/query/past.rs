//! Questions about the past: any question put to a point, and those that are about points themselves.

use std::sync::Arc;

use bytes::Bytes;
use muster_contract::DeviceKey;
use muster_contract::canonical::Digest;
use muster_contract::history::{DiffQuery, DigestsAnswer, MomentAnswer, Point, digest_of_digests};
use muster_contract::query::{ErrorBody, PAGE_DEFAULT, Query};
use muster_domain::fold::{Fleet, Page};
use tokio::time::Instant;

use super::{bad, checked_limit, fitting, found, json, look_up, parsed_after, status, understand};
use crate::history::point::Points;
use crate::history::rebuild::Past;
use crate::history::recall::{PATIENCE, Recall, Wanted};

/// Endpoints that are about points, whatever the question says.
pub(super) const ENDPOINTS: [&str; 4] = ["moment", "digests", "diff", "verify"];

/// Who answers about the past. Clones share everything.
#[derive(Debug, Clone)]
pub struct History {
    points: Points,
    recall: Recall,
}

impl History {
    /// Answers of points that `points` understands and `recall` reaches.
    pub const fn new(points: Points, recall: Recall) -> Self {
        Self { points, recall }
    }

    /// The answer to a question about the past.
    ///
    /// # Errors
    /// Why there is none, as the asker is to read it.
    pub(super) async fn answer(self, endpoint: &'static str, question: Bytes) -> Result<Bytes, ErrorBody> {
        let deadline = Instant::now() + PATIENCE;
        match endpoint {
            "diff" => self.diff(&question, deadline).await,
            "verify" => json(&*self.recall.verified(deadline).await?).map(Bytes::from),
            "moment" => {
                let past = self.past(understand(&question)?.point, deadline).await?;
                let answer = MomentAnswer { as_of: past.fleet.as_of(), about: past.hindsight.clone() };
                json(answer).map(Bytes::from)
            }
            "digests" => {
                let query = understand(&question)?;
                let past = self.past(query.point, deadline).await?;
                blocking(move || digests(&past.fleet, &query)).await
            }
            status::ENDPOINT => {
                let question = status::Question::read(&question)?;
                let past = self.past(question.point(), deadline).await?;
                blocking(move || question.answer(|look| look(&past.fleet))).await
            }
            _ => {
                let query = understand(&question)?;
                let past = self.past(query.point, deadline).await?;
                blocking(move || {
                    let limit = query.limit.unwrap_or(PAGE_DEFAULT);
                    fitting(limit, |limit| look_up(&past.fleet, endpoint, &query, limit))
                })
                .await
            }
        }
    }

    async fn past(&self, point: Point, deadline: Instant) -> Result<Arc<Past>, ErrorBody> {
        let wanted = self.points.wanted(point, deadline).await?;
        self.recall.past(wanted, deadline).await
    }

    async fn diff(&self, question: &Bytes, deadline: Instant) -> Result<Bytes, ErrorBody> {
        let query: DiffQuery =
            serde_json::from_slice(question).map_err(|error| bad(format!("not a question: {error}")))?;
        let limit = checked_limit(query.limit)?;
        let after: Option<DeviceKey> = parsed_after(query.after.as_deref())?;
        let from = self.side("from", query.from, deadline).await?;
        let to = self.side("to", query.to, deadline).await?;
        if from > to {
            return Err(bad(format!("from: ledger {from} is after ledger {to}, to which it is compared")));
        }
        let earlier = self.recall.past(Wanted::At(from), deadline).await?;
        let later = self.recall.past(Wanted::At(to), deadline).await?;
        blocking(move || {
            let (id, site) = (&query.id, query.site.as_ref());
            fitting(limit, |limit| {
                let page = Page { after: after.clone(), limit };
                let answer = later.fleet.diff(&earlier.fleet, id, site, &page);
                let nowhere =
                    || format!("deployment '{id}' was targeted nowhere and left nowhere at either point");
                json(found(answer, nowhere)?)
            })
        })
        .await
    }

    /// The fact that one side of a comparison is as of.
    async fn side(&self, side: &str, point: Point, deadline: Instant) -> Result<u64, ErrorBody> {
        match self.points.wanted(point, deadline).await {
            Ok(Wanted::At(seq)) => Ok(seq),
            Ok(_) => {
                Err(bad(format!("{side}: name a time or a sequence; about is no point of a comparison")))
            }
            Err(error) => Err(ErrorBody { message: format!("{side}: {}", error.message), ..error }),
        }
    }
}

fn digests(fleet: &Fleet, query: &Query) -> Result<Bytes, ErrorBody> {
    let all = fleet.digests();
    let (of, digest): (u64, Digest) = (all.len() as u64, digest_of_digests(&all));
    fitting(query.limit.unwrap_or(PAGE_DEFAULT), |limit| {
        let rest = all.iter().filter(|(key, _)| query.after.as_ref().is_none_or(|after| *key > after));
        let mut page: Vec<_> = rest.take(limit + 1).map(|(key, digest)| (key.clone(), *digest)).collect();
        let more = page.len() > limit;
        page.truncate(limit);
        let next = page.last().filter(|_| more).map(|(key, _)| key.clone());
        json(DigestsAnswer { as_of: fleet.as_of(), digest, of, views: page.into_iter().collect(), next })
    })
}

/// A large past takes its time to be looked through; others are answered meanwhile.
async fn blocking(
    work: impl FnOnce() -> Result<Bytes, ErrorBody> + Send + 'static,
) -> Result<Bytes, ErrorBody> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        Err(ErrorBody { code: muster_contract::query::ErrorCode::Internal, message: error.to_string() })
    })
}
