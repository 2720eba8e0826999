//! Reads what decisions about rollouts rested on: LEDGER at a sequence, by the query service, and the waves of a commit, by the
//! publisher. Each is read once for all decisions.

use std::collections::BTreeMap;

use muster_client::rollout::targets_by;
use muster_contract::desired::SourceKind;
use muster_contract::history::{MomentAnswer, Point};
use muster_contract::query::{DETAIL_PAGE_MAX, ErrorCode, Output, Query};
use muster_contract::rollout::TargetsAnswer;
use muster_contract::status::{StatusAnswer, StatusQuery, TargetStatus};
use muster_contract::{DeploymentId, Timestamp};
use muster_domain::rollout::PastLines;
use tokio::time::sleep;

use crate::ask::{AskError, PAGES_MAX, understood};
use crate::error::CtlError;
use crate::history::{ASK_EVERY, patiently};
use crate::session::Session;

/// Questions for a page whose desired states were not all read in time.
const READS_OF_A_PAGE: usize = 10;
/// Questions for the targets of a commit while the publisher reads another one.
const ASKS_OF_A_COMMIT: usize = 50;

/// A part of the past: as it was, or why it cannot be read any more.
type Part<T> = Result<T, String>;

/// A deployment at a sequence of LEDGER.
#[derive(Debug, Clone)]
pub(super) struct PastDeployment {
    /// Time of the last fact.
    pub at: Timestamp,
    /// The lines, and the content of each device.
    pub lines: PastLines,
}

/// The past of one deployment, as far as it was read.
#[derive(Debug)]
pub(super) struct Past {
    id: DeploymentId,
    moments: BTreeMap<u64, Part<PastDeployment>>,
    commits: BTreeMap<String, Part<TargetsAnswer>>,
}

impl Past {
    /// Nothing is read yet.
    pub(super) const fn new(id: DeploymentId) -> Self {
        Self { id, moments: BTreeMap::new(), commits: BTreeMap::new() }
    }

    /// The deployment at a sequence.
    ///
    /// # Errors
    /// No query service answers.
    pub(super) async fn moment(
        &mut self,
        session: &mut Session<'_>,
        seq: u64,
    ) -> Result<&Part<PastDeployment>, CtlError> {
        if !self.moments.contains_key(&seq) {
            let moment = passed(moment(session, &self.id, seq).await)?;
            self.moments.insert(seq, moment);
        }
        Ok(&self.moments[&seq])
    }

    /// The targets of the deployment by a commit.
    ///
    /// # Errors
    /// No publisher answers.
    pub(super) async fn commit(
        &mut self,
        session: &Session<'_>,
        revision: &str,
    ) -> Result<&Part<TargetsAnswer>, CtlError> {
        if !self.commits.contains_key(revision) {
            let targets = passed(commit(session, &self.id, revision).await)?;
            self.commits.insert(revision.to_owned(), targets);
        }
        Ok(&self.commits[revision])
    }
}

/// A refusal is an answer here: that part of the past is gone.
fn passed<T>(read: Result<T, AskError>) -> Result<Part<T>, CtlError> {
    match read {
        Ok(part) => Ok(Ok(part)),
        Err(AskError::Refused(body))
            if matches!(body.code, ErrorCode::NotFound | ErrorCode::BadRequest | ErrorCode::Internal) =>
        {
            Ok(Err(body.message))
        }
        Err(error) => Err(error.into()),
    }
}

async fn moment(session: &mut Session<'_>, id: &DeploymentId, seq: u64) -> Result<PastDeployment, AskError> {
    let point = Point::at_seq(seq);
    let query = Query { point, ..Query::default() };
    let moment: MomentAnswer = understood(&patiently(session, "moment", &query).await?)?;
    let mut query = StatusQuery {
        id: Some(id.clone()),
        output: Output::Detail,
        limit: Some(DETAIL_PAGE_MAX),
        point,
        ..StatusQuery::default()
    };
    let mut lines = PastLines::default();
    lines.lines.ledger_seq = seq;
    for _ in 0..PAGES_MAX {
        let page = match page(session, &query).await {
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

/// A page with the digest of every desired state that LEDGER still gives.
async fn page(session: &mut Session<'_>, query: &StatusQuery) -> Result<StatusAnswer, AskError> {
    let mut reads = 0;
    loop {
        let page: StatusAnswer = understood(&patiently(session, "status", query).await?)?;
        reads += 1;
        if reads == READS_OF_A_PAGE || !page.targets.iter().any(is_unread) {
            return Ok(page);
        }
        sleep(ASK_EVERY).await;
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

async fn commit(session: &Session<'_>, id: &DeploymentId, revision: &str) -> Result<TargetsAnswer, AskError> {
    let mut asked = 0;
    loop {
        asked += 1;
        match targets_by(&session.hub, id, Some(revision.to_owned())).await {
            Err(AskError::Refused(body)) if body.code == ErrorCode::NotReady && asked < ASKS_OF_A_COMMIT => {
                sleep(ASK_EVERY).await;
            }
            answer => return answer,
        }
    }
}
