//! Answers `muster.query.status`: status after filters.
//!
//! The projection is locked only while standings are read, a bounded number for one answer. Serialization, and
//! reading manifests for answers in detail ([`manifests`](super::manifests)), happen after that.

use bytes::Bytes;
use muster_contract::history::Point;
use muster_contract::query::{DETAIL_PAGE_MAX, ErrorBody, ErrorCode, Output};
use muster_contract::question::{
    ANSWER_BYTES_MAX, checked_limit, fewer, json, parsed_after, read_of_a_point,
};
use muster_contract::status::{StatusAnswer, StatusQuery};
use muster_domain::fold::{Fleet, StatusCursor};
use tokio::time::Instant;

use super::manifests::{ManifestRequest, Manifests, READS_FOR, add_manifests, wanted, withhold};
use super::present::{caught_up, no_past, refused};
use crate::projection::Projection;

/// The last token of its subject.
pub(super) const ENDPOINT: &str = "status";

/// The answer for the present, with manifests where detail is requested and they can be read.
pub(super) async fn answer(
    projection: &Projection,
    question: &[u8],
    manifests: Option<&Manifests>,
) -> Result<Bytes, ErrorBody> {
    let question = StatusQuestion::read(question)?;
    let look = |limit| std::future::ready(question.read_now(projection, limit));
    question.answer(look, manifests, Instant::now() + READS_FOR).await
}

/// A question that makes sense so far.
#[derive(Debug, Clone)]
pub(super) struct StatusQuestion {
    query: StatusQuery,
    limit: usize,
    after: Option<StatusCursor>,
}

/// The result of one read of a fleet.
#[derive(Debug)]
pub(super) struct StatusRead {
    answer: StatusAnswer,
    /// The LEDGER sequences of the targets' desired states.
    wanted: Vec<Option<ManifestRequest>>,
}

impl StatusQuestion {
    /// Reads it.
    pub(super) fn read(question: &[u8]) -> Result<Self, ErrorBody> {
        let query: StatusQuery = read_of_a_point(question)?;
        let limit = checked_limit(query.limit)?;
        let after = parsed_after::<StatusCursor>(query.after.as_deref())?;
        Ok(Self { query, limit, after })
    }

    /// The fleet that the question is about.
    pub(super) const fn point(&self) -> Point {
        self.query.point
    }

    fn is_in_detail(&self) -> bool {
        self.query.output == Output::Detail
    }

    fn read_now(&self, projection: &Projection, limit: usize) -> Result<StatusRead, ErrorBody> {
        projection.read(|now| {
            let fleet = caught_up(now)?;
            no_past(self.point())?;
            self.read_fleet(fleet, limit)
        })
    }

    /// Reads the fleet once, for so many targets.
    pub(super) fn read_fleet(&self, fleet: &Fleet, limit: usize) -> Result<StatusRead, ErrorBody> {
        let answer = fleet.status_answer(&self.query, self.after.as_ref(), limit);
        let answer = answer.map_err(|refusal| refused(&refusal))?;
        let wanted = if self.is_in_detail() {
            wanted(fleet, &answer.targets, self.query.generation)
        } else {
            Vec::new()
        };
        Ok(StatusRead { answer, wanted })
    }

    /// The answer with as many targets as requested, or as many as fit into a message. Each `look` reads that
    /// many; manifests are read until the deadline.
    pub(super) async fn answer<F: Future<Output = Result<StatusRead, ErrorBody>>>(
        &self,
        look: impl Fn(usize) -> F,
        manifests: Option<&Manifests>,
        deadline: Instant,
    ) -> Result<Bytes, ErrorBody> {
        let mut limit = if self.is_in_detail() { self.limit.min(DETAIL_PAGE_MAX) } else { self.limit };
        let reader = manifests.filter(|_| self.is_in_detail());
        let turn = match reader {
            Some(manifests) => manifests.acquire_slot(deadline).await,
            None => None,
        };
        // Without a turn they are left out.
        let reader = reader.filter(|_| turn.is_some());
        loop {
            let StatusRead { mut answer, wanted } = look(limit).await?;
            if self.is_in_detail() {
                let entries = match reader {
                    Some(manifests) => manifests.entries(wanted, deadline).await,
                    None => Vec::new(),
                };
                add_manifests(&mut answer, entries);
            }
            let bytes = written(&mut answer)?;
            if bytes.len() <= ANSWER_BYTES_MAX {
                return Ok(bytes.into());
            }
            limit = less(&answer, bytes.len())?;
        }
    }
}

/// Serializes the answer. A single target without room for its manifest comes without it.
fn written(answer: &mut StatusAnswer) -> Result<Vec<u8>, ErrorBody> {
    let bytes = json(&*answer)?;
    if bytes.len() <= ANSWER_BYTES_MAX || answer.targets.len() > 1 || answer.manifests.is_empty() {
        return Ok(bytes);
    }
    withhold(answer);
    json(&*answer)
}

/// How many targets to try after an answer that was too large.
fn less(answer: &StatusAnswer, bytes: usize) -> Result<usize, ErrorBody> {
    let lines = answer.targets.len();
    if lines <= 1 {
        let message = format!(
            "one target takes {bytes} bytes, {ANSWER_BYTES_MAX} fit into a message; ask for less (output, component)"
        );
        return Err(ErrorBody { code: ErrorCode::Internal, message });
    }
    Ok(fewer(lines, bytes))
}

#[cfg(test)]
mod tests;
