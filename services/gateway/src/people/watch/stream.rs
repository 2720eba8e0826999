//! An event stream: it sends the events of a [`EventSource`], and `alive` between them.
//!
//! A stream ends with its source, at its age, with the gateway, or with the session of its request. It sends no frame without a
//! check of that session, and `alive` bounds the time between two checks. It does not choose events.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::unfold;
use prometheus_client::metrics::gauge::Gauge;
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use crate::listener::Limits;
use crate::login::current;
use crate::login::session::Session;
use crate::people::People;
use crate::problem::Problem;

/// The header with the id of the last event that a client has.
pub(super) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Most open streams: those of 10,000 programs and of 2,000 pages.
const STREAMS_MAX: i64 = 12_000;
/// Longest time without an event; also the longest time between two checks of the session.
pub(super) const ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Age at which a stream ends; the client opens another one.
const AGE_MAX: Duration = Duration::from_secs(30 * 60);
/// Delay before a client connects again, in milliseconds, and the random part on top of it.
const RETRY_MS: (u32, u32) = (2_000, 3_000);
/// The name of a source's last event.
const END: &str = "end";

// A page has a second connection, for its documents.
const _: () = assert!(STREAMS_MAX as usize + 2_000 < Limits::PEOPLE.connections);

/// An event. Its data is one line.
pub(super) struct Event {
    name: &'static str,
    id: Option<String>,
    data: Bytes,
}

impl Event {
    /// An event with the id that a client sends when it connects again.
    pub(super) fn with_id(name: &'static str, id: String, data: Bytes) -> Self {
        Self { name, id: Some(id), data }
    }

    /// An event that leaves the client's last id as it is.
    pub(super) fn new(name: &'static str, data: impl Into<Bytes>) -> Self {
        Self { name, id: None, data: data.into() }
    }

    /// The last event of a source: it has nothing to send any more.
    pub(super) fn end() -> Self {
        Self::new(END, "{}")
    }

    fn frame(&self, retry: &str) -> Bytes {
        let id = self.id.as_ref().map_or_else(String::new, |id| format!("id: {id}\n"));
        let (name, data) = (self.name.as_bytes(), &*self.data);
        [retry.as_bytes(), id.as_bytes(), b"event: ", name, b"\ndata: ", data, b"\n\n"].concat().into()
    }
}

/// The events of one stream.
pub(super) trait EventSource: Send + 'static {
    /// The event that is due now. `is_first`: the stream has sent none yet.
    fn due(&mut self, people: &People, is_first: bool) -> Option<Event>;

    /// Waits until an event may be due; `None` if none will come.
    fn changed(&mut self) -> impl Future<Output = Option<()>> + Send;
}

/// Refuses a stream beyond the bound.
pub(super) fn check_room(people: &People) -> Result<(), Problem> {
    if people.metrics.followers.get() < STREAMS_MAX {
        return Ok(());
    }
    let detail = format!("this gateway has {STREAMS_MAX} open event streams");
    Err(Problem::passing(StatusCode::SERVICE_UNAVAILABLE, detail))
}

/// The answer to a request for the events of a source.
pub(super) fn respond(people: People, source: impl EventSource) -> Response {
    let events = unfold(EventStream::new(people, source), async |mut stream| {
        let frame = stream.next().await?;
        stream.people.metrics.frames.inc();
        Some((Ok::<_, Infallible>(frame), stream))
    });
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response()
}

struct EventStream<S> {
    people: People,
    source: S,
    /// The session of the request; `None` without a login.
    session: Option<Session>,
    is_first: bool,
    has_ended: bool,
    next_alive: Instant,
    ends: Instant,
    _open: OpenCount,
}

/// Counts an open stream.
struct OpenCount(Gauge);

impl OpenCount {
    fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for OpenCount {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl<S: EventSource> EventStream<S> {
    fn new(people: People, source: S) -> Self {
        let now = Instant::now();
        Self {
            _open: OpenCount::new(&people.metrics.followers),
            people,
            source,
            session: current::session(),
            is_first: true,
            has_ended: false,
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
            if let Some(event) = self.source.due(&self.people, self.is_first).or_else(|| self.alive()) {
                return self.is_permitted().then(|| self.frame(&event));
            }
            tokio::select! {
                () = sleep_until(self.next_alive) => {}
                changed = self.source.changed() => changed?,
                () = self.people.stop.cancelled() => return None,
            }
        }
    }

    fn alive(&self) -> Option<Event> {
        let is_due = self.is_first || Instant::now() >= self.next_alive;
        is_due.then(|| Event::new("alive", json!({ "at": self.people.clock.now() }).to_string()))
    }

    /// Whether the session of the request still holds.
    fn is_permitted(&self) -> bool {
        match (self.people.login(), &self.session) {
            (None, _) => true,
            (Some(login), Some(session)) => login.check(session, self.people.clock.now()).is_ok(),
            (Some(_), None) => false,
        }
    }

    fn frame(&mut self, event: &Event) -> Bytes {
        self.next_alive = Instant::now() + ALIVE_INTERVAL;
        self.has_ended = event.name == END;
        let retry = if std::mem::take(&mut self.is_first) {
            format!("retry: {}\n", RETRY_MS.0 + fastrand::u32(..RETRY_MS.1))
        } else {
            String::new()
        };
        event.frame(&retry)
    }
}
