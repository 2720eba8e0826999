//! `muster.query.status`: status after filters. The fold waits for a question only while standings are looked at, of
//! which one answer has a bounded number; the answer is written after that, and so is read what shall run, which only who
//! asks for detail is told ([`manifests`](super::manifests)).

use bytes::Bytes;
use muster_contract::history::Point;
use muster_contract::query::{DETAIL_PAGE_MAX, ErrorBody, ErrorCode, Output};
use muster_contract::question::{
    ANSWER_BYTES_MAX, bad, checked_limit, fewer, json, parsed_after, read_of_a_point,
};
use muster_contract::status::{StatusAnswer, StatusQuery};
use muster_domain::fold::{Fleet, StatusCursor, StatusRefusal};
use tokio::time::Instant;

use super::manifests::{Manifests, READS_FOR, Wanted, tell, wanted, withhold};
use super::{caught_up, no_past};
use crate::present::Present;

/// The last token of its subject.
pub(super) const ENDPOINT: &str = "status";

/// The answer of the present, with what shall run where detail is asked for and somebody reads it.
pub(super) async fn answer(
    present: &Present,
    question: &[u8],
    manifests: Option<&Manifests>,
) -> Result<Bytes, ErrorBody> {
    let question = Question::read(question)?;
    let look = |limit| std::future::ready(question.look_at(present, limit));
    question.answer(look, manifests, Instant::now() + READS_FOR).await
}

/// A question that makes sense so far.
#[derive(Debug, Clone)]
pub(super) struct Question {
    query: StatusQuery,
    limit: usize,
    after: Option<StatusCursor>,
}

/// What one look at a fleet gives.
#[derive(Debug)]
pub(super) struct Seen {
    answer: StatusAnswer,
    /// Where LEDGER holds what shall run on each target.
    wanted: Vec<Option<Wanted>>,
}

impl Question {
    /// Reads it.
    pub(super) fn read(question: &[u8]) -> Result<Self, ErrorBody> {
        let query: StatusQuery = read_of_a_point(question)?;
        let limit = checked_limit(query.limit)?;
        let after = parsed_after::<StatusCursor>(query.after.as_deref())?;
        Ok(Self { query, limit, after })
    }

    /// Which fleet it is about.
    pub(super) const fn point(&self) -> Point {
        self.query.point
    }

    fn is_in_detail(&self) -> bool {
        self.query.output == Output::Detail
    }

    fn look_at(&self, present: &Present, limit: usize) -> Result<Seen, ErrorBody> {
        present.look(|now| {
            let fleet = caught_up(now)?;
            no_past(self.point())?;
            self.look(fleet, limit)
        })
    }

    /// One look at a fleet, for so many targets.
    pub(super) fn look(&self, fleet: &Fleet, limit: usize) -> Result<Seen, ErrorBody> {
        let answer = fleet.status_answer(&self.query, self.after.as_ref(), limit);
        let answer = answer.map_err(|refusal| refused(&refusal))?;
        let wanted = if self.is_in_detail() {
            wanted(fleet, &answer.targets, self.query.generation)
        } else {
            Vec::new()
        };
        Ok(Seen { answer, wanted })
    }

    /// The answer with as many targets as were asked for, or as many as fit into a message. Each `look` is for so many; what
    /// shall run is read until the deadline.
    pub(super) async fn answer<F: Future<Output = Result<Seen, ErrorBody>>>(
        &self,
        look: impl Fn(usize) -> F,
        manifests: Option<&Manifests>,
        deadline: Instant,
    ) -> Result<Bytes, ErrorBody> {
        let mut limit = if self.is_in_detail() { self.limit.min(DETAIL_PAGE_MAX) } else { self.limit };
        let reader = manifests.filter(|_| self.is_in_detail());
        let turn = match reader {
            Some(manifests) => manifests.turn(deadline).await,
            None => None,
        };
        // Without a turn they are left out.
        let reader = reader.filter(|_| turn.is_some());
        loop {
            let Seen { mut answer, wanted } = look(limit).await?;
            if self.is_in_detail() {
                let entries = match reader {
                    Some(manifests) => manifests.entries(wanted, deadline).await,
                    None => Vec::new(),
                };
                tell(&mut answer, entries);
            }
            let bytes = written(&mut answer)?;
            if bytes.len() <= ANSWER_BYTES_MAX {
                return Ok(bytes.into());
            }
            limit = less(&answer, bytes.len())?;
        }
    }
}

/// The answer as it is sent. A single target that finds no room beside what shall run comes without that.
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

fn refused(refusal: &StatusRefusal) -> ErrorBody {
    let message = refusal.to_string();
    match refusal {
        StatusRefusal::Unknown(_) => ErrorBody { code: ErrorCode::NotFound, message },
        StatusRefusal::Wrong(_) => bad(message),
    }
}

#[cfg(test)]
mod tests;
