//! The waves and operations that wait for an approval. A planner that does not answer leaves a gap in the list and does not hold the
//! waves up: a hub may have none.

use std::iter;
use std::time::Duration;

use muster_client::ask::{AskError, Hub};
use muster_client::operations::{
    PendingApproval, PendingOperation, PendingOperationsReader, rest_sentence, unknown_sentence,
};
use muster_client::rollout::read_approvals;
use muster_contract::Timestamp;
use muster_service::error::chain;
use tokio::time::timeout;

use super::super::topics::Gap;

/// Time for the planner's answer: a list that waits longer for it would be stale.
const PLANNER_TIMEOUT: Duration = Duration::from_secs(3);

/// Reads the list again and again.
#[derive(Default)]
pub(super) struct ApprovalsReader {
    reader: PendingOperationsReader,
    /// The operations of the planner's last answer.
    operations: Vec<PendingOperation>,
    silent_since: Option<Timestamp>,
}

impl ApprovalsReader {
    /// The waves that wait, then the operations, and why operations are missing or those of an earlier time.
    ///
    /// # Errors
    /// No publisher or query service answers, or a deployment could not be judged.
    pub(super) async fn read(
        &mut self,
        hub: &Hub,
        at: Timestamp,
    ) -> Result<(Vec<PendingApproval>, Option<Gap>), AskError> {
        let Self { reader, operations, silent_since } = self;
        let planner = timeout(PLANNER_TIMEOUT, reader.read(hub, iter::empty()));
        let (waves, found) = tokio::join!(read_approvals(hub, iter::empty(), at), planner);
        let unknown = match found {
            Ok(Ok(found)) => {
                (*operations, *silent_since) = (found.waiting, None);
                Ok(found.has_more)
            }
            Ok(Err(error)) => Err(format!("{}: {}", unknown_sentence(&error), chain(&error))),
            Err(_) => Err(format!(
                "operations of plans are not followed until the planner answers: no answer within {} s",
                PLANNER_TIMEOUT.as_secs()
            )),
        };
        let gap = match unknown {
            Ok(has_more) => has_more.then(|| Gap { since: None, cause: rest_sentence() }),
            Err(cause) => Some(Gap { since: Some(*silent_since.get_or_insert(at)), cause }),
        };
        // A list that lacks a deployment would look complete.
        let waves = waves?.into_waiting()?.into_iter().map(PendingApproval::Wave);
        let operations = operations.iter().cloned().map(PendingApproval::Operation);
        Ok((waves.chain(operations).collect(), gap))
    }
}
