//! Who answers a question: this process, from what it holds, the one hub that has what the question is about, or all that it
//! concerns. No IO.
//!
//! Lines of devices and targets, counts after filters, and reasons are asked of every hub concerned and put together. What
//! else only a hub knows (all about a device, what was at a sequence of its LEDGER) is asked of it, for the site that the
//! question names. A time is one for all hubs, so of a time all are asked like of the present. Any other question that names no
//! site, or sites of several hubs, is refused in words that say what to ask instead.

use std::collections::BTreeSet;

use muster_contract::groups::GroupQuery;
use muster_contract::history::{DiffQuery, Point};
use muster_contract::query::{ErrorBody, ErrorCode, Output, Query};
use muster_contract::question::{bad, read, read_of_a_point};
use muster_contract::status::StatusQuery;
use muster_contract::{HubName, SiteId};

use crate::spread::{Spread, spread};

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
    /// All hubs, whose lines make one list.
    Every,
    /// These hubs, each for its own, whose answers add up.
    Added(Box<Spread>),
    /// All hubs, of which this one names the facts, or each its own.
    Reasons(Option<HubName>),
    /// All hubs, of what they held at a time.
    Past,
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
    if is_of_a_time(endpoint, question)? {
        return Ok(Route::Past);
    }
    if endpoint == "status" {
        let query: StatusQuery = read_of_a_point(question)?;
        if query.point.is_now() {
            return spread(query, places).map(Box::new).map(Route::Added);
        }
    }
    if endpoint == "why" {
        let Query { site, point, .. } = read_of_a_point(question)?;
        if point.is_now() {
            // The verdict is of all hubs, wherever it is asked for.
            all_read(places)?;
            let hub = site.map(|site| places.hub_of(&site).ok_or_else(|| nowhere(&site, places)));
            return hub.transpose().map(Route::Reasons);
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
            read_of_a_point(question).map(|query: Query| query.site.is_none() && is_time(query.point))
        }
        _ => Ok(false),
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
    /// It asks for lines of the present, wherever they are.
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
                // A question about the whole fleet is none about a site, whatever else it says.
                let site = query.site.filter(|_| !TOGETHER.contains(&endpoint));
                let of_all = lines && site.is_none() && query.point.is_now();
                let needs_a_hub = past(query.point).or((lines && !of_all).then_some("a list of devices"));
                Ok(Self { sites: site.into_iter().collect(), needs_a_hub, of_all })
            }
        }
    }
}

/// Why sites of several hubs have no common sequence.
const OF_EACH: &str = "and each has a LEDGER of its own with its own sequences";
/// The past by sequence, which only the hub knows whose LEDGER it is.
const BY_SEQUENCE: &str = "the past by a sequence (atSeq, --at-seq, --from 4711) is of the LEDGER of one hub: name a time (at, \
                           about), which is one for all hubs; it";

fn past(point: Point) -> Option<&'static str> {
    (!point.is_now()).then_some(BY_SEQUENCE)
}

fn what(endpoint: &str) -> &'static str {
    match endpoint {
        "device" => "all about a device",
        "diff" | "moment" => BY_SEQUENCE,
        "digests" => "the list of digests of the past, which each hub has by itself,",
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
