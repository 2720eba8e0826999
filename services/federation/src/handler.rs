//! Answers the questions of `muster.query.*` at the top. It answers sums from memory and asks the hubs for what
//! only they know.
//!
//! [`route`](crate::route) selects who answers; [`gather`] and [`why`] merge answers of several hubs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_bus::{AnswerKind, Bus, Call, EndpointSpec, Fault, ServiceSpec, with_lag};
use muster_contract::groups::GroupQuery;
use muster_contract::parts::HUBS_MAX;
use muster_contract::query::{ErrorBody, ErrorCode, ErrorReply, Query};
use muster_contract::question::{
    ANSWER_BYTES_MAX, bad, checked_limit, fitting, found, json, named, nowhere, one_site, parsed_after,
    read_of_a_point,
};
use muster_contract::subjects::QUERY_PREFIX;
use muster_contract::{DeploymentId, HubName, LabelKey, LabelValue, SiteId};
use muster_domain::fold::{Merge, NoGroups, Page};
use muster_service::error::chain;
use muster_service::health::Latch;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::gather::{self, Hubs};
use crate::hub::Line;
use crate::merged::Merged;
use crate::metrics::Metrics;
use crate::places::Places;
use crate::route::{APART, EITHER, HUBS, NOWHERE, Route, TOGETHER, route};
use crate::why;

/// The service's name in `$SRV.INFO`: that of every place where such questions are answered.
const SERVICE: &str = "muster-query";
/// Version of the questions and answers.
const SERVICE_VERSION: &str = env!("CARGO_PKG_VERSION");
const DESCRIPTION: &str = "State of deployments, sites and the fleet over several hubs";
/// Timeout of a question that is passed on to a hub: longer than a hub lets a question about changes wait, and
/// shorter than the client's own timeout.
const HUB_PATIENCE: Duration = Duration::from_secs(4);
/// Timeout of a question over several hubs, including the requests for names.
const SEVERAL_PATIENCE: Duration = Duration::from_secs(10);
/// Questions that one hub has under way at once, so that a slow one does not hold up the others.
const PASSED_ON_MAX: usize = 24;
/// Questions over several hubs that are under way at once; others wait for their turn.
const SEVERAL_MAX: usize = 8;
/// Most bytes of hubs' answers that are received and not merged yet.
const GATHERED_BYTES_MAX: usize = 128 * 1024 * 1024;
/// First bytes of an answer that is an error.
const ERROR_BEGINS: &[u8] = b"{\"error\":";

const _: () = {
    assert!(HUB_PATIENCE.as_secs() < SEVERAL_PATIENCE.as_secs());
    assert!(SEVERAL_MAX * HUBS_MAX * ANSWER_BYTES_MAX <= GATHERED_BYTES_MAX);
    // Each asks a hub one thing at a time: there is room left for questions about one site.
    assert!(SEVERAL_MAX < PASSED_ON_MAX);
};

/// Answers questions. Clones share everything.
#[derive(Debug, Clone)]
pub struct QueryHandler {
    merged: Arc<Merged>,
    lines: Arc<BTreeMap<HubName, (Line, Semaphore)>>,
    gather_slots: Arc<Semaphore>,
    metrics: Metrics,
}

impl QueryHandler {
    /// Creates a handler that answers from the merged state and passes questions on over these connections.
    pub fn new(merged: Arc<Merged>, lines: BTreeMap<HubName, Line>, metrics: Metrics) -> Self {
        let lines = lines.into_iter().map(|(name, line)| (name, (line, Semaphore::new(PASSED_ON_MAX))));
        let gather_slots = Arc::new(Semaphore::new(SEVERAL_MAX));
        Self { merged, lines: Arc::new(lines.collect()), gather_slots, metrics }
    }

    /// Answers questions until `stop`; those already taken are answered then.
    pub async fn serve(self, bus: Bus, offered: Latch, stop: CancellationToken) {
        let handler = move |call| self.clone().handle(call);
        bus.offer(spec(), handler, || offered.release(), stop).await;
    }

    async fn handle(self, call: Call) -> Result<Bytes, Fault> {
        let routed = self.merged.read_merge(|merge| route(call.endpoint, &call.payload, merge));
        let (answer, kind) = match routed {
            Ok(Route::Hub(hub)) => {
                (self.ask(&hub, call.endpoint, call.payload.clone()).await, AnswerKind::PassedOn)
            }
            Ok(Route::Every) => (self.in_turn(self.lines_of_all(&call)).await, AnswerKind::PassedOn),
            Ok(Route::Added(scatter)) => {
                let answer = gather::status(&self, &self.merged, &scatter);
                // One of a single hub waits for no other hub.
                let answer =
                    if scatter.hub_queries.len() > 1 { self.in_turn(answer).await } else { answer.await };
                (answer, AnswerKind::PassedOn)
            }
            Ok(Route::Why(hub)) => {
                let answer = why::answer(&self, &self.merged, hub.as_ref(), &call.payload);
                let answer = if hub.is_some() { answer.await } else { self.in_turn(answer).await };
                (answer, AnswerKind::PassedOn)
            }
            Ok(Route::Here) => {
                let answer = answer(&self.merged, call.endpoint, &call.payload);
                (answer.map_err(Fault::from), AnswerKind::Answer)
            }
            Err(error) => (Err(error.into()), AnswerKind::Error),
        };
        self.metrics.queries.question(call.endpoint, if answer.is_ok() { kind } else { AnswerKind::Error });
        with_lag(answer, call.endpoint, &self.merged.lag().unwrap_or_default())
    }

    async fn lines_of_all(&self, call: &Call) -> Result<Bytes, Fault> {
        let query: Query = read_of_a_point(&call.payload)?;
        let questions = self.merged.read_merge(|merge| gather::hub_questions(&query, merge))?;
        match call.endpoint {
            "devices" => gather::devices(self, &self.merged, &query, questions).await,
            _ => gather::deployments(self, &self.merged, &query, questions).await,
        }
    }

    /// Waits for a slot: the answers of many hubs to many questions would exceed the memory.
    async fn in_turn(&self, answer: impl Future<Output = Result<Bytes, Fault>>) -> Result<Bytes, Fault> {
        let Ok(Ok(_turn)) = timeout(HUB_PATIENCE, self.gather_slots.acquire()).await else {
            let message = format!(
                "{SEVERAL_MAX} questions over several hubs are under way already; ask again in a moment"
            );
            return Err(ErrorBody { code: ErrorCode::NotReady, message }.into());
        };
        timeout(SEVERAL_PATIENCE, answer).await.unwrap_or_else(|_| {
            let message = format!(
                "the hubs take more than {SEVERAL_PATIENCE:?} for this; name sites, or fewer applications and components"
            );
            Err(ErrorBody { code: ErrorCode::NotReady, message }.into())
        })
    }
}

impl QueryHandler {
    /// Passes a request on and returns the hub's answer unchanged.
    ///
    /// # Errors
    /// The hub's refusal, or the reason why there is no answer.
    pub(crate) async fn ask_subject(
        &self,
        hub: &HubName,
        subject: String,
        question: Bytes,
    ) -> Result<Bytes, Fault> {
        let not_now = |why: String| {
            let message =
                format!("the hub {hub}, which this question is about, {why}; ask again in a moment");
            Fault::from(ErrorBody { code: ErrorCode::NotReady, message })
        };
        let Some((line, room)) = self.lines.get(hub) else { return Err(not_now("is unknown".to_owned())) };
        let Ok(_room) = room.try_acquire() else {
            return Err(not_now(format!("has {PASSED_ON_MAX} questions to answer already")));
        };
        let Some(bus) = line.borrow().clone() else { return Err(not_now("is not connected".to_owned())) };
        let reply = bus.request(&subject, question, HUB_PATIENCE).await;
        let reply = reply.map_err(|error| not_now(format!("does not answer ({})", chain(&error))))?;
        if reply.starts_with(ERROR_BEGINS)
            && let Ok(ErrorReply { error, .. }) = serde_json::from_slice(&reply)
        {
            // With the headers of an error, and the words of the hub.
            return Err(Fault { body: reply, ..Fault::from(error) });
        }
        Ok(reply)
    }
}

impl Hubs for QueryHandler {
    async fn ask(&self, hub: &HubName, endpoint: &'static str, question: Bytes) -> Result<Bytes, Fault> {
        self.ask_subject(hub, format!("{QUERY_PREFIX}.{endpoint}"), question).await
    }
}

impl Places for Merge {
    fn hub_of(&self, site: &SiteId) -> Option<HubName> {
        Self::hub_of(self, site).cloned()
    }

    fn hubs(&self) -> Vec<HubName> {
        self.hub_names().cloned().collect()
    }

    fn unread(&self) -> Vec<HubName> {
        Self::unread(self)
    }
}

fn spec() -> ServiceSpec {
    let endpoint = |name| EndpointSpec { name, subject: format!("{QUERY_PREFIX}.{name}") };
    let names = [HUBS].into_iter().chain(TOGETHER).chain(EITHER).chain(APART).chain(NOWHERE);
    ServiceSpec {
        name: SERVICE,
        version: SERVICE_VERSION,
        description: DESCRIPTION,
        endpoints: names.map(endpoint).collect(),
    }
}

/// The answer to a question that is answered here, as JSON.
///
/// # Errors
/// The question is wrong, or names something unknown.
pub fn answer(merged: &Merged, endpoint: &str, question: &[u8]) -> Result<Bytes, ErrorBody> {
    match endpoint {
        "labels" | "groups" | "group" => of_groups(merged, endpoint, &read_of_a_point(question)?),
        _ => of_views(merged, endpoint, &read_of_a_point(question)?),
    }
}

fn of_views(merged: &Merged, endpoint: &str, query: &Query) -> Result<Bytes, ErrorBody> {
    let limit = checked_limit(query.limit)?;
    match endpoint {
        HUBS => json(merged.read_merge(Merge::hub_list)).map(Bytes::from),
        "fleet" => json(merged.read_merge(|merge| merge.fleet_view())).map(Bytes::from),
        "site" => {
            let site = named(one_site(query)?, "site")?;
            let view = merged.read_merge(|merge| merge.site_view(site));
            json(found(view, || format!("site '{site}' has no devices"))?).map(Bytes::from)
        }
        "deployment" => {
            let id = named(query.id.as_ref(), "id")?;
            let answer = merged.read_merge(|merge| merge.deployment_answer(id));
            json(found(answer, || nowhere(id))?).map(Bytes::from)
        }
        "deployments" => {
            let after = parsed_after::<DeploymentId>(query.after.as_deref())?;
            fitting(limit, |limit| {
                let page = Page { after: after.clone(), limit };
                Ok(merged.read_merge(|merge| merge.deployments_answer(query, &page)))
            })
        }
        other => Err(bad(format!("there is no question '{other}'"))),
    }
}

fn of_groups(merged: &Merged, endpoint: &str, query: &GroupQuery) -> Result<Bytes, ErrorBody> {
    let limit = checked_limit(query.limit)?;
    match endpoint {
        "labels" => {
            let after = parsed_after::<LabelKey>(query.after.as_deref())?;
            fitting(limit, |limit| {
                let page = Page { after: after.clone(), limit };
                Ok(merged.read_merge(|merge| merge.labels_answer(&page)))
            })
        }
        "groups" => {
            let (label, id) = (named(query.label.as_ref(), "label")?, query.id.as_ref());
            let after = parsed_after::<LabelValue>(query.after.as_deref())?;
            fitting(limit, |limit| {
                let page = Page { after: after.clone(), limit };
                let answer = merged.read_merge(|merge| merge.groups_answer(label, id, &page));
                answer.map_err(|none| missing(none, label, id))
            })
        }
        _ => {
            let (label, value) =
                (named(query.label.as_ref(), "label")?, named(query.value.as_ref(), "value")?);
            let view = merged.read_merge(|merge| merge.group_view(label, value));
            json(found(view, || format!("no device has the label {label}={value}"))?).map(Bytes::from)
        }
    }
}

fn missing(none: NoGroups, label: &LabelKey, id: Option<&DeploymentId>) -> ErrorBody {
    let message = match (none, id) {
        (NoGroups::Deployment, Some(id)) => nowhere(id),
        _ => format!("no device has the label '{label}'"),
    };
    ErrorBody { code: ErrorCode::NotFound, message }
}
