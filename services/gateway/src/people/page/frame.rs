//! The frame of every page: navigation, the state of the page's own connection, the banner of a page that is not up to date,
//! the time control, and the page of an error.

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};
use muster_contract::Timestamp;

use super::moment::keep_moment;
use super::parts::second;
use super::{address, assets, time};
use crate::login::current;
use crate::people::People;
use crate::people::live::{Staleness, Views};
use crate::problem::{Problem, RETRY_AFTER_SECONDS};

/// The parts of the navigation, each with its address.
const NAVIGATION: [(&str, &str); 6] = [
    ("Fleet", "/"),
    ("Devices", "/devices"),
    ("Rollouts", "/rollouts"),
    ("Plans", "/plans"),
    ("Quarantine", "/quarantine"),
    ("Changes", "/changes"),
];

/// One page, without its content.
#[derive(Debug, Default)]
pub(super) struct Frame {
    /// Its title.
    pub(super) title: String,
    /// The part of the navigation that it belongs to.
    pub(super) part: &'static str,
    /// The events that tell of changes; none of a page about the past.
    pub(super) stream: Option<String>,
    /// The moment that it is about, if that is in the past.
    pub(super) then: Option<Timestamp>,
}

impl Frame {
    /// A page that follows the fleet.
    pub(super) fn live(title: impl Into<String>, part: &'static str) -> Self {
        Self { title: title.into(), part, stream: Some("/api/v1/watch/fleet".to_owned()), then: None }
    }

    /// A page about a moment of the past follows nothing.
    #[must_use]
    pub(super) fn at(self, then: Option<Timestamp>) -> Self {
        Self { stream: self.stream.filter(|_| then.is_none()), then, ..self }
    }

    /// The page as an answer. If it cannot be vouched for, it says so and its status is 503.
    pub(super) fn answer(&self, people: &People, content: &Markup) -> Response {
        let staleness = people.feed.staleness().filter(|_| self.then.is_none());
        let mut response = self.document(staleness.as_ref(), content).into_response();
        if staleness.is_some() {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS));
        }
        response
    }

    /// The page without navigation, for a reader who has not logged in.
    pub(super) fn before_login(&self, content: &Markup) -> Markup {
        html! {
            (DOCTYPE)
            html lang="en" class="no-script" {
                (self.head())
                body {
                    header.top { span.brand { "Muster" } }
                    main #content { (content) }
                    footer.foot { "version " (muster_service::VERSION) }
                }
            }
        }
    }

    fn head(&self) -> Markup {
        html! {
            head {
                meta charset="utf-8";
                title { (self.title) " \u{2013} Muster" }
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                link rel="stylesheet" href=(assets::style());
                link rel="icon" href=(assets::icon()) type="image/svg+xml";
                script type="module" src=(assets::script()) {}
                @if self.stream.is_some() { noscript { meta http-equiv="refresh" content="10"; } }
            }
        }
    }

    fn document(&self, staleness: Option<&Staleness>, content: &Markup) -> impl IntoResponse + use<> {
        ([(CONTENT_TYPE, "text/html; charset=utf-8")], self.text(staleness, content))
    }

    fn text(&self, staleness: Option<&Staleness>, content: &Markup) -> String {
        let state = match (staleness, self.then) {
            (Some(_), _) => "not up to date",
            (None, Some(_)) => "the past",
            (None, None) => "as of this request",
        };
        let mark = match (staleness, self.then) {
            (Some(_), _) => "no-script is-stale",
            (None, Some(_)) => "no-script is-past",
            (None, None) => "no-script",
        };
        let page = html! {
            (DOCTYPE)
            html lang="en" class=(mark) data-stream=[self.stream.as_ref()] {
                (self.head())
                body {
                    a.skip href="#content" { "To the content" }
                    header.top {
                        a.brand href="/" { "Muster" }
                        nav aria-label="Pages" {
                            @for (name, address) in NAVIGATION {
                                a href=(address) aria-current=[(self.part == name).then_some("page")] { (name) }
                            }
                        }
                        span.state #state role="status" { (state) }
                        (person())
                    }
                    p.alarm #alarm role="alert" hidden[staleness.is_none()] {
                        @if let Some(staleness) = staleness {
                            "Not up to date"
                            @if let Some(since) = staleness.since { " since " (second(since)) }
                            ": " (staleness.cause)
                        }
                    }
                    @if let Some(address) = address::current() { (time::control(&address)) }
                    main #content { (content) }
                    footer.foot { a href="/openapi.json" { "API" } " \u{b7} version " (muster_service::VERSION) }
                }
            }
        };
        let page = page.into_string();
        match self.then {
            Some(then) => keep_moment(&page, then),
            None => page,
        }
    }
}

/// The newest views; none for a page of the past.
pub(super) fn present_views(people: &People, then: Option<Timestamp>) -> Views {
    if then.is_none() { people.feed.views() } else { Views::default() }
}

/// The person who has logged in, with a button to log out.
fn person() -> Markup {
    html! {
        @if let Some(session) = current::session() {
            form.person method="post" action="/logout" {
                span { (session.label()) ", " (session.person.role) }
                button.act type="submit" { "Log out" }
            }
        }
    }
}

/// A problem as a page.
pub(super) struct ProblemPage(pub(super) Problem);

impl<P: Into<Problem>> From<P> for ProblemPage {
    fn from(problem: P) -> Self {
        Self(problem.into())
    }
}

impl IntoResponse for ProblemPage {
    fn into_response(self) -> Response {
        let problem = self.0;
        let content = html! {
            h1 { (problem.title) }
            p { (problem.detail) }
            @if problem.retryable { p { a href="" { "Try again" } } }
            p { a href="/" { "To the fleet" } }
        };
        let frame = Frame { title: problem.title.to_owned(), ..Frame::default() };
        let mut response = frame.document(None, &content).into_response();
        *response.status_mut() =
            StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if let Some(seconds) = problem.retry_after_seconds {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-11-20T10:00:00Z";

    #[test]
    fn a_page_of_the_past_links_to_its_moment_and_back_to_now() {
        let content = html! { a href="/deployments/web" { "web" } a href="/rollouts/web" { "rollout" } };
        let live = Frame::live("Fleet", "Fleet");
        let now = address::rendered_at("all=true", NOW.parse().unwrap(), || live.text(None, &content));
        assert!(now.contains("href=\"/deployments/web\"") && !now.contains("?at=2026"), "{now}");
        assert!(now.contains("href=\"?all=true&amp;at=5m\""), "{now}");
        let then = "2026-11-20T08:00:00Z".parse().ok();
        let past = address::rendered_at("at=2h", NOW.parse().unwrap(), || live.at(then).text(None, &content));
        for link in ["/?AT", "/devices?AT", "/deployments/web?AT", "/rollouts/web?AT", "/changes", "?"] {
            let link = format!("href=\"{}\"", link.replace("AT", "at=2026-11-20T08%3A00%3A00Z"));
            assert!(past.contains(&link), "{link}: {past}");
        }
        assert!(!past.contains("at=2h") && !past.contains("at=5m"), "{past}");
    }

    #[test]
    fn only_a_page_that_takes_a_moment_has_the_time_control() {
        let has_control = |page: String| page.contains("datetime-local");
        let frame = Frame::live("Changes", "Changes");
        assert!(!has_control(frame.text(None, &html! {})));
        assert!(has_control(address::rendered_at("", NOW.parse().unwrap(), || frame.text(None, &html! {}))));
        // A moment that LEDGER has forgotten is an error, and the reader chooses another.
        let forgotten = Frame::default();
        assert!(has_control(
            address::rendered_at("at=30d", NOW.parse().unwrap(), || forgotten.text(None, &html! {}))
        ));
    }
}
