//! Answers questions about a time over several hubs, and compares two times.
//!
//! Any question about the present can be asked about the past. [`past`](crate::past) reads the parts of that
//! time; the code for the present merges them.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use muster_bus::Fault;
use muster_contract::groups::GroupQuery;
use muster_contract::history::{DiffAnswer, DiffQuery, Point};
use muster_contract::query::{ErrorBody, Output, Query};
use muster_contract::question::{
    bad, checked_limit, fitting, found, json, one_site, parsed_after, point_of, read, read_of_a_point,
};
use muster_contract::status::StatusQuery;
use muster_contract::subjects::ViewKey;
use muster_contract::{DeploymentId, DeviceKey, HubName};
use muster_domain::fold::DiffSum;

use crate::gather::{self, Hubs, ask_all, ended, is_not_found, parsed};
use crate::handler;
use crate::merged::Merged;
use crate::past::{PartSelection, PastParts, PinnedHubs, of_hub};
use crate::route::{Places, nowhere};
use crate::scatter::scatter;
use crate::why;

/// The answer to a question about a time.
///
/// # Errors
/// The question is wrong, or a hub cannot say what it held then.
pub async fn answer(
    hubs: &impl Hubs,
    merged: &Merged,
    endpoint: &'static str,
    question: &Bytes,
) -> Result<Bytes, Fault> {
    let names: Vec<HubName> = merged.read_merge(|merge| merge.hub_names().cloned().collect());
    if endpoint == "diff" {
        return diff(hubs, &names, question).await;
    }
    let point = point_of(question)?;
    let (then, moment) = PinnedHubs::of(hubs.clone(), &names, point).await?;
    match endpoint {
        "moment" => Ok(json(moment)?.into()),
        "status" => status(&then, question).await,
        "why" => why(&then, question).await,
        "labels" | "groups" | "group" => {
            let held = then.read(&of_groups(endpoint, read_of_a_point(question)?)).await?;
            handler::answer(&held.merged, endpoint, question).map_err(Fault::from)
        }
        _ => of_views(&then, endpoint, question).await,
    }
}

async fn of_views<H: Hubs>(
    then: &PinnedHubs<H>,
    endpoint: &'static str,
    question: &Bytes,
) -> Result<Bytes, Fault> {
    let query: Query = read_of_a_point(question)?;
    let lines = endpoint == "deployment" && query.output != Output::Summary;
    let wanted = match endpoint {
        "deployment" | "devices" => of(query.id.as_ref()),
        _ => PartSelection { listed: Some(is_deployment), ..of(None) },
    };
    let held = &then.read(&PartSelection { sites: !query.site.is_empty(), ..wanted }).await?;
    let PastParts { merged, .. } = held;
    match endpoint {
        "devices" => gather::devices(then, merged, &query, gather::hub_questions(&query, held)?).await,
        "deployments" if !query.site.is_empty() => {
            gather::deployments(then, merged, &query, gather::hub_questions(&query, held)?).await
        }
        "deployment" if lines => gather::deployment(then, merged, &query, question).await,
        _ => handler::answer(merged, endpoint, question).map_err(Fault::from),
    }
}

fn of_groups(endpoint: &str, query: GroupQuery) -> PartSelection {
    let mut wanted = of(query.id.as_ref());
    // A group's own view counts deployments by their verdict in it.
    wanted.listed = Some(if endpoint == "group" { is_deployment } else { is_group });
    if let (Some(label), Some(value), "group") = (query.label, query.value, endpoint) {
        wanted.keys.insert(ViewKey::Group(label, value));
    }
    wanted
}

async fn status<H: Hubs>(then: &PinnedHubs<H>, question: &Bytes) -> Result<Bytes, Fault> {
    let query: StatusQuery = read_of_a_point(question)?;
    let sites = !query.site.is_empty() || !query.device.is_empty();
    // Over all deployments, the message about counts names the most frequent error.
    let listed =
        (query.id.is_none() && query.is_of_places()).then_some(is_deployment as fn(&ViewKey) -> bool);
    let held = then.read(&PartSelection { listed, sites, ..of(query.id.as_ref()) }).await?;
    let scatter = scatter(query, &held)?;
    gather::status(then, &held.merged, &scatter).await
}

async fn why<H: Hubs>(then: &PinnedHubs<H>, question: &Bytes) -> Result<Bytes, Fault> {
    let query: Query = read_of_a_point(question)?;
    let held = then.read(&PartSelection { sites: !query.site.is_empty(), ..of(query.id.as_ref()) }).await?;
    let place = one_site(&query)?.map(|site| held.hub_of(site).ok_or_else(|| nowhere(site, &held)));
    why::answer(then, &held.merged, place.transpose()?.as_ref(), question).await
}

/// The fleet, which says up to where a hub had read, and a deployment.
fn of(id: Option<&DeploymentId>) -> PartSelection {
    let deployment = id.cloned().map(ViewKey::Deployment);
    PartSelection {
        keys: BTreeSet::from_iter(deployment.into_iter().chain([ViewKey::Fleet])),
        ..PartSelection::default()
    }
}

const fn is_deployment(key: &ViewKey) -> bool {
    matches!(key, ViewKey::Deployment(_))
}

const fn is_group(key: &ViewKey) -> bool {
    matches!(key, ViewKey::Group(..))
}

/// How a deployment differs between two times.
async fn diff<H: Hubs>(hubs: &H, names: &[HubName], question: &Bytes) -> Result<Bytes, Fault> {
    let query: DiffQuery = read(question)?;
    let limit = checked_limit(query.limit)?;
    parsed_after::<DeviceKey>(query.after.as_deref())?;
    let wanted = of(Some(&query.id));
    let from = side(hubs, names, "from", query.from).await?;
    let to = side(hubs, names, "to", query.to).await?;
    let before = from.read(&wanted).await?;
    let put = |hub: &HubName| {
        let query = DiffQuery { from: from.point_at(hub), to: to.point_at(hub), ..query.clone() };
        Ok((hub.clone(), json(query)?.into()))
    };
    let questions = names.iter().map(put).collect::<Result<_, ErrorBody>>()?;
    let (mut sum, mut read_to) = (DiffSum::new(limit), BTreeMap::new());
    for (hub, answer) in ask_all(hubs, "diff", questions).await {
        match answer {
            // It was nowhere there, then or now.
            Err(fault) if is_not_found(&fault) => {
                from.still_holds(&hub).await?;
                to.still_holds(&hub).await?;
            }
            answer => {
                let answer = answer.map_err(|fault| of_hub(&hub, fault))?;
                let answer: DiffAnswer = parsed(&hub, &answer)?;
                let end = ended(&hub, answer.next.as_deref())?;
                read_to.insert(hub.clone(), answer.to.as_of.ledger_seq);
                sum.add_answer(&hub, answer, end);
            }
        }
    }
    // The present is the position that each hub answered for: with a large LEDGER that is a recent rebuild.
    let after = to.pinned_to(&read_to).read(&wanted).await?;
    let id = &query.id;
    let nowhere = || format!("deployment '{id}' was targeted nowhere and left nowhere at either point");
    let answer = fitting(limit.min(sum.lines().max(1)), |most| {
        let answer =
            before.merged.read_merge(|from| after.merged.read_merge(|to| sum.answer(id, from, to, most)));
        found(answer, nowhere)
    });
    answer.map_err(Fault::from)
}

/// One side of a comparison.
async fn side<H: Hubs>(
    hubs: &H,
    names: &[HubName],
    side: &str,
    point: Point,
) -> Result<PinnedHubs<H>, Fault> {
    if point.about.is_some() {
        return Err(bad(format!("{side}: name a time; about is no point of a comparison")).into());
    }
    if point.is_now() {
        return Ok(PinnedHubs::now(hubs.clone(), names));
    }
    Ok(PinnedHubs::of(hubs.clone(), names, point).await?.0)
}
