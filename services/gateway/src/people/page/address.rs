//! The address of the page that a task renders: the moment of the past that it names, and its other parameters.
//!
//! A relative moment such as `at=2h` is replaced before the page is made, so its links, forms and commands name one moment that does
//! not move with each click. An address without a page that takes a moment is not read.

use axum::extract::{Request, State};
use axum::http::Uri;
use axum::http::uri::PathAndQuery;
use axum::middleware::Next;
use axum::response::Response;
use form_urlencoded::{Serializer, byte_serialize};
use muster_client::time::{Side, time_at};
use muster_contract::Timestamp;

use crate::people::People;

tokio::task_local! {
    static ADDRESS: PageAddress;
}

/// The address of a page that takes a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PageAddress {
    /// The moment that it names.
    pub(super) moment: Option<Timestamp>,
    /// The time of the request.
    pub(super) requested_at: Timestamp,
    /// Its other parameters without the place in a list, which is of one moment. An empty field of a form is none.
    pub(super) others: Vec<(String, String)>,
}

impl PageAddress {
    pub(super) fn read(query: &str, now: Timestamp) -> Self {
        let (mut moment, mut others) = (None, Vec::new());
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            if name == "at" {
                moment = moment.or_else(|| moment_at(&value, now));
            } else if !value.is_empty() && name != "after" {
                others.push((name.into_owned(), value.into_owned()));
            }
        }
        Self { moment, requested_at: now, others }
    }

    /// A link to the same page with the same other parameters: at a moment, or as it is now.
    pub(super) fn link(&self, at: Option<&str>) -> String {
        let mut query = Serializer::for_suffix("?".to_owned(), 1);
        query.extend_pairs(&self.others).extend_pairs(at.map(|at| ("at", at)));
        query.finish()
    }
}

/// Reads a moment. A field for date and time sends no zone: its label says UTC.
fn moment_at(text: &str, now: Timestamp) -> Option<Timestamp> {
    let with_zone = time_at(text, now, Side::Past);
    with_zone.or_else(|_| time_at(&format!("{text}Z"), now, Side::Past)).ok()
}

/// The same address with an absolute moment; a moment that cannot be read stays, and the page refuses it.
fn with_moment(uri: &Uri, moment: Timestamp) -> Option<Uri> {
    let at: String = byte_serialize(moment.to_string().as_bytes()).collect();
    let pairs = uri.query()?.split('&');
    let pairs = pairs.map(|pair| if pair.starts_with("at=") { format!("at={at}") } else { pair.to_owned() });
    let query = pairs.collect::<Vec<_>>().join("&");
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(format!("{}?{query}", uri.path())).ok()?);
    Uri::from_parts(parts).ok()
}

/// Makes a page that takes a moment with its address.
pub(crate) async fn with_address(State(people): State<People>, mut request: Request, next: Next) -> Response {
    let uri = request.uri();
    if !takes_moment(uri.path().trim_start_matches('/')) {
        return next.run(request).await;
    }
    let address = PageAddress::read(uri.query().unwrap_or_default(), people.clock.now());
    if let Some(absolute) = address.moment.and_then(|moment| with_moment(uri, moment)) {
        *request.uri_mut() = absolute;
    }
    ADDRESS.scope(address, next.run(request)).await
}

/// The address of the page that is being made, if it takes a moment.
pub(super) fn current() -> Option<PageAddress> {
    ADDRESS.try_with(Clone::clone).ok()
}

/// The moment of the past that the page is about.
pub(super) fn moment() -> Option<Timestamp> {
    ADDRESS.try_with(|address| address.moment).ok().flatten()
}

/// Whether the page at a path without its first slash takes `at`.
pub(super) fn takes_moment(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    matches!(
        parts[..],
        [""] | ["devices"]
            | ["devices", _, _]
            | ["sites", _]
            | ["deployments", _]
            | ["deployments", _, "devices" | "why"]
            | ["rollouts", _]
    )
}

/// Makes a part of the page at an address.
#[cfg(test)]
pub(super) fn rendered_at<R>(query: &str, now: Timestamp, render: impl FnOnce() -> R) -> R {
    ADDRESS.sync_scope(PageAddress::read(query, now), render)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-11-20T10:00:00Z";

    fn read(query: &str) -> PageAddress {
        PageAddress::read(query, NOW.parse().unwrap())
    }

    #[test]
    fn a_moment_without_a_zone_is_of_utc() {
        for (text, moment) in [
            ("2h", Some("2026-11-20T08:00:00Z")),
            ("2026-11-20T08:00:00Z", Some("2026-11-20T08:00:00Z")),
            ("2026-11-20T08:00:00.5Z", Some("2026-11-20T08:00:00.5Z")),
            ("2026-11-20T09:00:00%2B01:00", Some("2026-11-20T08:00:00Z")),
            ("2026-11-20T08:00", Some("2026-11-20T08:00:00Z")),
            ("2026-11-20T08%3A00%3A07", Some("2026-11-20T08:00:07Z")),
            ("2026-11-20", None),
            ("later", None),
            ("", None),
        ] {
            let found = read(&format!("at={text}")).moment.map(|moment| moment.to_string());
            assert_eq!(found.as_deref(), moment, "{text}");
        }
    }

    #[test]
    fn a_link_keeps_every_other_parameter() {
        let address = read("site=plant+7&at=2h&freshness=&error=a%26b");
        assert_eq!(address.link(None), "?site=plant+7&error=a%26b");
        assert_eq!(address.link(Some("5m")), "?site=plant+7&error=a%26b&at=5m");
        assert_eq!((read("at=2h").link(None), read("").link(Some("1h"))), ("?".into(), "?at=1h".into()));
    }

    #[test]
    fn a_page_reads_an_absolute_moment_and_the_rest_as_it_was() {
        let absolute = |uri: &str| {
            let uri: Uri = uri.parse().unwrap();
            let moment = read(uri.query().unwrap_or_default()).moment?;
            with_moment(&uri, moment).map(|uri| uri.to_string())
        };
        const AT: &str = "at=2026-11-20T08%3A00%3A00Z";
        for (uri, wanted) in [
            ("/?at=2h", format!("/?{AT}")),
            (
                "/devices?site=a+b&at=2026-11-20T08:00&freshness=",
                format!("/devices?site=a+b&{AT}&freshness="),
            ),
            ("/deployments/web?at=2h&at=1h", format!("/deployments/web?{AT}&{AT}")),
        ] {
            assert_eq!(absolute(uri), Some(wanted), "{uri}");
        }
        for uri in ["/", "/devices?at=later", "/devices?site=at%3D2h"] {
            assert_eq!(absolute(uri), None, "{uri}");
        }
    }
}
