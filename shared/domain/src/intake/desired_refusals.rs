//! Records that a device refuses its desired state, by what its heartbeats repeat: an incident when a refusal begins, or changes
//! its generation or code, and one when it ends.
//!
//! A refusal is recorded once, by whichever ingest: the state by LEDGER says which one stands. A device cannot fill LEDGER with
//! them: refusals beyond [`DESIRED_REFUSALS_PER_HOUR`] wait until a later heartbeat, and only a recorded one has an end.

use muster_contract::Timestamp;
use muster_contract::desired_refusal::DesiredRefusal;
use muster_contract::fact::IncidentKind;
use muster_contract::limits::REASSERT_AFTER;
use muster_contract::presence::Heartbeat;

use super::state::IntakeState;
use crate::lease::elapsed;

impl IntakeState {
    /// Applies what the newest heartbeat of a device says of its desired state.
    pub(super) fn check_refusal(&mut self, index: usize, beat: &Heartbeat, stored_at: Timestamp) {
        let device = &self.devices[index];
        // A copy of the device that has an older epoch does not speak for it.
        if device.contact.heartbeat_of(beat.epoch).is_none() {
            return;
        }
        let latest = device.latest();
        let what = match (&latest.desired_refusal, &beat.refused) {
            (None, None) => return,
            (Some(known), None) => IncidentKind::DesiredAccepted {
                generation: beat.generation,
                refused_since: known.refusal.since,
            },
            (known, Some(refused)) => {
                let known = known.as_ref().filter(|known| known.refusal.is_same(refused));
                let holds =
                    known.is_some_and(|known| elapsed(known.published_at, stored_at) < REASSERT_AFTER);
                if holds || !latest.may_refuse_desired(stored_at) {
                    return;
                }
                // LEDGER forgets: a refusal that stands is recorded again, as it was.
                let same = known.map(|known| known.refusal.clone());
                let new = || DesiredRefusal { since: refused.since.min(stored_at), ..refused.clone() };
                IncidentKind::DesiredRefused(same.unwrap_or_else(new))
            }
        };
        self.raise_incident(index, what, stored_at);
    }
}
