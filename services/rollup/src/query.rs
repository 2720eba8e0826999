//! Answers to questions over the bus (`muster.query.*`), from memory. Until LEDGER was read to its end, every answer is
//! that there is none yet.

mod groups;
mod status;

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use muster_bus::{Bus, Call, EndpointSpec, Fault, ServiceSpec};
use muster_contract::limits::MESSAGE_BYTES_MAX;
use muster_contract::query::{ErrorBody, ErrorCode, PAGE_DEFAULT, PAGE_MAX, Query};
use muster_contract::subjects::QUERY_PREFIX;
use muster_contract::why::WhyAnswer;
use muster_contract::{DeploymentId, DeviceKey, SiteId};
use muster_domain::fold::{Fleet, Page};
use muster_service::health::Latch;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::metrics::{AnswerKind, Metrics};
use crate::present::{Now, Present};

/// The service's name in `$SRV.INFO`.
const SERVICE: &str = "muster-query";
/// Version of the questions and answers.
const SERVICE_VERSION: &str = env!("CARGO_PKG_VERSION");
const DESCRIPTION: &str = "What is true of deployments, devices, sites and the fleet";
/// Largest answer: any server that Muster works with carries it. Longer lists come in more pages.
const ANSWER_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

const ENDPOINTS: [&str; 8] =
    ["deployment", "deployments", "device", "devices", "site", "fleet", "why", status::ENDPOINT];

/// The desk where questions are answered. Clones share the present.
#[derive(Debug, Clone)]
pub struct Desk {
    present: Arc<Present>,
    metrics: Metrics,
}

impl Desk {
    /// A desk that answers from the present.
    pub const fn new(present: Arc<Present>, metrics: Metrics) -> Self {
        Self { present, metrics }
    }

    /// Answers questions until `stop`; those already taken are answered then.
    pub async fn serve(self, bus: Bus, offered: Latch, stop: CancellationToken) {
        let handler = move |call| std::future::ready(self.handle(&call));
        bus.offer(spec(), handler, || offered.release(), stop).await;
    }

    fn handle(&self, call: &Call) -> Result<Bytes, Fault> {
        let answer = self.answer(call.endpoint, &call.payload);
        let kind = if answer.is_ok() { AnswerKind::Answer } else { AnswerKind::Error };
        self.metrics.question(call.endpoint, kind);
        answer.map_err(Fault::from)
    }

    /// The answer to a question as JSON.
    ///
    /// # Errors
    /// Why there is none, as the asker is to read it.
    pub fn answer(&self, endpoint: &str, question: &[u8]) -> Result<Bytes, ErrorBody> {
        if endpoint == status::ENDPOINT {
            return status::answer(&self.present, question);
        }
        if groups::ENDPOINTS.contains(&endpoint) {
            return groups::answer(&self.present, endpoint, question);
        }
        let query = understand(question)?;
        self.present.look(|now| fitting(caught_up(now)?, endpoint, &query))
    }
}

/// The fleet, once LEDGER was read to its end.
fn caught_up(now: &Now) -> Result<&Fleet, ErrorBody> {
    if now.caught_up {
        return Ok(&now.fleet);
    }
    let read_to = now.fleet.as_of().ledger_seq;
    let message = format!("still reading LEDGER (at {read_to}); ask again in a moment");
    Err(ErrorBody { code: ErrorCode::NotReady, message })
}

fn spec() -> ServiceSpec {
    let endpoint = |name| EndpointSpec { name, subject: format!("{QUERY_PREFIX}.{name}") };
    ServiceSpec {
        name: SERVICE,
        version: SERVICE_VERSION,
        description: DESCRIPTION,
        endpoints: ENDPOINTS.into_iter().chain(groups::ENDPOINTS).map(endpoint).collect(),
    }
}

/// An empty question asks for everything.
fn understand(question: &[u8]) -> Result<Query, ErrorBody> {
    if question.is_empty() {
        return Ok(Query::default());
    }
    let query: Query =
        serde_json::from_slice(question).map_err(|error| bad(format!("not a question: {error}")))?;
    match query.limit {
        Some(limit) if limit == 0 || limit > PAGE_MAX => {
            Err(bad(format!("limit: {limit} is not within 1 and {PAGE_MAX}")))
        }
        _ => Ok(query),
    }
}

/// The answer with as many rows as were asked for, or as many as fit into a message.
fn fitting(fleet: &Fleet, endpoint: &str, query: &Query) -> Result<Bytes, ErrorBody> {
    let mut limit = query.limit.unwrap_or(PAGE_DEFAULT);
    loop {
        let answer = look_up(fleet, endpoint, query, limit)?;
        if answer.len() <= ANSWER_BYTES_MAX {
            return Ok(answer.into());
        }
        if limit == 1 {
            let message = format!(
                "the answer has {} bytes, {ANSWER_BYTES_MAX} fit into a message; ask for less detail (output)",
                answer.len()
            );
            return Err(ErrorBody { code: ErrorCode::Internal, message });
        }
        // Rows are of about the same size; a little less than their share finds room most of the time.
        limit = (limit * ANSWER_BYTES_MAX / answer.len() * 9 / 10).clamp(1, limit - 1);
    }
}

fn look_up(fleet: &Fleet, endpoint: &str, query: &Query, limit: usize) -> Result<Vec<u8>, ErrorBody> {
    let site = query.site.as_ref();
    match endpoint {
        "deployment" => {
            let id = named(query.id.as_ref(), "id")?;
            let page = Page { after: after::<DeviceKey>(query)?, limit };
            let answer = fleet.deployment_answer(id, query.output, site, &page);
            json(found(answer, || format!("deployment '{id}' is targeted nowhere and left nowhere"))?)
        }
        "deployments" => {
            let page = Page { after: after::<DeploymentId>(query)?, limit };
            json(found(fleet.deployments_answer(site, &page), || no_site(site))?)
        }
        "device" => {
            let (site, device) = (named(site, "site")?, named(query.device.as_ref(), "device")?);
            let key = DeviceKey { site: site.clone(), device: device.clone() };
            let answer = fleet.device_answer(&key, query.output);
            json(found(answer, || format!("device '{key}' was never heard of"))?)
        }
        "devices" => {
            let page = Page { after: after::<DeviceKey>(query)?, limit };
            json(found(fleet.devices_answer(site, &page), || no_site(site))?)
        }
        "site" => json(found(fleet.site_view(named(site, "site")?), || no_site(site))?),
        "fleet" => json(fleet.fleet_view()),
        "why" => json(why(fleet, query, limit)?),
        other => Err(bad(format!("there is no question '{other}'"))),
    }
}

fn why(fleet: &Fleet, query: &Query, limit: usize) -> Result<WhyAnswer, ErrorBody> {
    let (id, site) = (named(query.id.as_ref(), "id")?, query.site.as_ref());
    let nowhere = || format!("deployment '{id}' is targeted nowhere and left nowhere");
    let there = |words: String| if fleet.deployment_view(id).is_none() { nowhere() } else { words };
    let Some(device) = &query.device else {
        let page = Page { after: after::<DeviceKey>(query)?, limit };
        return found(fleet.why(id, site, &page), || there(no_site(site)));
    };
    let key = DeviceKey { site: named(site, "site")?.clone(), device: device.clone() };
    let stranger = || there(format!("device '{key}' neither shall run '{id}' nor has it"));
    found(fleet.why_device(id, &key), stranger)
}

fn named<'a, T>(value: Option<&'a T>, field: &str) -> Result<&'a T, ErrorBody> {
    value.ok_or_else(|| bad(format!("{field}: is missing from the question")))
}

fn after<K: FromStr<Err: Display>>(query: &Query) -> Result<Option<K>, ErrorBody> {
    let parse = |text: &String| text.parse().map_err(|error| bad(format!("after: {error}")));
    query.after.as_ref().map(parse).transpose()
}

fn found<T>(answer: Option<T>, missing: impl FnOnce() -> String) -> Result<T, ErrorBody> {
    answer.ok_or_else(|| ErrorBody { code: ErrorCode::NotFound, message: missing() })
}

fn no_site(site: Option<&SiteId>) -> String {
    let name = site.map(SiteId::as_str).unwrap_or_default();
    format!("site '{name}' has no devices")
}

fn json<T: Serialize>(answer: T) -> Result<Vec<u8>, ErrorBody> {
    let internal =
        |error: serde_json::Error| ErrorBody { code: ErrorCode::Internal, message: error.to_string() };
    serde_json::to_vec(&answer).map_err(internal)
}

fn bad(message: String) -> ErrorBody {
    ErrorBody { code: ErrorCode::BadRequest, message }
}

#[cfg(test)]
mod tests;
