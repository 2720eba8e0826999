//! `muster webhook`: lists and removes webhooks.

use muster_client::webhooks as client;
use muster_contract::notify::WebhookLine;
use serde::Serialize;

use crate::config::WebhookCommand;
use crate::error::CtlError;
use crate::render;
use crate::session::Session;

/// All webhooks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WebhookList {
    /// The webhooks, ordered by name.
    pub webhooks: Vec<WebhookLine>,
}

/// Runs `muster webhook`.
///
/// # Errors
/// When nobody answers, the requester is no operator, or there is no such webhook.
pub(crate) async fn run(session: &mut Session<'_>, command: WebhookCommand) -> Result<(), CtlError> {
    match command {
        WebhookCommand::List => {
            let list = WebhookList { webhooks: client::list(&session.hub).await? };
            session.show_own(&list, render::webhooks::list)
        }
        WebhookCommand::Remove { name } => {
            let removed = client::remove(&session.hub, name).await?;
            session.show_own(&removed, |removed, _| render::webhooks::removed(removed))
        }
    }
}
