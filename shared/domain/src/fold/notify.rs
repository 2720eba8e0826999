//! What a subscription is told: the state after its filters, and the standings that changed since a position.

use muster_contract::notify::{
    NOTICE_CHANGES_MAX, NoticeOmitted, NoticeState, NoticeStatus, StandingChange, Subscription,
};
use muster_contract::query::Output;
use muster_contract::status::StatusQuery;
use muster_contract::{DeploymentId, DeviceKey};

use super::fleet::Fleet;
use super::shifts::Touched;
use super::status::StatusRefusal;

/// Why a subscription has nothing to be told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NothingToTell {
    /// It names what nobody knows, or what is not there any more.
    #[error("{0}")]
    Absent(String),
    /// It is wrong in itself.
    #[error("{0}")]
    Wrong(String),
    /// More would have to be looked at than one look may.
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
    /// There may be some that nobody remembers.
    pub incomplete: bool,
}

impl Fleet {
    /// How what passes a subscription's filters is, with at most `targets_max` lines, and what that leaves out.
    ///
    /// # Errors
    /// Why there is nothing to be told.
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
            // That moves with whatever comes of a silent device, and no standing is otherwise by it: nothing to tell.
            targets.iter_mut().for_each(|line| line.last_heard_at = None);
        }
        let (rollup, hub) = (whole.rollup, whole.hub);
        if query.output == Output::All {
            let all = rollup.targets + rollup.leaving + rollup.superseded;
            omitted.targets = all.saturating_sub(targets.len() as u64);
        }
        if omitted.targets > 0 {
            // They would be those of the targets that are listed, which nobody asked for.
            apps = Vec::new();
        }
        let verdict = whole.verdict.filter(|_| is_whole);
        let view = view.map(Box::new);
        Ok((NoticeState { status, verdict, rollup, apps, targets, view, hub }, omitted))
    }

    /// The standings that pass a subscription's filters, or did, and are otherwise than at a position. One that no longer
    /// passes is gone for it, and one that passes only now has come.
    pub fn changes_since(&self, subscription: &Subscription, ledger_seq: u64) -> Changes {
        let Subscription { id, site, device, .. } = subscription;
        let wanted = |key: &DeviceKey, deployment: &DeploymentId| {
            id.as_ref().is_none_or(|id| id == deployment)
                && (site.is_empty() || site.contains(&key.site))
                && (device.is_empty() || device.iter().any(|path| path.0 == *key))
        };
        let key = |number: u32| self.key_of(&self.devices[number as usize]);
        let mut listed = self.shifts.changes(ledger_seq, key, wanted, subscription);
        let omitted = listed.len().saturating_sub(NOTICE_CHANGES_MAX) as u64;
        listed.truncate(NOTICE_CHANGES_MAX);
        Changes { listed, omitted, incomplete: !self.shifts.is_complete_after(ledger_seq) }
    }

    /// What may be otherwise than at a position.
    pub fn touched_since(&self, ledger_seq: u64) -> Touched {
        let key = |number: u32| self.key_of(&self.devices[number as usize]);
        self.shifts.touched(ledger_seq, &self.totals, key)
    }
}

impl Touched {
    /// Whether a subscription may have to be told something.
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
