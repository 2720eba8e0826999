//! The route of a cluster's pipeline of metrics: a write request of Prometheus (remote-write 1.0) becomes reports, as ResourceGroups
//! do. It keeps no samples.
//!
//! The sender repeats a request after a status of 500 or above, with everything behind it, and drops it after one of 400 to 499. So
//! every device of a request is tried, and then only a hub that cannot store now makes the sender wait. A series that breaks a rule
//! is refused after the others are stored, and samples of a device without desired state are ignored.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use futures_util::{StreamExt as _, stream};
use muster_contract::DeviceKey;
use muster_contract::evidence::{EvidenceSource, Fidelity, Provenance};
use muster_proto::prometheus::WriteRequest;
use prost::Message as _;
use snap::raw::{Decoder, decompress_len};

use super::evidence::{EvaluatedGroups, PeriodicEvidence};
use super::period::period;
use super::samples::{self, DeviceSamples, RequestSamples};
use crate::margo::{Caller, Devices, problems, request};
use crate::problem::Problem;

/// The address.
pub(crate) const ADDRESS: &str = "/ingest/v1/remote-write";
/// Longest request in bytes when it is unpacked.
const UNPACKED_BYTES_MAX: usize = 2 * 1024 * 1024;
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
    let RequestSamples { parts, mut refused } =
        samples::read(&unpacked(&body)?, caller.device_id(), period, devices.now());
    let own = of_caller(&caller, parts, &mut refused);
    let count = own.values().map(Vec::len).sum();
    if count > PARTS_MAX {
        return Err(problems::too_many_parts(count, PARTS_MAX));
    }
    let all = own.into_iter().map(|(key, parts)| report(&devices, key, parts, period));
    let problems: Vec<Problem> = stream::iter(all).buffer_unordered(DEVICES_AT_ONCE).concat().await;
    // The sender drops a request after 429.
    if let Some(problem) = problems.iter().find(|problem| matches!(problem.status, 429 | 503)) {
        return Err(problems::unavailable(problem.detail.clone()));
    }
    match problems.into_iter().chain(refused).next() {
        Some(problem) if problem.status >= 500 => Err(problems::not_stored(&problem.detail)),
        Some(problem) => Err(problem),
        None => Ok(StatusCode::NO_CONTENT),
    }
}

/// The parts by device, in order of their times, but those of devices for which the client does not speak.
fn of_caller(
    caller: &Caller,
    parts: Vec<DeviceSamples>,
    refused: &mut Option<Problem>,
) -> BTreeMap<DeviceKey, Vec<DeviceSamples>> {
    let mut own: BTreeMap<DeviceKey, Vec<DeviceSamples>> = BTreeMap::new();
    for part in parts {
        let key = match &part.device {
            None => Some(caller.device().clone()),
            Some(id) => caller.device_of(id),
        };
        match key {
            Some(key) => own.entry(key).or_default().push(part),
            None => _ = refused.get_or_insert_with(problems::not_its_child),
        }
    }
    own
}

/// Whether the body is packed as it must be.
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

/// Reports the parts of one device, one after another. Returns the first problem of each part that has one.
async fn report(
    devices: &Devices,
    key: DeviceKey,
    parts: Vec<DeviceSamples>,
    period: Duration,
) -> Vec<Problem> {
    let source = EvidenceSource { origin: Provenance::Metrics, fidelity: Fidelity::Sampled };
    let evidence = PeriodicEvidence { source, period, is_ordered: true };
    let mut found = Vec::new();
    for DeviceSamples { groups, at, .. } in parts {
        let refused = async {
            let evaluated = EvaluatedGroups::of(devices, &key, &groups, evidence, at).await?;
            let Some(evaluated) = evaluated else { return Ok(None) };
            evaluated.deliver(devices, &key).await?;
            Ok(evaluated.refused.into_iter().next())
        };
        match refused.await {
            Ok(refused) => found.extend(refused),
            Err(problem) => found.push(problem),
        }
    }
    found
}
