//! `muster subscription`: lists the subscriptions to notices, and ends some. [`crate::notices`] makes those of a watch.

use muster_contract::notify::UnsubscribeRequest;

use crate::config::SubscriptionCommand;
use crate::error::CtlError;
use crate::render;
use crate::session::Session;

/// Lists or ends.
///
/// # Errors
/// When nobody answers, or a subscription is not there or belongs to another user.
pub(crate) async fn run(session: &mut Session<'_>, command: SubscriptionCommand) -> Result<(), CtlError> {
    match command {
        SubscriptionCommand::List => {
            let answer = session.hub.subscriptions().await?;
            let frame = session.frame();
            session.show(&answer, |answer, _| render::subscriptions::list(answer, frame))?;
        }
        SubscriptionCommand::End { names } => {
            for name in names {
                let answer = session.hub.notify("unsubscribe", &UnsubscribeRequest { name }).await?;
                session.show(&answer, |answer, _| render::subscriptions::ended(answer))?;
            }
        }
    }
    Ok(())
}
