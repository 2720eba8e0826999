//! `muster.query.status`: status after filters. The fold waits for a question only while standings are looked at, of
//! which one answer has a bounded number; the answer is written after that.

use bytes::Bytes;
use muster_contract::history::Point;
use muster_contract::query::{ErrorBody, ErrorCode, PAGE_DEFAULT, PAGE_MAX};
use muster_contract::status::{StatusAnswer, StatusQuery};
use muster_domain::fold::{Fleet, StatusCursor, StatusRefusal};
use serde::de::DeserializeOwned;

use super::{ANSWER_BYTES_MAX, bad, caught_up, json, no_past};
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
    after: Option<StatusCursor>,
}

/// One look at a fleet.
type Look<'a> = &'a dyn Fn(&Fleet) -> Result<StatusAnswer, ErrorBody>;

impl Question {
    /// Reads it.
    pub(super) fn read(question: &[u8]) -> Result<Self, ErrorBody> {
        let query = understand(question)?;
        let after = query.after.as_deref().map(str::parse::<StatusCursor>).transpose();
        let after = after.map_err(|error| bad(format!("after: {error}")))?;
        Ok(Self { query, after })
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
        let mut limit = self.query.limit.unwrap_or(PAGE_DEFAULT);
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

/// An empty question asks for everything.
fn understand(question: &[u8]) -> Result<StatusQuery, ErrorBody> {
    if question.is_empty() {
        return Ok(StatusQuery::default());
    }
    // The point is read by itself first: of a part of the question, an error does not name the field.
    read::<Point>(question)?;
    let query: StatusQuery = read(question)?;
    match query.limit {
        Some(limit) if limit == 0 || limit > PAGE_MAX => {
            Err(bad(format!("limit: {limit} is not within 1 and {PAGE_MAX}")))
        }
        _ => Ok(query),
    }
}

/// An error names the field.
fn read<T: DeserializeOwned>(question: &[u8]) -> Result<T, ErrorBody> {
    let mut json = serde_json::Deserializer::from_slice(question);
    serde_path_to_error::deserialize(&mut json)
        .map_err(|error| bad(format!("{}: {}", error.path(), error.inner())))
}

/// How many targets to try after an answer that was too large: lines are of about the same size.
fn less(answer: &StatusAnswer, bytes: usize) -> Result<usize, ErrorBody> {
    let lines = answer.targets.len();
    if lines <= 1 {
        let message = format!(
            "one target takes {bytes} bytes, {ANSWER_BYTES_MAX} fit into a message; ask for less (output, component)"
        );
        return Err(ErrorBody { code: ErrorCode::Internal, message });
    }
    Ok((lines * ANSWER_BYTES_MAX / bytes * 9 / 10).clamp(1, lines - 1))
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
