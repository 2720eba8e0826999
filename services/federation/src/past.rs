//! Answers about a time over several hubs: any question that is answered of the present, put to what the hubs held then, and
//! what differs between two times. What that was is [`then`](crate::then)'s; how it is put together is the present's own code.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use muster_bus::Fault;
use muster_contract::groups::GroupQuery;
use muster_contract::history::{DiffAnswer, DiffQuery, Point};
use muster_contract::query::{ErrorBody, Output, Query};
use muster_contract::question::{
    bad, checked_limit, fitting, found, json, parsed_after, read, read_of_a_point,
};
use muster_contract::status::StatusQuery;
use muster_contract::subjects::ViewKey;
use muster_contract::{DeploymentId, DeviceKey, HubName};
use muster_domain::fold::DiffSum;

use crate::desk;
use crate::merged::Merged;
use crate::reasons;
use crate::route::{Places, nowhere};
use crate::several::{self, Hubs, ask_all, ended, is_not_found, parsed};
use crate::spread::spread;
use crate::then::{Held, Then, Wanted, of_hub};

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
    let names: Vec<HubName> = merged.look(|merge| merge.hub_names().cloned().collect());
    if endpoint == "diff" {
        return diff(hubs, &names, question).await;
    }
    let point: Point = read_of_a_point(question)?;
    let (then, moment) = Then::of(hubs.clone(), &names, point).await?;
    match endpoint {
        "moment" => Ok(json(moment)?.into()),
        "status" => status(&then, question).await,
        "why" => why(&then, question).await,
        "labels" | "groups" | "group" => {
            let held = then.read(&of_groups(endpoint, read_of_a_point(question)?)).await?;
            desk::answer(&held.merged, endpoint, question).map_err(Fault::from)
        }
        _ => of_views(&then, endpoint, question).await,
    }
}

async fn of_views<H: Hubs>(then: &Then<H>, endpoint: &'static str, question: &Bytes) -> Result<Bytes, Fault> {
    let query: Query = read_of_a_point(question)?;
    let lines = endpoint == "deployment" && query.output != Output::Summary;
    let wanted = match endpoint {
        "deployment" | "devices" => of(query.id.as_ref()),
        _ => Wanted { listed: Some(is_deployment), ..of(None) },
    };
    let Held { merged, .. } = &then.read(&wanted).await?;
    match endpoint {
        "devices" => several::devices(then, merged, &query, question).await,
        "deployment" if lines => several::deployment(then, merged, &query, question).await,
        _ => desk::answer(merged, endpoint, question).map_err(Fault::from),
    }
}

fn of_groups(endpoint: &str, query: GroupQuery) -> Wanted {
    let mut wanted = of(query.id.as_ref());
    // A group's own view counts deployments by their verdict in it.
    wanted.listed = Some(if endpoint == "group" { is_deployment } else { is_group });
    if let (Some(label), Some(value), "group") = (query.label, query.value, endpoint) {
        wanted.keys.insert(ViewKey::Group(label, value));
    }
    wanted
}

async fn status<H: Hubs>(then: &Then<H>, question: &Bytes) -> Result<Bytes, Fault> {
    let query: StatusQuery = read_of_a_point(question)?;
    let sites = !query.site.is_empty() || !query.device.is_empty();
    // Of all deployments, the words about counts name the most frequent error.
    let listed =
        (query.id.is_none() && query.is_of_places()).then_some(is_deployment as fn(&ViewKey) -> bool);
    let held = then.read(&Wanted { listed, sites, ..of(query.id.as_ref()) }).await?;
    let spread = spread(query, &held)?;
    several::status(then, &held.merged, &spread).await
}

async fn why<H: Hubs>(then: &Then<H>, question: &Bytes) -> Result<Bytes, Fault> {
    let query: Query = read_of_a_point(question)?;
    let held = then.read(&Wanted { sites: query.site.is_some(), ..of(query.id.as_ref()) }).await?;
    let place = query.site.map(|site| held.hub_of(&site).ok_or_else(|| nowhere(&site, &held)));
    reasons::why(then, &held.merged, place.transpose()?.as_ref(), question).await
}

/// The fleet, which says up to where a hub had read, and a deployment.
fn of(id: Option<&DeploymentId>) -> Wanted {
    let deployment = id.cloned().map(ViewKey::Deployment);
    Wanted { keys: BTreeSet::from_iter(deployment.into_iter().chain([ViewKey::Fleet])), ..Wanted::default() }
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
                sum.take(&hub, answer, end);
            }
        }
    }
    // The present is what each hub took for it: of a large LEDGER one that was rebuilt a moment ago.
    let after = to.pinned_to(&read_to).read(&wanted).await?;
    let id = &query.id;
    let nowhere = || format!("deployment '{id}' was targeted nowhere and left nowhere at either point");
    let answer = fitting(limit.min(sum.lines().max(1)), |most| {
        let answer = before.merged.look(|from| after.merged.look(|to| sum.answer(id, from, to, most)));
        found(answer, nowhere)
    });
    answer.map_err(Fault::from)
}

/// One side of a comparison.
async fn side<H: Hubs>(hubs: &H, names: &[HubName], side: &str, point: Point) -> Result<Then<H>, Fault> {
    if point.about.is_some() {
        return Err(bad(format!("{side}: name a time; about is no point of a comparison")).into());
    }
    if point.is_now() {
        return Ok(Then::now(hubs.clone(), names));
    }
    Ok(Then::of(hubs.clone(), names, point).await?.0)
}
