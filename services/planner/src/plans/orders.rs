//! Sends the orders of nodes to the publisher: several at once, and one at a time for a node. It repeats a request that failed or
//! that LEDGER does not show. It does not decide which orders a node needs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_contract::limits::PLANS_TEXT_BYTES_MAX;
use muster_contract::query::{ErrorCode, RemoveRequest};
use muster_contract::state::cut;
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

/// An instance on a node.
type Target = (DeviceKey, InstanceName);

/// Sends orders: the running requests, and the time of the last one for each instance on a node.
#[derive(Debug)]
pub(super) struct Orders<R> {
    services: Services<R>,
    metrics: Metrics,
    /// Each ends with its order, and the reason if it failed.
    running: JoinSet<(Effect, Option<String>)>,
    /// Nodes with a running request.
    busy: BTreeSet<DeviceKey>,
    sent: BTreeMap<Target, (Effect, Instant)>,
    refusals: Refusals,
}

/// The orders that are due and whose last request failed, with the reasons.
#[derive(Debug, Default)]
pub(super) struct Refusals(BTreeMap<Target, (Effect, String)>);

impl Refusals {
    /// Why the last request about an instance on a node failed.
    pub(super) fn of(&self, node: &DeviceKey, instance: &InstanceName) -> Option<&str> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&(node.clone(), instance.clone())).map(|(_, reason)| reason.as_str())
    }
}

impl<R: Requests> Orders<R> {
    pub(super) fn new(services: Services<R>, metrics: Metrics) -> Self {
        let (running, busy, sent, refusals) = Default::default();
        Self { services, metrics, running, busy, sent, refusals }
    }

    /// The orders that could not be published.
    pub(super) const fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Waits until a running request ends; forever if none runs. Cancel-safe.
    pub(super) async fn ended(&mut self) {
        match self.running.join_next().await {
            Some(Ok((effect, refusal))) => {
                let target = target(&effect);
                self.busy.remove(&target.0);
                match refusal {
                    Some(refusal) => drop(self.refusals.0.insert(target, (effect, refusal))),
                    None => drop(self.refusals.0.remove(&target)),
                }
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
        self.forget(&effects);
        for effect in effects {
            let target = target(&effect);
            let is_sent = self.sent.get(&target).is_some_and(|(sent, _)| *sent == effect);
            if is_sent || self.running.len() >= REQUESTS_AT_ONCE || !self.busy.insert(target.0.clone()) {
                continue;
            }
            let node = target.0.clone();
            self.sent.insert(target, (effect.clone(), now));
            let (services, metrics) = (self.services.clone(), self.metrics.clone());
            self.running.spawn(async move {
                let refusal = match carry_out(&services, &effect).await {
                    Ok(()) => {
                        metrics.orders.inc();
                        None
                    }
                    Err(error) => {
                        metrics.failures.inc();
                        let error = chain(&error);
                        tracing::warn!(%node, error, "cannot order an instance of a plan");
                        Some(cut(error, PLANS_TEXT_BYTES_MAX))
                    }
                };
                (effect, refusal)
            });
        }
    }

    /// Forgets the refusals of orders that are due no more.
    fn forget(&mut self, effects: &[Effect]) {
        if self.refusals.0.is_empty() {
            return;
        }
        let due: BTreeMap<_, _> = effects.iter().map(|effect| (target(effect), effect)).collect();
        self.refusals.0.retain(|target, (effect, _)| due.get(target) == Some(&&*effect));
    }
}

fn target(effect: &Effect) -> Target {
    let (node, instance) = effect.target();
    (node.clone(), instance.clone())
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use muster_bus::RequestError;

    use super::*;

    /// A publisher that refuses everything.
    #[derive(Clone)]
    struct Refusing;

    impl Requests for Refusing {
        async fn request(&self, _: &str, _: Bytes, _: Duration) -> Result<Bytes, RequestError> {
            let body = r#"{"error": {"code": "precondition", "message": "device plant7/press-1 is Git's"}}"#;
            Ok(Bytes::from_static(body.as_bytes()))
        }
    }

    #[tokio::test]
    async fn an_order_that_is_refused_says_so_while_it_is_due() {
        let mut orders = Orders::new(Services::new(Refusing), Metrics::default());
        let (node, instance): (DeviceKey, InstanceName) =
            ("plant7/press-1".parse().unwrap(), "web-1".parse().unwrap());
        let effect = Effect::Remove { node: node.clone(), instance: instance.clone() };
        orders.send(vec![effect.clone()], Instant::now());
        assert_eq!(orders.refusals().of(&node, &instance), None, "the request is under way");
        orders.ended().await;
        let refusal = orders.refusals().of(&node, &instance).unwrap();
        assert!(refusal.contains("device plant7/press-1 is Git's"), "{refusal}");
        orders.send(vec![effect], Instant::now());
        assert!(orders.refusals().of(&node, &instance).is_some(), "the order is still due");
        orders.send(Vec::new(), Instant::now());
        assert_eq!(
            orders.refusals().of(&node, &instance),
            None,
            "LEDGER shows the order, or nobody wants it"
        );
    }
}
