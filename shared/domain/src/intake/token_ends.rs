//! Records incidents about the end of a device's token and its renewal, from the term in heartbeats. The hub thus learns of the
//! end while no renewer runs.
//!
//! An incident that LEDGER holds is not recorded again at once, also if the renewer reported it before this ingest started. An
//! end is recorded again a few times until it comes, while the device keeps its token. A device cannot fill LEDGER with them: ends
//! lie [`TOKEN_INCIDENT_INTERVAL`] apart, and only a recorded one has a renewal.
//!
//! [`TOKEN_INCIDENT_INTERVAL`]: muster_contract::limits::TOKEN_INCIDENT_INTERVAL

use muster_contract::Timestamp;
use muster_contract::presence::Heartbeat;

use super::state::IntakeState;

impl IntakeState {
    /// Applies the token in the newest heartbeat of a device. A heartbeat without one says nothing about it.
    pub(super) fn check_token(&mut self, index: usize, beat: &Heartbeat, stored_at: Timestamp) {
        let device = &self.devices[index];
        // A copy of the device that has an older epoch does not speak for it.
        if device.contact.heartbeat_of(beat.epoch).is_none() {
            return;
        }
        let Some(token) = &beat.token else { return };
        if let Some(what) = device.latest().token_incident(token, stored_at) {
            self.raise_incident(index, what, stored_at);
        }
    }
}
