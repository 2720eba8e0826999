//! The answers to questions about a fleet in memory: the present, or a point of the past that is rebuilt.

use muster_contract::history::Point;
use muster_contract::query::{
    DeploymentAnswer, DeploymentsAnswer, DeviceAnswer, DevicesAnswer, ErrorBody, ErrorCode, Query,
};
use muster_contract::question::{ANSWER_BYTES_MAX, bad, found, named, nowhere, one_site, parsed_after};
use muster_contract::view::{FleetView, SiteView};
use muster_contract::why::WhyAnswer;
use muster_contract::{DeploymentId, DeviceKey, SiteId};
use muster_domain::abridged::abridged;
use muster_domain::fold::{Fleet, Page, StatusRefusal};
use serde::Serialize;

use crate::projection::ProjectionState;

/// The fleet, once LEDGER was read to its end.
pub(super) fn caught_up(now: &ProjectionState) -> Result<&Fleet, ErrorBody> {
    if now.caught_up {
        return Ok(&now.fleet);
    }
    let read_to = now.fleet.as_of().ledger_seq;
    let message = format!("still reading LEDGER (at {read_to}); ask again in a moment");
    Err(ErrorBody { code: ErrorCode::NotReady, message })
}

/// Refuses a question about the past: this responder knows only the present.
pub(super) fn no_past(point: Point) -> Result<(), ErrorBody> {
    if point.is_now() { Ok(()) } else { Err(bad("this service knows no past".to_owned())) }
}

/// The answers by kind of question.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Answer {
    Deployment(Box<DeploymentAnswer>),
    Deployments(DeploymentsAnswer),
    Device(Box<DeviceAnswer>),
    Devices(DevicesAnswer),
    Site(Box<SiteView>),
    Fleet(Box<FleetView>),
    Why(Box<WhyAnswer>),
}

impl Answer {
    /// An answer without pages is cut to the size of a message, and says so.
    pub(super) fn abridged(self) -> Self {
        match self {
            Self::Device(whole) => Self::Device(Box::new(abridged(*whole, ANSWER_BYTES_MAX))),
            paged => paged,
        }
    }
}

pub(super) fn look_up(
    fleet: &Fleet,
    endpoint: &str,
    query: &Query,
    limit: usize,
) -> Result<Answer, ErrorBody> {
    match endpoint {
        "deployment" => {
            let id = named(query.id.as_ref(), "id")?;
            let answer = fleet.deployment_answer(id);
            Ok(Answer::Deployment(Box::new(found(answer, || nowhere(id))?)))
        }
        "deployments" => {
            let page = Page { after: after::<DeploymentId>(query)?, limit };
            let answer = fleet.deployments_answer(query, &page);
            Ok(Answer::Deployments(answer.map_err(|refusal| refused(&refusal))?))
        }
        "device" => {
            let (site, device) = (named(one_site(query)?, "site")?, named(query.device.as_ref(), "device")?);
            let key = DeviceKey { site: site.clone(), device: device.clone() };
            let answer = fleet.device_answer(&key, query.output);
            let answer = found(answer, || format!("device '{key}' was never heard of"))?;
            Ok(Answer::Device(Box::new(answer)))
        }
        "devices" => {
            let answer = if query.by_silence {
                fleet.devices_by_silence(query, &Page { after: after(query)?, limit })
            } else {
                fleet.devices_answer(query, &Page { after: after::<DeviceKey>(query)?, limit })
            };
            Ok(Answer::Devices(answer.map_err(|refusal| refused(&refusal))?))
        }
        "site" => {
            let site = named(one_site(query)?, "site")?;
            let view = found(fleet.site_view(site), || no_site(Some(site)))?;
            Ok(Answer::Site(Box::new(view)))
        }
        "fleet" => Ok(Answer::Fleet(Box::new(fleet.fleet_view()))),
        "why" => Ok(Answer::Why(Box::new(why(fleet, query, limit)?))),
        other => Err(bad(format!("there is no question '{other}'"))),
    }
}

fn why(fleet: &Fleet, query: &Query, limit: usize) -> Result<WhyAnswer, ErrorBody> {
    let (id, site) = (named(query.id.as_ref(), "id")?, one_site(query)?);
    let there = |words: String| if fleet.deployment_view(id).is_none() { nowhere(id) } else { words };
    let Some(device) = &query.device else {
        let page = Page { after: after::<DeviceKey>(query)?, limit };
        return found(fleet.why(id, site, &page), || there(no_site(site)));
    };
    let key = DeviceKey { site: named(site, "site")?.clone(), device: device.clone() };
    let stranger = || there(format!("device '{key}' neither shall run '{id}' nor has it"));
    found(fleet.why_device(id, &key), stranger)
}

fn after<K: std::str::FromStr<Err: std::fmt::Display>>(query: &Query) -> Result<Option<K>, ErrorBody> {
    parsed_after(query.after.as_deref())
}

pub(super) fn refused(refusal: &StatusRefusal) -> ErrorBody {
    let message = refusal.to_string();
    match refusal {
        StatusRefusal::Unknown(_) => ErrorBody { code: ErrorCode::NotFound, message },
        StatusRefusal::Wrong(_) => bad(message),
    }
}

fn no_site(site: Option<&SiteId>) -> String {
    let name = site.map(SiteId::as_str).unwrap_or_default();
    format!("site '{name}' has no devices")
}
