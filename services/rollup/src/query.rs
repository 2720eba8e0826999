//! Answers the questions of `muster.query.*` from memory; only manifests ([`manifests`]) and actions
//! ([`actions`]) are read from LEDGER.
//!
//! Until LEDGER is read to its end, every answer says that the rollup is not ready. Questions about the past
//! are answered by [`past`]; they wait there and delay no others.

mod actions;
mod groups;
mod manifests;
mod parts;
mod past;
mod status;

use std::sync::Arc;

use bytes::Bytes;
use muster_bus::{Bus, Call, EndpointSpec, Fault, ServiceSpec};
use muster_contract::history::Point;
use muster_contract::query::{
    DeploymentAnswer, DeploymentsAnswer, DeviceAnswer, DevicesAnswer, ErrorBody, ErrorCode, Query,
};
use muster_contract::question::{
    ANSWER_BYTES_MAX, bad, checked_limit, fitting, found, named, nowhere, one_site, parsed_after, point_of,
    read_query,
};
use muster_contract::subjects::QUERY_PREFIX;
use muster_contract::view::{FleetView, SiteView};
use muster_contract::why::WhyAnswer;
use muster_contract::{DeploymentId, DeviceKey, SiteId};
use muster_domain::abridged::abridged;
use muster_domain::fold::{Fleet, Page, StatusRefusal};
use muster_service::health::Latch;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

pub use self::actions::Actions;
pub use self::manifests::Manifests;
pub use self::past::History;
use crate::lag::LagState;
use crate::metrics::{AnswerKind, Metrics};
use crate::projection::{Projection, ProjectionState};

/// The service's name in `$SRV.INFO`.
const SERVICE: &str = "muster-query";
/// Version of the questions and answers.
const SERVICE_VERSION: &str = env!("CARGO_PKG_VERSION");
const DESCRIPTION: &str = "State of deployments, devices, sites and the fleet";

const ENDPOINTS: [&str; 10] = [
    "deployment",
    "deployments",
    "device",
    "devices",
    "site",
    "fleet",
    "why",
    status::ENDPOINT,
    parts::ENDPOINT,
    actions::ENDPOINT,
];

/// Answers questions. Clones share the projection.
#[derive(Debug, Clone)]
pub struct QueryHandler {
    projection: Arc<Projection>,
    metrics: Metrics,
    lag: Option<Arc<LagState>>,
    history: Option<History>,
    manifests: Option<Manifests>,
    actions: Option<Actions>,
}

impl QueryHandler {
    /// Creates a handler that answers from the projection, without a past or reads of LEDGER.
    pub const fn new(projection: Arc<Projection>, metrics: Metrics) -> Self {
        Self { projection, metrics, lag: None, history: None, manifests: None, actions: None }
    }

    /// Adds the lag behind LEDGER to every answer.
    pub fn with_lag(self, lag: Arc<LagState>) -> Self {
        Self { lag: Some(lag), ..self }
    }

    /// Adds answers about the past.
    pub fn with_history(self, history: History) -> Self {
        Self { history: Some(history), ..self }
    }

    /// Adds a reader of manifests.
    pub fn with_manifests(self, manifests: Manifests) -> Self {
        Self { manifests: Some(manifests), ..self }
    }

    /// Adds a reader of actions.
    pub fn with_actions(self, actions: Actions) -> Self {
        Self { actions: Some(actions), ..self }
    }

    /// Answers questions until `stop`; those already taken are answered then.
    pub async fn serve(self, bus: Bus, offered: Latch, stop: CancellationToken) {
        let handler = move |call| self.clone().handle(call);
        bus.offer(spec(), handler, || offered.release(), stop).await;
    }

    async fn handle(self, call: Call) -> Result<Bytes, Fault> {
        let answer = match (self.actions_of(&call), self.past_of(&call)) {
            (Some(actions), _) => actions.answer(&call.payload, &call.requester).await,
            (None, Some(history)) if self.is_ready() => {
                let (question, manifests) = (call.payload.clone(), self.manifests.as_ref());
                history.clone().answer(call.endpoint, question, manifests, call.requester.clone()).await
            }
            _ if call.endpoint == status::ENDPOINT => {
                status::answer(&self.projection, &call.payload, self.manifests.as_ref()).await
            }
            _ => self.answer(call.endpoint, &call.payload),
        };
        let kind = if answer.is_ok() { AnswerKind::Answer } else { AnswerKind::Error };
        self.metrics.question(call.endpoint, kind);
        answer.map(|answer| self.marked(call.endpoint, answer)).map_err(Fault::from)
    }

    fn marked(&self, endpoint: &str, answer: Bytes) -> Bytes {
        self.lag.as_ref().map_or(answer.clone(), |lag| lag.mark(endpoint, answer))
    }

    /// The responder for questions about actions.
    fn actions_of(&self, call: &Call) -> Option<&Actions> {
        self.actions.as_ref().filter(|_| call.endpoint == actions::ENDPOINT)
    }

    fn is_ready(&self) -> bool {
        self.projection.read(|now| now.caught_up)
    }

    /// The responder for questions that are not about the present.
    fn past_of(&self, call: &Call) -> Option<&History> {
        // An unreadable question is refused there, whatever it is about.
        let about_now = || point_of(&call.payload).map_or(true, |point| point.is_now());
        let history = self.history.as_ref()?;
        (past::ENDPOINTS.contains(&call.endpoint) || !about_now()).then_some(history)
    }

    /// The answer to a question about the present from memory, as JSON.
    ///
    /// # Errors
    /// The reason, for the asker.
    pub fn answer(&self, endpoint: &str, question: &[u8]) -> Result<Bytes, ErrorBody> {
        if endpoint == parts::ENDPOINT {
            return parts::answer(&self.projection, question);
        }
        if groups::ENDPOINTS.contains(&endpoint) {
            return groups::answer(&self.projection, endpoint, question);
        }
        let query = read_query(endpoint, question)?;
        fitting(checked_limit(query.limit)?, |limit| {
            self.projection
                .read(|now| {
                    let fleet = caught_up(now)?;
                    no_past(query.point)?;
                    look_up(fleet, endpoint, &query, limit)
                })
                .map(Answer::abridged)
        })
    }
}

/// The fleet, once LEDGER was read to its end.
fn caught_up(now: &ProjectionState) -> Result<&Fleet, ErrorBody> {
    if now.caught_up {
        return Ok(&now.fleet);
    }
    let read_to = now.fleet.as_of().ledger_seq;
    let message = format!("still reading LEDGER (at {read_to}); ask again in a moment");
    Err(ErrorBody { code: ErrorCode::NotReady, message })
}

/// Refuses a question about the past: this responder knows only the present.
fn no_past(point: Point) -> Result<(), ErrorBody> {
    if point.is_now() { Ok(()) } else { Err(bad("this service knows no past".to_owned())) }
}

fn spec() -> ServiceSpec {
    let endpoint = |name| EndpointSpec { name, subject: format!("{QUERY_PREFIX}.{name}") };
    ServiceSpec {
        name: SERVICE,
        version: SERVICE_VERSION,
        description: DESCRIPTION,
        endpoints: ENDPOINTS
            .into_iter()
            .chain(groups::ENDPOINTS)
            .chain(past::ENDPOINTS)
            .map(endpoint)
            .collect(),
    }
}

/// The answers by kind of question.
#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    Deployment(Box<DeploymentAnswer>),
    Deployments(DeploymentsAnswer),
    Device(Box<DeviceAnswer>),
    Devices(DevicesAnswer),
    Site(Box<SiteView>),
    Fleet(Box<FleetView>),
    Why(Box<WhyAnswer>),
}

impl Answer {
    /// An answer without pages is cut to the size of a message, and says so.
    fn abridged(self) -> Self {
        match self {
            Self::Device(whole) => Self::Device(Box::new(abridged(*whole, ANSWER_BYTES_MAX))),
            paged => paged,
        }
    }
}

fn look_up(fleet: &Fleet, endpoint: &str, query: &Query, limit: usize) -> Result<Answer, ErrorBody> {
    match endpoint {
        "deployment" => {
            let (id, site) = (named(query.id.as_ref(), "id")?, one_site(query)?);
            let page = Page { after: after::<DeviceKey>(query)?, limit };
            let answer = fleet.deployment_answer(id, query.output, site, &page);
            Ok(Answer::Deployment(Box::new(found(answer, || nowhere(id))?)))
        }
        "deployments" => {
            let page = Page { after: after::<DeploymentId>(query)?, limit };
            let answer = fleet.deployments_answer(query, &page);
            Ok(Answer::Deployments(answer.map_err(|refusal| refused(&refusal))?))
        }
        "device" => {
            let (site, device) = (named(one_site(query)?, "site")?, named(query.device.as_ref(), "device")?);
            let key = DeviceKey { site: site.clone(), device: device.clone() };
            let answer = fleet.device_answer(&key, query.output);
            let answer = found(answer, || format!("device '{key}' was never heard of"))?;
            Ok(Answer::Device(Box::new(answer)))
        }
        "devices" => {
            let page = Page { after: after::<DeviceKey>(query)?, limit };
            let answer = fleet.devices_answer(query, &page);
            Ok(Answer::Devices(answer.map_err(|refusal| refused(&refusal))?))
        }
        "site" => {
            let site = named(one_site(query)?, "site")?;
            let view = found(fleet.site_view(site), || no_site(Some(site)))?;
            Ok(Answer::Site(Box::new(view)))
        }
        "fleet" => Ok(Answer::Fleet(Box::new(fleet.fleet_view()))),
        "why" => Ok(Answer::Why(Box::new(why(fleet, query, limit)?))),
        other => Err(bad(format!("there is no question '{other}'"))),
    }
}

fn why(fleet: &Fleet, query: &Query, limit: usize) -> Result<WhyAnswer, ErrorBody> {
    let (id, site) = (named(query.id.as_ref(), "id")?, one_site(query)?);
    let there = |words: String| if fleet.deployment_view(id).is_none() { nowhere(id) } else { words };
    let Some(device) = &query.device else {
        let page = Page { after: after::<DeviceKey>(query)?, limit };
        return found(fleet.why(id, site, &page), || there(no_site(site)));
    };
    let key = DeviceKey { site: named(site, "site")?.clone(), device: device.clone() };
    let stranger = || there(format!("device '{key}' neither shall run '{id}' nor has it"));
    found(fleet.why_device(id, &key), stranger)
}

fn after<K: std::str::FromStr<Err: std::fmt::Display>>(query: &Query) -> Result<Option<K>, ErrorBody> {
    parsed_after(query.after.as_deref())
}

fn refused(refusal: &StatusRefusal) -> ErrorBody {
    let message = refusal.to_string();
    match refusal {
        StatusRefusal::Unknown(_) => ErrorBody { code: ErrorCode::NotFound, message },
        StatusRefusal::Wrong(_) => bad(message),
    }
}

fn no_site(site: Option<&SiteId>) -> String {
    let name = site.map(SiteId::as_str).unwrap_or_default();
    format!("site '{name}' has no devices")
}

#[cfg(test)]
mod tests;
