//! Records that a device refuses its desired state, by what its heartbeats repeat: an incident when a refusal begins, or changes
//! its generation or code, and one when it ends.
//!
//! A refusal is recorded once, by whichever ingest: the state by LEDGER says which one stands, and `reassert` keeps it in LEDGER.
//! A device cannot fill LEDGER with them: refusals beyond [`DESIRED_REFUSALS_PER_HOUR`] wait until a later heartbeat, and only a
//! recorded one has an end.
//!
//! [`DESIRED_REFUSALS_PER_HOUR`]: muster_contract::limits::DESIRED_REFUSALS_PER_HOUR

use muster_contract::Timestamp;
use muster_contract::desired_refusal::DesiredRefusal;
use muster_contract::fact::IncidentKind;
use muster_contract::presence::Heartbeat;

use super::state::IntakeState;

impl IntakeState {
    /// Applies the refusal in the newest heartbeat of a device; `None` is the end of a refusal.
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
                let stands = known.as_ref().is_some_and(|known| known.refusal.is_same(refused));
                if stands || !latest.may_refuse_desired(stored_at) {
                    return;
                }
                let since = refused.since.min(stored_at);
                IncidentKind::DesiredRefused(DesiredRefusal { since, ..refused.clone() })
            }
        };
        self.raise_incident(index, what, stored_at);
    }
}
