//! Answers which devices the rollouts of an earlier commit govern: decisions about it are recomputed from that.
//!
//! It reads the commit from the repository, one at a time, and keeps the last one for the next page. It says nothing of
//! what devices have: LEDGER knows that of the past.

use std::sync::Arc;

use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::question::{checked_limit, parsed_after};
use muster_contract::rollout::{TargetsAnswer, TargetsQuery};
use muster_service::error::chain;
use tokio::sync::Mutex;

use crate::device_table::targets_of;
use crate::git::Repository;
use crate::poll;
use crate::requests::{bad_request, not_ready};
use crate::source::{Fleet, Policy};

/// Characters of a commit that an error repeats.
const REVISION_CHARS_MAX: usize = 64;

/// The earlier commits of a repository. Clones share the one that was read last.
#[derive(Debug, Clone)]
pub struct PastCommits {
    repository: Repository,
    policy: Policy,
    last: Arc<Mutex<Option<Arc<Fleet>>>>,
}

impl PastCommits {
    /// The commits of a repository, read by a policy.
    pub(crate) fn new(repository: Repository, policy: Policy) -> Self {
        Self { repository, policy, last: Arc::default() }
    }

    /// A page of the targets of a deployment by a commit.
    ///
    /// # Errors
    /// The repository does not give the commit, the commit breaks a rule, or another one is being read.
    pub(crate) async fn targets(
        &self,
        query: &TargetsQuery,
        revision: &str,
    ) -> Result<TargetsAnswer, ErrorBody> {
        let (limit, after) = (checked_limit(query.limit)?, parsed_after(query.after.as_deref())?);
        let fleet = self.fleet(revision).await?;
        Ok(targets_of(&fleet, &query.deployment, after.as_ref(), limit))
    }

    async fn fleet(&self, revision: &str) -> Result<Arc<Fleet>, ErrorBody> {
        // A reader of many commits must not fill the memory with requests that wait.
        let Ok(mut last) = self.last.try_lock() else {
            return Err(not_ready("another commit is being read; ask again in a moment"));
        };
        if let Some(fleet) = last.as_ref().filter(|fleet| fleet.revision == revision) {
            return Ok(Arc::clone(fleet));
        }
        let named: String = revision.chars().take(REVISION_CHARS_MAX).collect();
        let tree = self.repository.commit(revision).await.map_err(|error| ErrorBody {
            code: ErrorCode::NotFound,
            message: format!("the repository does not give commit {named}: {}", chain(&error)),
        })?;
        let fleet = poll::read(tree, self.policy).await;
        let fleet = fleet.map_err(|problems| bad_request(format!("commit {named}: {problems}")))?;
        let fleet = Arc::new(fleet);
        *last = Some(Arc::clone(&fleet));
        Ok(fleet)
    }
}
