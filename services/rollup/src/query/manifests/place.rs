//! Where LEDGER holds the document of a generation that is superseded. The fold knows the newest one alone, so those of the
//! device are read from the oldest on, which is for one device and in one answer; nothing is held of it.

use std::future::Future;

use muster_bus::{Bus, Delivery, Start};
use muster_contract::desired::DesiredState;
use muster_contract::subjects::{desired, stream::LEDGER};
use muster_contract::{DeviceKey, Generation};
use muster_service::aside::aside;
use tokio::time::{Instant, timeout_at};

use super::{Version, Wanted};
use crate::history::tail::BATCH_MAX;

/// Says of what is wanted where it is, as far as `place` finds it until the deadline. A question about a generation names one
/// device, so there is one place to find.
pub(super) async fn find<F: Future<Output = Option<u64>>>(
    wanted: &mut [Option<Wanted>],
    deadline: Instant,
    place: impl FnOnce(DeviceKey, Generation) -> F,
) {
    let without = wanted.iter().flatten().find_map(|wanted| match wanted.version {
        Version::Document(generation) => Some((wanted.key.clone(), generation)),
        Version::Target(_) => None,
    });
    let Some((key, generation)) = without else { return };
    let found = timeout_at(deadline, place(key.clone(), generation)).await.ok().flatten();
    let same = |wanted: &&mut Wanted| wanted.key == key && wanted.version == Version::Document(generation);
    wanted.iter_mut().flatten().filter(same).for_each(|wanted| wanted.ledger_seq = found);
}

/// Where the document of a device with a generation is; none where LEDGER does not hold it any more.
pub(super) async fn of(bus: &Bus, key: DeviceKey, generation: Generation) -> Option<u64> {
    let mut replay = bus.replay(LEDGER, &[&desired(&key)], Start::First).await.ok()?;
    while let Some(batch) = replay.next_present(BATCH_MAX).await.ok()? {
        let reached = aside(batch.len(), || batch.iter().find_map(|message| reached(message, generation)));
        if let Some((held, ledger_seq)) = reached {
            return (held == generation).then_some(ledger_seq);
        }
    }
    None
}

/// The generation and the place of a document that is not older. They rise, so behind a later one there is none before it.
fn reached(message: &Delivery, generation: Generation) -> Option<(Generation, u64)> {
    let state: DesiredState = serde_json::from_slice(&message.payload).ok()?;
    (state.generation >= generation).then_some((state.generation, message.stream_seq))
}
