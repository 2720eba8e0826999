//! Answers `muster.query.timeline`: how the counts of the fleet or of a deployment have changed. It takes no point in time,
//! because it has them all.

use bytes::Bytes;
use muster_contract::query::ErrorBody;
use muster_contract::question::{found, json, nowhere, read_query};

use super::present::{caught_up, no_past};
use crate::projection::Projection;

/// The last token of its subject.
pub(super) const ENDPOINT: &str = "timeline";

/// The answer to a question, as JSON.
pub(super) fn answer(projection: &Projection, question: &[u8]) -> Result<Bytes, ErrorBody> {
    let query = read_query(ENDPOINT, question)?;
    no_past(query.point)?;
    let answer = projection.read(|now| Ok(now.timeline.answer(caught_up(now)?, query.id.as_ref())))?;
    let nowhere = || query.id.as_ref().map_or_else(String::new, nowhere);
    json(found(answer, nowhere)?).map(Bytes::from)
}
