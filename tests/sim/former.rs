//! An owner that stands still until another process has taken its partition, and goes on then: LEDGER refuses its facts, and it
//! must not send receipts.

use muster_bus::Link;
use muster_contract::decode;
use muster_contract::receipt::Receipt;
use muster_contract::{DeviceKey, SeqRanges, Timestamp};
use muster_domain::intake::{IntakeState, Rules};
use muster_ingest::session::{Conditions, Effect, FactAnswer, Input};

use super::agenda::SECOND;
use super::law::{Lawful, must};
use super::session::Session;
use super::world::World;

/// A process that stood still while another took its partition.
#[derive(Debug)]
pub(crate) struct Former {
    intake: IntakeState,
    session: Session,
    link: u64,
}

impl World {
    /// The owner stands still for so long that another process takes the partition.
    pub(crate) fn stall_owner(&mut self, part: usize) {
        let owner = &mut self.owners[part];
        let Some(session) = owner.session.take() else { return };
        let intake = std::mem::replace(&mut owner.intake, IntakeState::new(Rules::default(), Timestamp::MIN));
        owner.former = Some(Former { intake, session, link: owner.link });
        let delay = self.chance.i64(2 * SECOND..10 * SECOND);
        self.kill_owner_for(part, delay);
    }

    /// A process that stood still goes on, and finds that another process owns the partition.
    pub(crate) fn wake_former(&mut self, part: usize) -> Lawful {
        let Some(mut former) = self.owners[part].former.take() else { return Ok(()) };
        let link = Link::Up { since_count: former.link };
        let now = self.hub.time(self.agenda.now());
        let conditions = Conditions { now, link, ledger_seen_over: link, heartbeats_through: Some(now) };
        let Former { intake, session: Session { core, .. }, .. } = &mut former;
        for input in [Input::ReceiptsDue, Input::Tick] {
            core.handle(intake, input, now);
            while let Some(effect) = core.next_effect(intake, &conditions) {
                self.tally.effects += 1;
                match effect {
                    Effect::ReadOwner => core.handle(intake, Input::OwnerRead(false), now),
                    Effect::SendReceipt(key, receipt) => {
                        self.check_receipt_of_former(&key, &receipt)?;
                        self.store_receipt(&key, &receipt)?;
                    }
                    // LEDGER refuses a fact that names an older record.
                    Effect::Publish(..) => {
                        core.handle(intake, Input::FactAnswer(FactAnswer::Unknown), now);
                    }
                    Effect::ReadDocuments(key) => {
                        core.handle(intake, Input::DocumentsRead(key, false), now);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// A process that stood still sends no receipt that covers less than the new owner's.
    fn check_receipt_of_former(&mut self, key: &DeviceKey, receipt: &Receipt) -> Lawful {
        let before = self.names.get(key).and_then(|device| self.hub.receipts[*device].as_ref());
        self.tally.checks += 1;
        before.map_or(Ok(()), |before| receipt_goes_on(&decode::parse(before).unwrap(), receipt))
    }
}

/// A receipt covers every number that an earlier one of the same epoch covered.
fn receipt_goes_on(before: &Receipt, after: &Receipt) -> Lawful {
    let mut lost = SeqRanges::new();
    if before.epoch == after.epoch {
        let covered = after.covered();
        before.covered().iter().for_each(|(from, to)| _ = lost.extend(&covered.missing_within(from, to)));
    }
    must(lost.is_empty(), "a receipt takes nothing back", || format!("{lost}: {before:?}, then {after:?}"))
}
