//! Adds what the hubs say to a subscription: the content of a notice, as one hub with all the sites would give it.
//!
//! Counts are added. Lines are listed up to the first that some hub had no room for. A hub that is not heard has no
//! part: the status is then never a success, and the verdict is that of the sums, which count its devices as stale.

use std::collections::BTreeMap;

use muster_contract::notify::{
    NOTICE_CHANGES_MAX, NoticeContent, NoticeOmitted, NoticeState, NoticeStatus, Subscription,
};
use muster_contract::pulse::HubHearing;
use muster_contract::query::Output;
use muster_contract::status::{Axis, Rollup, StatusAnswer, StatusQuery, TargetStatus};
use muster_contract::view::AsOf;
use muster_contract::{DeploymentId, DeviceKey, HubName};

use super::super::notify::Changes;
use super::super::status::verdict_of;
use super::Merge;
use super::status::{StatusSum, apps_of};

/// The state after the filters and what it leaves out, or the reason why nothing passes; and the changes.
pub type NoticeSum = (Result<(NoticeState, NoticeOmitted), String>, Changes);

impl Merge {
    /// Adds the parts of a notice, in the order of hubs. `missing` are hubs that are not heard and may have a part.
    pub fn notice_sum(
        &self,
        subscription: &Subscription,
        parts: Vec<(HubName, NoticeContent)>,
        missing: Vec<HubName>,
        targets_max: usize,
    ) -> NoticeSum {
        let (mut changes, mut reason, mut present) = (Changes::default(), None, Vec::new());
        for (hub, content) in parts {
            changes.omitted += content.omitted.changes;
            changes.incomplete |= content.omitted.more_changes;
            changes.listed.extend(content.changes);
            match content.state {
                Some(state) => present.push((hub, content.as_of, state, content.omitted)),
                None => reason = longer(reason, content.message),
            }
        }
        changes
            .listed
            .sort_by(|one, other| (&one.key, &one.deployment).cmp(&(&other.key, &other.deployment)));
        changes.omitted += changes.listed.len().saturating_sub(NOTICE_CHANGES_MAX) as u64;
        changes.listed.truncate(NOTICE_CHANGES_MAX);
        match reason.filter(|_| present.is_empty() && missing.is_empty()) {
            Some(reason) => (Err(reason), changes),
            None => (Ok(self.state_sum(subscription, present, missing, targets_max)), changes),
        }
    }

    fn state_sum(
        &self,
        subscription: &Subscription,
        parts: Vec<(HubName, AsOf, NoticeState, NoticeOmitted)>,
        missing_hubs: Vec<HubName>,
        targets_max: usize,
    ) -> (NoticeState, NoticeOmitted) {
        let query = subscription.query();
        let short = StatusQuery { output: Output::Summary, ..query.clone() };
        let (mut sum, mut lines) = (StatusSum::new(&short, 1), Lines::default());
        for (hub, as_of, state, omitted) in parts {
            lines.add_lines(state.targets, omitted.targets > 0);
            // Cannot fail: the part has no cursor.
            let _ = sum.add_answer(&hub, answer_of(&short, as_of, state.rollup, state.hub));
        }
        let whole = sum.answer(self, Output::Summary, 1);
        let status = status_of(&whole.rollup, query.status, !missing_hubs.is_empty());
        let is_whole = subscription.is_of_a_deployment();
        let view = query.id.as_ref().filter(|_| is_whole).and_then(|id| self.deployment_view(id));
        let verdict = match (&view, missing_hubs.is_empty()) {
            (Some(view), false) => Some(view.verdict),
            _ => verdict_of(&whole.rollup).filter(|_| is_whole),
        };
        // A view that was read a moment earlier or later may say something else.
        let view = view.map(|view| (verdict == Some(view.verdict), view));
        let mut omitted =
            NoticeOmitted { view: matches!(view, Some((false, _))), ..NoticeOmitted::default() };
        let view = view.filter(|(agrees, _)| *agrees).map(|(_, view)| Box::new(view));
        let rollup = whole.rollup;
        let targets = lines.listed(targets_max);
        let mut apps = Vec::new();
        if query.output == Output::All {
            let all = rollup.targets + rollup.leaving + rollup.superseded;
            omitted.targets = all.saturating_sub(targets.len() as u64);
            if omitted.targets == 0 {
                apps = apps_of(&targets, query.status);
            }
        }
        let hub = whole.hub;
        (NoticeState { status, verdict, rollup, apps, targets, view, hub, missing_hubs }, omitted)
    }
}

/// The longer of two texts: it has suggestions.
fn longer(one: Option<String>, other: Option<String>) -> Option<String> {
    match (one, other) {
        (Some(one), Some(other)) if other.len() > one.len() => Some(other),
        (one, other) => one.or(other),
    }
}

/// The lines of several hubs.
#[derive(Default)]
struct Lines {
    all: Vec<TargetStatus>,
    /// The first place at which the lines of some hub may be incomplete.
    end: Option<(DeviceKey, DeploymentId)>,
}

impl Lines {
    fn add_lines(&mut self, lines: Vec<TargetStatus>, is_partial: bool) {
        if is_partial {
            let last = lines.last().map(place);
            self.end = match (self.end.take(), last) {
                (Some(end), Some(last)) => Some(end.min(last)),
                (end, last) => end.or(last),
            };
        }
        self.all.extend(lines);
    }

    fn listed(mut self, most: usize) -> Vec<TargetStatus> {
        self.all.sort_by_cached_key(place);
        if let Some(end) = &self.end {
            self.all.retain(|line| place(line) <= *end);
        }
        self.all.truncate(most);
        self.all
    }
}

fn place(line: &TargetStatus) -> (DeviceKey, DeploymentId) {
    (line.key.clone(), line.deployment.clone())
}

/// A hub's part as an answer about status, so that the same rules add it.
fn answer_of(query: &StatusQuery, as_of: AsOf, rollup: Rollup, hub: HubHearing) -> StatusAnswer {
    StatusAnswer {
        as_of,
        deployment: query.id.clone(),
        generation: None,
        verdict: None,
        whole: true,
        rollup,
        hub,
        apps: Vec::new(),
        targets: Vec::new(),
        manifests: BTreeMap::new(),
        manifests_left_out: 0,
        total: None,
        next: None,
    }
}

/// The status of the whole, which is no success where a part is missing.
fn status_of(rollup: &Rollup, axis: Option<Axis>, is_part: bool) -> NoticeStatus {
    match (NoticeStatus::of(rollup, axis), axis) {
        (status, _) if !is_part => status,
        (_, Some(Axis::Deployed)) => NoticeStatus::NotDeployed,
        (_, Some(Axis::Ready) | None) => NoticeStatus::NotReady,
    }
}
