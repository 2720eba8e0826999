//! The route by which a cluster pushes its ResourceGroups. The certificate names the device, as on all routes of devices.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use muster_contract::evidence::{Fidelity, Provenance};
use muster_contract::limits::{EVIDENCE_LEASE_MS_MAX, LEASE};
use muster_contract::profile::parse_duration;
use serde::Serialize;

use super::evidence::{EvaluatedGroups, EvidenceKind, ReportedDeployment};
use super::group::ResourceGroups;
use crate::margo::{Caller, Devices, problems, request};
use crate::problem::Problem;

/// The address.
const ADDRESS: &str = "/ingest/v1/resourcegroup";
/// The parameter with the time for which a snapshot is fresh.
const PERIOD: &str = "period";
/// Bounds of that time.
pub(crate) const PERIOD_MIN: Duration = Duration::from_secs(1);
pub(crate) const PERIOD_MAX: Duration = Duration::from_millis(EVIDENCE_LEASE_MS_MAX);

const _: () = assert!(LEASE.as_millis() < PERIOD_MAX.as_millis());

/// The answer to a push.
#[derive(Debug, Serialize)]
struct PushAnswer {
    reports: Vec<ReportedDeployment>,
    /// Groups of a list that are of no deployment of the device.
    ignored: usize,
}

/// The routes of clusters.
pub(crate) fn routes() -> Router<Devices> {
    Router::new().route(ADDRESS, post(push))
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
    let evaluated = EvaluatedGroups::of(&devices, key, &groups, at).await?;
    if let Some(problem) = evaluated.refused.first() {
        return Err(problem.clone());
    }
    let kind = EvidenceKind { origin: Provenance::Push, fidelity: Fidelity::Snapshot, period };
    let reports = evaluated.deliver(&devices, key, kind).await?;
    // Cannot fail: an object of texts and numbers.
    let answer = serde_json::to_vec(&PushAnswer { reports, ignored: evaluated.ignored }).unwrap_or_default();
    Ok(([(CONTENT_TYPE, "application/json")], answer).into_response())
}

/// The period of a push; without one, the lease of the hub.
fn period(query: &str) -> Result<Duration, Problem> {
    let mut period = LEASE;
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if name != PERIOD {
            return Err(problems::semantic_error(name, format!("is unknown here; {PERIOD} is known")));
        }
        let read = parse_duration(&value).ok().filter(|period| (PERIOD_MIN..=PERIOD_MAX).contains(period));
        let rule = || format!("is '{value}'; must be a time of 1s to 1h, such as 90s or 5m");
        period = read.ok_or_else(|| problems::semantic_error(PERIOD, rule()))?;
    }
    Ok(period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_bounded_and_other_parameters_are_refused() {
        assert_eq!(period("").unwrap(), LEASE);
        assert_eq!(period("period=5m").unwrap(), Duration::from_secs(300));
        for bad in ["period=", "period=0s", "period=2h", "period=soon"] {
            assert_eq!(period(bad).unwrap_err().errors[0].field, "period", "{bad}");
        }
        assert_eq!(period("perioda=5m").unwrap_err().errors[0].field, "perioda");
    }
}
