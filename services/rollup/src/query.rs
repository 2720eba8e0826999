//! Answers to questions over the bus (`muster.query.*`), from memory; only what shall run in detail ([`manifests`]) and what
//! was done ([`actions`]) is read out of LEDGER. Until LEDGER was read to its end, every answer is that there is none yet. Questions about the past are
//! the room [`past`]'s; they wait there, and hold up no others.

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
    ANSWER_BYTES_MAX, bad, checked_limit, fitting, found, named, nowhere, parsed_after, read_of_a_point,
};
use muster_contract::subjects::QUERY_PREFIX;
use muster_contract::view::{FleetView, SiteView};
use muster_contract::why::WhyAnswer;
use muster_contract::{DeploymentId, DeviceKey, SiteId};
use muster_domain::abridged::abridged;
use muster_domain::fold::{Fleet, Page};
use muster_service::health::Latch;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

pub use self::actions::Actions;
pub use self::manifests::Manifests;
pub use self::past::History;
use crate::lag::LagState;
use crate::metrics::{AnswerKind, Metrics};
use crate::present::{Now, Present};

/// The service's name in `$SRV.INFO`.
const SERVICE: &str = "muster-query";
/// Version of the questions and answers.
const SERVICE_VERSION: &str = env!("CARGO_PKG_VERSION");
const DESCRIPTION: &str = "What is true of deployments, devices, sites and the fleet";

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

/// The desk where questions are answered. Clones share the present.
#[derive(Debug, Clone)]
pub struct Desk {
    present: Arc<Present>,
    metrics: Metrics,
    lag: Option<Arc<LagState>>,
    history: Option<History>,
    manifests: Option<Manifests>,
    actions: Option<Actions>,
}

impl Desk {
    /// A desk that answers from the present, knows no past, and reads nothing.
    pub const fn new(present: Arc<Present>, metrics: Metrics) -> Self {
        Self { present, metrics, lag: None, history: None, manifests: None, actions: None }
    }

    /// A desk that says in every answer what stands between it and LEDGER.
    pub fn with_lag(self, lag: Arc<LagState>) -> Self {
        Self { lag: Some(lag), ..self }
    }

    /// A desk that also answers about the past.
    pub fn with_history(self, history: History) -> Self {
        Self { history: Some(history), ..self }
    }

    /// A desk that also tells what shall run.
    pub fn with_manifests(self, manifests: Manifests) -> Self {
        Self { manifests: Some(manifests), ..self }
    }

    /// A desk that also tells what was done.
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
                status::answer(&self.present, &call.payload, self.manifests.as_ref()).await
            }
            _ => self.answer(call.endpoint, &call.payload),
        };
        let kind = if answer.is_ok() { AnswerKind::Answer } else { AnswerKind::Error };
        self.metrics.question(call.endpoint, kind);
        answer.map(|answer| self.marked(answer)).map_err(Fault::from)
    }

    fn marked(&self, answer: Bytes) -> Bytes {
        self.lag.as_ref().map_or(answer.clone(), |lag| lag.mark(answer))
    }

    /// Who answers a question about what was done.
    fn actions_of(&self, call: &Call) -> Option<&Actions> {
        self.actions.as_ref().filter(|_| call.endpoint == actions::ENDPOINT)
    }

    fn is_ready(&self) -> bool {
        self.present.look(|now| now.caught_up)
    }

    /// Who answers a question that is not about the present.
    fn past_of(&self, call: &Call) -> Option<&History> {
        // What cannot be read is refused there, whatever it is about.
        let about_now = || serde_json::from_slice(&call.payload).map_or(true, |point: Point| point.is_now());
        let history = self.history.as_ref()?;
        (past::ENDPOINTS.contains(&call.endpoint) || !about_now()).then_some(history)
    }

    /// The answer to a question of the present that needs nothing but memory, as JSON.
    ///
    /// # Errors
    /// Why there is none, as the asker is to read it.
    pub fn answer(&self, endpoint: &str, question: &[u8]) -> Result<Bytes, ErrorBody> {
        if endpoint == parts::ENDPOINT {
            return parts::answer(&self.present, question);
        }
        if groups::ENDPOINTS.contains(&endpoint) {
            return groups::answer(&self.present, endpoint, question);
        }
        let query: Query = read_of_a_point(question)?;
        fitting(checked_limit(query.limit)?, |limit| {
            self.present
                .look(|now| {
                    let fleet = caught_up(now)?;
                    no_past(query.point)?;
                    look_up(fleet, endpoint, &query, limit)
                })
                .map(Answer::abridged)
        })
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

/// Refuses a question about the past: whoever answers it here knows the present only.
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

/// What is answered.
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
    /// What has no pages is cut so that it fits into a message, and says so.
    fn abridged(self) -> Self {
        match self {
            Self::Device(whole) => Self::Device(Box::new(abridged(*whole, ANSWER_BYTES_MAX))),
            paged => paged,
        }
    }
}

fn look_up(fleet: &Fleet, endpoint: &str, query: &Query, limit: usize) -> Result<Answer, ErrorBody> {
    let site = query.site.as_ref();
    match endpoint {
        "deployment" => {
            let id = named(query.id.as_ref(), "id")?;
            let page = Page { after: after::<DeviceKey>(query)?, limit };
            let answer = fleet.deployment_answer(id, query.output, site, &page);
            Ok(Answer::Deployment(Box::new(found(answer, || nowhere(id))?)))
        }
        "deployments" => {
            let page = Page { after: after::<DeploymentId>(query)?, limit };
            Ok(Answer::Deployments(found(fleet.deployments_answer(site, &page), || no_site(site))?))
        }
        "device" => {
            let (site, device) = (named(site, "site")?, named(query.device.as_ref(), "device")?);
            let key = DeviceKey { site: site.clone(), device: device.clone() };
            let answer = fleet.device_answer(&key, query.output);
            let answer = found(answer, || format!("device '{key}' was never heard of"))?;
            Ok(Answer::Device(Box::new(answer)))
        }
        "devices" => {
            let page = Page { after: after::<DeviceKey>(query)?, limit };
            let answer = fleet.devices_answer(site, &query.freshness, &page);
            Ok(Answer::Devices(found(answer, || no_site(site))?))
        }
        "site" => {
            let view = found(fleet.site_view(named(site, "site")?), || no_site(site))?;
            Ok(Answer::Site(Box::new(view)))
        }
        "fleet" => Ok(Answer::Fleet(Box::new(fleet.fleet_view()))),
        "why" => Ok(Answer::Why(Box::new(why(fleet, query, limit)?))),
        other => Err(bad(format!("there is no question '{other}'"))),
    }
}

fn why(fleet: &Fleet, query: &Query, limit: usize) -> Result<WhyAnswer, ErrorBody> {
    let (id, site) = (named(query.id.as_ref(), "id")?, query.site.as_ref());
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

fn no_site(site: Option<&SiteId>) -> String {
    let name = site.map(SiteId::as_str).unwrap_or_default();
    format!("site '{name}' has no devices")
}

#[cfg(test)]
mod tests;
