//! Links: between each device and the hub, both ways, in order, as long as a connection lasts. What a broken connection
//! held is gone, or comes late.

use std::rc::Rc;

use muster_contract::decode;
use muster_contract::receipt::Receipt;
use muster_contract::subjects::LedgerSubject;

use super::agenda::SECOND;
use super::device::{Downward, Upward};
use super::hub::{Answer, Stored};
use super::law::Lawful;
use super::world::{Event, World};

impl World {
    /// Something sets out for the hub, if there is a link.
    pub(crate) fn up(&mut self, device: usize, what: Upward) {
        let (now, delay) = (self.agenda.now(), self.chance.i64(1..=self.profile.latency));
        let device_is = &mut self.devices[device];
        if let Some(connection) = device_is.connection {
            device_is.arrivals.0 = device_is.arrivals.0.max(now + delay);
            self.agenda.at(device_is.arrivals.0, Event::Up(device, connection, what));
        }
    }

    /// Something sets out for a device, if there is a link.
    pub(crate) fn down(&mut self, device: usize, what: Downward) {
        let (now, delay) = (self.agenda.now(), self.chance.i64(1..=self.profile.latency));
        let device_is = &mut self.devices[device];
        if let Some(connection) = device_is.connection {
            device_is.arrivals.1 = device_is.arrivals.1.max(now + delay);
            self.agenda.at(device_is.arrivals.1, Event::Down(device, connection, what));
        }
    }

    pub(crate) fn arrives_at_hub(&mut self, device: usize, connection: u64, what: Upward) {
        let now = self.agenda.now();
        let over = self.devices[device].connection;
        if over != Some(connection) {
            // A message of a broken connection may be sent over the next one, late; nobody waits for the answer.
            let is_kept = match &mut self.planned_agent_end {
                Some(planned_end) => planned_end.delivers_next(),
                None => self.chance.u8(0..3) == 0,
            };
            if !is_kept || matches!(what, Upward::Look) {
                return;
            }
            if over.is_none() && self.planned_agent_end.is_none() {
                let later = self.chance.i64(SECOND..20 * SECOND);
                return self.agenda.after(later, Event::Up(device, connection, what));
            }
        }
        match what {
            Upward::Look => self.look_up(device),
            Upward::Beat(bytes) => {
                let peek = decode::peek(&bytes);
                self.hub.beat(now, device, bytes);
                peek.epoch.into_iter().for_each(|epoch| self.law.heard(device, epoch));
                self.devices[device].heard_at = Some(now);
                self.devices[device].beat_at = Some(now);
                self.expect_heartbeats(self.hub.partition(device));
            }
            Upward::Report { bytes, numbers, reports, answer_to } => {
                let before = self.hub.uplink_last();
                let epochs: Vec<_> = numbers.iter().map(|(epoch, _)| *epoch).collect();
                let at = self.hub.time(now);
                let stored = Stored { device, bytes, numbers, reports, at, invented: false };
                let answer = self.hub.report(now, stored);
                if let (Some((sent_as, _)), Answer::Stored(_)) = (&answer_to, answer) {
                    sent_as.iter().for_each(|number| self.law.uplinked(device, *number));
                }
                if self.hub.uplink_last() > before {
                    self.devices[device].heard_at = Some(now);
                    epochs.into_iter().for_each(|epoch| self.law.heard(device, epoch));
                    self.expect_reports(self.hub.partition(device));
                }
                if over == Some(connection) {
                    answer_to.into_iter().for_each(|(_, to)| self.down(device, Downward::Answer(to, answer)));
                }
            }
        }
    }

    fn look_up(&mut self, device: usize) {
        if let Some(receipt) = self.hub.receipts[device].clone() {
            self.down(device, Downward::Receipt(receipt));
        }
        if let Some((desired, _)) = self.hub.desired[device].last().cloned() {
            self.down(device, Downward::StoredDesired(desired));
        }
        let receipt = self.hub.receipts[device].as_ref();
        let epoch = receipt.map(|bytes| decode::parse::<Receipt>(bytes).unwrap().epoch.get());
        self.down(device, Downward::Looked(epoch));
    }

    /// A receipt is published: a connected device may get it at once.
    pub(crate) fn push_receipt(&mut self, device: usize) {
        let heard = self.chance.u8(0..10) > 0;
        if let Some(receipt) = self.hub.receipts[device].clone().filter(|_| heard) {
            self.down(device, Downward::Receipt(receipt));
        }
    }

    /// LEDGER takes over a desired state from DOWNLINK.
    pub(crate) fn source(&mut self, device: usize, bytes: Rc<[u8]>) -> Lawful {
        let subject = LedgerSubject::Desired(self.devices[device].key.clone());
        match self.hub.fact(self.agenda.now(), subject, &bytes, None) {
            Answer::Refused | Answer::ShareFull => self.agenda.after(SECOND, Event::Source(device, bytes)),
            Answer::Stored(_) => self.stored_in_ledger()?,
        }
        Ok(())
    }
}
