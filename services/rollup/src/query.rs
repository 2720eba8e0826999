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
mod present;
mod status;
mod timeline;

use std::sync::Arc;

use bytes::Bytes;
use muster_bus::{AnswerKind, Bus, Call, EndpointSpec, Fault, ServiceSpec, with_lag};
use muster_contract::query::ErrorBody;
use muster_contract::question::{checked_limit, fitting, point_of, read_query};
use muster_contract::subjects::QUERY_PREFIX;
use muster_service::health::Latch;
use tokio_util::sync::CancellationToken;

pub(crate) use self::actions::Actions;
pub(crate) use self::manifests::Manifests;
pub(crate) use self::past::History;
use self::present::{Answer, caught_up, look_up, no_past};
use crate::lag::LagState;
use crate::metrics::Metrics;
use crate::projection::Projection;

/// The service's name in `$SRV.INFO`.
const SERVICE: &str = "muster-query";
/// Version of the questions and answers.
const SERVICE_VERSION: &str = env!("CARGO_PKG_VERSION");
const DESCRIPTION: &str = "State of deployments, devices, sites and the fleet";

const ENDPOINTS: [&str; 11] = [
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
    timeline::ENDPOINT,
];

/// Answers questions. Clones share the projection.
#[derive(Debug, Clone)]
pub(crate) struct QueryHandler {
    projection: Arc<Projection>,
    metrics: Metrics,
    lag: Option<Arc<LagState>>,
    history: Option<History>,
    manifests: Option<Manifests>,
    actions: Option<Actions>,
}

impl QueryHandler {
    /// Creates a handler that answers from the projection, without a past or reads of LEDGER.
    pub(crate) const fn new(projection: Arc<Projection>, metrics: Metrics) -> Self {
        Self { projection, metrics, lag: None, history: None, manifests: None, actions: None }
    }

    /// Adds the lag behind LEDGER to every answer.
    pub(crate) fn with_lag(self, lag: Arc<LagState>) -> Self {
        Self { lag: Some(lag), ..self }
    }

    /// Adds answers about the past.
    pub(crate) fn with_history(self, history: History) -> Self {
        Self { history: Some(history), ..self }
    }

    /// Adds a reader of manifests.
    pub(crate) fn with_manifests(self, manifests: Manifests) -> Self {
        Self { manifests: Some(manifests), ..self }
    }

    /// Adds a reader of actions.
    pub(crate) fn with_actions(self, actions: Actions) -> Self {
        Self { actions: Some(actions), ..self }
    }

    /// Answers questions until `stop`; those already taken are answered then.
    pub(crate) async fn serve(self, bus: Bus, offered: Latch, stop: CancellationToken) {
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
        self.metrics.queries.question(call.endpoint, kind);
        let lag = self.lag.as_ref().map(|lag| lag.now()).unwrap_or_default();
        with_lag(answer.map_err(Fault::from), call.endpoint, &lag)
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
        let takes_no_point = [parts::ENDPOINT, timeline::ENDPOINT].contains(&call.endpoint);
        let about_now = || takes_no_point || point_of(&call.payload).map_or(true, |point| point.is_now());
        let history = self.history.as_ref()?;
        (past::ENDPOINTS.contains(&call.endpoint) || !about_now()).then_some(history)
    }

    /// The answer to a question about the present from memory, as JSON.
    ///
    /// # Errors
    /// The reason, for the asker.
    pub(crate) fn answer(&self, endpoint: &str, question: &[u8]) -> Result<Bytes, ErrorBody> {
        if endpoint == parts::ENDPOINT {
            return parts::answer(&self.projection, question);
        }
        if endpoint == timeline::ENDPOINT {
            return timeline::answer(&self.projection, question);
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

#[cfg(test)]
mod tests;
