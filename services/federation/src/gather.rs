//! Asks several hubs at once and gathers their answers into one.
//!
//! The caller supplies the connection ([`Hubs`]); [`crate::scatter`] selects the hubs; [`muster_domain::fold`]
//! merges pages and sums.
//!
//! An answer covers all hubs that were asked, or it is an error that names the hub that did not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::str::FromStr;

use bytes::Bytes;
use muster_bus::Fault;
use muster_contract::query::{
    DeploymentsAnswer, DeviceLine, DevicesAnswer, ErrorBody, ErrorCode, ErrorReply, Output, PAGE_MAX, Query,
};
use muster_contract::question::{checked_limit, fitting, json, parsed_after};
use muster_contract::status::{StatusAnswer, StatusQuery};
use muster_contract::{DeploymentId, HubName, SiteId};
use muster_domain::fold::{DeploymentSum, Merge, Pages, SilentDevice, SortedRow, StatusSum, hearing_of};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use crate::merged::Merged;
use crate::places::{Places, nowhere as nowhere_at};
use crate::scatter::{HubQuery, Name, ScatteredQuery};

const STATUS: &str = "status";
const DEPLOYMENTS: &str = "deployments";

/// Hubs that can be asked. Clones ask the same.
pub trait Hubs: Clone + Send + Sync + 'static {
    /// Asks one hub.
    fn ask(
        &self,
        hub: &HubName,
        endpoint: &'static str,
        question: Bytes,
    ) -> impl Future<Output = Result<Bytes, Fault>> + Send;
}

/// The answers of the hubs, in the order of hubs.
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

/// The hubs that have a part of a list, each with the query for its own sites.
pub(crate) type HubQuestions = Vec<(HubName, Query)>;

/// Splits the query for a list by hub.
///
/// # Errors
/// No hub has a site that it names.
pub fn hub_questions(query: &Query, places: &impl Places) -> Result<HubQuestions, ErrorBody> {
    if query.site.is_empty() {
        return Ok(places.hubs().into_iter().map(|hub| (hub, query.clone())).collect());
    }
    let mut sites: BTreeMap<HubName, Vec<SiteId>> = BTreeMap::new();
    for site in query.site.iter() {
        let hub = places.hub_of(site).ok_or_else(|| nowhere_at(site, places))?;
        sites.entry(hub).or_default().push(site.clone());
    }
    let share = |(hub, sites): (HubName, Vec<SiteId>)| {
        let query = Query { site: sites.into_iter().collect(), ..query.clone() };
        (hub, query)
    };
    Ok(sites.into_iter().map(share).collect())
}

/// The answers of the hubs to their queries. A hub that does not know a name has nothing to list.
///
/// # Errors
/// A hub does not answer, or no hub knows the name.
async fn listed<T: DeserializeOwned>(
    hubs: &impl Hubs,
    endpoint: &'static str,
    questions: HubQuestions,
) -> Result<Vec<(HubName, T)>, Fault> {
    let questions = questions.into_iter().map(|(hub, query)| Ok((hub, json(query)?.into())));
    let questions = questions.collect::<Result<_, ErrorBody>>()?;
    let (mut found, mut unknown) = (Vec::new(), None);
    for (hub, answer) in ask_all(hubs, endpoint, questions).await {
        match answer {
            Err(fault) if is_not_found(&fault) => _ = unknown.get_or_insert(fault),
            answer => {
                let answer = parsed(&hub, &answer?)?;
                found.push((hub, answer));
            }
        }
    }
    unknown.filter(|_| found.is_empty()).map_or(Ok(found), Err)
}

/// The devices of several hubs.
///
/// # Errors
/// The question is wrong, or a hub does not answer.
pub async fn devices(
    hubs: &impl Hubs,
    merged: &Merged,
    query: &Query,
    questions: HubQuestions,
) -> Result<Bytes, Fault> {
    if query.by_silence {
        sorted_devices::<SilentDevice>(hubs, merged, query, questions).await
    } else {
        sorted_devices::<DeviceLine>(hubs, merged, query, questions).await
    }
}

/// The devices of several hubs in the order of a row type.
async fn sorted_devices<R>(
    hubs: &impl Hubs,
    merged: &Merged,
    query: &Query,
    questions: HubQuestions,
) -> Result<Bytes, Fault>
where
    R: SortedRow<SortKey: FromStr<Err: std::error::Error> + ToString>,
    R: Clone + From<DeviceLine> + Into<DeviceLine>,
{
    let (mut pages, limit) = begun::<R>(query)?;
    let mut unheard = Vec::new();
    for (hub, answer) in listed(hubs, "devices", questions).await? {
        let DevicesAnswer { devices, hub: hearing, next, .. } = answer;
        unheard.push((hub.clone(), hearing));
        pages.add_page(devices.into_iter().map(R::from).collect(), ended(&hub, next.as_deref())?);
    }
    let as_of = merged.read_merge(Merge::as_of);
    let answer = fitting(limit.min(pages.len().max(1)), |most| {
        let (devices, next) = pages.cut(most);
        let (devices, next) =
            (devices.iter().cloned().map(R::into).collect(), next.map(|next| next.to_string()));
        Ok(DevicesAnswer { as_of, devices, hub: hearing_of(&unheard), next })
    });
    answer.map_err(Fault::from)
}

/// The deployments at sites of several hubs, each counted and judged at these sites alone.
///
/// # Errors
/// As [`devices`].
pub async fn deployments(
    hubs: &impl Hubs,
    merged: &Merged,
    query: &Query,
    questions: HubQuestions,
) -> Result<Bytes, Fault> {
    let limit = checked_limit(query.limit)?;
    parsed_after::<DeploymentId>(query.after.as_deref())?;
    // Verdicts are judged on the sum, so no hub filters by them. A deployment with the error at one hub is listed with the
    // counts of all hubs, so errors take a second request.
    let asked = |error: &BTreeSet<String>| -> HubQuestions {
        let all = questions.iter().map(|(hub, query)| {
            let query = Query { verdict: BTreeSet::new(), error: error.clone(), ..query.clone() };
            (hub.clone(), query)
        });
        all.collect()
    };
    let mut sum = DeploymentSum::default();
    for (hub, answer) in listed::<DeploymentsAnswer>(hubs, DEPLOYMENTS, asked(&BTreeSet::new())).await? {
        let end = ended(&hub, answer.next.as_deref())?;
        sum.add(&hub, answer, end).map_err(|error| unreadable(&hub, &error))?;
    }
    if !query.error.is_empty() {
        for (hub, answer) in listed::<DeploymentsAnswer>(hubs, DEPLOYMENTS, asked(&query.error)).await? {
            let end = ended(&hub, answer.next.as_deref())?;
            sum.add_with_error(answer, end);
        }
    }
    let as_of = merged.read_merge(Merge::as_of);
    fitting(limit, |most| Ok(sum.answer(as_of, query, most))).map_err(Fault::from)
}

/// A page that makes sense so far.
fn begun<T>(query: &Query) -> Result<(Pages<T>, usize), ErrorBody>
where
    T: SortedRow<SortKey: FromStr<Err: std::fmt::Display>>,
{
    let limit = checked_limit(query.limit)?;
    parsed_after::<T::SortKey>(query.after.as_deref())?;
    Ok((Pages::new(limit), limit))
}

/// Status after filters, of the hubs that it concerns.
///
/// # Errors
/// A name is unknown to all hubs, or a hub does not answer.
pub async fn status(hubs: &impl Hubs, merged: &Merged, scatter: &ScatteredQuery) -> Result<Bytes, Fault> {
    let ScatteredQuery { query, limit, hub_queries } = scatter;
    let gather = hub_queries.iter().filter(|share| share.adds).count() > 1;
    let counts = query.output == Output::Summary && !query.is_of_places();
    if gather && query.output == Output::Brief {
        // The roll-ups of applications are counted from the components of the lines.
        let asked = StatusQuery { output: Output::All, ..query.clone() };
        return status_of(hubs, merged, &asked, query, *limit, hub_queries).await;
    }
    let in_lines = || StatusQuery { output: Output::All, limit: Some(PAGE_MAX), ..query.clone() };
    if gather && counts && query.after.is_some() {
        return status_of(hubs, merged, &in_lines(), query, PAGE_MAX, hub_queries).await;
    }
    let answers = answers(hubs, merged, query, hub_queries).await?;
    if let [(_, answer)] = answers.as_slice() {
        return Ok(answer.clone());
    }
    let sum = added(query, *limit, answers)?;
    if counts && !sum.is_whole() {
        // The hubs do not say which targets they counted, so the lines are counted.
        return status_of(hubs, merged, &in_lines(), query, PAGE_MAX, hub_queries).await;
    }
    written(merged, &sum, query.output, *limit)
}

/// The answer to a question that the hubs were asked in another form.
async fn status_of(
    hubs: &impl Hubs,
    merged: &Merged,
    asked: &StatusQuery,
    query: &StatusQuery,
    limit: usize,
    hub_queries: &[HubQuery],
) -> Result<Bytes, Fault> {
    let in_words = |share: &HubQuery| {
        let StatusQuery { output, limit, .. } = asked.clone();
        HubQuery { query: StatusQuery { output, limit, ..share.query.clone() }, ..share.clone() }
    };
    let hub_queries: Vec<HubQuery> = hub_queries.iter().map(in_words).collect();
    let sum = added(asked, limit, answers(hubs, merged, asked, &hub_queries).await?)?;
    written(merged, &sum, query.output, limit)
}

fn added<'q>(
    query: &'q StatusQuery,
    limit: usize,
    answers: Vec<(HubName, Bytes)>,
) -> Result<StatusSum<'q>, Fault> {
    let mut sum = StatusSum::new(query, limit);
    for (hub, answer) in answers {
        sum.add_answer(&hub, parsed(&hub, &answer)?).map_err(|error| unreadable(&hub, &error))?;
    }
    Ok(sum)
}

fn written(merged: &Merged, sum: &StatusSum<'_>, shown: Output, limit: usize) -> Result<Bytes, Fault> {
    let look = |most| Ok(merged.read_merge(|merge| sum.answer(merge, shown, most)));
    let most = limit.min(sum.lines().max(1));
    // A single line without room for its manifest comes without it.
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

/// The answers of the hubs that match, once every name is known to some hub.
async fn answers(
    hubs: &impl Hubs,
    merged: &Merged,
    query: &StatusQuery,
    hub_queries: &[HubQuery],
) -> Result<Vec<(HubName, Bytes)>, Fault> {
    let questions = hub_queries.iter().map(|share| Ok((share.hub.clone(), question(&share.query)?)));
    let replies = ask_all(hubs, STATUS, questions.collect::<Result<_, Fault>>()?).await;
    let (mut found, mut without) = (Vec::new(), Vec::new());
    for (share, (hub, answer)) in hub_queries.iter().zip(replies) {
        match answer {
            Ok(answer) if share.adds => found.push((hub, answer)),
            Ok(_) => {}
            Err(fault) if share.adds && is_not_found(&fault) => without.push((share, fault)),
            Err(fault) => return Err(fault),
        }
    }
    let mut names = Names { all: Name::all_of(query), known: BTreeSet::new(), strangers: BTreeMap::new() };
    if !found.is_empty() {
        // A hub that answers knows every name.
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
    let all: Vec<HubName> = merged.read_merge(|merge| merge.hub_names().cloned().collect());
    names.expect_known(hubs, all.iter().filter(|hub| !asked.contains(hub))).await?;
    found.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(found)
}

/// The names of a question, as far as it is known which hub knows them.
struct Names {
    all: Vec<Name>,
    /// Some hub knows the name.
    known: BTreeSet<Name>,
    /// Some hub does not know a name: the most helpful of their errors is returned.
    strangers: BTreeMap<Name, Fault>,
}

/// The answer of a hub that does not know every name of the question.
#[derive(Default)]
struct Rest {
    known: BTreeSet<Name>,
    strange: Vec<(Name, Fault)>,
    /// The answer to what is left of the question without the names that it does not know; none where nothing is.
    answer: Option<(HubName, Bytes)>,
}

/// Asks a hub that reported an unknown name with this error which names it knows.
async fn rest(hubs: impl Hubs, share: HubQuery, all: Vec<Name>, fault: Fault) -> Result<Rest, Fault> {
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
    /// Notes that some hub does not know a name. The longest error is kept, because it has suggestions.
    fn is_strange_to(&mut self, name: Name, fault: Fault) {
        let held = self.strangers.entry(name).or_insert_with(|| fault.clone());
        if fault.message.len() > held.message.len() {
            *held = fault;
        }
    }

    /// Asks these hubs for the names that no hub is known to know.
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
                    // A hub that does not answer may know the name.
                    return Err(fault);
                }
                self.is_strange_to(name.clone(), fault);
            }
            self.strangers.remove(&name).map_or(Ok(()), Err)?;
        }
        Ok(())
    }
}

/// True where the hub is at fault and not the question: a wrong question is wrong at every hub.
fn is_trouble(fault: &Fault) -> bool {
    [ErrorCode::NotReady, ErrorCode::TooManyRequests, ErrorCode::Internal]
        .iter()
        .any(|code| fault.code == code.number())
}

/// Prefixes a hub's error with the hub's name.
fn of_hub(hub: &HubName, fault: Fault) -> Fault {
    match serde_json::from_slice(&fault.body) {
        Ok(ErrorReply { error, rollup }) if !error.message.contains(&format!("the hub {hub}")) => {
            let message = format!("at the hub {hub}: {}", error.message);
            ErrorReply { error: ErrorBody { message, ..error }, rollup }.into()
        }
        _ => fault,
    }
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

pub(crate) fn ended<K>(hub: &HubName, next: Option<&str>) -> Result<Option<K>, Fault>
where
    K: FromStr<Err: std::error::Error>,
{
    next.map(str::parse).transpose().map_err(|error| unreadable(hub, &error))
}

pub(crate) fn unreadable(hub: &HubName, error: &dyn std::error::Error) -> Fault {
    let message =
        format!("the answer of the hub {hub} cannot be read: {error}; is its rollup of another version?");
    ErrorBody { code: ErrorCode::Internal, message }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_hub_names_the_hub_once() {
        let hub = "north".parse().unwrap();
        let said = |message: &str| {
            let body = ErrorBody { code: ErrorCode::NotReady, message: message.to_owned() };
            of_hub(&hub, body.into()).message
        };
        assert_eq!(said("still reading LEDGER"), "at the hub north: still reading LEDGER");
        assert_eq!(said("the hub north, which is slow"), "the hub north, which is slow");
    }
}
