//! Selects who answers a question: this process from memory, the one hub that has the subject, or all hubs
//! concerned. It does no IO.
//!
//! Every hub concerned is asked for lines of devices and targets, for counts after filters and for reasons, and
//! the answers are merged. A question that only one hub can answer (all about a device) goes to the hub of the site
//! that the question names. The past is in the LEDGER of each hub, so a question about it is refused, and the error
//! names the hub to ask. Any other question that names no site, or sites of several hubs, is refused, and the error
//! says what to ask instead.

use std::collections::BTreeSet;

use muster_contract::changes::ChangesQuery;
use muster_contract::groups::GroupQuery;
use muster_contract::history::DiffQuery;
use muster_contract::query::{ErrorBody, Query};
use muster_contract::question::{bad, one_site, read, read_of_a_point, read_query};
use muster_contract::status::StatusQuery;
use muster_contract::{HubName, SiteId};

use crate::places::{Places, all_read, listed, nowhere};
use crate::scatter::{ScatteredQuery, scatter};

/// Questions that are answered here, or not at all.
pub const TOGETHER: [&str; 5] = ["deployment", "fleet", "labels", "groups", "group"];
/// Questions that are answered here or, about one site, by its hub.
pub(crate) const EITHER: [&str; 2] = ["deployments", "site"];
/// Questions that a hub answers.
pub const APART: [&str; 9] =
    ["device", "devices", "why", "status", "diff", "changes", "moment", "digests", "verify"];
/// Questions that only each hub can answer and that name no site.
pub(crate) const NOWHERE: [&str; 2] = ["views", "view"];
/// Endpoints whose filters [`read_query`] does not check: they read another type, or a site only selects the hub.
const OF_OTHER_TYPES: [&str; 11] = [
    "status", "diff", "changes", "labels", "groups", "group", "views", "view", "moment", "digests", "verify",
];
/// Lists that are put together from the parts of several hubs.
const LISTS: [&str; 2] = ["devices", "deployments"];
/// The question which hubs there are, which is answered at any time.
pub const HUBS: &str = "hubs";

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
    let asked = Asked::read(endpoint, question)?;
    if asked.is_of_the_past {
        return Err(of_the_past(&asked.sites, places));
    }
    if endpoint == "status" {
        return scatter(read_of_a_point(question)?, places).map(Box::new).map(Route::Added);
    }
    if endpoint == "why" {
        let query: Query = read_of_a_point(question)?;
        // The verdict covers all hubs, wherever the question asks for it.
        all_read(places)?;
        let hub = one_site(&query)?.map(|site| places.hub_of(site).ok_or_else(|| nowhere(site, places)));
        return hub.transpose().map(Route::Why);
    }
    if asked.is_list_of_all {
        return all_read(places).map(|()| Route::Every);
    }
    let whole = asked.sites.is_empty() || endpoint == "site";
    if TOGETHER.contains(&endpoint) || (EITHER.contains(&endpoint) && whole) {
        return all_read(places).map(|()| Route::Here);
    }
    to_hubs(endpoint, &asked.sites, places)
}

/// The hub of the named sites; all hubs concerned if the question asks for a list.
fn to_hubs(endpoint: &str, sites: &BTreeSet<SiteId>, places: &impl Places) -> Result<Route, ErrorBody> {
    let mut hubs = BTreeSet::new();
    for site in sites {
        hubs.insert(places.hub_of(site).ok_or_else(|| nowhere(site, places))?);
    }
    match (hubs.pop_first(), hubs.pop_first()) {
        (Some(hub), None) => Ok(Route::Hub(hub)),
        (Some(_), Some(_)) if LISTS.contains(&endpoint) => Ok(Route::Every),
        (Some(one), Some(other)) => {
            let words = format!(
                "the sites named are of several hubs ({one}, {other}), {OF_EACH}: ask about those of one hub at a time"
            );
            Err(refused(&words, places))
        }
        (None, _) => {
            let what = what(endpoint);
            let words = format!(
                "{what} is answered by one hub: name a site, whose hub is asked then, or ask a hub itself"
            );
            Err(refused(&words, places))
        }
    }
}

/// The parts of a question that decide who answers it.
struct Asked {
    /// The sites it names.
    sites: BTreeSet<SiteId>,
    /// The question is about a point of the past.
    is_of_the_past: bool,
    /// The question asks for lines, at any place.
    is_list_of_all: bool,
}

impl Asked {
    fn read(endpoint: &str, question: &[u8]) -> Result<Self, ErrorBody> {
        let of_sites = |sites, is_of_the_past| Self { sites, is_of_the_past, is_list_of_all: false };
        match endpoint {
            "status" => {
                let StatusQuery { site, device, point, .. } = read_of_a_point(question)?;
                let devices = device.into_iter().map(|path| path.0.site);
                let sites = if site.is_empty() { devices.collect() } else { site.into_iter().collect() };
                Ok(of_sites(sites, !point.is_now()))
            }
            "changes" => {
                let ChangesQuery { site, .. } = read(question)?;
                Ok(of_sites(site.into_iter().collect(), false))
            }
            "diff" => {
                let DiffQuery { site, .. } = read(question)?;
                Ok(of_sites(site.into_iter().collect(), true))
            }
            "labels" | "groups" | "group" => {
                let GroupQuery { point, .. } = read_of_a_point(question)?;
                Ok(of_sites(BTreeSet::new(), !point.is_now()))
            }
            _ => {
                let query: Query = read_of_a_point(question)?;
                // A question about the whole fleet is not about a site, whatever its other fields say.
                let of_fleet = TOGETHER.contains(&endpoint);
                let sites: BTreeSet<SiteId> = query.site.into_iter().filter(|_| !of_fleet).collect();
                let is_list_of_all = endpoint == "devices" && sites.is_empty();
                let is_of_the_past = endpoint == "moment" || !query.point.is_now();
                Ok(Self { sites, is_of_the_past, is_list_of_all })
            }
        }
    }
}

/// Why sites of several hubs have no common answer.
const OF_EACH: &str = "and each has a LEDGER of its own";

/// The refusal of a question about the past, with the hubs of the sites that it names.
fn of_the_past(sites: &BTreeSet<SiteId>, places: &impl Places) -> ErrorBody {
    let hubs: BTreeSet<HubName> = sites.iter().filter_map(|site| places.hub_of(site)).collect();
    let hubs: Vec<HubName> = hubs.into_iter().collect();
    let ask = match hubs.as_slice() {
        [] => "a hub itself".to_owned(),
        [hub] => format!("the hub {hub} itself"),
        hubs => format!("the hubs {} one by one", listed(hubs)),
    };
    refused(&format!("the past is in the LEDGER of each hub, and a federation has none: ask {ask}"), places)
}

fn what(endpoint: &str) -> &'static str {
    match endpoint {
        "device" => "all about a device",
        "changes" => "the list of changes, in the order of each hub's own LEDGER,",
        "digests" => "the list of digests, which each hub has by itself,",
        _ => "a proof, which each hub makes by itself,",
    }
}

fn refused(words: &str, places: &impl Places) -> ErrorBody {
    bad(format!(
        "{words} (`muster --nats-url …`); this is a federation of the hubs {}",
        listed(&places.hubs())
    ))
}

#[cfg(test)]
mod tests;
