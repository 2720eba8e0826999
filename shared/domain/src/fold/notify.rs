//! Computes the content of a notice: the state after a subscription's filters, and the standings that changed
//! since a position.

use muster_contract::notify::{
    NOTICE_CHANGES_MAX, NoticeOmitted, NoticeState, NoticeStatus, StandingChange, Subscription,
};
use muster_contract::query::Output;
use muster_contract::status::StatusQuery;
use muster_contract::{DeploymentId, DeviceKey};

use super::change_log::ChangedSince;
use super::fleet::Fleet;
use super::status::StatusRefusal;

/// The reason why a subscription cannot be evaluated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NothingToTell {
    /// It names something unknown or removed.
    #[error("{0}")]
    Absent(String),
    /// The subscription is invalid.
    #[error("{0}")]
    Wrong(String),
    /// One evaluation would have to visit too many standings.
    #[error(
        "too many standings to look at for each notice: name a deployment, sites or devices, or fewer filters"
    )]
    TooWide,
}

impl From<StatusRefusal> for NothingToTell {
    fn from(refusal: StatusRefusal) -> Self {
        match refusal {
            StatusRefusal::Unknown(words) => Self::Absent(words),
            StatusRefusal::Wrong(words) => Self::Wrong(words),
        }
    }
}

/// Standings that changed, and how many more there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// The first of them.
    pub listed: Vec<StandingChange>,
    /// How many more there are.
    pub omitted: u64,
    /// There may be changes that the log no longer holds.
    pub incomplete: bool,
}

impl Fleet {
    /// The state of everything that passes a subscription's filters, with at most `targets_max` lines, and the
    /// omissions.
    ///
    /// # Errors
    /// The reason why it cannot be evaluated.
    pub fn notice_state(
        &self,
        subscription: &Subscription,
        targets_max: usize,
    ) -> Result<(NoticeState, NoticeOmitted), NothingToTell> {
        let query = subscription.query();
        let short = StatusQuery { output: Output::Summary, ..query.clone() };
        let whole = self.status_answer(&short, None, 1)?;
        if !whole.whole {
            return Err(NothingToTell::TooWide);
        }
        let status = NoticeStatus::of(&whole.rollup, query.status);
        let is_whole = subscription.is_of_a_deployment();
        let view = query.id.as_ref().filter(|_| is_whole).and_then(|id| self.deployment_view(id));
        let (mut apps, mut targets, mut omitted) = (Vec::new(), Vec::new(), NoticeOmitted::default());
        if query.output == Output::All && targets_max > 0 {
            let lines = self.status_answer(&query, None, targets_max)?;
            (apps, targets) = (lines.apps, lines.targets);
        }
        let (rollup, hub) = (whole.rollup, whole.hub);
        // Every report moves `report` without a change of any standing, so no notice has it.
        targets.iter_mut().for_each(|line| line.report = None);
        if query.output == Output::All {
            let all = rollup.targets + rollup.leaving + rollup.superseded;
            omitted.targets = all.saturating_sub(targets.len() as u64);
        }
        if omitted.targets > 0 {
            // The apps would cover only the listed targets, which the subscriber did not ask for.
            apps = Vec::new();
        }
        let verdict = whole.verdict.filter(|_| is_whole);
        let view = view.map(Box::new);
        let missing_hubs = Vec::new();
        Ok((NoticeState { status, verdict, rollup, apps, targets, view, hub, missing_hubs }, omitted))
    }

    /// The standings that pass a subscription's filters, or did, and changed since a position. One that no
    /// longer passes counts as gone, one that passes only now as new.
    pub fn changes_since(&self, subscription: &Subscription, ledger_seq: u64) -> Changes {
        let Subscription { id, site, device, .. } = subscription;
        let wanted = |key: &DeviceKey, deployment: &DeploymentId| {
            id.as_ref().is_none_or(|id| id == deployment)
                && (site.is_empty() || site.contains(&key.site))
                && (device.is_empty() || device.iter().any(|path| path.0 == *key))
        };
        let key = |number: u32| self.key_of(&self.devices[number as usize]);
        let mut listed = self.change_log.changes(ledger_seq, key, wanted, subscription);
        let omitted = listed.len().saturating_sub(NOTICE_CHANGES_MAX) as u64;
        listed.truncate(NOTICE_CHANGES_MAX);
        Changes { listed, omitted, incomplete: !self.change_log.is_complete_after(ledger_seq) }
    }

    /// The objects that may have changed since a position.
    pub fn changed_since(&self, ledger_seq: u64) -> ChangedSince {
        let key = |number: u32| self.key_of(&self.devices[number as usize]);
        self.change_log.changed(ledger_seq, &self.totals, key)
    }
}

impl ChangedSince {
    /// Whether a notice for a subscription may be due.
    pub fn concerns(&self, subscription: &Subscription) -> bool {
        let Subscription { id, site, device, app, component, .. } = subscription;
        let concerned = match id {
            // Whether there is such a deployment at all is decided by any device.
            Some(id) => self.deployments.contains(id),
            None => {
                !self.devices.is_empty()
                    && (site.is_empty() || site.iter().any(|site| self.sites.contains(site)))
                    && (device.is_empty() || device.iter().any(|path| self.devices.contains(&path.0)))
            }
        };
        // A name that was known nowhere, or is known nowhere any more, may have come or gone anywhere.
        let appeared = site.iter().any(|site| self.appeared_at.contains(site))
            || device.iter().any(|path| self.appeared.contains(&path.0));
        let named = app.iter().any(|app| self.apps.contains(app.as_str()))
            || component.iter().any(|name| self.components.contains(name))
            || (self.left && !component.is_empty());
        concerned || self.all || appeared || named
    }
}
