//! The status of a plan in EMCO's shape: the plan is the deployment intent group, its applications are the apps, and the nodes of its
//! instances are the clusters. An app has one resource in each cluster, its component. Apps have no statuses of their own.
//!
//! `deployedStatus` is that of the newest revision that was not cancelled, and the counts are of what reports say. [`states`] has the
//! history.

mod states;

use muster_contract::plans::{CompositeApp, Plan, PlanAnswer, PlanQuery, RevisionState};
use muster_contract::query::{ErrorBody, ErrorCode, Output};
use muster_contract::status::{ComponentLine, StatusAnswer, StatusQuery, TargetStatus};
use muster_contract::{ComponentName, PlanName};
use muster_domain::plans::application_id;
use serde_json::{Value, json};

use super::{Asked, Names, Subject};
use crate::ask::{AskError, Hub, understood};
use crate::status::gathered;

/// A plan, asked about as a deployment intent group.
#[derive(Debug)]
pub struct PlanGroup {
    plan: Plan,
}

impl PlanGroup {
    /// The plan of this name; none if a deployment has the name, if there is no such plan, or if no planner answers.
    ///
    /// # Errors
    /// A service refuses, or does not answer.
    pub async fn find(hub: &Hub, name: &str) -> Result<Option<Self>, AskError> {
        if let Ok(id) = name.parse() {
            let question = StatusQuery { id: Some(id), output: Output::Summary, ..StatusQuery::default() };
            match hub.status(&question).await {
                Ok(_) => return Ok(None),
                Err(error) if error.not_found().is_some() => {}
                Err(error) => return Err(error),
            }
        }
        let Ok(plan) = name.parse::<PlanName>() else { return Ok(None) };
        match hub.planner("plan-get", &PlanQuery { plan }).await {
            Ok(found) => Ok(Some(Self { plan: understood::<PlanAnswer>(&found)?.plan })),
            Err(AskError::NoService { .. }) => Ok(None),
            Err(error) if error.not_found().is_some() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Its composite app, if it names one.
    pub const fn composite_app(&self) -> Option<&CompositeApp> {
        self.plan.spec.composite_app.as_ref()
    }

    /// The status of its instances, with a target for each application on a node; none before the first instance has a node. The
    /// applications of the filters in `query` are those of the plan; `most` bounds the targets.
    ///
    /// # Errors
    /// No service answers, or a filter names nothing.
    pub async fn status(
        &self,
        hub: &Hub,
        query: StatusQuery,
        most: Option<usize>,
    ) -> Result<Option<StatusAnswer>, AskError> {
        let applications = self.plan.spec.applications.len().max(1);
        let most = most.map(|most| (most / applications).max(1));
        let whole = StatusQuery {
            app: vec![application_id(&self.plan.spec.name)],
            output: Output::Summary,
            ..StatusQuery::default()
        };
        let component = components(&self.plan, &query)?;
        // A brief answer has no components.
        let output = if query.output == Output::Brief { Output::All } else { query.output };
        let question =
            StatusQuery { id: None, app: whole.app.clone(), component, status: None, output, ..query };
        match gathered(hub, question, most).await {
            Ok(answer) => Ok(Some(by_application(answer))),
            Err(error) if error.not_found().is_some() => match hub.status(&whole).await {
                Err(whole) if whole.not_found().is_some() => Ok(None),
                _ => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// The whole answer, of a [`status`](Self::status). `reason` writes why the history cannot be read.
    pub async fn shape(
        &self,
        hub: &Hub,
        status: Option<&StatusAnswer>,
        asked: Asked,
        reason: impl FnOnce(&AskError) -> String,
    ) -> Value {
        let known = status.map(|answer| super::status(answer, Subject::Deployment, asked));
        let mut shape = known.unwrap_or_else(|| json!({}));
        self.insert_names(&mut shape);
        if let Some(of_revision) = self.deployed_status() {
            shape["deployedStatus"] = of_revision.into();
        }
        match states::read(hub, &self.plan).await {
            Ok(states) => shape["states"] = states,
            Err(error) => shape["statesLeftOut"] = reason(&error).into(),
        }
        shape
    }

    /// Names alone.
    pub fn names(&self, status: Option<&StatusAnswer>, names: Names) -> Value {
        let known = status.map(|answer| super::names(answer, Subject::Deployment, names));
        let mut shape = known.unwrap_or_else(|| match names {
            Names::Apps => json!({ "apps": [] }),
            Names::Targets => json!({ "clustersByApp": [] }),
            Names::Components => json!({ "resourcesByApp": [] }),
        });
        self.insert_names(&mut shape);
        shape
    }

    fn insert_names(&self, shape: &mut Value) {
        shape["name"] = self.plan.spec.name.as_str().into();
        if let Some(CompositeApp { project, name, version }) = self.composite_app() {
            shape["project"] = project.as_str().into();
            shape["compositeApp"] = name.as_str().into();
            shape["compositeAppVersion"] = version.as_str().into();
        }
    }

    /// EMCO's state of the newest revision that was not cancelled; none if the reports of its instances decide the state. Reports
    /// show neither instances without a node nor operations that wait.
    fn deployed_status(&self) -> Option<&'static str> {
        use RevisionState::{Cancelled, Completed, Failed, InProgress, Paused, Pending};
        let newest = self.plan.revisions.iter().rev().find(|revision| revision.state != Cancelled)?;
        let is_removal = newest.instances == 0;
        match (newest.state, is_removal) {
            (Pending | InProgress | Paused, false) => Some("Instantiating"),
            (Pending | InProgress | Paused, true) => Some("Terminating"),
            (Failed, false) => Some("InstantiateFailed"),
            (Failed, true) => Some("TerminateFailed"),
            (Completed, true) => Some("Terminated"),
            (Completed, false) | (Cancelled, _) => None,
        }
    }
}

/// The components that pass the filters of applications and resources; none for all.
fn components(plan: &Plan, query: &StatusQuery) -> Result<Vec<ComponentName>, AskError> {
    let absent = |name: &str| {
        let message = format!("plan '{}' has no application '{name}'", plan.spec.name);
        AskError::Refused(ErrorBody { code: ErrorCode::NotFound, message })
    };
    let known = |name: &str| {
        let mut all = plan.spec.applications.iter().map(|application| &application.payload_name);
        all.find(|known| known.as_str() == name).cloned().ok_or_else(|| absent(name))
    };
    let apps = query.app.iter().map(|name| known(name)).collect::<Result<Vec<_>, _>>()?;
    let resources = query.component.iter().map(|name| known(name.as_str())).collect::<Result<Vec<_>, _>>()?;
    if apps.is_empty() || resources.is_empty() {
        return Ok([apps, resources].concat());
    }
    let both: Vec<_> = apps.iter().filter(|app| resources.contains(app)).cloned().collect();
    // Each application is its own only resource.
    if both.is_empty() { Err(absent(query.component[0].as_str())) } else { Ok(both) }
}

/// The targets of a plan's deployments, each once for every application that it has.
fn by_application(mut answer: StatusAnswer) -> StatusAnswer {
    let left_out = answer.total.map(|total| total.saturating_sub(answer.targets.len() as u64));
    let targets = std::mem::take(&mut answer.targets).into_iter();
    answer.targets = targets.flat_map(of_each_application).collect();
    // Targets that are left out are counted once, because their applications are not known.
    answer.total = left_out.map(|left_out| left_out + answer.targets.len() as u64);
    // These roll-ups are of the application id that all deployments of a plan share.
    answer.apps.clear();
    answer
}

fn of_each_application(mut target: TargetStatus) -> Vec<TargetStatus> {
    let components = std::mem::take(&mut target.components);
    if components.is_empty() {
        return vec![TargetStatus { app: None, ..target }];
    }
    let of = |component: ComponentLine| TargetStatus {
        app: Some(component.name.to_string()),
        deployed_status: component.deployed_status,
        ready_status: component.ready_status,
        message: component.message.clone(),
        changed_at: component.changed_at,
        retry: component.retry,
        components: vec![component],
        ..target.clone()
    };
    components.into_iter().map(of).collect()
}
