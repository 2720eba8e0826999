//! `/api/v1`: everything that `muster` can ask, as the contract's documents are, and changes ([`act`]).
//!
//! The tables [`routes`] (reads, with [`filters`]) and [`changes`] (those of one request, made by [`change`]) give the router and the
//! OpenAPI document ([`openapi`]). [`params`] reads flags, [`body`] the fields of changes, [`shape`] their types, [`cursor`] continues
//! lists, [`plans`] and [`rollouts`] read records that take more than one request, [`idempotency`] answers a repeated change once from
//! [`answers`], [`webhooks`] are those that gateways deliver, [`packages`] changes the hub's packages. All handlers use the helpers in
//! [`handler_helpers`].

pub(crate) mod act;
pub(crate) mod answers;
pub(crate) mod body;
pub(crate) mod change;
pub(crate) mod changes;
pub(crate) mod cursor;
pub(crate) mod filters;
pub(crate) mod handler_helpers;
pub(crate) mod idempotency;
pub(crate) mod openapi;
pub(crate) mod packages;
pub(crate) mod params;
mod plans;
pub(crate) mod rollouts;
pub(crate) mod routes;
mod shape;
pub(crate) mod webhooks;

use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::header::{CONTENT_TYPE, LINK};
use axum::http::{Extensions, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodFilter, get, on};
use muster_client::ask::AskError;
use muster_client::audit;
use muster_client::packages::list as list_packages;
use muster_client::quarantine;
use muster_client::resource_group::Spelling;
use muster_client::resource_group::read::{BUDGET_DEFAULT, BUDGET_LEAST, Extent, resource_group};
use muster_contract::query::{Output, PAGE_MAX, PublisherQuery, Query};
use muster_contract::question::read_of_a_point;
use muster_contract::status::StatusQuery;
use muster_contract::{SiteId, Timestamp};
use serde_json::{Map, Value, json};

use self::change::ChangeMethod;
use self::changes::CHANGES;
use self::cursor::Cursor;
use self::handler_helpers::{PREFIX, PathParams, deployment, document, path_names, selection};
use self::params::Values;
use self::routes::{ROUTES, Route, Source};
use super::People;
use crate::problem::Problem;

/// Reports of a list of the quarantine, unless the request names a number.
const REPORTS_DEFAULT: usize = 50;

/// All routes below [`PREFIX`].
pub(crate) fn router() -> Router<People> {
    let reads = ROUTES.iter().fold(Router::new(), |router, route| {
        router.route(
            &format!("{PREFIX}{}", route.path),
            get(move |state, path, query, person| read(route, state, path, query, person)),
        )
    });
    let all = CHANGES.iter().fold(reads, |router, change| {
        let method = match change.method {
            ChangeMethod::Post => MethodFilter::POST,
            ChangeMethod::Put => MethodFilter::PUT,
            ChangeMethod::Delete => MethodFilter::DELETE,
        };
        let schema = Arc::new(change.inline_schema());
        let handler =
            move |state, path, request| change::make(change, Arc::clone(&schema), state, path, request);
        router.route(&format!("{PREFIX}{}", change.path), on(method, handler))
    });
    all.route(&format!("{PREFIX}/quarantine/{{item}}"), get(rejected_report))
        .merge(act::router())
        .merge(webhooks::router())
        .merge(packages::router())
}

async fn read(
    route: &'static Route,
    State(people): State<People>,
    path: PathParams,
    RawQuery(query): RawQuery,
    person: Extensions,
) -> Result<Response, Problem> {
    let now = people.clock.now();
    let values = Values::read(query.as_deref().unwrap_or_default(), &route.params())?;
    let names = path_names(path)?;
    match route.source {
        Source::Query(_) | Source::Planner(_) | Source::Operations => {
            ask(&people, route, &values, names).await
        }
        // They have owners.
        Source::Subscriptions => ask(&people.acting_for(&person), route, &values, names).await,
        Source::PlannerRow(verb, rows) => plans::row(&people.hub, route, verb, rows, &names).await,
        Source::Packages => {
            let _permit = people.gather()?;
            let list = list_packages(people.hub.bus()).await.map_err(AskError::Read)?;
            Ok(document(StatusCode::OK, &list))
        }
        Source::Hubs => match people.hub.federation("hubs", &Query::default()).await {
            Err(AskError::NoService { .. }) => {
                let detail = "no federation answers: this is one hub, or its federation does not run";
                Err(Problem::new(StatusCode::NOT_FOUND, detail))
            }
            answer => Ok(document(StatusCode::OK, &answer?)),
        },
        Source::Publisher => {
            let status = people.hub.publisher("status", &PublisherQuery::default()).await?;
            Ok(document(StatusCode::OK, &status))
        }
        Source::Audit => audit(&people, &values).await,
        Source::ResourceGroup => kpt_status(&people, &values, &names, now).await,
        Source::Quarantine => {
            let limit = number(&values, "limit", REPORTS_DEFAULT)?;
            let settled = values.get("settled") == Some("true");
            let list = quarantine::list(&people.hub, &selection(&values, now)?, limit, settled).await?;
            Ok(document(StatusCode::OK, &list))
        }
        Source::Rollouts(source) => rollouts::read(&people, source, &values, &names, now).await,
    }
}

/// The audit as `muster audit` makes it. It reads every view, so one is made at a time.
async fn audit(people: &People, values: &Values) -> Result<Response, Problem> {
    let Ok(_permit) = people.audits.try_acquire() else {
        let detail = "another audit is under way at this gateway";
        return Err(Problem::passing(StatusCode::TOO_MANY_REQUESTS, detail));
    };
    let site = values.get("site").map(str::parse::<SiteId>).transpose();
    let site = site.map_err(|error| Problem::field("site", error.to_string()))?;
    let now = || people.clock.now();
    Ok(document(StatusCode::OK, &audit::gathered(&people.hub, site, &now).await?))
}

/// The ResourceGroup of a deployment, as `muster status --format resourcegroup-json` prints it.
async fn kpt_status(
    people: &People,
    values: &Values,
    names: &Map<String, Value>,
    now: Timestamp,
) -> Result<Response, Problem> {
    let id = deployment(names)?;
    let mut question = values.question(now)?;
    let is_aggregate = question.remove("aggregate").is_some_and(|flag| flag == true);
    let budget = question.remove("budget").and_then(|bytes| bytes.as_u64()).unwrap_or(BUDGET_DEFAULT as u64);
    if !(BUDGET_LEAST.into()..=BUDGET_DEFAULT as u64).contains(&budget) {
        let rule = format!("must be {BUDGET_LEAST} to {BUDGET_DEFAULT} bytes");
        return Err(Problem::field("budget", rule));
    }
    let query: StatusQuery = read_of_a_point(Value::Object(question).to_string().as_bytes())?;
    // An answer of many targets takes many pages, so few are gathered at once.
    let _permit = people.gather()?;
    let extent = Extent { is_aggregate, budget: budget as usize };
    let query = StatusQuery { output: Output::All, ..query };
    let text = resource_group(&people.hub, &id, query, extent, Spelling::Json).await?;
    Ok((StatusCode::OK, [(CONTENT_TYPE, "application/json")], text).into_response())
}

fn fixed(route: &Route) -> Map<String, Value> {
    route.fixed.iter().map(|(field, value)| ((*field).to_owned(), json!(value))).collect()
}

/// Asks a service, and links to the next page of a list.
async fn ask(
    people: &People,
    route: &Route,
    values: &Values,
    names: Map<String, Value>,
) -> Result<Response, Problem> {
    let now = people.clock.now();
    let address = format!("{}{}", route.path, Value::Object(names.clone()));
    let mut question = fixed(route);
    question.extend(names);
    question.extend(values.question(now)?);
    if question.remove("cursor").is_some() {
        Cursor::apply(
            values.get("cursor").unwrap_or_default(),
            &address,
            &values.meaning(),
            &mut question,
            now,
        )?;
    }
    if route.source == Source::Query("why") {
        split_device(&mut question)?;
    }
    let answer = match route.source {
        Source::Query(endpoint) => people.hub.history(endpoint, &question).await?,
        Source::Planner(verb) => people.hub.planner(verb, &question).await?,
        Source::Subscriptions => people.hub.notify("list", &question).await?,
        _ => plans::operations(&people.hub, &question, now).await?,
    };
    let mut response = document(StatusCode::OK, &answer);
    if let Some(next) = next_of(route.source, &answer) {
        let cursor = Cursor::new(next, &address, &values.meaning(), now).encode();
        let link = format!("<?{}>; rel=\"next\"", values.continued(&cursor));
        if let Ok(link) = HeaderValue::from_str(&link) {
            response.headers_mut().insert(LINK, link);
        }
    }
    Ok(response)
}

/// `device` of a question as the service takes it: site and device apart.
fn split_device(question: &mut Map<String, Value>) -> Result<(), Problem> {
    let Some(Value::String(key)) = question.remove("device") else { return Ok(()) };
    let Some((site, device)) = key.split_once('/') else {
        return Err(Problem::field("device", format!("'{key}' must be SITE/DEVICE")));
    };
    question.insert("site".to_owned(), json!(site));
    question.insert("device".to_owned(), json!(device));
    Ok(())
}

/// The fields by which the question for the next page differs.
fn next_of(source: Source, answer: &Value) -> Option<Map<String, Value>> {
    let next = answer.get("next").filter(|next| !next.is_null())?;
    let point = |side: &str| json!({ "atSeq": answer[side]["ledgerSeq"] });
    let fields = match source {
        // Its points are pinned: all pages are of the same ones.
        Source::Query("changes") => json!({ "skip": next, "from": point("from"), "to": point("to") }),
        _ => json!({ "after": next }),
    };
    fields.as_object().cloned()
}

fn number(values: &Values, name: &str, default: usize) -> Result<usize, Problem> {
    let Some(text) = values.get(name) else { return Ok(default) };
    let number = text.parse().ok().filter(|number| (1..=PAGE_MAX).contains(number));
    number.ok_or_else(|| Problem::field(name, format!("'{text}' is not within 1 and {PAGE_MAX}")))
}

async fn rejected_report(
    State(people): State<People>,
    path: PathParams,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    Values::read(query.as_deref().unwrap_or_default(), &[])?;
    let names = path_names(path)?;
    let text = names.get("item").and_then(Value::as_str).unwrap_or_default();
    let seq: u64 = text.parse().map_err(|_| Problem::field("seq", format!("'{text}' is no number")))?;
    match quarantine::find(&people.hub, seq).await? {
        Some(held) => Ok(document(StatusCode::OK, &held)),
        None => Err(Problem::new(StatusCode::NOT_FOUND, format!("QUARANTINE holds no report {seq}"))),
    }
}
