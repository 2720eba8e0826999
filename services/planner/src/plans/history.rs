//! Answers what has changed in PLANS, in the order of the stream and straight from it: the keeper has the newest documents alone.
//!
//! PLANS keeps the newest 64 messages of each subject. `readTo` of an answer is the place from which a follower asks again.

use std::sync::Arc;
use std::time::Duration;

use muster_bus::{Bus, Delivery, ReadError, Start};
use muster_contract::limits::PLANS_SUBJECTS_MAX;
use muster_contract::plans::{PlannerErrorBody, PlansChangesAnswer, PlansChangesQuery, StoredPlansChange};
use muster_contract::query::ErrorCode;
use muster_contract::question::{ANSWER_BYTES_MAX, checked_limit};
use muster_contract::subjects::{check_filters, stream};
use muster_service::error::chain;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::call::PlansReply;
use super::refusal::{not_ready, refusal};

/// Questions that are read at once; each has a consumer of PLANS meanwhile.
const READS_AT_ONCE: usize = 4;
/// Time for the answer of one question.
const READ_WITHIN: Duration = Duration::from_secs(4);
/// Messages that are read in one step.
const BATCH: usize = 256;
/// Bytes of an answer beside its changes.
const FRAME_BYTES: usize = 256;

/// The changes of PLANS.
#[derive(Debug, Clone)]
pub(crate) struct PlansHistory {
    bus: Bus,
    reads: Arc<Semaphore>,
}

impl PlansHistory {
    /// The changes of PLANS, read over a bus.
    pub(crate) fn new(bus: Bus) -> Self {
        Self { bus, reads: Arc::new(Semaphore::new(READS_AT_ONCE)) }
    }

    /// Answers one question.
    ///
    /// # Errors
    /// The question breaks a rule, or PLANS cannot be read in time.
    pub(crate) async fn answer(&self, query: &PlansChangesQuery) -> PlansReply {
        let limit = check(query)?;
        let reading = async {
            let _permit = self.reads.acquire().await;
            self.read(query, limit).await
        };
        let late = |_| not_ready(&format!("PLANS was not read within {READ_WITHIN:?}: ask again"));
        let answer = timeout(READ_WITHIN, reading).await.map_err(late)??;
        serde_json::to_vec(&answer).map_err(|error| refusal(ErrorCode::Internal, error.to_string()))
    }

    async fn read(
        &self,
        query: &PlansChangesQuery,
        limit: usize,
    ) -> Result<PlansChangesAnswer, PlannerErrorBody> {
        let unread = |error: ReadError| {
            refusal(ErrorCode::Internal, format!("cannot read PLANS: {}: ask again", chain(&error)))
        };
        let (after, end) =
            (query.after.unwrap_or(0), self.bus.stream_state(stream::PLANS).await.map_err(unread)?.last_seq);
        if after > end {
            return Err(bad(format!("after: {after} is beyond the end of PLANS, {end}")));
        }
        let mut page = Page {
            limit,
            bytes: FRAME_BYTES,
            answer: PlansChangesAnswer { read_to: end, ..PlansChangesAnswer::default() },
        };
        if after == end {
            return Ok(page.answer);
        }
        let filters: Vec<_> = query.subject.iter().map(String::as_str).collect();
        let mut replay =
            self.bus.replay(stream::PLANS, &filters, Start::After(after)).await.map_err(unread)?;
        while let Some(batch) = replay.next_present(BATCH).await.map_err(unread)? {
            if !batch.iter().all(|message| page.push(message)) {
                break;
            }
        }
        Ok(page.answer)
    }
}

/// An answer that is being filled.
struct Page {
    limit: usize,
    bytes: usize,
    answer: PlansChangesAnswer,
}

impl Page {
    /// Adds a message; false once the answer is full, and then the message is on the next page.
    fn push(&mut self, message: &Delivery) -> bool {
        let answer = &mut self.answer;
        self.bytes += message.payload.len() + FRAME_BYTES;
        if let Some(last) = answer.changes.last()
            && (answer.changes.len() >= self.limit || self.bytes > ANSWER_BYTES_MAX)
        {
            (answer.next, answer.read_to) = (Some(last.seq), last.seq);
            return false;
        }
        match serde_json::from_slice(&message.payload) {
            Ok(document) => answer.changes.push(StoredPlansChange { seq: message.stream_seq, document }),
            Err(error) => {
                tracing::error!(seq = message.stream_seq, %error, "passed over a message of PLANS that is no document");
            }
        }
        answer.read_to = answer.read_to.max(message.stream_seq);
        true
    }
}

/// Checks a question; returns its limit.
fn check(query: &PlansChangesQuery) -> Result<usize, PlannerErrorBody> {
    if query.subject.len() > PLANS_SUBJECTS_MAX {
        return Err(bad(format!(
            "subject: {} are too many: at most {PLANS_SUBJECTS_MAX}",
            query.subject.len()
        )));
    }
    check_filters(&query.subject).map_err(|rule| bad(format!("subject: {rule}")))?;
    Ok(checked_limit(query.limit)?)
}

fn bad(message: String) -> PlannerErrorBody {
    refusal(ErrorCode::BadRequest, message)
}
