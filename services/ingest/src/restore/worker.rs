//! Applies facts to the intakes of some partitions on a thread of its own, because one core parses facts more slowly than LEDGER
//! sends them. It reads nothing from LEDGER itself.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::Arc;

use muster_bus::Delivery;
use muster_domain::intake::IntakeState;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

use super::{partition, read_fact};

/// Most threads of a start: the server needs a core as well.
const WORKERS_MAX: usize = 4;
/// Batches that wait for a thread.
const BATCHES_WAITING: usize = 4;

/// A thread with the intakes of some partitions.
pub(super) struct RestoreWorker {
    batches: mpsc::Sender<Arc<[Delivery]>>,
    thread: JoinHandle<BTreeMap<u16, IntakeState>>,
}

impl RestoreWorker {
    /// A thread for each core, each with a share of the intakes.
    pub(super) fn spawn_all(intakes: BTreeMap<u16, IntakeState>) -> Vec<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut shares: Vec<BTreeMap<u16, IntakeState>> = Vec::new();
        shares.resize_with(cores.min(WORKERS_MAX), BTreeMap::new);
        let places = (0..shares.len()).cycle();
        places.zip(intakes).for_each(|(place, (number, intake))| _ = shares[place].insert(number, intake));
        shares.into_iter().map(Self::spawn).collect()
    }

    fn spawn(mut intakes: BTreeMap<u16, IntakeState>) -> Self {
        let (sender, mut batches) = mpsc::channel::<Arc<[Delivery]>>(BATCHES_WAITING);
        let thread = spawn_blocking(move || {
            while let Some(batch) = batches.blocking_recv() {
                batch.iter().for_each(|delivery| apply(&mut intakes, delivery));
            }
            intakes
        });
        Self { batches: sender, thread }
    }

    /// Hands over a batch, once there is room.
    pub(super) async fn send(&self, batch: Arc<[Delivery]>) {
        // Fails only if the thread has panicked, and `finish` resumes the panic.
        let _ = self.batches.send(batch).await;
    }

    /// Waits until everything is applied, and returns the intakes.
    pub(super) async fn finish(self) -> BTreeMap<u16, IntakeState> {
        drop(self.batches);
        match self.thread.await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(intakes) => intakes,
            Err(Ok(panic)) => resume_unwind(panic),
            // The runtime ends, and this process with it.
            Err(Err(_)) => BTreeMap::new(),
        }
    }
}

fn apply(intakes: &mut BTreeMap<u16, IntakeState>, delivery: &Delivery) {
    let Some((subject, fact)) = read_fact(delivery, |partition| intakes.contains_key(&partition)) else {
        return;
    };
    let at = delivery.stored_at;
    match partition(&subject) {
        Some(partition) => {
            intakes.get_mut(&partition).into_iter().for_each(|intake| intake.restore(&subject, &fact, at));
        }
        // It is about a sender without a valid name: every partition must recognise the same message.
        None => intakes.values_mut().for_each(|intake| intake.restore(&subject, &fact, at)),
    }
}
