//! Writes checkpoints beside the planner's work: each step copies a few devices or the targets of one deployment, and a thread compresses
//! and stores the copies. The devices are those at the begin of the copy; a fact that changes one pushes its copy ahead.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use muster_contract::{DeploymentId, Timestamp};
use muster_service::error::chain;
use tokio::time::Instant;

use super::content::{Part, compress};
use super::{Checkpoints, LedgerMark};
use crate::evidence::Evidence;
use crate::rollouts::TrackedRollouts;
use crate::rollouts::stored::DeviceNumbers;

/// Devices that a step copies.
const DEVICES_AT_ONCE: usize = 200;
/// Time between two steps.
const STEP_PAUSE: Duration = Duration::from_millis(1);
/// Copies that wait for the writer. A step waits while there are more.
const PARTS_WAITING_MAX: usize = 8;

/// Writes checkpoints.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    checkpoints: Checkpoints,
    /// Creation time of the LEDGER that is read; `None` before it is known.
    ledger_created_at: Option<Timestamp>,
    /// Position of the last stored checkpoint.
    stored: u64,
    due: Instant,
    /// Devices that a step copies.
    at_once: usize,
    running: Option<Copying>,
}

/// A running copy.
#[derive(Debug)]
struct Copying {
    mark: LedgerMark,
    stage: Stage,
    /// The copy that the writer had no room for.
    waiting: Option<Part>,
    out: SyncSender<Part>,
    /// Returns whether it has stored the copy: one that is given up is not stored.
    writer: JoinHandle<io::Result<bool>>,
}

/// The next thing to copy.
#[derive(Debug)]
enum Stage {
    Records,
    Deployments(DeviceNumbers, VecDeque<DeploymentId>),
    Complete,
}

impl Checkpointer {
    /// A writer whose folder has a checkpoint up to this position.
    pub(crate) fn new(checkpoints: Checkpoints, stored: u64, now: Instant) -> Self {
        let (due, at_once) = (now + checkpoints.every, DEVICES_AT_ONCE);
        Self { checkpoints, ledger_created_at: None, stored, due, at_once, running: None }
    }

    /// The same writer, which copies so many devices at once.
    #[cfg(test)]
    pub(super) fn copying(self, at_once: usize) -> Self {
        Self { at_once, ..self }
    }

    /// Whether a copy is under way.
    #[cfg(test)]
    pub(super) const fn is_copying(&self) -> bool {
        self.running.is_some()
    }

    /// Notes the LEDGER that is read from now on. A running copy is given up. Blocks the thread until the copy has ended.
    pub(crate) fn opened(&mut self, ledger_created_at: Timestamp) {
        self.end();
        self.ledger_created_at = Some(ledger_created_at);
    }

    /// Gives up a running copy: the fold begins again. Blocks the thread until the copy has ended.
    pub(crate) fn restarted(&mut self) {
        self.end();
        (self.ledger_created_at, self.stored) = (None, 0);
    }

    /// The time of the next step.
    pub(crate) fn wakes_at(&self, now: Instant) -> Instant {
        if self.running.is_some() { now + STEP_PAUSE } else { self.due }
    }

    /// Takes a step, if one is due.
    pub(crate) fn step(&mut self, evidence: &mut Evidence, rollouts: &TrackedRollouts, now: Instant) {
        if self.running.is_none() && self.due <= now {
            self.due = now + self.checkpoints.every;
            self.begin(evidence);
        }
        let Some(copying) = &mut self.running else { return };
        if let Some(part) = copying.waiting.take().or_else(|| copying.next(self.at_once, evidence, rollouts))
        {
            match copying.out.try_send(part) {
                Ok(()) => {}
                Err(TrySendError::Full(part)) => copying.waiting = Some(part),
                // The writer has failed; its thread has the reason.
                Err(TrySendError::Disconnected(_)) => copying.stage = Stage::Complete,
            }
        }
        if copying.writer.is_finished() {
            self.end();
        }
    }

    /// Writes a last checkpoint, of everything that is folded. Blocks the thread.
    pub(crate) fn finish(mut self, evidence: &mut Evidence, rollouts: &TrackedRollouts) {
        self.end();
        self.begin(evidence);
        let Some(copying) = &mut self.running else { return };
        let at_once = self.at_once;
        while let Some(part) = copying.waiting.take().or_else(|| copying.next(at_once, evidence, rollouts)) {
            if copying.out.send(part).is_err() {
                break;
            }
        }
        self.end();
    }

    /// Begins a copy, unless nothing is new.
    fn begin(&mut self, evidence: &mut Evidence) {
        let Some(ledger_created_at) = self.ledger_created_at else { return };
        if evidence.ledger_seq() <= self.stored {
            return;
        }
        let (as_of, head) = evidence.start_copy();
        let mark = LedgerMark { ledger_created_at, position: as_of.ledger_seq, stored_at: as_of.at };
        let (out, parts) = sync_channel(PARTS_WAITING_MAX);
        let checkpoints = self.checkpoints.clone();
        let write = move || match compress(&parts)? {
            Some(content) => checkpoints.write(mark, &content).map(|()| true),
            None => Ok(false),
        };
        match thread::Builder::new().name("checkpoint".to_owned()).spawn(write) {
            Ok(writer) => {
                let waiting = Some(Part::Head(Box::new(head)));
                self.running = Some(Copying { mark, stage: Stage::Records, waiting, out, writer });
            }
            Err(error) => tracing::error!(%error, "cannot start a thread for the checkpoint"),
        }
    }

    /// Waits for the thread of the copy, and logs its result. A copy that is not complete is given up. Two threads never write at once:
    /// both would use the same name for an unfinished file.
    fn end(&mut self) {
        let Some(Copying { mark, out, writer, .. }) = self.running.take() else { return };
        drop(out);
        match writer.join() {
            Ok(Ok(false)) => {}
            Ok(Ok(true)) => {
                self.stored = mark.position;
                tracing::info!(ledger.seq = mark.position, "stored a checkpoint");
            }
            Ok(Err(error)) => {
                let error = chain(&error);
                tracing::error!(error, "cannot write the checkpoint; a restart would read more of LEDGER");
            }
            Err(_) => tracing::error!("lost the thread of the checkpoint"),
        }
    }
}

impl Copying {
    /// The next part; `None` once everything is copied.
    fn next(&mut self, at_once: usize, evidence: &mut Evidence, rollouts: &TrackedRollouts) -> Option<Part> {
        match &mut self.stage {
            Stage::Records => {
                let records = evidence.copy(at_once);
                if !records.is_empty() {
                    return Some(Part::Records(records));
                }
                let devices = rollouts.devices();
                let numbers = (0..).zip(&devices).map(|(number, device)| (device.key.clone(), number));
                self.stage = Stage::Deployments(numbers.collect(), rollouts.deployments().into());
                Some(Part::Devices(devices))
            }
            Stage::Deployments(numbers, ids) => {
                while let Some(id) = ids.pop_front() {
                    let ledger_time = evidence.ledger_time(Instant::now());
                    if let Some(stored) = rollouts.stored(&id, numbers, ledger_time) {
                        return Some(Part::Deployment(stored));
                    }
                }
                self.stage = Stage::Complete;
                Some(Part::End)
            }
            Stage::Complete => None,
        }
    }
}
