//! Questions as they come: read so that an error names the field, with limits that hold. An empty one asks for everything.
//! And their answers, with as many rows as fit into a message. Who answers, and what, is each service's own.

use std::fmt::Display;
use std::str::FromStr;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::history::Point;
use crate::ids::DeploymentId;
use crate::limits::MESSAGE_BYTES_MAX;
use crate::query::{ErrorBody, ErrorCode, PAGE_DEFAULT, PAGE_MAX};

/// Largest answer: any server that Muster works with carries it. Longer lists come in more pages.
pub const ANSWER_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

/// Reads a question.
///
/// # Errors
/// Which field is wrong, and why.
pub fn read<T: DeserializeOwned>(question: &[u8]) -> Result<T, ErrorBody> {
    let mut json = serde_json::Deserializer::from_slice(question);
    serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let place = error.path().to_string();
        let place = if place == "." { "not a question" } else { &place };
        bad(format!("{place}: {}", error.inner()))
    })
}

/// Reads a question that may be put to a point.
///
/// # Errors
/// As [`read`].
pub fn read_of_a_point<T: DeserializeOwned + Default>(question: &[u8]) -> Result<T, ErrorBody> {
    if question.is_empty() {
        return Ok(T::default());
    }
    if question.trim_ascii_start().starts_with(b"{") {
        // The point is read by itself first: of a part of the question, an error does not name the field.
        read::<Point>(question)?;
    }
    read(question)
}

/// How many rows are wanted.
///
/// # Errors
/// That many may not be.
pub fn checked_limit(limit: Option<usize>) -> Result<usize, ErrorBody> {
    match limit.unwrap_or(PAGE_DEFAULT) {
        limit if limit == 0 || limit > PAGE_MAX => {
            Err(bad(format!("limit: {limit} is not within 1 and {PAGE_MAX}")))
        }
        limit => Ok(limit),
    }
}

/// The row after which to go on.
///
/// # Errors
/// It is no name of a row.
pub fn parsed_after<K: FromStr<Err: Display>>(after: Option<&str>) -> Result<Option<K>, ErrorBody> {
    after.map(|text| text.parse().map_err(|error| bad(format!("after: {error}")))).transpose()
}

/// A field that this question needs.
///
/// # Errors
/// It is missing.
pub fn named<'a, T>(value: Option<&'a T>, field: &str) -> Result<&'a T, ErrorBody> {
    value.ok_or_else(|| bad(format!("{field}: is missing from the question")))
}

/// What was found.
///
/// # Errors
/// Nothing was, in words for the asker.
pub fn found<T>(answer: Option<T>, missing: impl FnOnce() -> String) -> Result<T, ErrorBody> {
    answer.ok_or_else(|| ErrorBody { code: ErrorCode::NotFound, message: missing() })
}

/// What is said of a deployment that no device shall run and none has still.
pub fn nowhere(id: &DeploymentId) -> String {
    format!("deployment '{id}' is targeted nowhere and left nowhere: no device shall run it")
}

/// The refusal of a question that is wrong itself.
pub fn bad(message: String) -> ErrorBody {
    ErrorBody { code: ErrorCode::BadRequest, message }
}

/// An answer as it is sent.
///
/// # Errors
/// It cannot be written as JSON.
pub fn json<T: Serialize>(answer: T) -> Result<Vec<u8>, ErrorBody> {
    let internal =
        |error: serde_json::Error| ErrorBody { code: ErrorCode::Internal, message: error.to_string() };
    serde_json::to_vec(&answer).map_err(internal)
}

/// The answer with as many rows as were asked for, or as many as fit into a message. Each look gives what it found as it is:
/// it is written after the look.
///
/// # Errors
/// Why there is no answer, also where a single row does not fit.
pub fn fitting<T: Serialize, B: From<Vec<u8>>>(
    mut limit: usize,
    look: impl Fn(usize) -> Result<T, ErrorBody>,
) -> Result<B, ErrorBody> {
    loop {
        let answer = json(look(limit)?)?;
        if answer.len() <= ANSWER_BYTES_MAX {
            return Ok(answer.into());
        }
        if limit == 1 {
            let message = format!(
                "the answer has {} bytes, {ANSWER_BYTES_MAX} fit into a message; ask for less detail (output)",
                answer.len()
            );
            return Err(ErrorBody { code: ErrorCode::Internal, message });
        }
        limit = fewer(limit, answer.len());
    }
}

/// How many rows to try after an answer of so many took so many bytes, which were too many: at least one.
pub const fn fewer(rows: usize, bytes: usize) -> usize {
    // Rows are of about the same size; a little less than their share finds room most of the time.
    let share = rows * ANSWER_BYTES_MAX / bytes * 9 / 10;
    let most = if share < rows { share } else { rows.saturating_sub(1) };
    if most == 0 { 1 } else { most }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_an_answer_that_was_too_large_fewer_rows_are_tried_down_to_one() {
        let large = ANSWER_BYTES_MAX + 1;
        for (rows, bytes, expected) in
            [(1000, 2 * large, 449), (10, large, 8), (2, large, 1), (2, 100 * large, 1), (1, large, 1)]
        {
            assert_eq!(fewer(rows, bytes), expected, "{rows} rows of {bytes} bytes");
        }
    }
}
