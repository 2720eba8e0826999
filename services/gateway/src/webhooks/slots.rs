//! Bounds the deliveries that a gateway makes at once: in all, to receivers that fail, to one host, and of one owner. Notices of
//! those that have all their slots in use wait, and the others do not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_contract::WebhookUrl;
use muster_contract::notify::{WEBHOOK_SKIPPED_MAX, WebhookDelivery};

/// Deliveries at once.
pub(super) const DELIVERIES_MAX: usize = 64;
/// Most of them to receivers whose last delivery failed: more than one owner may have.
const FAILING_MAX: usize = 32;
/// Most of them to one host, at all of its ports together.
const HOST_MAX: usize = 8;
/// Most of them of one owner.
const OWNER_MAX: usize = 16;

// Those that fail, or of one owner, leave most slots to the others; a query has room for all that wait.
const _: () = assert!(2 * FAILING_MAX <= DELIVERIES_MAX && 2 * OWNER_MAX <= DELIVERIES_MAX);
const _: () = assert!(HOST_MAX <= OWNER_MAX && OWNER_MAX < FAILING_MAX);
const _: () = assert!(DELIVERIES_MAX / HOST_MAX <= WEBHOOK_SKIPPED_MAX);

/// The slots of a gateway. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct DeliverySlots(Arc<Mutex<SlotsInUse>>);

#[derive(Debug, Default)]
struct SlotsInUse {
    all: usize,
    failing: usize,
    hosts: BTreeMap<String, usize>,
    owners: BTreeMap<String, usize>,
}

/// A slot in use. It is free again once this is dropped, also by a panic.
#[derive(Debug)]
pub(super) struct DeliverySlot {
    slots: DeliverySlots,
    is_failing: bool,
    host: String,
    owner: Option<String>,
}

/// Webhooks for which there is no slot now.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Skipped {
    pub failing: bool,
    pub hosts: Vec<String>,
    pub owners: Vec<String>,
}

impl DeliverySlots {
    fn lock(&self) -> MutexGuard<'_, SlotsInUse> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is no slot for any delivery.
    pub(super) fn are_full(&self) -> bool {
        self.lock().all >= DELIVERIES_MAX
    }

    /// The webhooks that wait for a slot of their own kind.
    pub(super) fn skipped(&self) -> Skipped {
        let in_use = self.lock();
        let full = |kind: &BTreeMap<String, usize>, most| {
            kind.iter().filter(|(_, count)| **count >= most).map(|(name, _)| name.clone()).collect()
        };
        Skipped {
            failing: in_use.failing >= FAILING_MAX,
            hosts: full(&in_use.hosts, HOST_MAX),
            owners: full(&in_use.owners, OWNER_MAX),
        }
    }

    /// Acquires the slot of a delivery.
    pub(super) fn acquire(&self, delivery: &WebhookDelivery) -> DeliverySlot {
        let (host, owner) = (WebhookUrl::host_of(&delivery.host).to_owned(), delivery.owner.clone());
        let is_failing = delivery.failures > 0;
        let mut in_use = self.lock();
        in_use.all += 1;
        in_use.failing += usize::from(is_failing);
        *in_use.hosts.entry(host.clone()).or_default() += 1;
        if let Some(owner) = &owner {
            *in_use.owners.entry(owner.clone()).or_default() += 1;
        }
        DeliverySlot { slots: self.clone(), is_failing, host, owner }
    }
}

impl Drop for DeliverySlot {
    fn drop(&mut self) {
        let mut in_use = self.slots.lock();
        in_use.all = in_use.all.saturating_sub(1);
        in_use.failing = in_use.failing.saturating_sub(usize::from(self.is_failing));
        free(&mut in_use.hosts, &self.host);
        if let Some(owner) = &self.owner {
            free(&mut in_use.owners, owner);
        }
    }
}

fn free(kind: &mut BTreeMap<String, usize>, name: &str) {
    let Some(count) = kind.get_mut(name) else { return };
    *count = count.saturating_sub(1);
    if *count == 0 {
        kind.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use muster_contract::notify::SealedWebhook;
    use serde_json::json;

    use super::*;

    fn delivery(host: &str, owner: Option<&str>, failures: u64) -> WebhookDelivery {
        let notice = json!({
            "apiVersion": "muster/v1", "kind": "Notice", "name": "alarms", "number": 7, "event": "gone",
            "asOf": { "ledgerSeq": 9, "at": "2026-11-26T19:00:00Z" },
            "digest": "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        });
        WebhookDelivery {
            host: host.to_owned(),
            sealed: SealedWebhook { sealed: "a".to_owned(), key: "0".repeat(16) },
            owner: owner.map(str::to_owned),
            failures,
            notice: serde_json::from_value(notice).unwrap(),
        }
    }

    #[test]
    fn a_host_an_owner_and_failures_leave_slots_to_the_others() {
        let slots = DeliverySlots::default();
        let mut held: Vec<_> = (0..HOST_MAX)
            .map(|at| slots.acquire(&delivery(&format!("slow:{}", 8440 + at), None, 0)))
            .collect();
        let none = Vec::<String>::new();
        assert_eq!(slots.skipped(), Skipped { failing: false, hosts: vec!["slow".into()], owners: none });
        let of_anna = |at: usize| slots.acquire(&delivery(&format!("h{at}"), Some("anna"), 0));
        held.extend((0..OWNER_MAX).map(of_anna));
        assert_eq!(slots.skipped().owners, ["anna"]);
        let failing = |at: usize| slots.acquire(&delivery(&format!("f{at}"), None, 1));
        held.extend((0..FAILING_MAX).map(failing));
        assert!(slots.skipped().failing && !slots.are_full());
        held.pop();
        assert!(!slots.skipped().failing, "a slot that is dropped is free");
        held.clear();
        assert_eq!(slots.skipped(), Skipped { failing: false, hosts: vec![], owners: vec![] });
        let left = slots.lock().hosts.len();
        assert_eq!((left, slots.lock().owners.len()), (0, 0), "nothing is remembered");
        held.extend((0..DELIVERIES_MAX).map(|at| slots.acquire(&delivery(&format!("h{at}"), None, 0))));
        assert!(slots.are_full());
    }
}
