//! Polls the services for the first screen and for the open page. It shows nothing.

use std::sync::Arc;
use std::time::Duration;

use muster_contract::query::{Output, PAGE_MAX, Query};
use muster_contract::status::StatusQuery;
use muster_service::clock::Clock;
use muster_service::error::chain;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::fleet_screen::Round;
use super::model::{Detail, Update};
use super::view::{Content, Target};
use crate::ask::{AskError, Hub, understood};
use crate::rollout::{held_changes, rollouts_at};

/// Time between an answer and the next question.
pub(super) const ASK_EVERY: Duration = Duration::from_secs(2);

/// Polls for the first screen until the screen is gone.
pub(super) async fn rounds(hub: Hub, clock: Arc<dyn Clock>, updates: mpsc::Sender<Update>) {
    loop {
        let round = Box::pin(round(&hub, &*clock)).await;
        if updates.send(Update::Round(Box::new(round))).await.is_err() {
            return;
        }
        sleep(ASK_EVERY).await;
    }
}

async fn round(hub: &Hub, clock: &dyn Clock) -> Round {
    let (hub, at, fleet) = (&hub.fresh(), clock.now(), Query::default());
    let silent = Query { by_silence: true, limit: Some(PAGE_MAX), ..Query::default() };
    let (fleet, deployments, silent, rollouts, incidents) = tokio::join!(
        hub.query("fleet", &fleet),
        hub.pages("deployments", "deployments", Query::default()),
        hub.query("devices", &silent),
        held_changes(hub),
        hub.incidents(),
    );
    Round {
        at,
        fleet: read(fleet),
        deployments: read(deployments),
        silent: read(silent),
        rollouts: rollouts.map_err(|error| chain(&error)),
        incidents: incidents.map_err(|error| chain(&error)),
        lag: hub.lag(),
    }
}

fn read<T: DeserializeOwned>(answer: Result<Value, AskError>) -> Result<T, String> {
    answer.and_then(|answer| understood(&answer)).map_err(|error| chain(&error))
}

/// Polls for the open page; asks at once when another page is opened.
pub(super) async fn details(
    hub: Hub,
    clock: Arc<dyn Clock>,
    mut wanted: watch::Receiver<Option<Target>>,
    updates: mpsc::Sender<Update>,
) {
    loop {
        let target = wanted.borrow_and_update().clone();
        let asked = async {
            let Some(target) = target else { return std::future::pending().await };
            loop {
                let at = clock.now();
                let content = Box::pin(content(&hub, &target, &*clock)).await;
                let content = content.map_err(|error| chain(&error));
                let detail = Detail { target: target.clone(), content, at };
                if updates.send(Update::Detail(Box::new(detail))).await.is_err() {
                    return;
                }
                sleep(ASK_EVERY).await;
            }
        };
        tokio::select! {
            () = asked => return,
            changed = wanted.changed() => if changed.is_err() { return },
        }
    }
}

async fn content(hub: &Hub, target: &Target, clock: &dyn Clock) -> Result<Content, AskError> {
    Ok(match target {
        Target::Deployment(id) => {
            let query = Query { id: Some(id.clone()), ..Query::default() };
            let lines = StatusQuery {
                id: Some(id.clone()),
                output: Output::Brief,
                limit: Some(PAGE_MAX),
                ..StatusQuery::default()
            };
            let (answer, lines) = tokio::try_join!(hub.query("deployment", &query), hub.status(&lines))?;
            Content::Deployment(Box::new((understood(&answer)?, lines)))
        }
        Target::Why(id) => {
            let query = Query { id: Some(id.clone()), ..Query::default() };
            Content::Why(Box::new(understood(&hub.query("why", &query).await?)?))
        }
        Target::Device(key) => {
            let query = Query {
                site: key.site.clone().into(),
                device: Some(key.device.clone()),
                output: Output::Detail,
                ..Query::default()
            };
            Content::Device(Box::new(understood(&hub.query("device", &query).await?)?))
        }
        Target::Site(site) => {
            let query = Query { site: site.clone().into(), limit: Some(PAGE_MAX), ..Query::default() };
            let (view, devices) = tokio::try_join!(hub.query("site", &query), hub.query("devices", &query))?;
            Content::Site(Box::new((understood(&view)?, understood(&devices)?)))
        }
        Target::Rollout(id) => Content::Rollout(rollouts_at(hub, id, clock.now()).await?),
        // The first screen has it already.
        Target::Incident(_) => std::future::pending().await,
    })
}
