//! The routes of clusters, and the one by which a cluster pushes its ResourceGroups. The certificate names the device, as on all
//! routes of devices.

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use muster_contract::evidence::{EvidenceSource, Fidelity, Provenance};
use serde::Serialize;

use super::evidence::{EvaluatedGroups, PeriodicEvidence, ReportedDeployment, no_desired_state};
use super::group::ResourceGroups;
use super::period::period;
use super::remote_write;
use crate::margo::{Caller, Devices, request};
use crate::problem::Problem;

/// The address.
const ADDRESS: &str = "/ingest/v1/resourcegroup";
/// The answer to a push.
#[derive(Debug, Serialize)]
struct PushAnswer {
    reports: Vec<ReportedDeployment>,
    /// Groups of a list that are of no deployment of the device.
    ignored: usize,
}

/// The routes of clusters.
pub(crate) fn routes() -> Router<Devices> {
    Router::new().route(ADDRESS, post(push)).route(remote_write::ADDRESS, post(remote_write::write))
}

async fn push(
    State(devices): State<Devices>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let period = period(request.uri().query().unwrap_or_default())?;
    let at = devices.now();
    let body = request::body(request.into_body()).await?;
    let groups = ResourceGroups::read(&body)?;
    let key = caller.device();
    let source = EvidenceSource { origin: Provenance::Push, fidelity: Fidelity::Snapshot };
    let evidence = PeriodicEvidence { source, period, is_ordered: false };
    let evaluated = EvaluatedGroups::of(&devices, key, &groups, evidence, at).await?;
    let evaluated = evaluated.ok_or_else(no_desired_state)?;
    if let Some(problem) = evaluated.refused.first() {
        return Err(problem.clone());
    }
    let reports = evaluated.deliver(&devices, key).await?;
    // Cannot fail: an object of texts and numbers.
    let answer = serde_json::to_vec(&PushAnswer { reports, ignored: evaluated.ignored }).unwrap_or_default();
    Ok(([(CONTENT_TYPE, "application/json")], answer).into_response())
}
