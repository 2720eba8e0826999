//! Sends the orders of nodes to the publisher: several at once, and one at a time for a node. It repeats a request that failed or
//! that LEDGER does not show. It does not decide which orders a node needs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_contract::query::{ErrorCode, RemoveRequest};
use muster_contract::{DeploymentId, DeviceKey, InstanceName};
use muster_domain::plans::Effect;
use muster_service::error::chain;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::error::PlannerError;
use crate::metrics::Metrics;
use crate::services::{Requests, Services};

/// Requests at once.
const REQUESTS_AT_ONCE: usize = 16;
/// Time before a request is repeated, unless LEDGER shows its effect first.
const REPEATED_AFTER: Duration = Duration::from_secs(2);

/// Sends orders: the running requests, and the time of the last one for each instance on a node.
#[derive(Debug)]
pub(super) struct Orders<R> {
    services: Services<R>,
    metrics: Metrics,
    running: JoinSet<DeviceKey>,
    /// Nodes with a running request.
    busy: BTreeSet<DeviceKey>,
    sent: BTreeMap<(DeviceKey, InstanceName), (Effect, Instant)>,
}

impl<R: Requests> Orders<R> {
    pub(super) fn new(services: Services<R>, metrics: Metrics) -> Self {
        Self { services, metrics, running: JoinSet::new(), busy: BTreeSet::new(), sent: BTreeMap::new() }
    }

    /// Waits until a running request ends; forever if none runs. Cancel-safe.
    pub(super) async fn ended(&mut self) {
        match self.running.join_next().await {
            Some(Ok(node)) => {
                self.busy.remove(&node);
            }
            Some(Err(error)) => {
                tracing::error!(%error, "cannot finish a request to the publisher");
                self.busy.clear();
            }
            None => std::future::pending().await,
        }
    }

    /// Sends the requests of these effects that are due.
    pub(super) fn send(&mut self, effects: Vec<Effect>, now: Instant) {
        self.sent.retain(|_, (_, at)| now.duration_since(*at) < REPEATED_AFTER);
        for effect in effects {
            let (node, instance) = effect.target();
            let (node, key) = (node.clone(), (node.clone(), instance.clone()));
            let is_sent = self.sent.get(&key).is_some_and(|(sent, _)| *sent == effect);
            if is_sent || self.running.len() >= REQUESTS_AT_ONCE || !self.busy.insert(node.clone()) {
                continue;
            }
            self.sent.insert(key, (effect.clone(), now));
            let (services, metrics) = (self.services.clone(), self.metrics.clone());
            self.running.spawn(async move {
                match carry_out(&services, &effect).await {
                    Ok(()) => {
                        metrics.orders.inc();
                    }
                    Err(error) => {
                        metrics.failures.inc();
                        let error = chain(&error);
                        tracing::warn!(node = %node, error, "cannot order an instance of a plan");
                    }
                }
                node
            });
        }
    }
}

async fn carry_out<R: Requests>(services: &Services<R>, effect: &Effect) -> Result<(), PlannerError> {
    match effect {
        Effect::Apply { node, document, .. } => services.apply(node, document).await,
        Effect::Remove { node, instance } => {
            let id: Option<DeploymentId> = instance.as_str().parse().ok();
            let request = RemoveRequest { key: node.clone(), id };
            match services.remove(&request).await {
                // The deployment is removed already.
                Err(PlannerError::Refused { body, .. }) if body.code == ErrorCode::NotFound => Ok(()),
                other => other,
            }
        }
    }
}
