//! The links of a page of the past: each leads to the same moment, if the page behind it takes one.

use muster_contract::Timestamp;

use super::address::takes_moment;
use super::parts::encoded;

/// The start of a link to a page. Templates escape quotes in texts and values, so only attributes of a document have one.
const LINK: &str = " href=\"/";

/// The document with `at` in every link to a page that takes it. A link that names a moment itself keeps its own.
pub(super) fn keep_moment(document: &str, at: Timestamp) -> String {
    let at = format!("at={}", encoded(&at.to_string()));
    let mut pieces = document.split(LINK);
    let mut kept = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (link, rest) = piece.split_at(piece.find('"').unwrap_or(piece.len()));
        kept += LINK;
        kept += &link_at(link, &at);
        kept += rest;
    }
    kept
}

/// A link without its first slash, escaped as in a document.
fn link_at(link: &str, at: &str) -> String {
    let (page, fragment) = link.split_at(link.find('#').unwrap_or(link.len()));
    let (path, query) = page.split_once('?').unwrap_or((page, ""));
    let names_moment = query.split("&amp;").any(|pair| pair.starts_with("at="));
    match query {
        _ if names_moment || !takes_moment(path) => link.to_owned(),
        "" => format!("{path}?{at}{fragment}"),
        _ => format!("{path}?{query}&amp;{at}{fragment}"),
    }
}

#[cfg(test)]
mod tests {
    use maud::html;

    use super::*;

    fn kept(address: &str) -> String {
        let page =
            html! { p { a.name href=(address) title="a href='/'" { "href=\"/\" of it" } } }.into_string();
        let kept = keep_moment(&page, "2026-11-20T08:00:00.5Z".parse().unwrap());
        let (before, after) =
            page.split_once(&format!("href=\"{}\"", address.replace('&', "&amp;"))).unwrap();
        let link = kept.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        let link = link.unwrap_or_else(|| panic!("more than the link changed: {kept}"));
        link.trim_start_matches("href=\"").trim_end_matches('"').replace("&amp;", "&")
    }

    #[test]
    fn a_link_to_a_page_that_takes_a_moment_keeps_it() {
        const AT: &str = "at=2026-11-20T08%3A00%3A00.5Z";
        for address in [
            "/",
            "/devices",
            "/devices/plant7/press-1",
            "/sites/plant7",
            "/deployments/web",
            "/deployments/web/devices",
            "/deployments/web/why",
            "/rollouts/web",
        ] {
            assert_eq!(kept(address), format!("{address}?{AT}"));
        }
        for address in ["/?all=true", "/deployments/web/devices?standing=failed&freshness=stale"] {
            assert_eq!(kept(address), format!("{address}&{AT}"));
        }
        assert_eq!(kept("/?all=true#failing"), format!("/?all=true&{AT}#failing"));
    }

    #[test]
    fn a_link_to_another_page_or_moment_stays_as_it_is() {
        for address in [
            "?",
            "#failing",
            "/rollouts",
            "/changes?since=1h&deployment=web",
            "/quarantine",
            "/openapi.json",
            "/assets/muster-0123.css",
            "/deployments/web?at=1h",
            "/devices?site=plant7&at=1h",
            "https://example.com/devices",
        ] {
            assert_eq!(kept(address), address);
        }
    }
}
