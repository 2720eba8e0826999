//! Selects who answers a question: this process from memory, the one hub that has the subject, or all hubs
//! concerned. It does no IO.
//!
//! Every hub concerned is asked for lines of devices and targets, for counts after filters and for reasons, and
//! the answers are merged. A question that only one hub can answer (all about a device, the state at a sequence
//! of its LEDGER) goes to the hub of the site that the question names. A time applies to all hubs, so a
//! question about a time asks all of them. Any other question that names no site, or sites of several hubs, is
//! refused, and the error says what to ask instead.

use std::collections::BTreeSet;

use muster_contract::changes::ChangesQuery;
use muster_contract::groups::GroupQuery;
use muster_contract::history::{DiffQuery, Point};
use muster_contract::query::{ErrorBody, ErrorCode, Output, Query};
use muster_contract::question::{bad, one_site, read, read_of_a_point, read_query};
use muster_contract::status::StatusQuery;
use muster_contract::{HubName, SiteId};

use crate::scatter::{ScatteredQuery, scatter};

/// Questions that are answered here, or not at all.
pub const TOGETHER: [&str; 4] = ["fleet", "labels", "groups", "group"];
/// Questions that are answered here or, about one site, by its hub.
pub const EITHER: [&str; 3] = ["deployment", "deployments", "site"];
/// Questions that a hub answers.
pub const APART: [&str; 9] =
    ["device", "devices", "why", "status", "diff", "changes", "moment", "digests", "verify"];
/// Questions that only each hub can answer and that name no site.
pub const NOWHERE: [&str; 2] = ["views", "view"];
/// Endpoints whose filters [`read_query`] does not check: they read another type, or a site only selects the hub.
const OF_OTHER_TYPES: [&str; 11] = [
    "status", "diff", "changes", "labels", "groups", "group", "views", "view", "moment", "digests", "verify",
];
/// Lists that are put together from the parts of several hubs.
const LISTS: [&str; 2] = ["devices", "deployments"];
/// The question which hubs there are, which is answered at any time.
pub const HUBS: &str = "hubs";

/// Which hub has which site, and which hubs there are.
pub trait Places {
    /// The hub that has a site.
    fn hub_of(&self, site: &SiteId) -> Option<HubName>;
    /// Names of all hubs.
    fn hubs(&self) -> Vec<HubName>;
    /// Hubs that were not read yet: their content is unknown.
    fn unread(&self) -> Vec<HubName>;
}

/// The selected responder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// This process.
    Here,
    /// This hub.
    Hub(HubName),
    /// All hubs, or the hubs of the named sites; their lines make one list.
    Every,
    /// These hubs, each for its own; their answers are added.
    Added(Box<ScatteredQuery>),
    /// This hub names the facts, or each hub its own.
    Why(Option<HubName>),
    /// All hubs, of what they held at a time.
    Past,
}

/// Selects who answers a question.
///
/// # Errors
/// The reason why no one can answer it.
pub fn route(endpoint: &str, question: &[u8], places: &impl Places) -> Result<Route, ErrorBody> {
    if !OF_OTHER_TYPES.contains(&endpoint) {
        read_query(endpoint, question)?;
    }
    if endpoint == HUBS {
        return Ok(Route::Here);
    }
    if NOWHERE.contains(&endpoint) {
        let words = "views that people define are of one hub, and so are their counts: ask the hub itself";
        return Err(refused(words, places));
    }
    if is_of_a_time(endpoint, question)? {
        return Ok(Route::Past);
    }
    if endpoint == "status" {
        let query: StatusQuery = read_of_a_point(question)?;
        if query.point.is_now() {
            return scatter(query, places).map(Box::new).map(Route::Added);
        }
    }
    if endpoint == "why" {
        let query: Query = read_of_a_point(question)?;
        if query.point.is_now() {
            // The verdict covers all hubs, wherever the question asks for it.
            all_read(places)?;
            let hub = one_site(&query)?.map(|site| places.hub_of(site).ok_or_else(|| nowhere(site, places)));
            return hub.transpose().map(Route::Why);
        }
    }
    let asked = Asked::read(endpoint, question)?;
    if asked.of_all {
        return all_read(places).map(|()| Route::Every);
    }
    let whole = asked.sites.is_empty() || endpoint == "site";
    if TOGETHER.contains(&endpoint) || (EITHER.contains(&endpoint) && whole) {
        match asked.needs_a_hub {
            None => return all_read(places).map(|()| Route::Here),
            // The question is about one site, so its hub can answer it.
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
        (Some(_), Some(_)) if LISTS.contains(&endpoint) && asked.needs_a_hub != Some(BY_SEQUENCE) => {
            Ok(Route::Every)
        }
        (Some(one), Some(other)) => {
            let words = format!(
                "the sites named are of several hubs ({one}, {other}), {OF_EACH}: ask about those of one hub at a time"
            );
            Err(refused(&words, places))
        }
        (None, _) => Err(needs_a_site(asked.needs_a_hub.unwrap_or_else(|| what(endpoint)), false, places)),
    }
}

/// Whether a question is about a time, and not about one site that its hub answers.
fn is_of_a_time(endpoint: &str, question: &[u8]) -> Result<bool, ErrorBody> {
    if endpoint == "diff" {
        let DiffQuery { from, to, .. } = read(question)?;
        return Ok(from.at_seq.is_none() && to.at_seq.is_none());
    }
    let is_time = |point: Point| !point.is_now() && point.at_seq.is_none();
    match endpoint {
        "status" => read_of_a_point(question).map(|query: StatusQuery| is_time(query.point)),
        "labels" | "groups" | "group" => {
            read_of_a_point(question).map(|query: GroupQuery| is_time(query.point))
        }
        "why" | "fleet" => read_of_a_point(question).map(|query: Query| is_time(query.point)),
        "deployment" | "deployments" | "devices" | "moment" => {
            read_of_a_point(question).map(|query: Query| query.site.len() != 1 && is_time(query.point))
        }
        _ => Ok(false),
    }
}

/// Refuses while some hub was not read.
///
/// # Errors
/// The hubs that were not read.
pub fn all_read(places: &impl Places) -> Result<(), ErrorBody> {
    let unread = places.unread();
    if unread.is_empty() { Ok(()) } else { Err(not_read(&unread)) }
}

/// The parts of a question that decide who answers it.
struct Asked {
    /// The sites it names.
    sites: BTreeSet<SiteId>,
    /// The field that only a hub can answer.
    needs_a_hub: Option<&'static str>,
    /// The question asks for lines of the present, at any place.
    of_all: bool,
}

impl Asked {
    fn read(endpoint: &str, question: &[u8]) -> Result<Self, ErrorBody> {
        match endpoint {
            "status" => {
                let StatusQuery { site, device, point, .. } = read_of_a_point(question)?;
                let devices = device.into_iter().map(|path| path.0.site);
                let sites = if site.is_empty() { devices.collect() } else { site.into_iter().collect() };
                Ok(Self { sites, needs_a_hub: past(point), of_all: false })
            }
            "changes" => {
                let ChangesQuery { site, .. } = read(question)?;
                Ok(Self { sites: site.into_iter().collect(), needs_a_hub: None, of_all: false })
            }
            "diff" => {
                let query: DiffQuery = read(question)?;
                Ok(Self { sites: query.site.into_iter().collect(), needs_a_hub: None, of_all: false })
            }
            "labels" | "groups" | "group" => {
                let query: GroupQuery = read_of_a_point(question)?;
                Ok(Self { sites: BTreeSet::new(), needs_a_hub: past(query.point), of_all: false })
            }
            _ => {
                let query: Query = read_of_a_point(question)?;
                let lines =
                    endpoint == "devices" || (endpoint == "deployment" && query.output != Output::Summary);
                // A question about the whole fleet is not about a site, whatever its other fields say.
                let of_fleet = TOGETHER.contains(&endpoint);
                let sites: BTreeSet<SiteId> = query.site.into_iter().filter(|_| !of_fleet).collect();
                let of_all = lines && sites.is_empty() && query.point.is_now();
                let needs_a_hub = past(query.point).or((lines && !of_all).then_some("a list of devices"));
                Ok(Self { sites, needs_a_hub, of_all })
            }
        }
    }
}

/// Why sites of several hubs have no common sequence.
const OF_EACH: &str = "and each has a LEDGER of its own with its own sequences";
/// A past given by sequence, which only the hub with that LEDGER can resolve.
const BY_SEQUENCE: &str = "the past by a sequence (atSeq, --at-seq, --from 4711) is of the LEDGER of one hub: name a time (at, \
                           about), which is one for all hubs; it";

fn past(point: Point) -> Option<&'static str> {
    (!point.is_now()).then_some(BY_SEQUENCE)
}

fn what(endpoint: &str) -> &'static str {
    match endpoint {
        "device" => "all about a device",
        "diff" | "moment" => BY_SEQUENCE,
        "changes" => "the list of changes, in the order of each hub's own LEDGER,",
        "digests" => "the list of digests of the past, which each hub has by itself,",
        _ => "a proof, which each hub makes by itself,",
    }
}

fn needs_a_site(what: &str, of_the_fleet: bool, places: &impl Places) -> ErrorBody {
    // Without a field for a site, asking for a site would not help.
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

/// The refusal of a question about a site that no hub is known to have.
pub fn nowhere(site: &SiteId, places: &impl Places) -> ErrorBody {
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
mod tests;
