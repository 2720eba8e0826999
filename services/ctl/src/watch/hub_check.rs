//! Whether the hub vouches for the verdict that a watch waits for. A notice says what was so when it was written; before the watch
//! ends with it, the hub is asked once more. A hub that does not answer, or that is behind LEDGER, vouches for nothing.

use std::time::Duration;

use muster_contract::DeploymentId;
use muster_contract::query::{DeploymentAnswer, Query};
use muster_contract::view::Verdict;
use muster_service::error::chain;
use tokio::time::{Instant, sleep_until};

use crate::ask::understood;
use crate::session::Session;

/// Time between two questions, while the hub does not vouch for it.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Asks the hub whether it vouches for the result of a watch.
pub(super) struct HubCheck {
    deployment: DeploymentId,
    next_at: Instant,
    /// The last announced reason why the watch goes on.
    said: String,
}

impl HubCheck {
    pub(super) fn new(deployment: DeploymentId) -> Self {
        Self { deployment, next_at: Instant::now(), said: String::new() }
    }

    /// Waits until the hub may be asked again. Cancel-safe.
    pub(super) async fn next_check(&self) {
        sleep_until(self.next_at).await;
    }

    /// Whether the hub's present answer has this verdict. Each new reason why not is announced once.
    pub(super) async fn vouches(&mut self, session: &mut Session<'_>, verdict: Option<Verdict>) -> bool {
        let query = Query { id: Some(self.deployment.clone()), ..Query::default() };
        let answer = session.hub.query("deployment", &query).await;
        self.next_at = Instant::now() + ASK_EVERY;
        let doubt = match answer.and_then(|answer| understood::<DeploymentAnswer>(&answer)) {
            Ok(answer) if session.hub.lag().is_none() => {
                return Some(answer.view.verdict) == verdict;
            }
            Ok(_) => session.lag(),
            // The notices tell of what is gone.
            Err(error) if error.not_found().is_some() => return false,
            Err(error) => format!("{}\n", chain(&error)),
        };
        // Ages in it change with every second.
        let cause = doubt.split('(').next().unwrap_or_default();
        if self.said != cause {
            self.said = cause.to_owned();
            session.terminal.print_note(&format!("muster: not counted yet: {doubt}"));
        }
        false
    }
}
