//! Reports to the hub which people's rights were revoked, so that their webhooks end: the hub itself does not know the revocations
//! of accounts. A gateway reads them from the file of `--revocations`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_client::ask::{AskError, Hub};
use muster_contract::Timestamp;
use muster_contract::notify::{
    RevokedOwner, WEBHOOK_REVOCATIONS_MAX, WebhookRevokeAnswer, WebhookRevokeRequest,
};
use muster_service::clock::Clock;
use muster_service::error::chain;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::login::Login;

/// Interval in which the revocations are compared with those that were reported.
const COMPARE_EVERY: Duration = Duration::from_secs(5);
/// They are reported again after this time, in case that the hub was restored from a backup.
const REPORTED_AGAIN_AFTER: Duration = Duration::from_secs(10 * 60);

/// Reports revocations to the hub.
pub(crate) struct RevocationReporter {
    hub: Hub,
    login: Arc<Login>,
    clock: Arc<dyn Clock>,
}

impl RevocationReporter {
    /// A reporter of the revocations that a login knows.
    pub(crate) fn new(hub: Hub, login: Arc<Login>, clock: Arc<dyn Clock>) -> Self {
        Self { hub, login, clock }
    }

    /// Reports until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.report_changes()).await;
    }

    async fn report_changes(&self) {
        let (mut reported, mut reported_at, mut is_refused) = (BTreeMap::new(), Instant::now(), false);
        loop {
            let known = self.login.revocations(self.clock.now());
            if known != reported || reported_at.elapsed() >= REPORTED_AGAIN_AFTER {
                match self.report(&known).await {
                    Ok(()) => (reported, reported_at, is_refused) = (known, Instant::now(), false),
                    Err(error) => {
                        if !std::mem::replace(&mut is_refused, true) {
                            tracing::warn!(error = chain(&error), "cannot report revocations yet");
                        }
                    }
                }
            }
            sleep(COMPARE_EVERY).await;
        }
    }

    async fn report(&self, known: &BTreeMap<String, u64>) -> Result<(), AskError> {
        for revoked in revoked_owners(known).chunks(WEBHOOK_REVOCATIONS_MAX) {
            let request = WebhookRevokeRequest { revoked: revoked.to_vec() };
            let answer = self.hub.notify("webhook-revoke", &request).await?;
            let answer: WebhookRevokeAnswer =
                serde_json::from_value(answer).map_err(AskError::Misunderstood)?;
            for name in &answer.ended {
                tracing::warn!(
                    webhook = name.as_str(),
                    "ended a webhook: the right of its owner was revoked"
                );
            }
        }
        Ok(())
    }
}

fn revoked_owners(known: &BTreeMap<String, u64>) -> Vec<RevokedOwner> {
    let at =
        |seconds: u64| i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    let owner = |(key, seconds): (&String, &u64)| RevokedOwner {
        key: key.clone(),
        at: at(*seconds).unwrap_or(Timestamp::MAX),
    };
    known.iter().map(owner).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revocations_keep_their_times() {
        let known = BTreeMap::from([("UANNA".to_owned(), 7), ("*".to_owned(), u64::MAX)]);
        let found = revoked_owners(&known);
        let times: Vec<_> = found.iter().map(|owner| (owner.key.as_str(), owner.at)).collect();
        assert_eq!(times, [("*", Timestamp::MAX), ("UANNA", Timestamp::from_second(7).unwrap())]);
    }
}
