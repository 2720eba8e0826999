//! Collects a list of MRDS page by page. The planner applies the filters of its own lists, and `keep` applies the others. Sends
//! nothing.

use muster_client::ask::AskError;
use muster_contract::query::PAGE_MAX;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tonic::Status;

use super::refusals::refused;

/// Most records of one answer: MRDS's lists have no pages.
const RECORDS_MAX: usize = 10_000;

/// A list that a request asks for: the question to the planner, and the records so far.
pub(super) struct Listing<'a, R, T> {
    /// The planner's request.
    pub verb: &'static str,
    /// The field of its answer that has the rows.
    rows: &'static str,
    /// The next question.
    pub question: Value,
    limit: usize,
    keep: Box<dyn Fn(R) -> Option<T> + Send + 'a>,
    records: Vec<T>,
}

impl<'a, R: DeserializeOwned, T> Listing<'a, R, T> {
    /// The records that `keep` makes of the rows of a query, up to a limit (0: no limit).
    ///
    /// # Errors
    /// The query is no JSON.
    pub(super) fn new<Q: Serialize>(
        verb: &'static str,
        rows: &'static str,
        query: &Q,
        limit: u32,
        keep: impl Fn(R) -> Option<T> + Send + 'a,
    ) -> Result<Self, Status> {
        let mut question = serde_json::to_value(query).map_err(misread)?;
        question["limit"] = json!(PAGE_MAX);
        let limit = if limit == 0 { usize::MAX } else { usize::try_from(limit).unwrap_or(usize::MAX) };
        Ok(Self { verb, rows, question, limit, keep: Box::new(keep), records: Vec::new() })
    }

    /// Adds a page; false if the list is complete.
    ///
    /// # Errors
    /// The answer has rows of another shape; more than [`RECORDS_MAX`] records match, and the limit is above it or none.
    pub(super) fn add(&mut self, mut answer: Value) -> Result<bool, Status> {
        let page = answer.get_mut(self.rows).map_or(Value::Null, Value::take);
        let page: Vec<R> = serde_json::from_value::<Option<_>>(page).map_err(misread)?.unwrap_or_default();
        self.records.extend(page.into_iter().filter_map(&self.keep));
        if self.records.len() >= self.limit {
            self.records.truncate(self.limit);
            return Ok(false);
        }
        if self.records.len() > RECORDS_MAX {
            return Err(Status::resource_exhausted(format!(
                "more than {RECORDS_MAX} records match: set filters, or a limit of at most {RECORDS_MAX}"
            )));
        }
        match answer.get("next") {
            Some(next @ Value::String(_)) if self.question.get("after") != Some(next) => {
                self.question["after"] = next.clone();
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// The records.
    pub(super) fn into_records(self) -> Vec<T> {
        self.records
    }
}

fn misread(source: serde_json::Error) -> Status {
    refused(AskError::Misunderstood(source))
}

#[cfg(test)]
mod tests;
