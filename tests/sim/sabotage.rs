//! Effects of sabotage that need more than another turn where it happens.

use super::rows::now;
use super::world::World;

/// A device takes the bus's word for the hub's: these rows are forgotten.
pub(crate) fn forget(world: &mut World, device: usize, seqs: &[u64]) {
    let disk = world.devices[device].disk.clone();
    let numbers: Vec<u64> = seqs.to_vec();
    let forgotten = now(disk.run(move |connection| {
        let mut delete = connection.prepare_cached("DELETE FROM outbox WHERE seq = ?1")?;
        numbers.iter().try_for_each(|seq| delete.execute([seq]).map(drop))
    }));
    forgotten.unwrap();
    // Work that fails: a holder of cached rows of these tables reads them again.
    let failed = now(disk.run(|connection| connection.execute("no statement", []).map(drop)));
    failed.unwrap_err();
    let kept = world.check_kept(device);
    world.hold(kept);
}
