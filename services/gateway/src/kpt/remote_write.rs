//! The route of a cluster's pipeline of metrics: a write request of Prometheus (remote-write 1.0) becomes reports, as ResourceGroups
//! do. It keeps no samples.
//!
//! The sender repeats a request after a status of 500 or above, with everything behind it, and drops it after one of 400 to 499. So
//! only a hub that cannot store makes it wait: what breaks a rule is refused after everything else is stored, and what is of no
//! device with desired state is ignored.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use muster_contract::evidence::{EvidenceSource, Fidelity, Provenance};
use muster_proto::prometheus::WriteRequest;
use prost::Message as _;
use snap::raw::{Decoder, decompress_len};

use super::evidence::{EvaluatedGroups, PeriodicEvidence};
use super::period::period;
use super::samples::{self, DeviceSamples};
use crate::margo::{Caller, Devices, problems, request};
use crate::problem::Problem;

/// The address.
pub(crate) const ADDRESS: &str = "/ingest/v1/remote-write";
/// Longest request in bytes when it is unpacked.
const UNPACKED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Devices of one request that are reported at once.
const DEVICES_AT_ONCE: usize = 16;
/// Devices of one request, each counted once for each time at which it was sampled: so many questions to the hub.
const PARTS_MAX: usize = 1_024;

const _: () = assert!(UNPACKED_BYTES_MAX > request::BODY_BYTES_MAX);

/// Takes a write request.
pub(crate) async fn write(
    State(devices): State<Devices>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<StatusCode, Problem> {
    let period = period(request.uri().query().unwrap_or_default())?;
    check_format(request.headers())?;
    let body = request::body(request.into_body()).await?;
    let read = samples::read(&unpacked(&body)?, period, devices.now());
    if read.devices.len() > PARTS_MAX {
        return Err(problems::too_many_parts(read.devices.len(), PARTS_MAX));
    }
    let all = read.devices.into_iter().map(|one| report(&devices, &caller, one, period));
    let refused: Vec<_> = stream::iter(all).buffer_unordered(DEVICES_AT_ONCE).try_collect().await?;
    match refused.into_iter().flatten().chain(read.refused).next() {
        Some(problem) => Err(problem),
        None => Ok(StatusCode::NO_CONTENT),
    }
}

/// Whether the body is packed as it must be. A sender of a later version sends this one after 415.
fn check_format(headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_known = text(CONTENT_ENCODING) == "snappy"
        && text(CONTENT_TYPE).starts_with("application/x-protobuf")
        && !text(CONTENT_TYPE).contains("v2");
    is_known.then_some(()).ok_or_else(problems::no_write_request)
}

fn unpacked(body: &[u8]) -> Result<WriteRequest, Problem> {
    let broken = |error: String| problems::invalid_request(format!("the body is no write request: {error}"));
    if decompress_len(body).map_err(|error| broken(error.to_string()))? > UNPACKED_BYTES_MAX {
        return Err(problems::too_large(UNPACKED_BYTES_MAX));
    }
    let bytes = Decoder::new().decompress_vec(body).map_err(|error| broken(error.to_string()))?;
    WriteRequest::decode(&*bytes).map_err(|error| broken(error.to_string()))
}

/// Reports what is said of one device. Returns the first statement that is refused.
///
/// # Errors
/// The hub has not stored it: the request must come again.
async fn report(
    devices: &Devices,
    caller: &Caller,
    samples: DeviceSamples,
    period: Duration,
) -> Result<Option<Problem>, Problem> {
    let DeviceSamples { device, groups, at } = samples;
    let key = match &device {
        None => Some(caller.device().clone()),
        Some(id) => caller.device_of(id),
    };
    let Some(key) = key else { return Ok(Some(problems::not_its_child())) };
    let Some(evaluated) = EvaluatedGroups::of(devices, &key, &groups, at).await? else { return Ok(None) };
    let source = EvidenceSource { origin: Provenance::Metrics, fidelity: Fidelity::Sampled };
    let evidence = PeriodicEvidence { source, period, is_ordered: true };
    evaluated.deliver(devices, &key, evidence).await?;
    Ok(evaluated.refused.into_iter().next())
}
