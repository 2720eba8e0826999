//! Records that QUARANTINE is full: an incident of the device whose share is full, or of the hub, once a day each.
//!
//! It decides nothing about the refused reports: their devices keep them, and their receipts say why.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_bus::{PublishError, PublishErrorKind};
use muster_contract::incident::{IncidentKind, IncidentRequest, QuarantineBound};
use muster_contract::limits::{QUARANTINE_BYTES_MAX, QUARANTINE_SHARE};
use muster_contract::subjects::sender_of_rejected;
use muster_contract::{DeviceKey, Timestamp};
use muster_service::error::chain;

use crate::incidents::IncidentRecorder;

/// Time between two incidents of one sender, or of the hub.
const INCIDENT_EVERY: Duration = Duration::from_secs(24 * 60 * 60);

/// A bound that is reached, and the device whose share it is.
type Full = (QuarantineBound, Option<DeviceKey>);

/// Records full bounds. Clones share what was recorded.
#[derive(Debug, Clone)]
pub(crate) struct QuarantineAlarm {
    recorder: IncidentRecorder,
    recorded: Arc<Mutex<Recorded>>,
}

/// When each bound was recorded last, within [`INCIDENT_EVERY`].
#[derive(Debug, Default)]
struct Recorded(BTreeMap<(bool, Option<DeviceKey>), Timestamp>);

impl Recorded {
    /// Whether a full bound is to be recorded now; then it is not again for a day.
    fn is_due(&mut self, (bound, key): &Full, now: Timestamp) -> bool {
        let every = INCIDENT_EVERY.as_secs().cast_signed();
        // A time ahead is from before the clock was set back.
        self.0.retain(|_, at| *at <= now && now.duration_since(*at).as_secs() < every);
        self.0.insert((*bound == QuarantineBound::Bytes, key.clone()), now).is_none()
    }

    /// It was not recorded: it is due at the next refusal.
    fn forget(&mut self, (bound, key): &Full) {
        self.0.remove(&(*bound == QuarantineBound::Bytes, key.clone()));
    }
}

impl QuarantineAlarm {
    /// An alarm that has recorded nothing yet.
    pub(crate) fn new(recorder: IncidentRecorder) -> Self {
        Self { recorder, recorded: Arc::default() }
    }

    /// Records the bound for which QUARANTINE refused a report, if it refused it for one and this is due. It does not wait.
    pub(crate) fn raise_if_full(&self, error: &PublishError) {
        let Some(full) = full(error) else { return };
        if !self.recorded().is_due(&full, self.recorder.now()) {
            return;
        }
        let alarm = self.clone();
        tokio::spawn(async move {
            let request = IncidentRequest::new(full.1.clone(), incident(full.0));
            tracing::warn!(incident = ?request.what, device = full.1.as_ref().map(ToString::to_string), "incident");
            if let Err(error) = alarm.recorder.record(&request).await {
                tracing::debug!(error = chain(&error), "cannot record that QUARANTINE is full; trying again");
                alarm.recorded().forget(&full);
            }
        });
    }

    fn recorded(&self) -> std::sync::MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bound for which QUARANTINE refused a report.
fn full(error: &PublishError) -> Option<Full> {
    match error.kind {
        PublishErrorKind::SubjectFull => {
            Some((QuarantineBound::Reports, sender_of_rejected(&error.subject).flatten()))
        }
        _ if error.is_bytes_full() => Some((QuarantineBound::Bytes, None)),
        _ => None,
    }
}

fn incident(bound: QuarantineBound) -> IncidentKind {
    let limit = match bound {
        QuarantineBound::Reports => u64::from(QUARANTINE_SHARE),
        QuarantineBound::Bytes => QUARANTINE_BYTES_MAX,
    };
    IncidentKind::QuarantineFull { bound, limit }
}

#[cfg(test)]
mod tests {
    use muster_bus::wire::ApiError;

    use super::*;

    fn refused(subject: &str, description: &str) -> PublishError {
        PublishError::new(subject, ApiError::Refused { code: 10077, description: description.to_owned() })
    }

    #[test]
    fn each_bound_is_told_from_the_servers_words() {
        let press: DeviceKey = "plant7/press-4".parse().unwrap();
        let subject = muster_contract::subjects::rejected(Some(&press));
        let unnamed = muster_contract::subjects::rejected(None);
        for (subject, description, expected) in [
            (
                &subject,
                "maximum messages per subject exceeded",
                Some((QuarantineBound::Reports, Some(press))),
            ),
            (&unnamed, "maximum messages per subject exceeded", Some((QuarantineBound::Reports, None))),
            (&subject, "maximum bytes exceeded", Some((QuarantineBound::Bytes, None))),
        ] {
            assert_eq!(full(&refused(subject, description)), expected);
        }
        assert_eq!(full(&refused(&subject, "no space left on device")), None, "not for a bound");
    }

    #[test]
    fn a_bound_is_recorded_once_a_day_and_again_if_that_failed() {
        let at = |hour: i64| Timestamp::from_second(1_000_000 + 3_600 * hour).unwrap();
        let (bytes, share) = ((QuarantineBound::Bytes, None), (QuarantineBound::Reports, None));
        let mut recorded = Recorded::default();
        assert!(recorded.is_due(&bytes, at(0)) && recorded.is_due(&share, at(0)));
        assert!(!recorded.is_due(&bytes, at(23)));
        recorded.forget(&bytes);
        assert!(recorded.is_due(&bytes, at(23)) && !recorded.is_due(&bytes, at(24)));
        assert!(recorded.is_due(&share, at(24)));
        assert!(recorded.is_due(&share, at(5)), "the clock was set back");
    }
}
