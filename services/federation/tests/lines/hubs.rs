//! Hubs in memory, each with the facts of its own sites, and one hub that has all facts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_bus::Fault;
use muster_contract::parts::PartsAnswer;
use muster_contract::query::{ErrorBody, ErrorCode, Output, Query};
use muster_contract::question::{
    checked_limit, fitting, found, json, named, nowhere, parsed_after, read_of_a_point,
};
use muster_contract::status::StatusQuery;
use muster_contract::subjects::{LedgerSubject, ViewKey};
use muster_contract::{DeviceKey, HubName, SiteId, Timestamp};
use muster_domain::fold::{Fleet, Page, SilenceCursor, StatusRefusal};
use muster_federation::gather::{self, Hubs};
use muster_federation::handler;
use muster_federation::merged::Merged;
use muster_federation::route::{Route, route};
use muster_federation::why;
use proptest::prelude::*;
use serde_json::Value;
use tokio::time::Instant;

use crate::fleets::ledgers;
use crate::ledger::{Entry, Ledger, position};

/// Sites of all hubs. Those of one hub may come between those of another.
pub(crate) const SITES: [&str; 6] = ["s0", "s1", "s2", "s3", "s4", "s5"];
/// Names that devices run, and names that are unknown.
pub(crate) const DEPLOYMENTS: [&str; 4] = ["web", "db", "log", "ghost"];
/// The same of components.
pub(crate) const COMPONENTS: [&str; 3] = ["main", "side", "ghost"];
/// A lease that no test outlives.
const LEASE: Duration = Duration::from_secs(3600);

/// Several hubs that can be asked.
#[derive(Debug, Clone)]
pub(crate) struct InMemory {
    fleets: Arc<BTreeMap<HubName, Fleet>>,
    /// One of them that does not answer as it should, and what it says.
    odd: Option<(HubName, Result<Bytes, ErrorBody>)>,
}

/// Hubs, what a federation holds of them, and one hub with all of their facts.
#[derive(Debug)]
pub(crate) struct Apart {
    pub(crate) hubs: InMemory,
    pub(crate) merged: Merged,
    pub(crate) all: Fleet,
}

/// Two or three hubs with two sites each.
pub(crate) fn apart() -> impl Strategy<Value = Apart> {
    let sites = Just(SITES.to_vec()).prop_shuffle();
    (proptest::collection::vec(ledgers(), 2..4), sites).prop_map(|(ledgers, sites)| {
        let moved = ledgers.iter().zip(sites.chunks(2)).map(|(ledger, sites)| at(ledger, sites));
        Apart::of(&moved.collect::<Vec<_>>())
    })
}

/// The ledger's two sites as these.
fn at(ledger: &Ledger, sites: &[&str]) -> Ledger {
    let moved = |key: &DeviceKey| DeviceKey {
        site: sites[usize::from(key.site.as_str() == "south")].parse().unwrap(),
        device: key.device.clone(),
    };
    let subject = |subject: &LedgerSubject| match subject {
        LedgerSubject::Desired(key) => LedgerSubject::Desired(moved(key)),
        LedgerSubject::Status(key, id) => LedgerSubject::Status(moved(key), id.clone()),
        LedgerSubject::Device(key) => LedgerSubject::Device(moved(key)),
        LedgerSubject::Liveness(key) => LedgerSubject::Liveness(moved(key)),
        LedgerSubject::Deadline(key, id) => LedgerSubject::Deadline(moved(key), id.clone()),
        LedgerSubject::Incident(key) => LedgerSubject::Incident(key.as_ref().map(moved)),
        LedgerSubject::Quarantine(key) => LedgerSubject::Quarantine(key.as_ref().map(moved)),
        LedgerSubject::Verdict(key) => LedgerSubject::Verdict(key.as_ref().map(moved)),
        owner @ (LedgerSubject::Owner { .. } | LedgerSubject::Hub(_) | LedgerSubject::Hearing(_)) => {
            owner.clone()
        }
    };
    let entries = ledger.entries.iter();
    let entries =
        entries.map(|Entry { subject: of, fact }| Entry { subject: subject(of), fact: fact.clone() });
    Ledger { entries: entries.collect() }
}

impl Apart {
    /// Each ledger at a hub of its own. A fact has the same place in LEDGER at its hub and at the one with all facts.
    pub(crate) fn of(ledgers: &[Ledger]) -> Self {
        let (mut fleets, mut all) = (BTreeMap::new(), Fleet::default());
        let (longest, mut at) = (ledgers.iter().map(|ledger| ledger.entries.len()).max().unwrap(), 0);
        for (number, _) in ledgers.iter().enumerate() {
            fleets.insert(name(number), Fleet::default());
        }
        for row in 0..longest {
            for (number, ledger) in ledgers.iter().enumerate() {
                let Some(Entry { subject, fact }) = ledger.entries.get(row) else { continue };
                all.apply(position(at), subject, fact.clone());
                fleets.get_mut(&name(number)).unwrap().apply(position(at), subject, fact.clone());
                at += 1;
            }
        }
        let merged = Merged::new(fleets.keys().cloned(), LEASE);
        fleets.iter().for_each(|(hub, fleet)| read(&merged, hub, fleet));
        let hubs = InMemory { fleets: Arc::new(fleets), odd: None };
        Self { hubs, merged, all }
    }

    /// The same where a hub, by its number, says this to anything.
    pub(crate) fn where_one_says(mut self, number: usize, says: Result<Bytes, ErrorBody>) -> Self {
        self.hubs.odd = Some((name(number), says));
        self
    }

    /// The same where a hub, by its number, was not heard for longer than the lease.
    pub(crate) fn where_one_is_silent(self, number: usize) -> Self {
        assert_eq!(self.merged.expire(Instant::now() + LEASE).1, None);
        let others = self.hubs.fleets.iter().filter(|(hub, _)| **hub != name(number));
        others.for_each(|(hub, fleet)| read(&self.merged, hub, fleet));
        self
    }

    /// The answer of the hub with all facts.
    pub(crate) fn whole(&self, endpoint: &str, question: &Value) -> Result<Value, ErrorBody> {
        let answer = answer(&self.all, endpoint, question.to_string().as_bytes())?;
        Ok(serde_json::from_slice(&answer).unwrap())
    }

    /// The federation's answer.
    pub(crate) fn top(&self, endpoint: &'static str, question: &Value) -> Result<Value, ErrorBody> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let answer = runtime.block_on(self.federated(endpoint, question.to_string().into()));
        answer.map(|answer| serde_json::from_slice(&answer).unwrap()).map_err(|fault| {
            let reply: muster_contract::query::ErrorReply = serde_json::from_slice(&fault.body).unwrap();
            reply.error
        })
    }

    async fn federated(&self, endpoint: &'static str, question: Bytes) -> Result<Bytes, Fault> {
        let Self { hubs, merged, .. } = self;
        match merged.read_merge(|merge| route(endpoint, &question, merge))? {
            Route::Added(scatter) => gather::status(hubs, merged, &scatter).await,
            Route::Every => {
                let query: Query = read_of_a_point(&question)?;
                let questions = merged.read_merge(|merge| gather::hub_questions(&query, merge))?;
                match endpoint {
                    "devices" => gather::devices(hubs, merged, &query, questions).await,
                    _ => gather::deployments(hubs, merged, &query, questions).await,
                }
            }
            Route::Hub(hub) => hubs.ask(&hub, endpoint, question).await,
            Route::Here => handler::answer(merged, endpoint, &question).map_err(Fault::from),
            Route::Why(hub) => why::answer(hubs, merged, hub.as_ref(), &question).await,
        }
    }

    /// Whether kept counts are of a deployment that some hub does not know (any more): that hub cannot say when
    /// the last report of a removed row came.
    pub(crate) fn is_gone_somewhere(&self, question: &Value) -> bool {
        let query: StatusQuery = serde_json::from_value(question.clone()).unwrap();
        let of_id = StatusQuery { id: query.id.clone(), ..StatusQuery::default() };
        let knows = |fleet: &Fleet| fleet.status_answer(&of_id, None, 1).is_ok();
        query.id.is_some() && query.is_of_places() && !self.hubs.fleets.values().all(knows)
    }

    /// Whether every site that is named has a view, or does not exist.
    pub(crate) fn hears_of_places(&self, question: &Value) -> bool {
        let query: StatusQuery = serde_json::from_value(question.clone()).unwrap();
        let sites = query.site.into_iter().chain(query.device.into_iter().map(|path| path.0.site));
        let exists = |site: &SiteId| {
            let query = Query { site: site.clone().into(), ..Query::default() };
            self.all.devices_answer(&query, &ALL).is_ok()
        };
        sites.into_iter().all(|site| self.all.site_view(&site).is_some() || !exists(&site))
    }
}

const ALL: Page<DeviceKey> = Page { after: None, limit: usize::MAX };

fn name(number: usize) -> HubName {
    // Not in the order of their sites.
    ["middle", "first", "third"][number].parse().unwrap()
}

fn read(merged: &Merged, hub: &HubName, fleet: &Fleet) {
    let mut answer = PartsAnswer { as_of: fleet.as_of(), parts: BTreeMap::new(), gone: Vec::new() };
    for key in fleet.view_keys() {
        match &key {
            ViewKey::Site(site) => merged.apply_site(hub, site, fleet.site_view(site).as_ref()).unwrap(),
            key => _ = answer.parts.insert(key.to_string(), fleet.part(key, 0, usize::MAX).unwrap()),
        }
    }
    let took = merged.apply_parts(hub, &answer, Instant::now(), Timestamp::UNIX_EPOCH);
    assert_eq!((took.bad, took.rest), (Vec::new(), Vec::new()));
    merged.read_whole(hub);
}

impl Hubs for InMemory {
    async fn ask(&self, hub: &HubName, endpoint: &'static str, question: Bytes) -> Result<Bytes, Fault> {
        if let Some((_, says)) = self.odd.as_ref().filter(|(odd, _)| odd == hub) {
            return says.clone().map_err(Fault::from);
        }
        Ok(answer(&self.fleets[hub], endpoint, &question)?.into())
    }
}

/// A hub's answer about the present, as its rollup gives it without a reader of manifests.
fn answer(fleet: &Fleet, endpoint: &str, question: &[u8]) -> Result<Vec<u8>, ErrorBody> {
    if endpoint == "status" {
        let query: StatusQuery = read_of_a_point(question)?;
        let after = parsed_after(query.after.as_deref())?;
        return fitting(checked_limit(query.limit)?, |limit| {
            let answer = fleet.status_answer(&query, after.as_ref(), limit);
            let mut answer = answer.map_err(|refusal| refused(&refusal))?;
            if query.output == Output::Detail {
                answer.declare_manifests();
            }
            Ok(answer)
        });
    }
    let query: Query = read_of_a_point(question)?;
    if endpoint == "deployments" {
        let page = Page { after: parsed_after(query.after.as_deref())?, limit: checked_limit(query.limit)? };
        return json(fleet.deployments_answer(&query, &page).map_err(|refusal| refused(&refusal))?);
    }
    let by_silence: Option<SilenceCursor> =
        if query.by_silence { parsed_after(query.after.as_deref())? } else { None };
    let after: Option<DeviceKey> =
        if query.by_silence { None } else { parsed_after(query.after.as_deref())? };
    let (site, limit) = (query.site.only(), checked_limit(query.limit)?);
    let page = |limit| Page { after: after.clone(), limit };
    if endpoint == "devices" {
        return fitting(limit, |limit| {
            let answer = if query.by_silence {
                fleet.devices_by_silence(&query, &Page { after: by_silence.clone(), limit })
            } else {
                fleet.devices_answer(&query, &page(limit))
            };
            answer.map_err(|refusal| refused(&refusal))
        });
    }
    let id = named(query.id.as_ref(), "id")?;
    if endpoint == "why" {
        let stranger = || nowhere(id);
        return fitting(limit, |limit| match &query.device {
            None => found(fleet.why(id, site, &page(limit)), stranger),
            Some(device) => {
                let key = DeviceKey { site: named(site, "site")?.clone(), device: device.clone() };
                found(fleet.why_device(id, &key), stranger)
            }
        });
    }
    json(found(fleet.deployment_answer(id), || nowhere(id))?)
}

fn refused(refusal: &StatusRefusal) -> ErrorBody {
    let code = match refusal {
        StatusRefusal::Unknown(_) => ErrorCode::NotFound,
        StatusRefusal::Wrong(_) => ErrorCode::BadRequest,
    };
    ErrorBody { code, message: refusal.to_string() }
}

/// An answer without up to where it has read, and where these cannot be equal without the words beside the counts, and the
/// time.
pub(crate) fn comparable(answer: &Value, words: bool, time: bool) -> Value {
    let mut answer = answer.clone();
    for place in ["/asOf", "/view/asOf"] {
        answer.pointer_mut(place).map(Value::take);
    }
    for view in answer["deployments"].as_array_mut().into_iter().flatten() {
        view["asOf"].take();
    }
    let mut answer = without_removals(answer);
    if !words {
        answer["rollup"]["message"] = Value::Null;
    }
    if !time {
        answer["rollup"]["changedAt"] = Value::Null;
    }
    answer
}

/// An answer without `changedAt` of its views: a hub that has forgotten a deployment does not report to a federation when
/// the deployment was removed there, while the hub that has all sites counts that removal.
pub(crate) fn without_removals(mut answer: Value) -> Value {
    let remove = |view: &mut Value| _ = view.as_object_mut().map(|view| view.remove("changedAt"));
    for list in ["deployments", "groups"] {
        answer.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten().for_each(remove);
    }
    answer.pointer_mut("/view").into_iter().for_each(remove);
    remove(&mut answer);
    answer
}

/// Whether counts that are kept are of sites at several hubs where something failed: how often which error is at which site
/// is not told to a federation, so that the words are of one hub.
pub(crate) fn is_of_errors_at_sites(question: &Value, answer: &Value) -> bool {
    let sites = question["site"].as_array().is_some_and(|sites| !sites.is_empty());
    sites && answer["rollup"]["message"].as_str().is_some_and(|words| words.starts_with("at the hub "))
}
