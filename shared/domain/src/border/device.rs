//! One device as the border holds it: what LEDGER has confirmed, what is on its way there, and what was heard live.

use std::time::Duration;

use muster_contract::desired::{DesiredDeployment, DesiredState};
use muster_contract::limits::EPOCH_BELIEVED_MAX;
use muster_contract::presence::Heartbeat;
use muster_contract::{DeviceKey, Epoch, Generation, Timestamp};

use super::change::Change;
use super::memory::Memory;
use super::quota::SentDeployments;
use super::sums::Sums;
use crate::deadline::Target;
use crate::lease::elapsed;

/// One device.
#[derive(Debug, Clone, Default)]
pub(super) struct Device {
    /// None for the place that stands for all senders without a valid name.
    pub(super) key: Option<DeviceKey>,
    /// What LEDGER holds.
    confirmed: Memory,
    /// `confirmed` with everything on its way; only while something is.
    ahead: Option<Box<Memory>>,
    in_flight: usize,
    pub(super) heard: Heard,
    pub(super) desired: Desired,
    /// The deployments of its desired documents of the last weeks.
    pub(super) sent: SentDeployments,
    pub(super) lack: Option<Lack>,
    pub(super) receipts: Receipts,
    /// A liveness fact of unknown fate may yet arrive: the next word must come after it.
    pub(super) retell: bool,
    /// Messages that come faster than each may have a fact of its own.
    pub(super) sums: Option<Box<Sums>>,
}

/// What was heard of a device in this process's life. All times are the hub's.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Heard {
    pub(super) last_at: Option<Timestamp>,
    /// The newest word of how far its numbers go, and when that was.
    pub(super) head: Option<(Epoch, u64)>,
    pub(super) head_at: Option<Timestamp>,
    /// When the epoch in `head` was first heard of.
    pub(super) epoch_at: Option<Timestamp>,
    /// By its newest heartbeat, reports that no acknowledgement covers.
    pub(super) unsent: u64,
    /// The newest heartbeat of the epoch in `head`.
    pub(super) beat: Option<Beat>,
    beat_at: Option<Timestamp>,
}

/// What only a heartbeat says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Beat {
    /// The device's epoch.
    pub(super) epoch: Epoch,
    /// When it was stored.
    pub(super) at: Timestamp,
    /// The device keeps what it would report.
    pub(super) storing: bool,
}

/// What the device shall run, as far as the border asks.
#[derive(Debug, Clone, Default)]
pub(super) struct Desired {
    pub(super) generation: Option<Generation>,
    pub(super) retired_at: Option<Timestamp>,
    pub(super) targets: Vec<Target>,
}

/// Numbers that were missing at two looks in a row or more.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lack {
    /// Since when something is missing.
    pub(super) since: Timestamp,
    /// How many numbers.
    pub(super) count: u64,
    /// Since when it is that many: a replay under way changes the count at every look.
    pub(super) unchanged_since: Timestamp,
}

/// Receipts owed to a device.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Receipts {
    /// When the next one may be sent, if one is owed.
    pub(super) due_at: Option<Timestamp>,
    pub(super) sent_at: Option<Timestamp>,
    /// The next one asks for everything up to here.
    pub(super) ask: u64,
    /// So many were handed out of which it is not known whether the bus has them: a slow answer may come after the next one
    /// was handed out.
    pub(super) under_way: u32,
}

impl Device {
    pub(super) fn of(key: DeviceKey) -> Self {
        Self { key: Some(key), ..Self::default() }
    }

    /// A device of which LEDGER has said this.
    pub(super) fn restored(key: Option<DeviceKey>, confirmed: Memory) -> Self {
        Self { key, confirmed, ..Self::default() }
    }

    /// What LEDGER holds.
    pub(super) const fn confirmed(&self) -> &Memory {
        &self.confirmed
    }

    /// What LEDGER will hold when everything on its way is stored: what decisions rest on.
    pub(super) fn latest(&self) -> &Memory {
        self.ahead.as_deref().unwrap_or(&self.confirmed)
    }

    /// Whether an epoch can be one of this device. If any were believed, whoever sends the highest there is under this
    /// device's name would leave it none for ever.
    pub(super) fn believes(&self, epoch: Epoch) -> bool {
        epoch.get() <= EPOCH_BELIEVED_MAX
            || self.latest().cursor.epoch().is_some_and(|known| epoch <= known.next())
    }

    /// A change sets out for LEDGER.
    pub(super) fn send(&mut self, change: &Change) {
        self.ahead.get_or_insert_with(|| Box::new(self.confirmed.clone())).apply(change);
        self.in_flight += 1;
    }

    /// The oldest change on its way has arrived.
    pub(super) fn arrived(&mut self, change: &Change) {
        self.in_flight = self.in_flight.saturating_sub(1);
        match self.ahead.take() {
            // Nothing else is on its way: what was ahead is what is.
            Some(ahead) if self.in_flight == 0 => self.confirmed = *ahead,
            ahead => {
                self.confirmed.apply(change);
                self.ahead = ahead;
            }
        }
    }

    /// The oldest change on its way will never arrive; these are still on theirs.
    pub(super) fn lost<'a>(&mut self, left: impl Iterator<Item = &'a Change>) {
        self.rewind();
        left.for_each(|change| self.send(change));
    }

    /// The fate of everything on its way is unknown.
    pub(super) fn rewind(&mut self) {
        self.ahead = None;
        self.in_flight = 0;
    }

    /// A change that LEDGER holds, read there.
    pub(super) fn restore(&mut self, change: &Change) {
        self.confirmed.apply(change);
    }

    /// What no fact says and so is changed on both sides.
    pub(super) fn amend(&mut self, change: impl Fn(&mut Memory)) {
        change(&mut self.confirmed);
        self.ahead.iter_mut().for_each(|ahead| change(ahead));
    }

    /// How far the device's numbers go in the current epoch, by LEDGER and by what was heard.
    pub(super) fn head(&self) -> u64 {
        let cursor = &self.confirmed.cursor;
        match self.heard.head {
            Some((epoch, head)) if cursor.epoch() == Some(epoch) => head.max(cursor.head()),
            _ => cursor.head(),
        }
    }

    /// The highest number that is held, as far as good documents have spoken.
    pub(super) fn top(&self) -> u64 {
        self.confirmed.cursor.top(self.head())
    }

    /// A document was sent to the device at a moment. A target that it was sent before is as old as it was then.
    pub(super) fn learn_document(&mut self, state: &DesiredState, stored_at: Timestamp) {
        self.sent.record_document(state, stored_at);
        for target in &mut self.desired.targets {
            let set_at = self.sent.target_set_at(&target.deployment, target.generation);
            target.set_at = set_at.map_or(target.set_at, |at| at.min(target.set_at));
        }
    }

    /// Takes in a desired state; false where it is not newer than the one held.
    pub(super) fn desire(
        &mut self,
        state: &DesiredState,
        stored_at: Timestamp,
        default_limit: Duration,
    ) -> bool {
        self.learn_document(state, stored_at);
        if self.desired.generation >= Some(state.generation) {
            return false;
        }
        let target = |entry: &DesiredDeployment| {
            let set_at = self.sent.target_set_at(&entry.id, entry.target_generation);
            Target::of(entry, set_at.unwrap_or(stored_at), default_limit)
        };
        self.desired = Desired {
            generation: Some(state.generation),
            retired_at: state.retired.then_some(stored_at),
            targets: state.deployments.iter().map(target).collect(),
        };
        let targets = std::mem::take(&mut self.desired.targets);
        self.amend(|memory| memory.keep_overdue(|id| targets.iter().any(|target| target.deployment == *id)));
        self.desired.targets = targets;
        true
    }

    /// The hub's clock says that nothing of what was heard or sent can be later than this.
    pub(super) fn not_after(&mut self, now: Timestamp) {
        let Heard { last_at, head_at, epoch_at, beat_at, beat, .. } = &mut self.heard;
        beat.iter_mut().for_each(|beat| beat.at = beat.at.min(now));
        let receipts = [&mut self.receipts.due_at, &mut self.receipts.sent_at];
        for at in [last_at, head_at, epoch_at, beat_at].into_iter().chain(receipts).flatten() {
            *at = (*at).min(now);
        }
    }

    /// Compares what is held with what the device has spoken of.
    pub(super) fn look_for_lack(&mut self, now: Timestamp) {
        let head = self.head();
        if self.confirmed.cursor.is_complete(head) {
            self.lack = None;
            return;
        }
        let count = self.confirmed.cursor.missing(head).count();
        self.lack = Some(match self.lack {
            Some(lack) if lack.count == count => lack,
            Some(lack) => Lack { count, unchanged_since: now, ..lack },
            None => Lack { since: now, count, unchanged_since: now },
        });
    }
}

impl Heard {
    /// Something of the device was stored at this moment.
    pub(super) fn hear(&mut self, at: Timestamp) {
        self.last_at = self.last_at.max(Some(at));
    }

    /// A document stored at this moment says how far the device's numbers go.
    pub(super) fn spoke(&mut self, epoch: Epoch, head: u64, at: Timestamp) {
        if self.head.is_none_or(|(known, _)| known < epoch) {
            self.epoch_at = Some(at);
        }
        if self.head.is_none_or(|known| known <= (epoch, head)) {
            self.head = Some((epoch, head));
            self.head_at = Some(at);
        }
    }

    /// Takes in a heartbeat; false where a newer one is in.
    pub(super) fn beat(&mut self, beat: &Heartbeat, at: Timestamp) -> bool {
        if self.beat_at > Some(at) {
            return false;
        }
        self.beat_at = Some(at);
        self.unsent = beat.unsent;
        self.spoke(beat.epoch, beat.head, at);
        if self.head.is_some_and(|(epoch, _)| epoch == beat.epoch) {
            self.beat = Some(Beat { epoch: beat.epoch, at, storing: beat.storing });
        }
        true
    }

    /// The newest heartbeat of an epoch.
    pub(super) fn beat_of(&self, epoch: Epoch) -> Option<Beat> {
        self.beat.filter(|beat| beat.epoch == epoch)
    }

    /// A moment at which the device had not yet given this number, if there is one.
    pub(super) fn not_before(&self, epoch: Epoch, seq: u64) -> Option<Timestamp> {
        self.head.filter(|(known, head)| *known == epoch && *head < seq).and(self.head_at)
    }
}

impl Lack {
    /// Something has been missing for at least so long.
    pub(super) fn lasts(&self, now: Timestamp, span: Duration) -> bool {
        elapsed(self.since, now) >= span
    }

    /// Nothing has come of what is missing for at least so long.
    pub(super) fn rests(&self, now: Timestamp, span: Duration) -> bool {
        elapsed(self.unchanged_since, now) >= span
    }
}
