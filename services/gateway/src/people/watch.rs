//! `/api/v1/watch/…`: views as server-sent events.
//!
//! The first event is the snapshot, unless `Last-Event-ID` names the view that is current. After that a client gets the
//! newest view at most once a second: one that reads slowly skips those between. `stale` says that the views may not be
//! believed and why, `alive` that the stream works, `end` that the view is gone. [`polled`] follows what no view holds.

pub mod polled;

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream::unfold;
use muster_contract::subjects::ViewKey;
use prometheus_client::metrics::gauge::Gauge;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::People;
use super::api::PREFIX;
use super::api::params::Values;
use crate::problem::Problem;

/// Most open streams.
const FOLLOWERS_MAX: i64 = 10_000;
/// Least time between two views of one stream.
const FRAME_INTERVAL: Duration = Duration::from_secs(1);
/// Longest silence of a stream.
const ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Age at which a stream ends; the client opens another one.
const AGE_MAX: Duration = Duration::from_secs(30 * 60);
/// Delay before a client connects again, in milliseconds, and the random part on top of it.
const RETRY_MS: (u32, u32) = (2_000, 3_000);

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The routes of events.
pub fn router() -> Router<People> {
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
    room(&people)?;
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
    let follower = Follower::new(people, key, last);
    let events = unfold(follower, async |mut follower| {
        let frame = follower.next().await?;
        follower.people.metrics.frames.inc();
        Some((Ok::<_, Infallible>(frame), follower))
    });
    Ok(([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response())
}

/// Refuses a stream beyond the bound.
fn room(people: &People) -> Result<(), Problem> {
    if people.metrics.followers.get() < FOLLOWERS_MAX {
        return Ok(());
    }
    let detail = format!("this gateway has {FOLLOWERS_MAX} open event streams");
    Err(Problem::passing(StatusCode::SERVICE_UNAVAILABLE, detail))
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

/// One stream.
struct Follower {
    people: People,
    key: ViewKey,
    changes: watch::Receiver<u64>,
    /// The sequence of the view that the client has.
    has: Option<u64>,
    is_first: bool,
    has_ended: bool,
    was_stale: bool,
    /// No view is sent before this time.
    next_view: Instant,
    next_alive: Instant,
    ends: Instant,
    _open: Open,
}

/// Counts an open stream.
struct Open(Gauge);

impl Open {
    fn new(people: &People) -> Self {
        people.metrics.followers.inc();
        Self(people.metrics.followers.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Follower {
    fn new(people: People, key: ViewKey, has: Option<u64>) -> Self {
        let (now, changes) = (Instant::now(), people.feed.changes());
        Self {
            _open: Open::new(&people),
            people,
            key,
            changes,
            has,
            is_first: true,
            has_ended: false,
            was_stale: false,
            next_view: now,
            next_alive: now + ALIVE_INTERVAL,
            ends: now + AGE_MAX,
        }
    }

    /// The next frame; `None` ends the stream.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.has_ended || Instant::now() >= self.ends {
                return None;
            }
            self.changes.borrow_and_update();
            if let Some(frame) = self.due() {
                self.next_alive = Instant::now() + ALIVE_INTERVAL;
                return Some(frame);
            }
            let wakes = if self.next_view > Instant::now() {
                self.next_view.min(self.next_alive)
            } else {
                self.next_alive
            };
            tokio::select! {
                () = sleep_until(wakes) => {}
                changed = self.changes.changed(), if self.next_view <= Instant::now() => changed.ok()?,
                () = self.people.stop.cancelled() => return None,
            }
        }
    }

    /// The frame that is due now, if any.
    fn due(&mut self) -> Option<Bytes> {
        if let Some(staleness) = self.people.feed.staleness() {
            if !std::mem::replace(&mut self.was_stale, true) {
                let data = json!({ "since": staleness.since, "cause": staleness.cause });
                return Some(self.frame("stale", None, data.to_string().as_bytes()));
            }
        } else if Instant::now() >= self.next_view {
            let was_stale = std::mem::take(&mut self.was_stale);
            let found = self.people.feed.data(&self.key);
            let Some((data, seq)) = found else {
                // The fleet has no view before the first fact; any other view was there and is gone.
                self.has_ended = self.key != ViewKey::Fleet;
                return self.has_ended.then(|| self.frame("end", None, b"{}"));
            };
            if self.has != Some(seq) || was_stale {
                let resumes = self.is_first && self.has.is_some_and(|has| has < seq);
                let event = if self.is_first && !resumes { "snapshot" } else { "change" };
                self.has = Some(seq);
                self.next_view = Instant::now() + FRAME_INTERVAL;
                return Some(self.frame(event, Some(seq), &data));
            }
        }
        (Instant::now() >= self.next_alive || self.is_first).then(|| {
            self.frame("alive", None, json!({ "at": self.people.clock.now() }).to_string().as_bytes())
        })
    }

    fn frame(&mut self, event: &str, id: Option<u64>, data: &[u8]) -> Bytes {
        let id = id.map(|id| id.to_string());
        frame(&retry(&mut self.is_first), event, id.as_deref(), data)
    }
}

/// The field of the first event that says when a client connects again.
fn retry(is_first: &mut bool) -> String {
    match std::mem::take(is_first) {
        true => format!("retry: {}\n", RETRY_MS.0 + fastrand::u32(..RETRY_MS.1)),
        false => String::new(),
    }
}

/// An event. Its data is one line.
fn frame(retry: &str, event: &str, id: Option<&str>, data: &[u8]) -> Bytes {
    let id = id.map_or_else(String::new, |id| format!("id: {id}\n"));
    [retry.as_bytes(), id.as_bytes(), b"event: ", event.as_bytes(), b"\ndata: ", data, b"\n\n"]
        .concat()
        .into()
}
