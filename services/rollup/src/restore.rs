//! Restores a fleet from the records of a file: one thread reads, some decode, one applies. Decoding dominates,
//! so the duration depends on the number of processors.
//!
//! The caller supplies the reader and the decoder.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use muster_contract::view::AsOf;
use muster_domain::fold::{DeviceRecord, Fleet, HearingState};

/// Threads that decode at most.
const DECODERS_MAX: usize = 4;
/// Parts that wait before each thread: enough that none is idle, and few enough that memory stays small.
const PARTS_WAITING_MAX: usize = 4;

/// The fleet of all parts as of a position, with the hearing state there. The first failure of reading,
/// decoding or applying ends the restore; `lost` is the error for a lost thread.
pub(crate) fn fleet<P: Send, E: Send>(
    as_of: AsOf,
    hearing: HearingState,
    parts: impl Iterator<Item = Result<P, E>>,
    decode: impl Fn(P) -> Result<Vec<DeviceRecord>, E> + Sync,
    lost: E,
) -> Result<Fleet, E> {
    let decoders = thread::available_parallelism().map_or(1, usize::from).min(DECODERS_MAX);
    let decode = &decode;
    thread::scope(|scope| {
        type Decoded<E> = Result<Vec<DeviceRecord>, E>;
        let (decoded_in, decoded): (SyncSender<Decoded<E>>, Receiver<Decoded<E>>) =
            sync_channel(PARTS_WAITING_MAX);
        let mut inlets = Vec::new();
        for _ in 0..decoders {
            let (inlet, waiting) = sync_channel::<P>(PARTS_WAITING_MAX);
            let decoded_in = decoded_in.clone();
            scope.spawn(move || {
                waiting.iter().map(decode).map_while(|part| decoded_in.send(part).ok()).for_each(drop);
            });
            inlets.push(inlet);
        }
        drop(decoded_in);
        let taken_in = scope.spawn(move || apply_parts(as_of, hearing, &decoded));
        let read = distribute(parts, &inlets);
        drop(inlets);
        let fleet = taken_in.join().unwrap_or(Err(lost));
        read.and(fleet)
    })
}

/// Gives each decoder its turn. If no thread accepts parts any more, the applying thread has the reason.
fn distribute<P, E>(parts: impl Iterator<Item = Result<P, E>>, inlets: &[SyncSender<P>]) -> Result<(), E> {
    for (at, part) in parts.enumerate() {
        if inlets[at % inlets.len()].send(part?).is_err() {
            break;
        }
    }
    Ok(())
}

fn apply_parts<E>(
    as_of: AsOf,
    hearing: HearingState,
    decoded: &Receiver<Result<Vec<DeviceRecord>, E>>,
) -> Result<Fleet, E> {
    let mut failure = None;
    let parts = decoded.iter().map_while(|part| part.map_err(|error| failure = Some(error)).ok());
    let fleet = Fleet::restore(as_of, hearing, parts.flatten());
    failure.map_or(Ok(fleet), Err)
}
