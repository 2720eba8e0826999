//! Stands before every route of people: refuses requests to foreign hosts and changes from foreign origins, and gives each
//! answer the headers that keep a browser from running, framing, sniffing or storing it.
//!
//! A page on the loopback has its reader's rights without a login, so the host is checked: a foreign site whose name is
//! made to lead to 127.0.0.1 sends its own name ([`Hosts`]). Programs send no `Origin`; browsers do with every change.

use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::People;
use super::hosts::Hosts;
use crate::listener::Peer;
use crate::problem::Problem;

/// Scripts, styles and connections of this origin alone; nothing inline, nothing framed, forms to this origin.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";
/// Headers of every answer. An answer may set its own `Cache-Control`.
const HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];
/// The header in which a browser names the origin of a request relative to this one.
pub(crate) const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Checks a request, and gives its answer the headers.
pub(crate) async fn guard(State(people): State<People>, request: Request, next: Next) -> Response {
    let mut response = match refusal(&people.hosts, &request) {
        Some(problem) => problem.into_response(),
        None => next.run(request).await,
    };
    people.metrics.requests.inc();
    if response.status().as_u16() >= 400 {
        people.metrics.errors.inc();
    }
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn refusal(hosts: &Hosts, request: &Request) -> Option<Problem> {
    let headers = request.headers();
    let host = text(headers, &HOST).unwrap_or_default();
    let peer = request.extensions().get::<Peer>().map(|peer| peer.addr.ip());
    if headers.get_all(HOST).iter().count() != 1 || !hosts.has(host, peer) {
        let detail = "this gateway is not served under that host; --public-url names another one";
        return Some(Problem::new(StatusCode::MISDIRECTED_REQUEST, detail));
    }
    if request.method().is_safe() {
        return None;
    }
    let is_own =
        |origin: &str| origin.split_once("://").is_some_and(|(_, own)| own.eq_ignore_ascii_case(host));
    let any_is_not = |name: &HeaderName, is_good: &dyn Fn(&str) -> bool| {
        headers.get_all(name).iter().any(|value| !value.to_str().is_ok_and(is_good))
    };
    let origin_is_foreign = any_is_not(&ORIGIN, &is_own);
    let site_is_foreign = any_is_not(&FETCH_SITE, &|site| matches!(site, "same-origin" | "none"));
    (origin_is_foreign || site_is_foreign).then(|| {
        Problem::new(StatusCode::FORBIDDEN, "a change must come from a page of this gateway or a program")
    })
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::body::Body;
    use axum::http::Method;

    use super::super::hosts::Reach;
    use super::*;

    const NEAR: &str = "127.0.0.1:5000";

    fn refused(method: Method, headers: &[(HeaderName, &str)]) -> Option<u16> {
        refused_from(NEAR, Reach::default(), method, headers)
    }

    fn refused_from(peer: &str, reach: Reach, method: Method, headers: &[(HeaderName, &str)]) -> Option<u16> {
        let hosts = Hosts::new(Some("fleet.example.com".to_owned())).with_reach(reach);
        let peer = Peer { addr: peer.parse().unwrap(), certificates: Arc::default() };
        let mut request = Request::builder().method(method).uri("/").extension(peer);
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        refusal(&hosts, &request.body(Body::empty()).unwrap()).map(|problem| problem.status)
    }

    #[test]
    fn a_request_names_the_loopback_or_the_public_host() {
        for host in ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "127.8.0.1", "Fleet.Example.com"] {
            assert_eq!(refused(Method::GET, &[(HOST, host)]), None, "{host}");
        }
        for host in ["evil.example", "fleet.example.com:81", "127.0.0.1.evil.example", "localhost.evil", ""] {
            assert_eq!(refused(Method::GET, &[(HOST, host)]), Some(421), "{host}");
        }
        for host in [
            "[::1]evil",
            "localhost:x@evil",
            "localhost:",
            "localhost:+1",
            "localhost:65536",
            "[localhost]",
            "::1",
            "[::1",
        ] {
            assert_eq!(refused(Method::GET, &[(HOST, host)]), Some(421), "{host}");
        }
        assert_eq!(refused(Method::GET, &[]), Some(421));
        assert_eq!(refused(Method::GET, &[(HOST, "localhost"), (HOST, "localhost")]), Some(421));
    }

    #[test]
    fn a_host_of_the_loopback_is_accepted_from_the_loopback_alone() {
        let from = |peer, only_loopback, host: &str| {
            let reach = Reach { only_loopback, ..Reach::default() };
            refused_from(peer, reach, Method::POST, &[(HOST, host)])
        };
        for host in ["localhost:8080", "127.0.0.1:8080", "[::1]:8080"] {
            for far in ["192.0.2.7:5000", "[2001:db8::1]:5000", "[::ffff:192.0.2.7]:5000"] {
                assert_eq!(from(far, false, host), Some(421), "{host} from {far}");
                assert_eq!(from(far, true, host), None, "a container's port on the loopback");
            }
            for near in [NEAR, "[::1]:5000", "[::ffff:127.0.0.1]:5000"] {
                assert_eq!(from(near, false, host), None, "{host} from {near}");
            }
        }
        assert_eq!(from("192.0.2.7:5000", false, "fleet.example.com"), None);
    }

    #[test]
    fn a_change_comes_from_a_page_of_the_same_origin_or_from_a_program() {
        let own = (HOST, "localhost:8080");
        let post =
            |more: &[(HeaderName, &str)]| refused(Method::POST, &[std::slice::from_ref(&own), more].concat());
        assert_eq!(post(&[]), None, "a program");
        assert_eq!(post(&[(ORIGIN, "http://localhost:8080"), (FETCH_SITE, "same-origin")]), None);
        for origin in
            ["http://evil.example", "http://localhost:9090", "null", "http://localhost:8080.evil", ""]
        {
            assert_eq!(post(&[(ORIGIN, origin)]), Some(403), "{origin}");
        }
        for site in ["cross-site", "same-site", ""] {
            assert_eq!(post(&[(FETCH_SITE, site)]), Some(403), "{site}");
        }
        assert_eq!(refused(Method::GET, &[own, (FETCH_SITE, "cross-site")]), None, "a link leads here");
    }
}
