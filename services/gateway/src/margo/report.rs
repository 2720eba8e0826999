//! Brings a report of a device to UPLINK: assigns its number, publishes it, and marks it as confirmed. By this order no report is
//! lost if the gateway dies at any step; decision 0032 has the table.

use muster_contract::DeviceKey;
use muster_contract::decode::Document;
use muster_contract::desired::DesiredState;
use muster_contract::http_device::{ConfirmedReport, HttpDevice};
use muster_contract::receipt::Receipt;

use super::capabilities::CapabilitiesManifest;
use super::record::{self, Admission, Numbered, Refusal, SentReport};
use super::{Devices, problems};
use crate::problem::Problem;

/// Whether a report was the first of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivered {
    /// The device had reported nothing of this deployment, or no capabilities.
    First,
    /// The device had reported it before.
    Later,
}

impl Devices {
    /// Delivers the report that `document` makes of its number. `desired` is the present desired state of the device.
    ///
    /// # Errors
    /// UPLINK has not confirmed it, or another report has coalesced its number: the device must try again. Or a rule refuses it.
    pub(crate) async fn deliver<T: Document>(
        &self,
        device: &DeviceKey,
        sent: SentReport<'_>,
        desired: Option<&DesiredState>,
        document: impl FnOnce(&Numbered) -> Result<T, Problem>,
    ) -> Result<Delivered, Problem> {
        let (now, removed) = (self.now(), CapabilitiesManifest::default().content());
        let admit = |current: &mut HttpDevice, receipt: Option<&Receipt>| {
            let is_learnt = desired.is_some_and(|desired| record::learn(current, desired));
            // Capabilities that were removed are a report without any.
            let is_none = |known: &ConfirmedReport| sent.deployment.is_none() && known.content == removed;
            let is_first = record::confirmed(current, sent.deployment).is_none_or(is_none);
            let was_unreachable = current.unreachable;
            let admitted = record::admit(current, sent, receipt, now).map_err(refuse)?;
            // A stale read must not decide that nothing is to be published.
            let is_to_store = !matches!(admitted, Admission::Publish { is_new: false, .. });
            let is_changed = is_learnt || current.unreachable != was_unreachable;
            Ok(((admitted, is_first), is_to_store || is_changed))
        };
        let ((admitted, is_first), loaded) = self.store.update_loaded(device, now, None, admit).await?;
        let delivered = if is_first { Delivered::First } else { Delivered::Later };
        let Admission::Publish { open, epoch, head, .. } = admitted else { return Ok(delivered) };
        let numbered = Numbered { open, epoch, head };
        // A document that breaks a rule leaves its number open, and the next report coalesces it.
        self.store.publish(device, &document(&numbered)?).await?;
        let done = &numbered.open;
        let confirm = |current: &mut HttpDevice, _: Option<&Receipt>| {
            let is_confirmed = record::confirm(current, epoch, done);
            Ok((is_confirmed, is_confirmed))
        };
        if self.store.update_loaded(device, now, Some(loaded), confirm).await?.0 {
            Ok(delivered)
        } else {
            Err(problems::unavailable("a newer report has superseded this one; send the state again"))
        }
    }
}

fn refuse(refusal: Refusal) -> Problem {
    match refusal {
        Refusal::TooManyOpen => {
            problems::too_many("too many reports of this device are under way; wait for their answers")
        }
        Refusal::TooManyDeployments => {
            problems::semantic_error("deploymentId", "this device has reported too many deployments")
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_contract::canonical::Digest;
    use muster_contract::http_device::OpenReport;
    use muster_contract::{Epoch, Seq, Timestamp};
    use serde_json::json;

    use super::*;
    use crate::margo::status::{self, StatusManifest};

    #[test]
    fn a_document_says_what_its_number_was_taken_with() {
        let target = Digest::of_bytes(b"target");
        let open = OpenReport {
            seq: Seq::FIRST,
            deployment: None,
            content: Digest::of_bytes(b"sent"),
            at: Timestamp::UNIX_EPOCH,
            target: Some(target),
            agent_version: Some("muster-gateway 0.0.1".to_owned()),
            coalesced: Default::default(),
            snapshot: None,
        };
        let numbered = Numbered { open, epoch: Epoch::FIRST, head: Seq::FIRST };
        assert_eq!(CapabilitiesManifest::default().report(&numbered).agent_version, "muster-gateway 0.0.1");
        let body = json!({
            "deploymentId": "web", "adoptedManifestVersion": 1, "status": {"state": "installed"},
            "components": [{"name": "main", "state": "installed"}],
        });
        let status: StatusManifest = status::parse(body.to_string().as_bytes()).unwrap();
        assert_eq!(status.report(&numbered).digest, target);
    }
}
