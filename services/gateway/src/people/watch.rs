//! `/api/v1/watch/…`: views as server-sent events.
//!
//! The first event is the snapshot, unless `Last-Event-ID` names the current view. After that a client gets the
//! newest view once a second on average ([`pace`]): one that reads slowly skips those between. `stale` warns that the views may be out of date
//! and names the cause; `alive` proves that the stream works; `end` follows the removal of the view. [`polled`] has the events of
//! rollouts and approvals, which no view holds.

mod pace;
pub(crate) mod polled;
mod stream;
pub(crate) mod topics;

use axum::Router;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::get;
use muster_contract::subjects::ViewKey;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use self::pace::Pace;
use self::stream::{Event, EventSource, LAST_EVENT_ID, check_room, respond};
use super::People;
use super::api::handler_helpers::PREFIX;
use super::api::params::Values;
use crate::problem::Problem;

/// The routes of events.
pub(crate) fn router() -> Router<People> {
    Router::new()
        .route(&format!("{PREFIX}/watch/fleet"), get(follow))
        .route(&format!("{PREFIX}/watch/deployments/{{id}}"), get(follow))
        .route(&format!("{PREFIX}/watch/sites/{{site}}"), get(follow))
        .route(&format!("{PREFIX}/watch/rollouts/{{id}}"), get(polled::rollouts))
        .route(&format!("{PREFIX}/watch/approvals"), get(polled::approvals))
}

async fn follow(
    State(people): State<People>,
    path: Result<RawPathParams, RawPathParamsRejection>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    Values::read(query.as_deref().unwrap_or_default(), &[])?;
    let path = path.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.to_string()))?;
    let key = key(&path)?;
    check_room(&people)?;
    let is_known = people.feed.data(&key).is_some() || key == ViewKey::Fleet;
    match people.feed.staleness() {
        None if !is_known => {
            return Err(Problem::new(StatusCode::NOT_FOUND, format!("there is no view '{key}'")));
        }
        Some(staleness) if !is_known => {
            return Err(Problem::passing(StatusCode::SERVICE_UNAVAILABLE, staleness.cause));
        }
        _ => {}
    }
    let last = headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok()?.parse().ok());
    let changes = people.feed.changes(&key);
    let source = ViewSource {
        key,
        changes,
        has: last,
        is_stale: false,
        pace: Pace::new(Instant::now()),
        is_fresh: false,
    };
    Ok(respond(people, source))
}

fn key(path: &RawPathParams) -> Result<ViewKey, Problem> {
    let refuse = |name: &str, error: &dyn std::fmt::Display| Problem::field(name, error.to_string());
    match path.iter().next() {
        None => Ok(ViewKey::Fleet),
        Some((name @ "site", text)) => {
            text.parse().map(ViewKey::Site).map_err(|error: muster_contract::LabelError| refuse(name, &error))
        }
        Some((name, text)) => text
            .parse()
            .map(ViewKey::Deployment)
            .map_err(|error: muster_contract::LabelError| refuse(name, &error)),
    }
}

/// The events of one view.
struct ViewSource {
    key: ViewKey,
    changes: watch::Receiver<()>,
    /// The sequence of the view that the client has.
    has: Option<u64>,
    /// The client knows that its view may be out of date.
    is_stale: bool,
    pace: Pace,
    /// A view has arrived just now.
    is_fresh: bool,
}

impl EventSource for ViewSource {
    fn due(&mut self, people: &People, is_first: bool) -> Option<Event> {
        if let Some(staleness) = people.feed.staleness() {
            self.changes.borrow_and_update();
            let data = json!({ "since": staleness.since, "cause": staleness.cause });
            let was_stale = std::mem::replace(&mut self.is_stale, true);
            return (!was_stale).then(|| Event::new("stale", data.to_string()));
        }
        let now = Instant::now();
        if !self.pace.is_due(now, std::mem::take(&mut self.is_fresh)) {
            return None;
        }
        self.changes.borrow_and_update();
        let was_stale = std::mem::take(&mut self.is_stale);
        let Some((data, seq)) = people.feed.data(&self.key) else {
            // The fleet has no view before the first fact; any other view was there and is gone.
            return (self.key != ViewKey::Fleet).then(Event::end);
        };
        if self.has == Some(seq) && !was_stale {
            return None;
        }
        let resumes = is_first && self.has.is_some_and(|has| has < seq);
        let name = if is_first && !resumes { "snapshot" } else { "change" };
        self.has = Some(seq);
        self.pace.advance(now, fastrand::f64());
        Some(Event::with_id(name, seq.to_string(), data))
    }

    async fn changed(&mut self) -> Option<()> {
        sleep_until(self.pace.fresh_from()).await;
        let due_at = self.pace.due_at();
        if Instant::now() >= due_at {
            return self.changes.changed().await.ok();
        }
        // A view that arrived before is sent at its time.
        self.changes.mark_unchanged();
        tokio::select! {
            changed = self.changes.changed() => {
                self.is_fresh = true;
                changed.ok()
            }
            () = sleep_until(due_at) => Some(()),
        }
    }
}
