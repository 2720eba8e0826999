//! Finds the document of a superseded generation in LEDGER.
//!
//! The fold knows only the newest document, so those of the device are read from the oldest on, for one device
//! and one answer; nothing of it is cached.

use std::future::Future;

use muster_bus::{Bus, Delivery, Start};
use muster_contract::desired::DesiredState;
use muster_contract::subjects::{desired, stream::LEDGER};
use muster_contract::{DeviceKey, Generation};
use muster_service::blocking::block_in_place_if_large;
use tokio::time::{Instant, timeout_at};

use super::{ManifestRequest, Version};
use crate::history::tail::BATCH_MAX;

/// Sets the sequence of each request, as far as `place` finds it until the deadline. A question about a
/// generation names one device, so there is one document to find.
pub(super) async fn find<F: Future<Output = Option<u64>>>(
    wanted: &mut [Option<ManifestRequest>],
    deadline: Instant,
    place: impl FnOnce(DeviceKey, Generation) -> F,
) {
    let without = wanted.iter().flatten().find_map(|wanted| match wanted.version {
        Version::Document(generation) => Some((wanted.key.clone(), generation)),
        Version::Target(_) => None,
    });
    let Some((key, generation)) = without else { return };
    let found = timeout_at(deadline, place(key.clone(), generation)).await.ok().flatten();
    let same =
        |wanted: &&mut ManifestRequest| wanted.key == key && wanted.version == Version::Document(generation);
    wanted.iter_mut().flatten().filter(same).for_each(|wanted| wanted.ledger_seq = found);
}

/// Finds the sequence of a device's document with a generation; none where LEDGER no longer holds it.
pub(super) async fn of(bus: &Bus, key: DeviceKey, generation: Generation) -> Option<u64> {
    let mut replay = bus.replay(LEDGER, &[&desired(&key)], Start::First).await.ok()?;
    while let Some(batch) = replay.next_present(BATCH_MAX).await.ok()? {
        let reached = block_in_place_if_large(batch.len(), || {
            batch.iter().find_map(|message| reached(message, generation))
        });
        if let Some((held, ledger_seq)) = reached {
            return (held == generation).then_some(ledger_seq);
        }
    }
    None
}

/// The generation and sequence of a document that is not older. Both rise, so no earlier document follows a
/// later one.
fn reached(message: &Delivery, generation: Generation) -> Option<(Generation, u64)> {
    let state: DesiredState = serde_json::from_slice(&message.payload).ok()?;
    (state.generation >= generation).then_some((state.generation, message.stream_seq))
}
