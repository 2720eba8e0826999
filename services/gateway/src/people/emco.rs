//! `/v2`: EMCO's status query, for clients of EMCO. A deployment intent group is a deployment, or a plan ([`PlanGroup`]) where no
//! deployment has its name; a cluster is a device of the site that is its provider, a logical cloud is a site with everything that
//! runs there.
//!
//! A plan may name its composite app. Otherwise an address may name any project, composite app and version, and the answer repeats
//! them. An unknown deployment, device, site, application or component is 404: EMCO answers 400 to names of its addresses, and with
//! nothing to unknown values of filters. `…/status/watch` streams EMCO's notifications ([`WatchedStatus`]). EMCO's lifecycle requests
//! are not served.

mod left_out;
pub(crate) mod named;
pub(super) mod notify;
pub(super) mod request;
pub(crate) mod watched;

use axum::Router;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::get;
use muster_client::ask::{AskError, understood};
use muster_client::emco::plan::PlanGroup;
use muster_client::emco::{self, deprecated, states};
use muster_client::revision::last_of;
use muster_client::status::gathered;
use muster_contract::DeploymentId;
use muster_contract::actions::ActionsAnswer;
use muster_contract::history::Point;
use muster_contract::query::{Output, Query};
use muster_contract::status::StatusAnswer;
use muster_service::error::chain;
use serde_json::Value;

use self::left_out::{add_left_out, drop_cut_device};
use self::request::{Anchor, StatusRequest};
use self::watched::WatchedStatus;
use super::People;
use super::api::handler_helpers::document;
use super::watch::polled;
use crate::problem::Problem;

/// The address of the status of a deployment intent group.
pub(super) const GROUP: &str =
    "/v2/projects/{project}/composite-apps/{compositeApp}/{version}/deployment-intent-groups/{group}/status";
/// The address of the status of a cluster.
pub(super) const CLUSTER: &str = "/v2/cluster-providers/{provider}/clusters/{cluster}/status";
/// The address of the status of a logical cloud.
pub(super) const LOGICAL_CLOUD: &str = "/v2/projects/{project}/logical-clouds/{cloud}/status";
/// Most targets in one answer: EMCO's answers have no pages.
const TARGETS_MAX: usize = 10_000;

/// The routes.
pub(super) fn router() -> Router<People> {
    [GROUP, CLUSTER, LOGICAL_CLOUD].into_iter().fold(Router::new(), |router, address| {
        router.route(address, get(status)).route(&format!("{address}/watch"), get(watch))
    })
}

type PathParams = Result<RawPathParams, RawPathParamsRejection>;

fn anchor(path: PathParams) -> Result<Anchor, Problem> {
    let path = path.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.to_string()))?;
    Anchor::read(&path)
}

async fn status(
    State(people): State<People>,
    path: PathParams,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let anchor = anchor(path)?;
    let request = StatusRequest::status(&anchor, query.as_deref().unwrap_or_default())?;
    // An answer of many targets takes many pages, so few are gathered at once.
    let _permit = people.gather()?;
    let shape = match (known_status(&people, &anchor, &request).await, &anchor) {
        (Err(problem), Anchor::Group { id, .. }) if problem.status == StatusCode::NOT_FOUND.as_u16() => {
            match PlanGroup::find(&people.hub, id.as_str()).await? {
                Some(plan) => plan_status(&people, &anchor, &request, &plan).await?,
                None => return Err(problem),
            }
        }
        (answered, _) => answered?,
    };
    Ok(document(StatusCode::OK, &shape))
}

/// The status of a deployment, device or site.
async fn known_status(people: &People, anchor: &Anchor, request: &StatusRequest) -> Result<Value, Problem> {
    let mut actions = match anchor {
        Anchor::Group { id, .. } => Some(actions(people, id).await),
        Anchor::Cluster(_) | Anchor::Cloud { .. } => None,
    };
    let mut question = request.query.clone();
    if let Some(instance) = &request.instance
        && let Some(answer) = actions.take()
    {
        let answer = answer?;
        question.point = point_of(instance, &answer)?;
        actions = Some(Ok(answer));
    }
    let mut answer = gathered(&people.hub, question, Some(TARGETS_MAX)).await?;
    if let Anchor::Cloud { .. } = anchor {
        drop_cut_device(&mut answer);
    }
    check_known(people, anchor, &answer).await?;
    Ok(shape(anchor, request, &answer, actions))
}

/// The status of a plan that has the name of a group.
async fn plan_status(
    people: &People,
    anchor: &Anchor,
    request: &StatusRequest,
    plan: &PlanGroup,
) -> Result<Value, Problem> {
    if request.instance.is_some() {
        let rule = "names an older revision of a deployment; the past of a plan is in `muster plan history`";
        return Err(Problem::field("instance", rule));
    }
    if let Some(names) = plan.composite_app() {
        anchor.check_names(names)?;
    }
    let status = plan.status(&people.hub, request.query.clone(), Some(TARGETS_MAX)).await?;
    let mut shape = match request.names {
        Some(names) => plan.names(status.as_ref(), names),
        None => plan.shape(&people.hub, status.as_ref(), request.asked(), |error| chain(error)).await,
    };
    anchor.insert(&mut shape);
    if request.is_deprecated {
        deprecated::rename(&mut shape);
    }
    if let Some(answer) = status.as_ref().filter(|_| request.query.output != Output::Summary) {
        add_left_out(&mut shape, answer, anchor.subject());
    }
    Ok(shape)
}

fn shape(
    anchor: &Anchor,
    request: &StatusRequest,
    answer: &StatusAnswer,
    actions: Option<Result<ActionsAnswer, AskError>>,
) -> Value {
    let of = anchor.subject();
    if let Some(names) = request.names {
        let mut shape = emco::names(answer, of, names);
        anchor.insert(&mut shape);
        add_left_out(&mut shape, answer, of);
        return shape;
    }
    let mut shape = emco::status(answer, of, request.asked());
    anchor.insert(&mut shape);
    if let Some(actions) = actions {
        states::insert(&mut shape, actions.map_err(|error| chain(&error)));
    }
    if request.is_deprecated {
        deprecated::rename(&mut shape);
    }
    if request.query.output != Output::Summary {
        add_left_out(&mut shape, answer, of);
    }
    shape
}

async fn actions(people: &People, id: &DeploymentId) -> Result<ActionsAnswer, AskError> {
    let query = Query { id: Some(id.clone()), ..Query::default() };
    understood(&people.hub.query("actions", &query).await?)
}

/// The point of the past at which a revision was last in force; the present if it still is.
fn point_of(instance: &str, actions: &ActionsAnswer) -> Result<Point, Problem> {
    let last = last_of(actions, instance).map_err(|unknown| {
        let problem = Problem::field("instance", unknown.message);
        problem.with_near(&unknown.near.iter().map(String::as_str).collect::<Vec<_>>())
    })?;
    Ok(Point { at_seq: last, ..Point::default() })
}

/// Refuses a device that the hub does not know: its status would look like one of a device without deployments. The hub itself
/// refuses an unknown deployment or site.
async fn check_known(people: &People, anchor: &Anchor, answer: &StatusAnswer) -> Result<(), Problem> {
    let Anchor::Cluster(key) = anchor else { return Ok(()) };
    if !answer.targets.is_empty() || answer.total.is_some_and(|total| total > 0) {
        return Ok(());
    }
    let query = Query { site: key.site.clone().into(), device: Some(key.device.clone()), ..Query::default() };
    people.hub.query("device", &query).await?;
    Ok(())
}

async fn watch(
    State(people): State<People>,
    path: PathParams,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let anchor = anchor(path)?;
    let request = StatusRequest::notifications(&anchor, query.as_deref().unwrap_or_default())?;
    polled::notifications(people, WatchedStatus::new(anchor, request), &headers).await
}
