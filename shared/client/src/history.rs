//! Asks about LEDGER's past: the query service rebuilds a point first, and a question is repeated until it has.

use std::time::Duration;

use muster_contract::query::ErrorCode;
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::ask::{AskError, Hub};

/// Longest wait for a rebuild.
const REBUILD_WAIT_MAX: Duration = Duration::from_secs(10 * 60);
/// Time between two questions; the query service also waits before it answers that a point is not rebuilt yet.
pub(crate) const ASK_EVERY: Duration = Duration::from_millis(200);

/// Receives the progress of a rebuild, as a message of the query service.
pub type OnProgress<'a> = dyn FnMut(&str) + Send + 'a;

/// Repeats a question about LEDGER's past until there is an answer. `on_progress` is called when the message changes.
///
/// # Errors
/// Nobody answers, the answer is an error that does not pass, or the rebuild takes too long.
pub async fn ask_until_ready<T: Serialize>(
    hub: &Hub,
    what: &'static str,
    question: &T,
    on_progress: &mut OnProgress<'_>,
) -> Result<Value, AskError> {
    let (deadline, mut reported) = (Instant::now() + REBUILD_WAIT_MAX, String::new());
    loop {
        match hub.history(what, question).await {
            Err(AskError::Refused(body))
                if matches!(body.code, ErrorCode::NotReady | ErrorCode::TooManyRequests)
                    && Instant::now() < deadline =>
            {
                if reported != body.message {
                    on_progress(&body.message);
                    reported = body.message;
                }
            }
            answer => return answer,
        }
        sleep(ASK_EVERY).await;
    }
}
