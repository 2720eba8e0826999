//! What of the desired states is in LEDGER, which takes them from DOWNLINK by itself, a moment after they are published: the
//! newest copy of each device, then each as it comes. Views speak of a document from its copy on. What follows from that for
//! a commit is the announcer's to say.

use muster_bus::Delivery;
use muster_contract::desired::DesiredState;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_contract::{DeviceKey, Generation, decode};

use crate::announce::Desk;
use crate::held::claimed;
use crate::listening::Listener;

/// A document that LEDGER holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerCopy {
    /// Whose.
    pub key: DeviceKey,
    /// Which: a device is never given a generation twice.
    pub generation: Generation,
    /// Where LEDGER holds it.
    pub ledger_seq: u64,
}

/// Tells a desk of copies.
pub(crate) struct Copies(pub(crate) Desk);

impl Listener for Copies {
    const STREAM: &str = stream::LEDGER;
    const SUBJECTS: &str = "muster.desired.>";
    const WHAT: &str = "which desired states LEDGER holds";

    async fn begin(&self) -> bool {
        self.0.ledger_anew().await
    }

    async fn hear(&self, deliveries: &[Delivery]) -> bool {
        self.0.in_ledger(deliveries.iter().filter_map(copy).collect()).await
    }
}

/// None for what is no desired state of a device: nobody counts it.
fn copy(delivery: &Delivery) -> Option<LedgerCopy> {
    let Some(LedgerSubject::Desired(key)) = LedgerSubject::parse(&delivery.subject) else { return None };
    let read = || decode::parse::<DesiredState>(&delivery.payload).ok().map(|state| state.generation);
    let generation = claimed(&delivery.payload).or_else(read)?;
    Some(LedgerCopy { key, generation, ledger_seq: delivery.stream_seq })
}

#[cfg(test)]
mod tests {
    use muster_contract::Timestamp;

    use super::*;

    #[test]
    fn a_copy_is_a_generation_of_a_device_and_garbage_is_none() {
        let copied = |subject: &str, payload: &'static str| {
            copy(&Delivery::new(subject, payload, 7, Timestamp::UNIX_EPOCH))
        };
        let key = "a/one".parse().unwrap();
        let wanted = LedgerCopy { key, generation: Generation::new(3).unwrap(), ledger_seq: 7 };
        assert_eq!(copied("muster.desired.a.one", r#"{"generation":3}"#), Some(wanted));
        assert_eq!(copied("muster.desired.a.one", "garbage"), None);
        assert_eq!(copied("muster.desired.a.one", r#"{"generation":18446744073709551615}"#), None);
        assert_eq!(copied("muster.desired.a", r#"{"generation":3}"#), None);
    }
}
