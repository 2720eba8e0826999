//! The list of a deployment's targets, built page by page. Each page becomes compact targets at once: the publisher's form of 100,000
//! targets takes 40 MB, which the heap does not give back. This module sends no request.

use std::collections::BTreeMap;
use std::mem;

use muster_contract::DeploymentId;
use muster_contract::canonical::Digest;
use muster_contract::rollout::TargetsAnswer;
use muster_domain::rollout::LiveTarget;
use tokio::time::Instant;

use super::TrackedRollouts;
use crate::error::PlannerError;
use crate::evidence::Evidence;
use crate::services::{PAGES_MAX, targets_subject};

/// The pages received so far.
#[derive(Debug)]
pub(crate) struct Listing {
    /// The deployment.
    pub(crate) id: DeploymentId,
    /// Time of the first request.
    pub(super) began: Instant,
    pages: usize,
    /// Everything but the targets.
    pub(super) answer: Option<TargetsAnswer>,
    /// The targets of each rollout: path of the `rollout.yaml` and content.
    pub(super) groups: BTreeMap<(String, Digest), Vec<LiveTarget>>,
}

impl Listing {
    /// A list without pages, of which the first is requested now.
    pub(crate) const fn new(id: DeploymentId, began: Instant) -> Self {
        Self { id, began, pages: 0, answer: None, groups: BTreeMap::new() }
    }

    /// Adds the next page, whose targets share their devices with the `rollouts`.
    ///
    /// # Errors
    /// The page is of another commit than the first one, or further pages never end.
    pub(crate) fn add(
        &mut self,
        mut page: TargetsAnswer,
        rollouts: &mut TrackedRollouts,
        evidence: &Evidence,
    ) -> Result<(), PlannerError> {
        let targets = mem::take(&mut page.targets);
        match &mut self.answer {
            None => self.answer = Some(page),
            Some(answer) => {
                if !answer.append(page) {
                    return Err(PlannerError::CommitChanged);
                }
            }
        }
        for mut target in targets {
            // A removal is no rollout: no report confirms that a device runs nothing.
            if let Some(wanted) = target.wanted {
                let key = (mem::take(&mut target.rollout), wanted);
                let target = rollouts.target(target, evidence);
                self.groups.entry(key).or_default().push(target);
            }
        }
        self.pages += 1;
        if self.pages >= PAGES_MAX && self.after().is_some() {
            return Err(PlannerError::Endless { subject: targets_subject(), pages: PAGES_MAX });
        }
        Ok(())
    }

    /// The device after which the next page begins; `None` after the last page.
    pub(crate) fn after(&self) -> Option<&str> {
        self.answer.as_ref()?.next.as_deref()
    }
}
