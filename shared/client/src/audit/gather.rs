//! Gathers the accounts and views of an audit.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_bus::StreamState;
use muster_contract::groups::{GroupQuery, GroupsAnswer, LabelsAnswer, ViewsAnswer};
use muster_contract::query::{DeploymentsAnswer, DeviceLine, DevicesAnswer, Query};
use muster_contract::subjects::{ViewKey, stream};
use muster_contract::{SiteId, Timestamp};
use muster_domain::ledger_room::LedgerSize;
use tokio::time::{Instant, timeout};

use super::{Audit, LedgerFill, ViewAudit, ViewVerdict, view_verdict_at};
use crate::ask::{AskError, Hub, understood};

/// Time between two reads of a view that the rollup has not written yet.
const READ_AGAIN: Duration = Duration::from_millis(200);
/// Longest wait for LEDGER's size: a server does not answer a request without a right to it.
const LEDGER_TIMEOUT: Duration = Duration::from_secs(1);

/// Audits everything, or the devices of a site. `now` is the clock by which views are valid.
///
/// # Errors
/// Nobody answers, there is no such site, or the views cannot be read.
pub async fn gathered(
    hub: &Hub,
    site: Option<SiteId>,
    now: &(dyn Fn() -> Timestamp + Sync),
) -> Result<Audit, AskError> {
    let (hub, query) = (&hub.fresh(), Query { site: site.clone().into(), ..Query::default() });
    let answer: DevicesAnswer = understood(&hub.pages("devices", "devices", query).await?)?;
    let keys = match site {
        Some(_) => site_keys(&answer.devices),
        None => all_keys(hub, &answer.devices).await?,
    };
    let views = views(hub, keys, now).await?;
    // Without incidents the audit still holds: a federation does not answer about them.
    let incidents = hub.incidents().await.unwrap_or_default();
    let audit = Audit::of(answer.as_of, &answer.devices, views).with_incidents(incidents);
    let audit = audit.with_hub(answer.hub).with_lag(hub.lag());
    Ok(Audit { ledger: ledger_fill(hub).await, ..audit })
}

/// The fill of LEDGER; `None` without the right to read it.
async fn ledger_fill(hub: &Hub) -> Option<LedgerFill> {
    let state = timeout(LEDGER_TIMEOUT, hub.bus().stream_state(stream::LEDGER)).await.ok()?.ok()?;
    let StreamState { first_seq, last_seq, bytes, bytes_max, .. } = state;
    let percent = LedgerSize { first_seq, last_seq, bytes, bytes_max }.percent()?;
    Some(LedgerFill { bytes, bytes_max: bytes_max?, percent })
}

async fn all_keys(hub: &Hub, devices: &[DeviceLine]) -> Result<BTreeSet<ViewKey>, AskError> {
    let answer = hub.pages("deployments", "deployments", Query::default()).await?;
    let answer = understood::<DeploymentsAnswer>(&answer)?;
    let deployments = answer.deployments.into_iter().map(|view| ViewKey::Deployment(view.deployment));
    let mut keys: BTreeSet<_> = deployments.chain(site_keys(devices)).chain([ViewKey::Fleet]).collect();
    keys.extend(group_keys(hub).await?);
    Ok(keys)
}

/// The views of the devices' sites. A site whose devices are all retired has no view.
fn site_keys(devices: &[DeviceLine]) -> BTreeSet<ViewKey> {
    let present = devices.iter().filter(|device| !device.retired);
    present.map(|device| ViewKey::Site(device.key.site.clone())).collect()
}

/// The views of groups that have a device, and the defined views that are ready.
async fn group_keys(hub: &Hub) -> Result<Vec<ViewKey>, AskError> {
    let mut keys = Vec::new();
    let labels = hub.group_pages("labels", "labels", GroupQuery::default()).await?;
    for line in understood::<LabelsAnswer>(&labels)?.labels {
        let query = GroupQuery { label: Some(line.label.clone()), ..GroupQuery::default() };
        let answer = hub.group_pages("groups", "groups", query).await?;
        let groups = understood::<GroupsAnswer>(&answer)?.groups.into_iter();
        let present = groups.filter(|group| group.devices.total() > 0);
        keys.extend(present.map(|group| ViewKey::Group(line.label.clone(), group.value)));
    }
    let views = hub.groups("views", &GroupQuery::default()).await?;
    let ready = understood::<ViewsAnswer>(&views)?.views.into_iter().filter(|line| line.ready);
    keys.extend(ready.map(|line| ViewKey::Defined(line.definition.name)));
    Ok(keys)
}

/// Judges every view. It waits for a missing view up to the timeout: the rollup answers from memory, and writes a little later.
async fn views(
    hub: &Hub,
    keys: BTreeSet<ViewKey>,
    now: &(dyn Fn() -> Timestamp + Sync),
) -> Result<Vec<ViewAudit>, AskError> {
    let deadline = Instant::now() + hub.timeout();
    let mut views = Vec::with_capacity(keys.len());
    for key in keys {
        let verdict = loop {
            match hub.bus().view_get(&key.to_string()).await?.and_then(|entry| entry.value) {
                Some(bytes) => break view_verdict_at(&key, &bytes, now()),
                None if Instant::now() >= deadline => break ViewVerdict::Absent,
                None => tokio::time::sleep(READ_AGAIN).await,
            }
        };
        views.push(ViewAudit { key: key.to_string(), verdict });
    }
    Ok(views)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_has_a_view_while_a_device_of_it_is_not_retired() {
        let two = include_bytes!("../../../../schemas/examples/good/DevicesAnswer.two.json");
        let mut devices = serde_json::from_slice::<DevicesAnswer>(two).unwrap().devices;
        let site = ViewKey::Site(devices[0].key.site.clone());
        devices[0].retired = true;
        assert_eq!(site_keys(&devices), BTreeSet::from([site]));
        devices.iter_mut().for_each(|device| device.retired = true);
        assert!(site_keys(&devices).is_empty());
        let as_of = serde_json::from_slice::<DevicesAnswer>(two).unwrap().as_of;
        assert!(
            Audit::of(as_of, &devices, Vec::new()).explained,
            "missing reports of retired devices do not count"
        );
    }
}
