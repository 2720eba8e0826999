//! Answers `muster.query.why` over several hubs: each hub names the facts of its own devices, and
//! [`muster_domain::fold`] merges the proofs. The caller supplies the connection.
//!
//! Only heard hubs are asked; the answer says which hubs are not heard and names no facts of theirs. A hub that
//! counts as heard and does not answer may have facts that matter, so the answer is then an error that names
//! it.

use bytes::Bytes;
use muster_bus::Fault;
use muster_contract::query::{ErrorBody, ErrorCode, Query};
use muster_contract::question::{
    checked_limit, fitting, found, named, nowhere, one_site, parsed_after, read_of_a_point,
};
use muster_contract::why::WhyAnswer;
use muster_contract::{DeviceKey, HubName};
use muster_domain::fold::{Merge, WhyAsked};

use crate::gather::{Hubs, ask_all, is_not_found, parsed};
use crate::merged::Merged;

const WHY: &str = "why";

/// Why a deployment has its verdict over all hubs; its facts at one hub, where the question is about a place there.
///
/// # Errors
/// The question is wrong, a hub does not answer, or none has the deployment.
pub async fn answer(
    hubs: &impl Hubs,
    merged: &Merged,
    place: Option<&HubName>,
    question: &Bytes,
) -> Result<Bytes, Fault> {
    let query: Query = read_of_a_point(question)?;
    let (id, limit) = (named(query.id.as_ref(), "id")?, checked_limit(query.limit)?);
    parsed_after::<DeviceKey>(query.after.as_deref())?;
    if query.device.is_some() {
        named(one_site(&query)?, "site")?;
    }
    let asked: Vec<HubName> = match place {
        Some(hub) => vec![hub.clone()],
        None => merged.read_merge(|merge| merge.heard_names().cloned().collect()),
    };
    let questions = asked.into_iter().map(|hub| (hub, question.clone())).collect();
    let mut answers = Vec::new();
    for (hub, answer) in ask_all(hubs, WHY, questions).await {
        let answer = match answer {
            Err(fault) if is_not_found(&fault) => None,
            answer => Some(parsed::<WhyAnswer>(&hub, &answer?)?),
        };
        answers.push((hub, answer));
    }
    let nothing_there = answers.iter().all(|(_, answer)| answer.is_none());
    let sum = merged.read_merge(|merge: &Merge| merge.why(id, WhyAsked::of(&query), limit, answers));
    let sum = sum.map_err(|hub| unended(&hub))?;
    let sum = found(sum, || nowhere(id))?;
    if let (Some(device), Some(site), true) = (&query.device, query.site.only(), nothing_there) {
        let message = format!("device '{site}/{device}' neither shall run '{id}' nor has it");
        return Err(ErrorBody { code: ErrorCode::NotFound, message }.into());
    }
    fitting(limit.min(sum.lines().max(1)), |most| Ok(sum.answer(most))).map_err(Fault::from)
}

fn unended(hub: &HubName) -> ErrorBody {
    let message = format!(
        "the answer of the hub {hub} does not say where it goes on; is its rollup of another version?"
    );
    ErrorBody { code: ErrorCode::Internal, message }
}
