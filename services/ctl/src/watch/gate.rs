//! The condition that a watch waits for. With `--commit` a verdict counts only as of a fact of LEDGER by which every document of that
//! commit is in: whatever was shown before may be of the state before it.
//!
//! The publisher says as of which fact that is. A verdict that holds already and stays gives no further notice, and one that
//! changes to and fro within a window gives none either, so from then on the view itself is looked at again and again beside
//! the notices.

use std::time::Duration;

use muster_contract::query::{DeploymentAnswer, PublisherQuery, PublisherStatus, Query};
use muster_contract::view::{AsOf, DeploymentView, Verdict};
use muster_contract::{CommitName, DeploymentId, Timestamp};
use muster_service::error::chain;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::ask::{AskError, Hub, understood};
use crate::error::{CommitError, CtlError};
use crate::render;
use crate::rollout::targets;

/// Time between two questions to the publisher.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Time between two looks at the view.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Most messages that wait until they are shown; the sender waits for room.
const WORDS_WAITING: usize = 4;
/// Polls of Git after which it is believed that the branch has left a commit behind: one may have been under way when the
/// branch was set back to that commit.
const POLLS_BELIEVED: u32 = 2;

/// The condition that a watch waits for.
pub(super) struct Goal {
    verdict: Option<Verdict>,
    /// Verdicts that end the watch as failed.
    fail_on: Vec<Verdict>,
    gate: Option<Gate>,
}

struct Gate {
    commit: CommitName,
    /// LEDGER up to here holds all of the commit.
    through: Option<u64>,
    news: mpsc::Receiver<News>,
}

/// News that come beside the notices.
pub(super) enum News {
    /// Something to be said.
    Says(String),
    /// LEDGER up to this sequence holds all of the commit.
    InLedger(u64),
    /// This is the view, with a verdict that ends the watch, as of that sequence or later.
    Met(Box<DeploymentView>),
    /// It never comes.
    Failed(CtlError),
}

impl Goal {
    /// The verdict, if any; with a commit, nothing counts until LEDGER holds that. Asking begins at once.
    pub(super) fn start(
        hub: &Hub,
        deployment: &DeploymentId,
        verdict: Option<Verdict>,
        fail_on: Vec<Verdict>,
        commit: Option<&CommitName>,
    ) -> Self {
        let gate = verdict.zip(commit).map(|(verdict, commit)| {
            let (tell, news) = mpsc::channel(WORDS_WAITING);
            let asking = Asking {
                hub: hub.clone(),
                deployment: deployment.clone(),
                ends: [&[verdict], &*fail_on].concat(),
                commit: commit.clone(),
                tell,
            };
            // It ends by itself: nobody listens to it any more.
            tokio::spawn(asking.run());
            Gate { commit: commit.clone(), through: None, news }
        });
        Self { verdict, fail_on, gate }
    }

    /// A verdict alone, whatever was published.
    #[cfg(test)]
    pub(super) const fn until(verdict: Option<Verdict>) -> Self {
        Self { verdict, fail_on: Vec::new(), gate: None }
    }

    /// Whether a verdict is waited for.
    pub(super) const fn is_any(&self) -> bool {
        self.verdict.is_some()
    }

    /// Whether a verdict ends the watch as failed.
    pub(super) fn is_failure(&self, verdict: Option<Verdict>) -> bool {
        verdict.is_some_and(|verdict| self.fail_on.contains(&verdict))
    }

    /// Whether a verdict ends the watch, as reached or as failed.
    pub(super) fn is_met(&self, verdict: Option<Verdict>, as_of: Option<AsOf>) -> bool {
        let is_of_commit =
            |gate: &Gate| as_of.zip(gate.through).is_some_and(|(as_of, through)| as_of.ledger_seq >= through);
        let is_end = self.verdict.is_some() && (self.verdict == verdict || self.is_failure(verdict));
        is_end && self.gate.as_ref().is_none_or(is_of_commit)
    }

    /// The next news; none ever without a commit. Cancel-safe.
    pub(super) async fn next(&mut self) -> News {
        let next = match &mut self.gate {
            Some(gate) => gate.news.recv().await,
            None => None,
        };
        match next {
            Some(News::InLedger(through)) => {
                if let Some(gate) = &mut self.gate {
                    gate.through = Some(through);
                }
                News::InLedger(through)
            }
            Some(news) => news,
            None => std::future::pending().await,
        }
    }

    /// The note at the start.
    pub(super) fn words(&self) -> Option<String> {
        self.gate.as_ref().map(|gate| render::notice::waiting_for(&gate.commit))
    }

    /// The note once LEDGER holds the commit.
    pub(super) fn in_ledger(&self, through: u64) -> String {
        self.gate.as_ref().map_or_else(String::new, |gate| render::notice::in_ledger(&gate.commit, through))
    }

    /// The commit that was waited for, and as of where LEDGER holds it.
    pub(super) fn commit(&self) -> Option<(&CommitName, Option<u64>)> {
        self.gate.as_ref().map(|gate| (&gate.commit, gate.through))
    }

    /// The note if the time is over before the condition holds.
    pub(super) fn over(&self, verdict: Option<Verdict>) -> String {
        match self.commit() {
            Some((commit, None)) => render::notice::commit_is_missing(commit),
            Some((_, Some(through))) if verdict == self.verdict => render::notice::unread(verdict, through),
            _ => render::notice::over(self.verdict, verdict),
        }
    }
}

/// Asks the services while the watch shows notices.
struct Asking {
    hub: Hub,
    deployment: DeploymentId,
    /// Verdicts that end the watch.
    ends: Vec<Verdict>,
    commit: CommitName,
    tell: mpsc::Sender<News>,
}

impl Asking {
    async fn run(self) {
        let tell = self.tell.clone();
        let asked = async {
            let through = self.in_ledger().await?;
            self.send(News::InLedger(through)).await;
            self.met(through).await
        };
        let end = tokio::select! {
            end = asked => end,
            () = tell.closed() => return,
        };
        let news = end.map_or_else(News::Failed, |view| News::Met(Box::new(view)));
        // Nobody listens where the watch has ended meanwhile.
        let _ = tell.send(news).await;
    }

    async fn send(&self, news: News) {
        // As above.
        let _ = self.tell.send(news).await;
    }

    /// Waits until LEDGER holds the commit. A publisher that has answered once is waited for.
    async fn in_ledger(&self) -> Result<u64, CtlError> {
        let (mut polls, mut has_answered, mut is_silent) = (Polls::default(), false, false);
        let mut has_told_held = false;
        loop {
            match self.status().await {
                Ok(status) => {
                    (has_answered, is_silent) = (true, false);
                    if let Some(through) = judged(&status, &self.commit, &mut polls)? {
                        if !self.is_held(&status).await? {
                            return Ok(through);
                        }
                        if !has_told_held {
                            self.send(News::Says(render::notice::held(&self.deployment))).await;
                        }
                        has_told_held = true;
                    }
                }
                Err(error) if has_answered && error.may_pass() => {
                    if !is_silent {
                        self.send(News::Says(format!("muster: {}; trying on\n", chain(&error)))).await;
                    }
                    is_silent = true;
                }
                Err(error) => return Err(error.into()),
            }
            sleep(ASK_EVERY).await;
        }
    }

    /// Whether a change of the deployment waits for a release: until then not every target has the commit.
    async fn is_held(&self, status: &PublisherStatus) -> Result<bool, AskError> {
        let Some(git) = &status.git else { return Ok(false) };
        if git.held_omitted == 0 {
            return Ok(git.held.iter().any(|change| change.deployment == self.deployment));
        }
        let targets = targets(&self.hub, &self.deployment).await?.targets;
        Ok(targets.iter().any(|target| target.wanted != target.published))
    }

    async fn status(&self) -> Result<PublisherStatus, AskError> {
        let query = PublisherQuery { commit: Some(self.commit.clone()), rollouts_after: None };
        understood(&self.hub.publisher("status", &query).await?)
    }

    /// Looks until the view has a verdict that ends the watch, as of `through` or later.
    async fn met(&self, through: u64) -> Result<DeploymentView, CtlError> {
        let query = Query { id: Some(self.deployment.clone()), ..Query::default() };
        loop {
            let hub = self.hub.fresh();
            let answer = hub.query("deployment", &query).await;
            match answer.and_then(|answer| understood::<DeploymentAnswer>(&answer)) {
                Ok(DeploymentAnswer { view, .. })
                    if self.ends.contains(&view.verdict)
                        && view.as_of.ledger_seq >= through
                        && hub.lag().is_none() =>
                {
                    return Ok(view);
                }
                Ok(_) => {}
                // It may be there later, and the hub as well: the notices tell of both.
                Err(error) if error.not_found().is_some() || error.may_pass() => {}
                Err(error) => return Err(error.into()),
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

/// How often Git was asked since the publisher was.
#[derive(Default)]
struct Polls {
    last: Option<Option<Timestamp>>,
    count: u32,
}

impl Polls {
    fn record_poll(&mut self, polled_at: Option<Timestamp>) {
        if self.last.is_some_and(|last| polled_at > last) {
            self.count += 1;
        }
        self.last = self.last.max(Some(polled_at));
    }
}

/// As of where LEDGER holds the commit, by what the publisher says; none where that is still to be waited for.
fn judged(
    status: &PublisherStatus,
    commit: &CommitName,
    polls: &mut Polls,
) -> Result<Option<u64>, CommitError> {
    let Some(git) = &status.git else { return Err(CommitError::NoGit) };
    polls.record_poll(git.polled_at);
    if git.applied.as_deref().is_some_and(|applied| commit.names(applied)) {
        // Some devices do not have it, and a verdict may speak of those.
        return match &git.held_back {
            Some(held_back) => Err(CommitError::HeldBack(held_back.clone())),
            None => Ok(git.applied_through),
        };
    }
    if let Some(refused) = git.refused.as_ref().filter(|refused| commit.names(&refused.revision)) {
        return Err(CommitError::Refused(refused.clone()));
    }
    let is_replaced = git.replaced.as_deref().is_some_and(|replaced| commit.names(replaced));
    if is_replaced && polls.count >= POLLS_BELIEVED {
        return Err(CommitError::Replaced { commit: commit.clone(), by: git.applied.clone() });
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
