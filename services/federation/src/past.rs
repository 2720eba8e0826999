//! Reads the parts that several hubs held at a time and adds them like current parts. The time is a sequence in
//! the LEDGER of each hub. The caller supplies the connection.
//!
//! Every hub is asked, also one whose lease has ended: if a hub cannot be reached, or its LEDGER no longer covers
//! the time, the answer is an error that names the hub, because a past without some hubs would be wrong.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use muster_bus::Fault;
use muster_contract::history::{DigestsAnswer, MomentAnswer, Point};
use muster_contract::limits::LEASE;
use muster_contract::parts::{PARTS_MAX, PartsAnswer, PartsQuery};
use muster_contract::query::{ErrorBody, ErrorCode, ErrorReply, PAGE_MAX, Query};
use muster_contract::question::{bad, json};
use muster_contract::subjects::ViewKey;
use muster_contract::{HubName, SiteId};
use muster_domain::fold::moment_of;
use serde_json::{Map, Value};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::gather::{Hubs, ask_all, is_not_found, parsed};
use crate::merged::Merged;
use crate::route::Places;

/// Questions for parts, or for names of views, that one hub is asked for one answer about the past: enough for 8,000 views.
const ASKS_MAX: usize = 128;

/// Hubs that are asked as of one point in the LEDGER of each. Clones ask the same.
#[derive(Debug, Clone)]
pub struct PinnedHubs<H> {
    hubs: H,
    points: Arc<BTreeMap<HubName, Point>>,
}

/// Which views of a past are read.
#[derive(Debug, Clone, Default)]
pub struct PartSelection {
    /// These keys.
    pub keys: BTreeSet<ViewKey>,
    /// A filter for further views that a hub had then.
    pub listed: Option<fn(&ViewKey) -> bool>,
    /// Which hub had which site.
    pub sites: bool,
}

/// The parts read for a past time.
#[derive(Debug)]
pub struct PastParts {
    /// The parts.
    pub merged: Merged,
    sites: BTreeMap<SiteId, HubName>,
}

impl Places for PastParts {
    fn hub_of(&self, site: &SiteId) -> Option<HubName> {
        self.sites.get(site).cloned()
    }

    fn hubs(&self) -> Vec<HubName> {
        self.merged.read_merge(|merge| merge.hub_names().cloned().collect())
    }

    fn unread(&self) -> Vec<HubName> {
        Vec::new()
    }
}

impl<H: Hubs> PinnedHubs<H> {
    /// Resolves a point at each of these hubs.
    ///
    /// # Errors
    /// A hub does not answer or cannot reach the point; the error names it.
    pub async fn of(hubs: H, names: &[HubName], point: Point) -> Result<(Self, MomentAnswer), Fault> {
        let question = Bytes::from(json(Query { point, ..Query::default() })?);
        let questions = names.iter().map(|hub| (hub.clone(), question.clone())).collect();
        let mut moments: Vec<(HubName, MomentAnswer)> = Vec::new();
        for (hub, answer) in ask_all(&hubs, "moment", questions).await {
            let answer = answer.map_err(|fault| of_hub(&hub, fault))?;
            moments.push((hub.clone(), parsed(&hub, &answer)?));
        }
        let pinned =
            |(hub, moment): &(HubName, MomentAnswer)| (hub.clone(), point.at_fact(moment.as_of.ledger_seq));
        let points = Arc::new(moments.iter().map(pinned).collect());
        Ok((Self { hubs, points }, moment_of(&moments)))
    }

    /// Pins these hubs to the present.
    pub fn now(hubs: H, names: &[HubName]) -> Self {
        let points = names.iter().map(|hub| (hub.clone(), Point::default())).collect();
        Self { hubs, points: Arc::new(points) }
    }

    /// Pins the hubs to these LEDGER sequences.
    #[must_use]
    pub fn pinned_to(self, facts: &BTreeMap<HubName, u64>) -> Self {
        let mut points = (*self.points).clone();
        points.extend(facts.iter().map(|(hub, seq)| (hub.clone(), Point::at_seq(*seq))));
        Self { points: Arc::new(points), ..self }
    }

    /// The point at a hub.
    pub fn point_at(&self, hub: &HubName) -> Point {
        self.points.get(hub).copied().unwrap_or_default()
    }

    /// Reads the parts that all hubs had then.
    ///
    /// # Errors
    /// A hub does not say all of them.
    pub async fn read(&self, wanted: &PartSelection) -> Result<PastParts, Fault> {
        let merged = Arc::new(Merged::new(self.points.keys().cloned(), LEASE));
        let mut reading = JoinSet::new();
        for hub in self.points.keys().cloned() {
            let (then, wanted, merged) = (self.clone(), wanted.clone(), Arc::clone(&merged));
            reading.spawn(async move {
                let sites = then.read_hub(&hub, &wanted, &merged).await;
                (hub, sites)
            });
        }
        let mut read = reading.join_all().await;
        read.sort_by(|one, other| one.0.cmp(&other.0));
        let mut sites = BTreeMap::new();
        for (hub, of_hub) in read {
            of_hub?.into_iter().for_each(|site| _ = sites.entry(site).or_insert_with(|| hub.clone()));
        }
        let merged =
            Arc::into_inner(merged).ok_or_else(|| internal("a reader of the past goes on".to_owned()))?;
        Ok(PastParts { merged, sites })
    }

    /// Reads those of one hub; its sites, where they are wanted.
    async fn read_hub(
        &self,
        hub: &HubName,
        wanted: &PartSelection,
        merged: &Merged,
    ) -> Result<Vec<SiteId>, Fault> {
        let (mut keys, mut sites) = (wanted.keys.clone(), Vec::new());
        if wanted.listed.is_some() || wanted.sites {
            for key in self.keys_of(hub).await? {
                if let ViewKey::Site(site) = &key {
                    sites.push(site.clone());
                } else if wanted.listed.is_some_and(|wants| wants(&key)) {
                    keys.insert(key);
                }
            }
        }
        let keys: Vec<ViewKey> = keys.into_iter().collect();
        let mut due: VecDeque<_> = keys.chunks(PARTS_MAX).map(|keys| (keys.to_vec(), 0)).collect();
        for _ in 0..ASKS_MAX {
            let Some((keys, skip)) = due.pop_front() else {
                merged.read_whole(hub);
                return Ok(sites);
            };
            due.extend(self.read_parts(hub, keys, skip, merged).await?);
        }
        Err(too_many(hub).into())
    }

    /// Reads the parts of some keys. Returns the keys to ask for next, each with the number of rows read of it: those
    /// with further rows, and those that the answer left out.
    async fn read_parts(
        &self,
        hub: &HubName,
        keys: Vec<ViewKey>,
        skip: u64,
        merged: &Merged,
    ) -> Result<Vec<(Vec<ViewKey>, u64)>, Fault> {
        let query = PartsQuery {
            keys: keys.iter().map(ToString::to_string).collect(),
            skip,
            ..PartsQuery::default()
        };
        let answer = self.ask(hub, "parts", json(query)?.into()).await.map_err(|fault| of_hub(hub, fault))?;
        let answer: PartsAnswer = parsed(hub, &answer)?;
        let is_then = self.point_at(hub).at_seq.is_none_or(|seq| seq == answer.as_of.ledger_seq);
        let took = merged.apply_parts(hub, &answer, Instant::now(), answer.as_of.at);
        // A rollup that knows no past of parts answers of the present.
        if !is_then || took.is_nothing() || !took.bad.is_empty() {
            return Err(internal(format!(
                "the parts that the hub {hub} gives are not those of that time; is its rollup of another version?"
            )));
        }
        let is_left =
            |key: &ViewKey| !took.settled.contains(key) && took.rest.iter().all(|(rest, _)| rest != key);
        let left: Vec<ViewKey> = keys.into_iter().filter(is_left).collect();
        let rests = took.rest.iter().map(|(key, rows)| (vec![key.clone()], *rows));
        Ok(rests.chain((!left.is_empty()).then_some((left, 0))).collect())
    }

    /// The views that a hub had.
    async fn keys_of(&self, hub: &HubName) -> Result<Vec<ViewKey>, Fault> {
        let (mut keys, mut query) = (Vec::new(), Query { limit: Some(PAGE_MAX), ..Query::default() });
        for _ in 0..ASKS_MAX {
            let page = self.ask(hub, "digests", json(&query)?.into()).await;
            let page: DigestsAnswer = parsed(hub, &page.map_err(|fault| of_hub(hub, fault))?)?;
            keys.extend(page.views.keys().filter_map(|key| ViewKey::parse(key)));
            query.after = page.next;
            if query.after.is_none() {
                return Ok(keys);
            }
        }
        Err(too_many(hub).into())
    }
}

impl<H: Hubs> Hubs for PinnedHubs<H> {
    async fn ask(&self, hub: &HubName, endpoint: &'static str, question: Bytes) -> Result<Bytes, Fault> {
        let answer = self.hubs.ask(hub, endpoint, at_point(self.point_at(hub), &question)?).await;
        if answer.as_ref().is_err_and(is_not_found) {
            self.still_holds(hub).await?;
        }
        answer
    }
}

impl<H: Hubs> PinnedHubs<H> {
    /// Distinguishes an empty answer from a time that the hub's LEDGER has discarded meanwhile: the fleet's
    /// view existed at any time.
    ///
    /// # Errors
    /// The hub has discarded the time, or does not answer.
    pub async fn still_holds(&self, hub: &HubName) -> Result<(), Fault> {
        let point = self.point_at(hub);
        if point.is_now() {
            return Ok(());
        }
        let query = PartsQuery { keys: vec![ViewKey::Fleet.to_string()], ..PartsQuery::default() };
        let answer = self.hubs.ask(hub, "parts", at_point(point, &json(query)?.into())?).await;
        let forgotten = || {
            internal(format!("the hub {hub} does not hold that time any more; ask again, or of a later one"))
        };
        answer
            .map(|_| ())
            .map_err(|fault| if is_not_found(&fault) { forgotten() } else { of_hub(hub, fault) })
    }
}

/// The same question as of another point.
fn at_point(point: Point, question: &Bytes) -> Result<Bytes, ErrorBody> {
    let object = |bytes: &[u8]| {
        serde_json::from_slice::<Map<String, Value>>(bytes)
            .map_err(|error| bad(format!("not a question: {error}")))
    };
    let mut fields = if question.is_empty() { Map::new() } else { object(question)? };
    ["at", "atSeq", "about"].iter().for_each(|field| _ = fields.remove(*field));
    fields.extend(object(&json(point)?)?);
    Ok(json(fields)?.into())
}

/// Prefixes a hub's error with the hub's name.
pub fn of_hub(hub: &HubName, fault: Fault) -> Fault {
    match serde_json::from_slice(&fault.body) {
        Ok(ErrorReply { error }) if !error.message.contains(&format!("the hub {hub}")) => {
            let message = format!("at the hub {hub}: {}", error.message);
            ErrorBody { message, ..error }.into()
        }
        _ => fault,
    }
}

fn too_many(hub: &HubName) -> ErrorBody {
    let message = format!(
        "the hub {hub} had more views at that time than {ASKS_MAX} questions ask for; name a deployment, or ask the hub itself"
    );
    ErrorBody { code: ErrorCode::BadRequest, message }
}

fn internal(message: String) -> Fault {
    ErrorBody { code: ErrorCode::Internal, message }.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_question_is_put_to_the_point_and_nothing_else_of_it_changes() {
        let point = Point::at("2026-11-20T08:00:00Z".parse().unwrap()).at_fact(7);
        let about = Point { about: "2026-11-20T07:00:00Z".parse().ok(), ..point };
        for (question, point, wanted) in [
            ("", point, json!({"atSeq": 7})),
            (r#"{"id":"web","at":"2026-11-20T08:00:00Z"}"#, point, json!({"id": "web", "atSeq": 7})),
            (
                r#"{"limit":3,"atSeq":9}"#,
                about,
                json!({"limit": 3, "atSeq": 7, "about": "2026-11-20T07:00:00Z"}),
            ),
            (r#"{"id":"web","atSeq":9}"#, Point::default(), json!({"id": "web"})),
        ] {
            let put = at_point(point, &Bytes::from(question)).unwrap();
            assert_eq!(serde_json::from_slice::<Value>(&put).unwrap(), wanted, "{question}");
        }
    }

    /// A hub that finds nothing, and either holds a time or has forgotten it.
    #[derive(Clone)]
    struct Empty {
        is_held: bool,
    }

    impl Hubs for Empty {
        async fn ask(&self, _: &HubName, endpoint: &'static str, _: Bytes) -> Result<Bytes, Fault> {
            let nothing = ErrorBody { code: ErrorCode::NotFound, message: "gone".to_owned() };
            if self.is_held && endpoint == "parts" { Ok(Bytes::new()) } else { Err(nothing.into()) }
        }
    }

    #[tokio::test]
    async fn a_hub_that_discarded_a_time_does_not_count_as_empty() {
        let hub: HubName = "north".parse().unwrap();
        for (is_held, code) in [(true, ErrorCode::NotFound), (false, ErrorCode::Internal)] {
            let points = Arc::new(BTreeMap::from([(hub.clone(), Point::at_seq(3))]));
            let then = PinnedHubs { hubs: Empty { is_held }, points };
            let fault = then.ask(&hub, "why", Bytes::new()).await.unwrap_err();
            assert_eq!(fault.code, code.number(), "{fault:?}");
            assert_eq!(is_held, !fault.message.contains("the hub north"), "{fault:?}");
        }
    }

    #[test]
    fn a_hubs_unreachable_point_names_the_hub_once() {
        let hub = "north".parse().unwrap();
        let said = |message: &str| {
            let body = ErrorBody { code: ErrorCode::NotFound, message: message.to_owned() };
            of_hub(&hub, body.into()).message
        };
        assert_eq!(said("at: LEDGER has forgotten"), "at the hub north: at: LEDGER has forgotten");
        assert_eq!(said("the hub north, which is slow"), "the hub north, which is slow");
    }
}
