//! Who answers a question: this process, from what it holds, or the one hub that has what the question is about. No IO.
//!
//! What a hub alone knows (devices, reasons, the past) is asked of it, for the sites that the question names. Counts after
//! filters add up, so all hubs are asked for those. Any other question that names no site, or sites of several hubs, is
//! refused in words that say what to ask instead.

use std::collections::BTreeSet;

use muster_contract::groups::GroupQuery;
use muster_contract::history::{DiffQuery, Point};
use muster_contract::query::{ErrorBody, ErrorCode, Output, Query};
use muster_contract::question::{bad, read, read_of_a_point};
use muster_contract::status::StatusQuery;
use muster_contract::{HubName, SiteId};

/// Questions that are answered here, or not at all.
pub const TOGETHER: [&str; 4] = ["fleet", "labels", "groups", "group"];
/// Questions that are answered here or, about one site, by its hub.
pub const EITHER: [&str; 3] = ["deployment", "deployments", "site"];
/// Questions that a hub answers.
pub const APART: [&str; 8] = ["device", "devices", "why", "status", "diff", "moment", "digests", "verify"];
/// Questions that only each hub answers, and of which none names a site.
pub const NOWHERE: [&str; 2] = ["views", "view"];
/// The question which hubs there are, which is answered at any time.
pub const HUBS: &str = "hubs";

/// Which hub has which site, and which hubs there are.
pub trait Places {
    /// The hub that has a site.
    fn hub_of(&self, site: &SiteId) -> Option<HubName>;
    /// Names of all hubs.
    fn hubs(&self) -> Vec<HubName>;
    /// Hubs that were not read yet: what they have is not known.
    fn unread(&self) -> Vec<HubName>;
}

/// Who answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// This process.
    Here,
    /// This hub.
    Hub(HubName),
    /// All hubs, whose answers add up.
    Every,
}

/// Who answers a question.
///
/// # Errors
/// Nobody does, for this reason.
pub fn route(endpoint: &str, question: &[u8], places: &impl Places) -> Result<Route, ErrorBody> {
    if endpoint == HUBS {
        return Ok(Route::Here);
    }
    if NOWHERE.contains(&endpoint) {
        let words = "views that people define are of one hub, and so are their counts: ask the hub itself";
        return Err(refused(words, places));
    }
    let asked = Asked::read(endpoint, question)?;
    if asked.adds_up {
        return all_read(places).map(|()| Route::Every);
    }
    let whole = asked.sites.is_empty() || endpoint == "site";
    if TOGETHER.contains(&endpoint) || (EITHER.contains(&endpoint) && whole) {
        match asked.needs_a_hub {
            None => return all_read(places).map(|()| Route::Here),
            // It is that of one site, so that a hub can tell.
            Some(_) if !asked.sites.is_empty() => {}
            Some(what) => return Err(needs_a_site(what, TOGETHER.contains(&endpoint), places)),
        }
    }
    let mut hubs = BTreeSet::new();
    for site in &asked.sites {
        hubs.insert(places.hub_of(site).map_or_else(|| Err(nowhere(site, places)), Ok)?);
    }
    match (hubs.pop_first(), hubs.pop_first()) {
        (Some(hub), None) => Ok(Route::Hub(hub)),
        (Some(one), Some(other)) => {
            let words = format!(
                "the sites named are of several hubs ({one}, {other}): ask about those of one hub at a time"
            );
            Err(refused(&words, places))
        }
        (None, _) => Err(needs_a_site(what(endpoint), false, places)),
    }
}

/// Refuses as long as there are hubs of which nothing is known.
///
/// # Errors
/// There are: these.
pub fn all_read(places: &impl Places) -> Result<(), ErrorBody> {
    let unread = places.unread();
    if unread.is_empty() { Ok(()) } else { Err(not_read(&unread)) }
}

/// What a question is about, as far as it matters who answers it.
struct Asked {
    /// The sites it names.
    sites: BTreeSet<SiteId>,
    /// What of it only a hub can tell.
    needs_a_hub: Option<&'static str>,
    /// It asks for nothing but counts of the present.
    adds_up: bool,
}

impl Asked {
    fn read(endpoint: &str, question: &[u8]) -> Result<Self, ErrorBody> {
        match endpoint {
            "status" => {
                let query: StatusQuery = read_of_a_point(question)?;
                let adds_up = is_of_counts(&query);
                let devices = query.device.into_iter().map(|path| path.0.site);
                let sites =
                    if query.site.is_empty() { devices.collect() } else { query.site.into_iter().collect() };
                Ok(Self { sites, needs_a_hub: None, adds_up })
            }
            "diff" => {
                let query: DiffQuery = read(question)?;
                Ok(Self { sites: query.site.into_iter().collect(), needs_a_hub: None, adds_up: false })
            }
            "labels" | "groups" | "group" => {
                let query: GroupQuery = read_of_a_point(question)?;
                Ok(Self { sites: BTreeSet::new(), needs_a_hub: past(query.point), adds_up: false })
            }
            _ => {
                let query: Query = read_of_a_point(question)?;
                let lines = (endpoint == "deployment" && query.output != Output::Summary)
                    .then_some("a line for each device (output all or detail)");
                // A question about the whole fleet is none about a site, whatever else it says.
                let site = query.site.filter(|_| !TOGETHER.contains(&endpoint));
                let needs_a_hub = past(query.point).or(lines);
                Ok(Self { sites: site.into_iter().collect(), needs_a_hub, adds_up: false })
            }
        }
    }
}

/// Whether the hubs' answers can be added: no lines, and nothing of the past. Of places named, their hub tells.
fn is_of_counts(query: &StatusQuery) -> bool {
    let StatusQuery { site, device, app, component, output, generation, after, point, .. } = query;
    let anywhere = site.is_empty() && device.is_empty();
    // A hub that does not know one of several names refuses the question, though it may run the others.
    let one_each = app.len() <= 1 && component.len() <= 1;
    anywhere
        && one_each
        && *output == Output::Summary
        && generation.is_none()
        && after.is_none()
        && point.is_now()
}

fn past(point: Point) -> Option<&'static str> {
    (!point.is_now()).then_some("the past (at, atSeq, about), which each hub counts by itself,")
}

fn what(endpoint: &str) -> &'static str {
    match endpoint {
        "device" | "devices" => "devices",
        "why" => "the reason of a verdict, device by device,",
        "status" => {
            "a line for each target (output all or detail), several applications or components at once, a page, a generation \
             or the past of the status after filters"
        }
        "diff" | "moment" | "digests" => "the past, which each hub counts by itself,",
        _ => "a proof, which each hub makes by itself,",
    }
}

fn needs_a_site(what: &str, of_the_fleet: bool, places: &impl Places) -> ErrorBody {
    // Where no field names a site, naming one would not help.
    let help = if of_the_fleet {
        "ask a hub itself"
    } else {
        "name a site, whose hub is asked then, or ask a hub itself"
    };
    refused(&format!("{what} is answered by one hub: {help}"), places)
}

fn refused(words: &str, places: &impl Places) -> ErrorBody {
    bad(format!(
        "{words} (`muster --nats-url …`); this is a federation of the hubs {}",
        listed(&places.hubs())
    ))
}

fn nowhere(site: &SiteId, places: &impl Places) -> ErrorBody {
    match places.unread() {
        unread if !unread.is_empty() => not_read(&unread),
        _ => {
            let hubs = listed(&places.hubs());
            let message = format!("site '{site}' has no devices at any of the hubs {hubs}");
            ErrorBody { code: ErrorCode::NotFound, message }
        }
    }
}

fn not_read(hubs: &[HubName]) -> ErrorBody {
    let message = format!("still reading what these hubs have: {}; ask again in a moment", listed(hubs));
    ErrorBody { code: ErrorCode::NotReady, message }
}

fn listed(hubs: &[HubName]) -> String {
    hubs.iter().map(HubName::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Sites `n1` and `n2` at the hub north, `s1` at south.
    struct Two {
        unread: &'static [&'static str],
    }

    impl Places for Two {
        fn hub_of(&self, site: &SiteId) -> Option<HubName> {
            let hub = match site.as_str() {
                "n1" | "n2" => "north",
                "s1" => "south",
                _ => return None,
            };
            hub.parse().ok()
        }

        fn hubs(&self) -> Vec<HubName> {
            ["north", "south"].map(|name| name.parse().unwrap()).to_vec()
        }

        fn unread(&self) -> Vec<HubName> {
            self.unread.iter().map(|name| name.parse().unwrap()).collect()
        }
    }

    const READ: Two = Two { unread: &[] };

    fn routed(endpoint: &str, question: &Value) -> Result<Route, ErrorBody> {
        route(endpoint, question.to_string().as_bytes(), &READ)
    }

    #[test]
    fn counts_are_answered_here_and_what_one_hub_knows_there() {
        let at = |mut question: Value| {
            question["atSeq"] = 3.into();
            question
        };
        let site = json!({"site": "n1"});
        // endpoint, question, hub
        let table = [
            ("hubs", json!({}), None),
            ("fleet", json!({}), None),
            ("fleet", json!({"site": "s1"}), None),
            ("labels", json!({}), None),
            ("groups", json!({"label": "ring"}), None),
            ("group", json!({"label": "ring", "value": "a"}), None),
            ("deployment", json!({"id": "web"}), None),
            ("deployment", json!({"id": "web", "site": "s1"}), Some("south")),
            ("deployment", json!({"id": "web", "site": "s1", "output": "all"}), Some("south")),
            ("deployments", json!({}), None),
            ("deployments", site.clone(), Some("north")),
            ("site", site.clone(), None),
            ("site", at(site.clone()), Some("north")),
            ("device", json!({"site": "n1", "device": "press-1"}), Some("north")),
            ("devices", site.clone(), Some("north")),
            ("devices", json!({"site": "s1", "freshness": ["stale"]}), Some("south")),
            ("why", json!({"id": "web", "site": "s1"}), Some("south")),
            ("status", json!({"site": ["n1", "n2"]}), Some("north")),
            ("status", json!({"device": ["s1/press-1", "s1/press-2"]}), Some("south")),
            ("status", json!({"site": ["n1"], "device": ["s1/press-1"]}), Some("north")),
            ("diff", json!({"id": "web", "site": "n1", "from": {"atSeq": 3}}), Some("north")),
            ("moment", at(site.clone()), Some("north")),
            ("digests", at(site), Some("north")),
        ];
        for (endpoint, question, hub) in table {
            let wanted = hub.map_or(Route::Here, |hub| Route::Hub(hub.parse().unwrap()));
            assert_eq!(routed(endpoint, &question), Ok(wanted), "{endpoint} {question}");
        }
    }

    #[test]
    fn what_nobody_answers_is_refused_with_what_to_ask_instead() {
        let (bad, none) = (ErrorCode::BadRequest, ErrorCode::NotFound);
        for (endpoint, question, code, says) in [
            ("devices", json!({}), bad, "name a site"),
            ("devices", json!({"freshness": ["stale", "never"]}), bad, "name a site"),
            ("status", json!({"id": "web", "output": "all"}), bad, "name a site"),
            ("status", json!({"id": "web", "after": "n1/press-1"}), bad, "a page"),
            ("status", json!({"id": "web", "atSeq": 3}), bad, "the past"),
            ("status", json!({"site": ["n1", "s1"]}), bad, "several hubs (north, south)"),
            ("why", json!({"id": "web"}), bad, "name a site"),
            ("deployment", json!({"id": "web", "output": "all"}), bad, "output all or detail"),
            ("deployment", json!({"id": "web", "atSeq": 3}), bad, "the past"),
            ("fleet", json!({"atSeq": 3}), bad, "ask a hub itself"),
            ("groups", json!({"label": "ring", "at": "2026-11-20T08:00:00Z"}), bad, "ask a hub itself"),
            ("moment", json!({"atSeq": 3}), bad, "the past"),
            ("diff", json!({"id": "web", "from": {"atSeq": 3}}), bad, "the past"),
            ("verify", json!({}), bad, "a proof"),
            ("views", json!({}), bad, "ask the hub itself"),
            ("view", json!({"view": "rings"}), bad, "ask the hub itself"),
            ("devices", json!({"site": "nowhere"}), none, "'nowhere'"),
            ("device", json!({"site": "N1"}), bad, "N1"),
            ("fleet", json!([1]), bad, "question"),
        ] {
            let error = routed(endpoint, &question).unwrap_err();
            assert_eq!(error.code, code, "{endpoint} {question}: {}", error.message);
            assert!(error.message.contains(says), "{endpoint} {question}: {}", error.message);
            if error.message.contains("--nats-url") || code == none {
                assert!(error.message.contains("north, south"), "{}", error.message);
            }
        }
    }

    #[test]
    fn counts_after_filters_are_those_of_all_hubs_once_all_were_read() {
        for question in [json!({}), json!({"id": "web", "app": ["com.example.web"], "component": ["main"]})] {
            assert_eq!(routed("status", &question), Ok(Route::Every), "{question}");
            let places = Two { unread: &["south"] };
            let error = route("status", question.to_string().as_bytes(), &places).unwrap_err();
            assert_eq!(error.code, ErrorCode::NotReady, "a sum of some of the hubs is none");
        }
    }

    #[test]
    fn before_a_hub_was_read_only_what_is_known_is_answered() {
        let places = Two { unread: &["south"] };
        for (endpoint, question) in
            [("fleet", json!({})), ("deployments", json!({})), ("devices", json!({"site": "elsewhere"}))]
        {
            let error = route(endpoint, question.to_string().as_bytes(), &places).unwrap_err();
            assert_eq!(error.code, ErrorCode::NotReady, "{endpoint}");
            assert!(error.message.contains("south") && !error.message.contains("north"), "{}", error.message);
        }
        assert_eq!(route("hubs", b"", &places), Ok(Route::Here));
        let north = Ok(Route::Hub("north".parse().unwrap()));
        assert_eq!(route("devices", br#"{"site":"n1"}"#, &places), north);
    }
}
