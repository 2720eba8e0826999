//! A list or page of the screen: its subject, its answer, its filter and its selected row. Pure.

use std::fmt;

use muster_contract::query::{DeploymentAnswer, DeviceAnswer, DevicesAnswer};
use muster_contract::status::StatusAnswer;
use muster_contract::view::SiteView;
use muster_contract::why::WhyAnswer;
use muster_contract::{DeploymentId, DeviceKey, SiteId};
use muster_domain::rollout::RolloutProgress;

use super::fleet_screen::Part;

/// A list of the first screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tab {
    /// Deployments, worst first.
    Deployments,
    /// Silent devices, the longest silence first.
    Silent,
    /// Held changes and open rollouts.
    Rollouts,
    /// Incidents of the hub.
    Incidents,
    /// Sites, silent and worst first.
    Sites,
}

impl Tab {
    /// All of them, in the order of their keys.
    pub const ALL: [Self; 5] =
        [Self::Deployments, Self::Silent, Self::Rollouts, Self::Incidents, Self::Sites];

    /// The title.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Deployments => "Deployments",
            Self::Silent => "Silent",
            Self::Rollouts => "Rollouts",
            Self::Incidents => "Incidents",
            Self::Sites => "Sites",
        }
    }
}

/// Something that a page is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A deployment with its devices.
    Deployment(DeploymentId),
    /// The facts behind a verdict.
    Why(DeploymentId),
    /// A device.
    Device(DeviceKey),
    /// A site with its devices.
    Site(SiteId),
    /// The rollouts of a deployment.
    Rollout(DeploymentId),
    /// An incident of the hub, by its sequence in LEDGER.
    Incident(u64),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deployment(id) => write!(f, "deployment {id}"),
            Self::Why(id) => write!(f, "why {id}"),
            Self::Device(key) => write!(f, "device {key}"),
            Self::Site(site) => write!(f, "site {site}"),
            Self::Rollout(id) => write!(f, "rollout of {id}"),
            Self::Incident(seq) => write!(f, "incident, ledger {seq}"),
        }
    }
}

/// The answer that a page shows.
#[derive(Debug)]
pub enum Content {
    /// A deployment with its devices.
    Deployment(Box<(DeploymentAnswer, StatusAnswer)>),
    /// The facts behind a verdict.
    Why(Box<WhyAnswer>),
    /// A device.
    Device(Box<DeviceAnswer>),
    /// A site with its devices.
    Site(Box<(SiteView, DevicesAnswer)>),
    /// The rollouts of a deployment.
    Rollout(Vec<RolloutProgress>),
}

/// One row.
#[derive(Debug)]
pub struct ListRow {
    /// Styled text.
    pub text: String,
    /// The page behind it.
    pub target: Option<Target>,
}

/// The subject of a list or page.
#[derive(Debug, Clone)]
pub(super) enum Subject {
    Tab(Tab),
    Page(Target),
}

/// A list or a page.
#[derive(Debug)]
pub(super) struct View {
    pub(super) subject: Subject,
    /// The answer of a page.
    pub(super) content: Part<Content>,
    pub(super) filter: String,
    /// The selected row, or the first line of a text.
    at: usize,
    /// The target of the selected row.
    on: Option<Target>,
}

impl View {
    pub(super) const fn of(subject: Subject) -> Self {
        Self { subject, content: Part::none(), filter: String::new(), at: 0, on: None }
    }

    /// The selected row of a list.
    pub(super) fn position(&self, rows: &[ListRow]) -> usize {
        let is_same = |row: &ListRow| self.on.is_some() && row.target == self.on;
        // Several rollouts of a deployment have one page.
        if rows.get(self.at).is_some_and(is_same) {
            return self.at;
        }
        let same = rows.iter().position(is_same);
        same.unwrap_or(self.at).min(rows.len().saturating_sub(1))
    }

    pub(super) fn select(&mut self, rows: &[ListRow], at: usize) {
        self.at = at.min(rows.len().saturating_sub(1));
        self.on = rows.get(self.at).and_then(|row| row.target.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cursor_moves_over_two_rollouts_of_one_deployment() {
        let row = |id: &str| ListRow { text: String::new(), target: id.parse().ok().map(Target::Rollout) };
        let rows = [row("log"), row("web"), row("web"), row("x")];
        let mut view = View::of(Subject::Tab(Tab::Rollouts));
        for at in 0..rows.len() {
            view.select(&rows, at);
            assert_eq!(view.position(&rows), at);
        }
        view.select(&rows, 2);
        let rows = [row("a"), row("log"), row("x"), row("web"), row("web")];
        assert_eq!(view.position(&rows), 3, "it follows the deployment when the order changes");
    }
}
