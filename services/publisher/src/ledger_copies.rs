//! Reads which desired states LEDGER has copied: the newest copy of each device, then each later one. LEDGER sources them
//! from DOWNLINK a moment after they are published, and views count a document from its copy on. The announcer decides what
//! follows for a commit.

use muster_bus::Delivery;
use muster_contract::decode;
use muster_contract::desired::DesiredState;
use muster_contract::subjects::{LedgerSubject, stream};

use crate::announce::AnnouncerHandle;
use crate::device_table::LedgerCopy;
use crate::published::claimed_generation;
use crate::stream_listener::StreamListener;

/// Passes copies to the announcer.
pub(crate) struct LedgerCopies(pub(crate) AnnouncerHandle);

impl StreamListener for LedgerCopies {
    const STREAM: &str = stream::LEDGER;
    const SUBJECTS: &str = "muster.desired.>";
    const WHAT: &str = "which desired states LEDGER holds";

    async fn on_start(&self) -> bool {
        self.0.ledger_restarted().await
    }

    async fn on_messages(&self, deliveries: &[Delivery]) -> bool {
        self.0.in_ledger(deliveries.iter().filter_map(copy).collect()).await
    }
}

/// The copy in a message; `None` if it is no desired state of a device.
fn copy(delivery: &Delivery) -> Option<LedgerCopy> {
    let Some(LedgerSubject::Desired(key)) = LedgerSubject::parse(&delivery.subject) else { return None };
    let read = || decode::parse::<DesiredState>(&delivery.payload).ok().map(|state| state.generation);
    let generation = claimed_generation(&delivery.payload).or_else(read)?;
    Some(LedgerCopy { key, generation, ledger_seq: delivery.stream_seq })
}

#[cfg(test)]
mod tests {
    use muster_contract::{Generation, Timestamp};

    use super::*;

    #[test]
    fn only_a_desired_state_of_a_device_is_a_copy() {
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
