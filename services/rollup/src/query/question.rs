//! Questions as they come: read so that an error names the field, with limits that hold. An empty one asks for everything.

use std::fmt::Display;
use std::str::FromStr;

use muster_contract::history::Point;
use muster_contract::query::{ErrorBody, ErrorCode, PAGE_DEFAULT, PAGE_MAX};
use serde::de::DeserializeOwned;

/// Reads a question.
///
/// # Errors
/// Which field is wrong, and why.
pub(crate) fn read<T: DeserializeOwned>(question: &[u8]) -> Result<T, ErrorBody> {
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
pub(super) fn read_of_a_point<T: DeserializeOwned + Default>(question: &[u8]) -> Result<T, ErrorBody> {
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
pub(crate) fn checked_limit(limit: Option<usize>) -> Result<usize, ErrorBody> {
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
pub(super) fn parsed_after<K: FromStr<Err: Display>>(after: Option<&str>) -> Result<Option<K>, ErrorBody> {
    after.map(|text| text.parse().map_err(|error| bad(format!("after: {error}")))).transpose()
}

/// A field that this question needs.
///
/// # Errors
/// It is missing.
pub(super) fn named<'a, T>(value: Option<&'a T>, field: &str) -> Result<&'a T, ErrorBody> {
    value.ok_or_else(|| bad(format!("{field}: is missing from the question")))
}

pub(crate) fn bad(message: String) -> ErrorBody {
    ErrorBody { code: ErrorCode::BadRequest, message }
}
