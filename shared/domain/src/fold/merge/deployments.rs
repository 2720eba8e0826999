//! Adds the deployment lists of several hubs. Each hub counts those of the query's sites that are its own. The caller
//! selects the hubs and their queries.
//!
//! A hub whose page continues may list any later deployment, so the sum ends at the earliest end of such a page.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::pulse::HubHearing;
use muster_contract::query::{DeploymentsAnswer, Query};
use muster_contract::silence::SilentSites;
use muster_contract::standing_part::StandingPart;
use muster_contract::view::{AsOf, DeploymentView, Omitted};
use muster_contract::{DeploymentId, HubName};

use super::super::answer::cut_page;
use super::super::max_timestamp::Times;
use super::super::tally::{BadPart, Group};
use super::super::totals::Named;
use super::super::view::{Standings, shown_deployment};
use super::answer::silent;
use super::hearing::hearing_of;

/// The added lists of the hubs.
#[derive(Debug, Default)]
pub struct DeploymentSum {
    rows: BTreeMap<DeploymentId, Row>,
    /// Deployments with an error of the query at some hub; `None` if the query names no error.
    with_error: Option<BTreeSet<DeploymentId>>,
    end: Option<DeploymentId>,
    hearing: Vec<(HubName, HubHearing)>,
    silent_sites: Vec<SilentSites>,
}

/// A deployment's counts at the hubs.
#[derive(Debug, Default)]
struct Row {
    name: String,
    group: Group,
    times: Times,
    hearing: Vec<(HubName, HubHearing)>,
}

impl DeploymentSum {
    /// Adds a hub's page, which ends with `end` if it continues.
    ///
    /// # Errors
    /// The counts of a deployment contradict each other.
    pub fn add(
        &mut self,
        hub: &HubName,
        answer: DeploymentsAnswer,
        end: Option<DeploymentId>,
    ) -> Result<(), BadPart> {
        for view in answer.deployments {
            let group = Group::read(&part_of(&view))?;
            let row = self.rows.entry(view.deployment).or_default();
            row.group += group;
            if row.name.is_empty() {
                row.name = view.deployment_name;
            }
            let times = Times { changed_at: view.changed_at, heard_at: view.last_heard_at };
            row.times = row.times.newest(times);
            row.hearing.push((hub.clone(), view.hub));
        }
        self.end_at(end);
        self.hearing.push((hub.clone(), answer.hub));
        self.silent_sites.push(answer.silent_sites);
        Ok(())
    }

    /// Adds a hub's page of deployments with an error of the query: the sum then lists only those.
    pub fn add_with_error(&mut self, answer: DeploymentsAnswer, end: Option<DeploymentId>) {
        let ids = answer.deployments.into_iter().map(|view| view.deployment);
        self.with_error.get_or_insert_default().extend(ids);
        self.end_at(end);
    }

    fn end_at(&mut self, end: Option<DeploymentId>) {
        self.end = match (self.end.take(), end) {
            (Some(own), Some(other)) => Some(own.min(other)),
            (own, other) => own.or(other),
        };
    }

    /// The list with at most `most` rows that pass the query's verdicts and errors.
    pub fn answer(&self, as_of: AsOf, query: &Query, most: usize) -> DeploymentsAnswer {
        let seen = self.rows.iter().filter(|(id, _)| self.end.as_ref().is_none_or(|end| *id <= end));
        let seen = seen.filter(|(id, _)| self.with_error.as_ref().is_none_or(|ids| ids.contains(*id)));
        let passes = |group: &Group| query.verdict.is_empty() || query.verdict.contains(&group.verdict());
        let views = seen.filter(|(_, row)| passes(&row.group)).map(|(id, row)| {
            let Row { name, group, times, hearing } = row;
            let named = Named { id: id.clone(), name: name.clone() };
            let counts = Standings { group, hub: hearing_of(hearing), times: *times };
            shown_deployment(named, as_of, counts, BTreeMap::new(), Vec::new(), Omitted::default())
        });
        let (deployments, next) = cut_page(views, most, |view| view.deployment.to_string());
        let next = next.or_else(|| self.end.as_ref().map(ToString::to_string));
        let silent_sites = silent(self.silent_sites.iter());
        DeploymentsAnswer { as_of, deployments, hub: hearing_of(&self.hearing), silent_sites, next }
    }
}

fn part_of(view: &DeploymentView) -> StandingPart {
    StandingPart {
        verdict: view.verdict,
        targets: view.targets,
        leaving: view.leaving,
        overdue: view.overdue,
        retried: view.retried,
        counts: view.counts.clone(),
        evidence: view.evidence.clone(),
        converged: view.converged,
        complete: view.complete,
    }
}
