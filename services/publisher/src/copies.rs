//! What of the desired states is in LEDGER, which takes them from DOWNLINK by itself, a moment after they are published: the
//! newest copy of each device, then each as it comes. Views speak of a document from its copy on. What follows from that for
//! a commit is the announcer's to say.

use std::time::Duration;

use fastrand::Rng;
use muster_bus::{Bus, Delivery, ReadError, Start};
use muster_contract::desired::DesiredState;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_contract::{DeviceKey, Generation, decode};
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use tokio_util::sync::CancellationToken;

use crate::announce::Desk;
use crate::held::claimed;

/// Copies taken at once.
const BATCH: usize = 1000;
/// Those of every device.
const EVERYBODY: &str = "muster.desired.>";
/// Least and longest upper bound of the delay before another attempt to read.
const RETRY_MIN: Duration = Duration::from_millis(200);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(30);

const _: () = assert!(RETRY_MIN.as_millis() < RETRY_MAX.as_millis());

/// A document that LEDGER holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// Whose.
    pub key: DeviceKey,
    /// Which: a device is never given a generation twice.
    pub generation: Generation,
    /// Where LEDGER holds it.
    pub ledger_seq: u64,
}

/// Tells `desk` of copies until `stop`.
pub async fn run(bus: Bus, desk: Desk, chance: Rng, stop: CancellationToken) {
    stop.run_until_cancelled(follow(bus, desk, chance)).await;
}

async fn follow(bus: Bus, desk: Desk, mut chance: Rng) {
    let mut retry = FullJitter::new(RETRY_MIN, RETRY_MAX);
    loop {
        let Err(error) = listen(&bus, &desk, &mut retry).await else { return };
        let retry_in = retry.next(&mut chance);
        tracing::warn!(error = chain(&error), ?retry_in, "cannot read which desired states LEDGER holds");
        tokio::time::sleep(retry_in).await;
    }
}

/// Ends well only when nobody wants to know any more. Whatever it fails with, positions of before may mean something else.
async fn listen(bus: &Bus, desk: &Desk, retry: &mut FullJitter) -> Result<(), ReadError> {
    let mut replay = bus.replay(stream::LEDGER, &[EVERYBODY], Start::LastPerSubject).await?;
    let mut is_wanted = desk.ledger_anew().await;
    while is_wanted {
        let deliveries = replay.next_batch(BATCH).await?;
        retry.reset();
        is_wanted = desk.in_ledger(deliveries.iter().filter_map(copy).collect()).await;
    }
    Ok(())
}

/// None for what is no desired state of a device: nobody counts it.
fn copy(delivery: &Delivery) -> Option<Copy> {
    let Some(LedgerSubject::Desired(key)) = LedgerSubject::parse(&delivery.subject) else { return None };
    let read = || decode::parse::<DesiredState>(&delivery.payload).ok().map(|state| state.generation);
    let generation = claimed(&delivery.payload).or_else(read)?;
    Some(Copy { key, generation, ledger_seq: delivery.stream_seq })
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
        let wanted = Copy { key, generation: Generation::new(3).unwrap(), ledger_seq: 7 };
        assert_eq!(copied("muster.desired.a.one", r#"{"generation":3}"#), Some(wanted));
        assert_eq!(copied("muster.desired.a.one", "garbage"), None);
        assert_eq!(copied("muster.desired.a.one", r#"{"generation":18446744073709551615}"#), None);
        assert_eq!(copied("muster.desired.a", r#"{"generation":3}"#), None);
    }
}
