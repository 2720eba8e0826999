//! The present answer to the question of a stream of EMCO's notifications. Streams of the same question share one task and its
//! requests ([`polled`](super::super::watch::polled)).

use muster_client::ask::AskError;
use muster_client::emco::notification::notification;
use muster_client::status::{all, gathered};
use muster_contract::query::Output;
use serde_json::Value;

use super::left_out::{add_left_out, drop_cut_device};
use super::request::Anchor;
use super::watched::WatchedStatus;
use crate::people::People;

/// Most targets of one notification: it is made anew every few seconds.
const TARGETS_MAX: usize = 1_000;

/// The notification and the sequence of LEDGER that it is true as of; `None` if the deployment, device or site is gone.
///
/// # Errors
/// No service answers.
pub(crate) async fn read(watched: &WatchedStatus, people: &People) -> Result<Option<(u64, Value)>, AskError> {
    let query = watched.request.query.clone();
    let output = query.output;
    // Answers of many pages take turns with those of requests. The gateway never closes the semaphore.
    let _permit = people.gathers.acquire().await.ok();
    let answer = match output {
        Output::Summary => all(&people.hub, &query, None).await,
        Output::Brief | Output::All | Output::Detail => gathered(&people.hub, query, Some(TARGETS_MAX)).await,
    };
    let mut answer = match answer {
        Ok(answer) => answer,
        Err(error) if error.not_found().is_some() => return Ok(None),
        Err(error) => return Err(error),
    };
    if watched.is_gone(&answer) {
        return Ok(None);
    }
    if let Anchor::Cloud { .. } = *watched.anchor {
        drop_cut_device(&mut answer);
    }
    let mut value = notification(&answer, watched.anchor.subject(), watched.request.axis, output);
    if output != Output::Summary {
        add_left_out(&mut value, &answer, watched.anchor.subject());
    }
    Ok(Some((answer.as_of.ledger_seq, value)))
}
