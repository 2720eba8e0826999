//! Questions that are put to several hubs at once, and their answers as one. How a hub is reached is told by whoever asks;
//! what an answer of several is follows from [`muster_domain::fold`]'s pages and sums, and from `spread`, who is asked.
//!
//! An answer of some of the hubs is none: where one does not answer there is an error that names it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;

use bytes::Bytes;
use muster_bus::Fault;
use muster_contract::query::{
    DeploymentAnswer, DevicesAnswer, ErrorBody, ErrorCode, Output, PAGE_MAX, Query,
};
use muster_contract::question::{
    ANSWER_BYTES_MAX, bad, checked_limit, fitting, found, json, named, nowhere, parsed_after,
};
use muster_contract::status::{StatusAnswer, StatusQuery};
use muster_contract::{DeviceKey, HubName};
use muster_domain::fold::{Merge, Pages, Placed, StatusSum, hearing_of};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use crate::merged::Merged;
use crate::spread::{Name, Share, Spread};
use crate::then::of_hub;

const STATUS: &str = "status";

/// Hubs that can be asked. Clones ask the same.
pub trait Hubs: Clone + Send + Sync + 'static {
    /// What a hub answers.
    fn ask(
        &self,
        hub: &HubName,
        endpoint: &'static str,
        question: Bytes,
    ) -> impl Future<Output = Result<Bytes, Fault>> + Send;
}

/// What each hub answers, in the order of hubs.
pub(crate) type Answers = Vec<(HubName, Result<Bytes, Fault>)>;

/// Asks hubs at once.
pub(crate) async fn ask_all(
    hubs: &impl Hubs,
    endpoint: &'static str,
    questions: Vec<(HubName, Bytes)>,
) -> Answers {
    let mut asked = JoinSet::new();
    for (hub, question) in questions {
        let hubs = hubs.clone();
        asked.spawn(async move {
            let answer = hubs.ask(&hub, endpoint, question).await;
            let answer = answer.map_err(|fault| if is_trouble(&fault) { of_hub(&hub, fault) } else { fault });
            (hub, answer)
        });
    }
    let mut answers = asked.join_all().await;
    answers.sort_by(|one, other| one.0.cmp(&other.0));
    answers
}

/// The devices of all hubs.
///
/// # Errors
/// The question is wrong, or a hub does not answer.
pub async fn devices(
    hubs: &impl Hubs,
    merged: &Merged,
    query: &Query,
    question: &Bytes,
) -> Result<Bytes, Fault> {
    let (mut pages, limit) = begun(query)?;
    let mut unheard = Vec::new();
    for (hub, answer) in ask_all(hubs, "devices", everywhere(merged, question)).await {
        let DevicesAnswer { devices, hub: hearing, next, .. } = parsed(&hub, &answer?)?;
        unheard.push((hub.clone(), hearing));
        pages.take(devices, ended(&hub, next.as_deref())?);
    }
    let as_of = merged.look(Merge::as_of);
    let answer = fitting(limit.min(pages.len().max(1)), |most| {
        let (devices, next) = pages.cut(most);
        let (devices, next) = (devices.to_vec(), next.map(|next| next.to_string()));
        Ok(DevicesAnswer { as_of, devices, hub: hearing_of(&unheard), next })
    });
    answer.map_err(Fault::from)
}

/// A deployment with a line for each device, of all hubs.
///
/// # Errors
/// As [`devices`], or no hub has the deployment.
pub async fn deployment(
    hubs: &impl Hubs,
    merged: &Merged,
    query: &Query,
    question: &Bytes,
) -> Result<Bytes, Fault> {
    let (mut pages, limit) = begun(query)?;
    let id = named(query.id.as_ref(), "id")?;
    let whole = found(merged.look(|merge| merge.deployment_answer(id)), || nowhere(id))?;
    for (hub, answer) in ask_all(hubs, "deployment", everywhere(merged, question)).await {
        let answer = match answer {
            // It has none of it.
            Err(fault) if is_not_found(&fault) => continue,
            answer => answer?,
        };
        let DeploymentAnswer { devices, next, .. } = parsed(&hub, &answer)?;
        pages.take(devices, ended(&hub, next.as_deref())?);
    }
    let answer = fitting(limit.min(pages.len().max(1)), |most| {
        let (devices, next) = pages.cut(most);
        let next = next.map(|next| next.to_string());
        Ok(DeploymentAnswer { devices: devices.to_vec(), next, ..whole.clone() })
    });
    answer.map_err(Fault::from)
}

/// A page that makes sense so far.
fn begun<T: Placed>(query: &Query) -> Result<(Pages<T>, usize), ErrorBody> {
    let limit = checked_limit(query.limit)?;
    parsed_after::<DeviceKey>(query.after.as_deref())?;
    Ok((Pages::new(limit), limit))
}

fn everywhere(merged: &Merged, question: &Bytes) -> Vec<(HubName, Bytes)> {
    let names: Vec<HubName> = merged.look(|merge| merge.hub_names().cloned().collect());
    names.into_iter().map(|hub| (hub, question.clone())).collect()
}

/// Status after filters, of the hubs that it concerns.
///
/// # Errors
/// A name is unknown to all hubs, or a hub does not answer.
pub async fn status(hubs: &impl Hubs, merged: &Merged, spread: &Spread) -> Result<Bytes, Fault> {
    let Spread { query, limit, shares } = spread;
    let several = shares.iter().filter(|share| share.adds).count() > 1;
    let counts = query.output == Output::Summary && !query.is_of_places();
    let in_lines = || StatusQuery { output: Output::All, limit: Some(PAGE_MAX), ..query.clone() };
    if several && counts && query.after.is_some() {
        return status_of(hubs, merged, (&in_lines(), query), PAGE_MAX, shares).await;
    }
    let answers = answers(hubs, merged, query, shares).await?;
    if let [(hub, answer)] = answers.as_slice() {
        return of_one(merged, hub, answer);
    }
    let sum = added(query, *limit, answers)?;
    if counts && !sum.is_whole() {
        // Nobody says which of its targets a hub has counted, so that lines have to.
        return status_of(hubs, merged, (&in_lines(), query), PAGE_MAX, shares).await;
    }
    written(merged, &sum, query.output, *limit)
}

/// The answer to a question that is put in other words than it is answered in.
async fn status_of(
    hubs: &impl Hubs,
    merged: &Merged,
    (asked, query): (&StatusQuery, &StatusQuery),
    limit: usize,
    shares: &[Share],
) -> Result<Bytes, Fault> {
    let in_words = |share: &Share| {
        let StatusQuery { output, limit, .. } = asked.clone();
        Share { query: StatusQuery { output, limit, ..share.query.clone() }, ..share.clone() }
    };
    let shares: Vec<Share> = shares.iter().map(in_words).collect();
    let sum = added(asked, limit, answers(hubs, merged, asked, &shares).await?)?;
    written(merged, &sum, query.output, limit)
}

fn added<'q>(
    query: &'q StatusQuery,
    limit: usize,
    answers: Vec<(HubName, Bytes)>,
) -> Result<StatusSum<'q>, Fault> {
    let mut sum = StatusSum::new(query, limit);
    for (hub, answer) in answers {
        sum.take(&hub, parsed(&hub, &answer)?).map_err(|error| unreadable(&hub, &error))?;
    }
    Ok(sum)
}

fn written(merged: &Merged, sum: &StatusSum<'_>, shown: Output, limit: usize) -> Result<Bytes, Fault> {
    let look = |most| Ok(merged.look(|merge| sum.answer(merge, shown, most)));
    let most = limit.min(sum.lines().max(1));
    // A single line that finds no room beside what shall run comes without that.
    let bare = |most| look(most).map(without_manifests);
    fitting(most, look).or_else(|_| fitting(most, bare)).map_err(Fault::from)
}

fn without_manifests(mut answer: StatusAnswer) -> StatusAnswer {
    if !answer.manifests.is_empty() {
        answer.manifests.clear();
        answer.declare_manifests();
    }
    answer
}

/// The answer of the only hub that has anything of what is asked. Only the verdict is of all hubs.
fn of_one(merged: &Merged, hub: &HubName, answer: &Bytes) -> Result<Bytes, Fault> {
    let mut answer: StatusAnswer = parsed(hub, answer)?;
    let of_all = |id| merged.look(|merge| merge.verdict_on(id));
    answer.verdict = answer.deployment.as_ref().and_then(of_all).or(answer.verdict);
    let mut written = json(&answer)?;
    if written.len() > ANSWER_BYTES_MAX {
        written = json(without_manifests(answer))?;
    }
    if written.len() > ANSWER_BYTES_MAX {
        let message = "the answer with the verdict over all hubs does not fit into a message: ask for fewer rows (limit)";
        return Err(bad(message.to_owned()).into());
    }
    Ok(written.into())
}

/// The answers of those hubs that have anything of what is asked, once every name is known to somebody.
async fn answers(
    hubs: &impl Hubs,
    merged: &Merged,
    query: &StatusQuery,
    shares: &[Share],
) -> Result<Vec<(HubName, Bytes)>, Fault> {
    let questions = shares.iter().map(|share| Ok((share.hub.clone(), question(&share.query)?)));
    let replies = ask_all(hubs, STATUS, questions.collect::<Result<_, Fault>>()?).await;
    let (mut found, mut without) = (Vec::new(), Vec::new());
    for (share, (hub, answer)) in shares.iter().zip(replies) {
        match answer {
            Ok(answer) if share.adds => found.push((hub, answer)),
            Ok(_) => {}
            Err(fault) if share.adds && is_not_found(&fault) => without.push((share, fault)),
            Err(fault) => return Err(fault),
        }
    }
    let mut names = Names { all: Name::all_of(query), known: BTreeSet::new(), strangers: BTreeMap::new() };
    if !found.is_empty() {
        // Who answers knows every name.
        names.known.extend(names.all.iter().cloned());
    }
    let asked: BTreeSet<&HubName> = without.iter().map(|(share, _)| &share.hub).collect();
    let mut rests = JoinSet::new();
    for (share, fault) in &without {
        rests.spawn(rest(hubs.clone(), (*share).clone(), names.all.clone(), fault.clone()));
    }
    for rest in rests.join_all().await {
        let Rest { known, strange, answer } = rest?;
        names.known.extend(known);
        strange.into_iter().for_each(|(name, fault)| names.is_strange_to(name, fault));
        found.extend(answer);
    }
    let all: Vec<HubName> = merged.look(|merge| merge.hub_names().cloned().collect());
    names.expect_known(hubs, all.iter().filter(|hub| !asked.contains(hub))).await?;
    found.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(found)
}

/// The names of a question, as far as it is known who knows them.
struct Names {
    all: Vec<Name>,
    /// Somebody does.
    known: BTreeSet<Name>,
    /// Somebody does not, and says so: of several the words that say most.
    strangers: BTreeMap<Name, Fault>,
}

/// What a hub that does not know some name has to say all the same.
#[derive(Default)]
struct Rest {
    known: BTreeSet<Name>,
    strange: Vec<(Name, Fault)>,
    /// The answer to what is left of the question without the names that it does not know; none where nothing is.
    answer: Option<(HubName, Bytes)>,
}

/// Asks a hub that does not know some name, and said so with this fault, which ones it knows.
async fn rest(hubs: impl Hubs, share: Share, all: Vec<Name>, fault: Fault) -> Result<Rest, Fault> {
    let (hub, mut rest) = (&share.hub, Rest::default());
    if let Some(of_devices) = share.of_devices() {
        hubs.ask(hub, STATUS, question(&of_devices)?).await?;
    } else if let ([only], true) = (all.as_slice(), share.query.site.is_empty()) {
        rest.strange.push((only.clone(), fault));
        return Ok(rest);
    }
    for name in all {
        match hubs.ask(hub, STATUS, question(&name.question())?).await {
            Ok(_) => _ = rest.known.insert(name),
            Err(fault) if is_not_found(&fault) => rest.strange.push((name, fault)),
            Err(fault) => return Err(fault),
        }
    }
    if let Some(part) = share.known_part(&rest.known) {
        let answer = hubs.ask(hub, STATUS, question(&part)?).await?;
        rest.answer = Some((hub.clone(), answer));
    }
    Ok(rest)
}

impl Names {
    /// Somebody does not know a name. Of those, who has names that are near says more.
    fn is_strange_to(&mut self, name: Name, fault: Fault) {
        let held = self.strangers.entry(name).or_insert_with(|| fault.clone());
        if fault.message.len() > held.message.len() {
            *held = fault;
        }
    }

    /// Asks these hubs for the names that nobody is known to know.
    async fn expect_known<'h>(
        mut self,
        hubs: &impl Hubs,
        others: impl Iterator<Item = &'h HubName> + Clone,
    ) -> Result<(), Fault> {
        let unsettled = self.all.iter().filter(|name| !self.known.contains(*name));
        for name in unsettled.cloned().collect::<Vec<_>>() {
            let asked = question(&name.question())?;
            let questions = others.clone().map(|hub| (hub.clone(), asked.clone())).collect();
            let replies = ask_all(hubs, STATUS, questions).await;
            if replies.iter().any(|(_, reply)| reply.is_ok()) {
                continue;
            }
            for fault in replies.into_iter().filter_map(|(_, reply)| reply.err()) {
                if !is_not_found(&fault) {
                    // Whoever does not answer may know it.
                    return Err(fault);
                }
                self.is_strange_to(name.clone(), fault);
            }
            self.strangers.remove(&name).map_or(Ok(()), Err)?;
        }
        Ok(())
    }
}

/// True where the hub is at fault, and not the question: what is wrong with that is the same at every hub.
fn is_trouble(fault: &Fault) -> bool {
    [ErrorCode::NotReady, ErrorCode::TooManyRequests, ErrorCode::Internal]
        .iter()
        .any(|code| fault.code == code.number())
}

pub(crate) fn is_not_found(fault: &Fault) -> bool {
    fault.code == ErrorCode::NotFound.number()
}

fn question(query: &StatusQuery) -> Result<Bytes, Fault> {
    Ok(json(query)?.into())
}

pub(crate) fn parsed<T: DeserializeOwned>(hub: &HubName, answer: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(answer).map_err(|error| unreadable(hub, &error))
}

pub(crate) fn ended(hub: &HubName, next: Option<&str>) -> Result<Option<DeviceKey>, Fault> {
    next.map(str::parse).transpose().map_err(|error| unreadable(hub, &error))
}

pub(crate) fn unreadable(hub: &HubName, error: &dyn std::error::Error) -> Fault {
    let message =
        format!("the answer of the hub {hub} cannot be read: {error}; is its rollup of another version?");
    ErrorBody { code: ErrorCode::Internal, message }.into()
}
