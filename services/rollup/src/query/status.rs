//! `muster.query.status`: status after filters. The fold waits for a question only while standings are looked at, of
//! which one answer has a bounded number; the answer is written after that.

use bytes::Bytes;
use muster_contract::history::Point;
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::question::{
    ANSWER_BYTES_MAX, bad, checked_limit, fewer, json, parsed_after, read_of_a_point,
};
use muster_contract::status::{StatusAnswer, StatusQuery};
use muster_domain::fold::{Fleet, StatusCursor, StatusRefusal};

use super::{caught_up, no_past};
use crate::present::Present;

/// The last token of its subject.
pub(super) const ENDPOINT: &str = "status";

/// The answer of the present.
pub(super) fn answer(present: &Present, question: &[u8]) -> Result<Bytes, ErrorBody> {
    let question = Question::read(question)?;
    question.answer(|look| {
        present.look(|now| {
            let fleet = caught_up(now)?;
            no_past(question.point())?;
            look(fleet)
        })
    })
}

/// A question that makes sense so far.
pub(super) struct Question {
    query: StatusQuery,
    limit: usize,
    after: Option<StatusCursor>,
}

/// One look at a fleet.
type Look<'a> = &'a dyn Fn(&Fleet) -> Result<StatusAnswer, ErrorBody>;

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

    /// The answer with as many targets as were asked for, or as many as fit into a message. `of` has each look taken at
    /// the fleet.
    pub(super) fn answer(
        &self,
        of: impl Fn(Look<'_>) -> Result<StatusAnswer, ErrorBody>,
    ) -> Result<Bytes, ErrorBody> {
        let mut limit = self.limit;
        loop {
            let answer = of(&|fleet| {
                let answer = fleet.status_answer(&self.query, self.after.as_ref(), limit);
                answer.map_err(|refusal| refused(&refusal))
            })?;
            let bytes = json(&answer)?;
            if bytes.len() <= ANSWER_BYTES_MAX {
                return Ok(bytes.into());
            }
            limit = less(&answer, bytes.len())?;
        }
    }
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
