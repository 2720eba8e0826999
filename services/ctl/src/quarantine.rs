//! `muster quarantine`: lists rejected reports and earlier verdicts, shows one report, and has reports requeued or dropped.

use muster_client::quarantine::{self as client, JudgeRequest};
use muster_contract::quarantine::QuarantineAction;

use crate::config::{JudgeArgs, ListArgs};
use crate::error::{CtlError, settled};
use crate::render;
use crate::session::Session;
use crate::suggestions;

pub use muster_client::quarantine::{Judgements, List, Record, Settled};

/// Lists the reports in QUARANTINE and the numbers of reports that devices keep because it had no room.
///
/// # Errors
/// When nobody answers, or nobody has ever heard of the device.
pub async fn list(session: &mut Session<'_>, args: ListArgs) -> Result<(), CtlError> {
    let (limit, ListArgs { select, settled, .. }) = (args.limit(), args);
    let list = client::list(&session.hub, &select.selection(), limit, settled).await?;
    if let Some(key) = list.device.as_ref().filter(|_| list.is_empty()) {
        suggestions::expect_known(session, key).await?;
    }
    let frame = session.frame();
    session.show_own(&list, |list, _| render::quarantine::list(list, frame))
}

/// Shows one report with its payload.
///
/// # Errors
/// When nobody answers, or QUARANTINE holds no such report.
pub async fn show(session: &mut Session<'_>, quarantine_seq: u64) -> Result<(), CtlError> {
    let held = client::find(&session.hub, quarantine_seq).await?;
    let held = held.ok_or(CtlError::NotQuarantined(quarantine_seq))?;
    session.show_own(&held, render::quarantine::one)
}

/// Has ingest judge reports again, or drop them; true where none of them stays. A requeue also asks devices for the reports that
/// they keep.
///
/// # Errors
/// When one of them is not in QUARANTINE, and then nothing is judged; or nobody answers: what was judged before is shown.
pub async fn judge(
    session: &mut Session<'_>,
    action: QuarantineAction,
    args: JudgeArgs,
) -> Result<bool, CtlError> {
    let JudgeArgs { quarantine_seqs, all: _, select, reason } = args;
    let request = JudgeRequest { quarantine_seqs, select: select.selection(), reason };
    let mut judgements = Judgements::default();
    let failure = match client::judge(&session.hub, action, &request, &mut judgements).await {
        Ok(Ok(())) => None,
        Ok(Err(missing)) => return Err(CtlError::NotQuarantined(missing.0)),
        Err(error) => Some(error),
    };
    let shown = if judgements.messages.is_empty() && failure.is_some() {
        Ok(())
    } else {
        session.show_own(&judgements, |judgements, _| render::quarantine::judgements(judgements))
    };
    match failure {
        // Why it went no further matters more than that it could not be shown how far.
        Some(error) => Err(error.into()),
        None => settled(shown).map(|()| judgements.messages.iter().all(|message| message.refused.is_none())),
    }
}
