//! `muster subscription`: lists the subscriptions to notices, and ends some. [`crate::notices`] makes those of a watch.

use muster_contract::notify::{SubscriptionsAnswer, UnsubscribeRequest};

use crate::ask::understood;
use crate::config::SubscriptionCommand;
use crate::error::CtlError;
use crate::names::ShownNames;
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
            let SubscriptionsAnswer { subscriptions, .. } = understood(&answer)?;
            let ids = subscriptions.iter().filter_map(|line| line.subscription.id.as_ref());
            let names = ShownNames::of(session, ids).await;
            session.show(&answer, |answer: &SubscriptionsAnswer, _| {
                let mut shown = answer.clone();
                let ids = shown.subscriptions.iter_mut().filter_map(|line| line.subscription.id.as_mut());
                ids.for_each(|id| names.rename(id));
                render::subscriptions::list(&shown, frame)
            })?;
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
