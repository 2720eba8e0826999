//! Reads the evidence of decisions about rollouts: LEDGER at a sequence, by the query service, and the waves of a commit, by the
//! publisher.
//!
//! Only the last moment and the last commit are kept, because each has a line for every device of the deployment. Decisions about
//! the same commit follow each other, so little is read twice.

use std::sync::Arc;

use muster_contract::desired::SourceKind;
use muster_contract::history::{MomentAnswer, Point};
use muster_contract::query::{DETAIL_PAGE_MAX, ErrorCode, Output, Query};
use muster_contract::rollout::TargetsAnswer;
use muster_contract::status::{StatusAnswer, StatusQuery, TargetStatus};
use muster_contract::{DeploymentId, Timestamp};
use muster_domain::rollout::PastLines;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use super::gather::targets_by;
use crate::ask::{AskError, Hub, PAGES_MAX, understood};
use crate::history::{ASK_EVERY, OnProgress, ask_until_ready};

/// Questions for a page whose desired states were not all read in time.
const READS_OF_A_PAGE: usize = 10;
/// Questions for the targets of a commit while the publisher reads another one.
const ASKS_OF_A_COMMIT: usize = 50;

/// A part of the past: as it was, or why it cannot be read any more.
pub(super) type Part<T> = Result<T, String>;

/// A deployment at a sequence of LEDGER.
#[derive(Debug)]
pub(super) struct PastDeployment {
    /// Time of the last fact.
    pub at: Timestamp,
    /// The lines, and the content of each device.
    pub lines: PastLines,
}

/// Reads the past of one deployment.
pub(super) struct Past<'a> {
    hub: &'a Hub,
    id: &'a DeploymentId,
    on_progress: &'a mut OnProgress<'a>,
    /// The moment that was read last, with its sequence.
    moment: Option<(u64, Part<Arc<PastDeployment>>)>,
    /// The targets that were read last, with their commit.
    commit: Option<(String, Part<Arc<TargetsAnswer>>)>,
}

impl<'a> Past<'a> {
    /// Nothing is read yet.
    pub(super) fn new(hub: &'a Hub, id: &'a DeploymentId, on_progress: &'a mut OnProgress<'a>) -> Self {
        Self { hub, id, on_progress, moment: None, commit: None }
    }

    /// The sequence of LEDGER's last fact at a time.
    ///
    /// # Errors
    /// No query service answers, or LEDGER has forgotten the time.
    pub(super) async fn ledger_seq_at(&mut self, at: Timestamp) -> Result<u64, AskError> {
        Ok(self.moment_at(Point::at(at)).await?.as_of.ledger_seq)
    }

    /// The deployment at a sequence.
    ///
    /// # Errors
    /// No query service answers.
    pub(super) async fn moment(&mut self, seq: u64) -> Result<Part<Arc<PastDeployment>>, AskError> {
        if let Some((of, moment)) = &self.moment
            && *of == seq
        {
            return Ok(moment.clone());
        }
        // Frees its memory before the next one is read.
        self.moment = None;
        let moment = refusal_as_gone(self.read_moment(seq).await)?.map(Arc::new);
        self.moment = Some((seq, moment.clone()));
        Ok(moment)
    }

    /// The targets of the deployment by a commit.
    ///
    /// # Errors
    /// No publisher answers.
    pub(super) async fn commit(&mut self, revision: &str) -> Result<Part<Arc<TargetsAnswer>>, AskError> {
        if let Some((of, targets)) = &self.commit
            && of == revision
        {
            return Ok(targets.clone());
        }
        self.commit = None;
        let targets = refusal_as_gone(read_commit(self.hub, self.id, revision).await)?.map(Arc::new);
        self.commit = Some((revision.to_owned(), targets.clone()));
        Ok(targets)
    }

    async fn read_moment(&mut self, seq: u64) -> Result<PastDeployment, AskError> {
        let point = Point::at_seq(seq);
        let moment = self.moment_at(point).await?;
        let mut query = StatusQuery {
            id: Some(self.id.clone()),
            output: Output::Detail,
            limit: Some(DETAIL_PAGE_MAX),
            point,
            ..StatusQuery::default()
        };
        let mut lines = PastLines::default();
        lines.lines.ledger_seq = seq;
        for _ in 0..PAGES_MAX {
            let page = match self.page(&query).await {
                // LEDGER did not know of the deployment then.
                Err(error) if error.not_found().is_some() && query.after.is_none() => break,
                page => page?,
            };
            page.targets.into_iter().for_each(|target| insert(&mut lines, target));
            if page.next.is_none() {
                break;
            }
            if page.next == query.after {
                return Err(AskError::Endless { what: "status" });
            }
            query.after = page.next;
        }
        Ok(PastDeployment { at: moment.as_of.at, lines })
    }

    async fn moment_at(&mut self, point: Point) -> Result<MomentAnswer, AskError> {
        self.ask("moment", &Query { point, ..Query::default() }).await
    }

    /// A page with the digest of every desired state that LEDGER still gives.
    async fn page(&mut self, query: &StatusQuery) -> Result<StatusAnswer, AskError> {
        let mut reads = 0;
        loop {
            let page: StatusAnswer = self.ask("status", query).await?;
            reads += 1;
            if reads == READS_OF_A_PAGE || !page.targets.iter().any(is_unread) {
                return Ok(page);
            }
            sleep(ASK_EVERY).await;
        }
    }

    async fn ask<Q: Serialize, A: DeserializeOwned>(
        &mut self,
        what: &'static str,
        question: &Q,
    ) -> Result<A, AskError> {
        understood(&ask_until_ready(self.hub, what, question, self.on_progress).await?)
    }
}

/// A refusal is an answer here: that part of the past is gone.
fn refusal_as_gone<T>(read: Result<T, AskError>) -> Result<Part<T>, AskError> {
    match read {
        Ok(part) => Ok(Ok(part)),
        Err(AskError::Refused(body))
            if matches!(body.code, ErrorCode::NotFound | ErrorCode::BadRequest | ErrorCode::Internal) =>
        {
            Ok(Err(body.message))
        }
        Err(error) => Err(error),
    }
}

fn is_unread(target: &TargetStatus) -> bool {
    target.shall_run() && target.digest.is_none()
}

fn insert(past: &mut PastLines, target: TargetStatus) {
    let key = target.key.clone();
    match (target.digest, &target.source) {
        (_, Some(source)) if source.kind == SourceKind::Api => _ = past.requested.insert(key.clone()),
        (Some(digest), _) => _ = past.contents.insert(key.clone(), digest),
        (None, _) if is_unread(&target) => _ = past.unreadable.insert(key.clone()),
        (None, _) => {}
    }
    past.lines.of_devices.insert(key, target);
}

async fn read_commit(hub: &Hub, id: &DeploymentId, revision: &str) -> Result<TargetsAnswer, AskError> {
    let mut asked = 0;
    loop {
        asked += 1;
        match targets_by(hub, id, Some(revision.to_owned())).await {
            Err(AskError::Refused(body)) if body.code == ErrorCode::NotReady && asked < ASKS_OF_A_COMMIT => {
                sleep(ASK_EVERY).await;
            }
            answer => return answer,
        }
    }
}
