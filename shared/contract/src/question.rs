//! Reads requests, with errors that name the field, without unknown keys and within limits, and writes answers with as
//! many rows as fit into a message. The services decide what they answer.

use std::fmt::Display;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ids::{DeploymentId, SiteId};
use crate::keys::check_keys;
use crate::limits::MESSAGE_BYTES_MAX;
use crate::point::Point;
use crate::query::{ErrorBody, ErrorCode, Output, PAGE_DEFAULT, PAGE_MAX, Query};
use crate::status::check_filter_size;

/// Largest answer: any server that Muster works with carries it. Longer lists come in more pages.
pub const ANSWER_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

/// Reads a request.
///
/// # Errors
/// The wrong field and the reason; an unknown key, with similar known ones.
pub fn read<T: DeserializeOwned + JsonSchema + 'static>(request: &[u8]) -> Result<T, ErrorBody> {
    // `parse` refuses malformed JSON with its position.
    if let Ok(value) = serde_json::from_slice(request) {
        check_keys::<T>(&value).map_err(|violation| bad(violation.to_string()))?;
    }
    parse(request)
}

/// Reads a request that may be empty, which is the default request.
///
/// # Errors
/// As [`read`].
pub fn read_or_default<T>(request: &[u8]) -> Result<T, ErrorBody>
where
    T: DeserializeOwned + JsonSchema + Default + 'static,
{
    if request.is_empty() { Ok(T::default()) } else { read(request) }
}

/// Reads a question that may be put to a point; an empty one asks for everything.
///
/// # Errors
/// As [`read`].
pub fn read_of_a_point<T>(question: &[u8]) -> Result<T, ErrorBody>
where
    T: DeserializeOwned + JsonSchema + Default + 'static,
{
    if question.trim_ascii_start().starts_with(b"{") {
        // The point is read by itself first: an error in a flattened part does not name the field.
        point_of(question)?;
    }
    read_or_default(question)
}

/// Reads a [`Query`] for an endpoint of the query service.
///
/// # Errors
/// As [`read`]; the endpoint does not have a filter, or a filter has too many values.
pub fn read_query(endpoint: &str, question: &[u8]) -> Result<Query, ErrorBody> {
    let query: Query = read_of_a_point(question)?;
    let known: &[&str] = match endpoint {
        "deployment" => &["id"],
        "deployments" => &["error", "site", "verdict"],
        "device" => &["device", "output", "site"],
        "devices" => &["bySilence", "device", "error", "freshness", "notRunning", "site", "version"],
        // A federation selects the hub by the site.
        "site" | "moment" | "digests" | "verify" => &["site"],
        "why" => &["device", "id", "site"],
        "actions" | "timeline" => &["id"],
        _ => &[],
    };
    let Query {
        id, site, device, freshness, verdict, error, version, not_running, by_silence, output, ..
    } = &query;
    let filters = [
        ("id", id.is_some()),
        ("site", !site.is_empty()),
        ("device", device.is_some()),
        ("freshness", !freshness.is_empty()),
        ("verdict", !verdict.is_empty()),
        ("error", !error.is_empty()),
        ("version", !version.is_empty()),
        ("notRunning", not_running.is_some()),
        ("bySilence", *by_silence),
        ("output", *output != Output::Summary),
    ];
    let is_alone = |(name, is_there): &(&str, bool)| !is_there || ["site", "bySilence"].contains(name);
    if *by_silence && !filters.iter().all(is_alone) {
        return Err(bad("bySilence: the only other filter is site; leave the others out".to_owned()));
    }
    match filters.into_iter().find(|(name, is_there)| *is_there && !known.contains(name)) {
        Some((name, _)) => {
            let lines = if endpoint == "deployment" { "; `status` has a line for each device" } else { "" };
            Err(bad(format!("{name}: unknown key of '{endpoint}'; {}{lines}", filters_in_words(known))))
        }
        None => {
            check_filter_size("error", error.len()).map_err(bad)?;
            check_filter_size("version", version.len()).map_err(bad)?;
            Ok(query)
        }
    }
}

/// `its filters are a, b`.
fn filters_in_words(known: &[&str]) -> String {
    if known.is_empty() {
        "it has no filters".to_owned()
    } else {
        format!("its filters are {}", known.join(", "))
    }
}

/// The point in time of a question of any type; the other fields are not read.
///
/// # Errors
/// The wrong field of the point, and the reason.
pub fn point_of(question: &[u8]) -> Result<Point, ErrorBody> {
    if question.is_empty() { Ok(Point::default()) } else { parse(question) }
}

fn parse<T: DeserializeOwned>(request: &[u8]) -> Result<T, ErrorBody> {
    let mut json = serde_json::Deserializer::from_slice(request);
    serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let place = error.path().to_string();
        let place = if place == "." { "not a question" } else { &place };
        bad(format!("{place}: {}", error.inner()))
    })
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

/// The site of a question that is about one site at most.
///
/// # Errors
/// It names several.
pub fn one_site(query: &Query) -> Result<Option<&SiteId>, ErrorBody> {
    match query.site.len() {
        0 | 1 => Ok(query.site.only()),
        several => Err(bad(format!(
            "site: {several} sites are named; this request takes one, `status` takes several"
        ))),
    }
}

/// The answer that was found.
///
/// # Errors
/// There is none; the message is for the person who asks.
pub fn found<T>(answer: Option<T>, missing: impl FnOnce() -> String) -> Result<T, ErrorBody> {
    answer.ok_or_else(|| ErrorBody { code: ErrorCode::NotFound, message: missing() })
}

/// The message about a deployment that no device is to run and none has any more.
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
