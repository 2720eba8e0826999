//! Brings a report of a device to UPLINK: takes its number, publishes it, and marks it as confirmed. The order is what makes the
//! report survive a gateway that dies at any step; decision 0032 has the table.

use muster_contract::canonical::Digest;
use muster_contract::decode::Document;
use muster_contract::desired::DesiredState;
use muster_contract::http_device::{ConfirmedReport, HttpDevice, OpenReport};
use muster_contract::{DeploymentId, DeviceKey, Epoch, Seq};

use super::capabilities::Capabilities;
use super::record::{self, Admission, Refusal};
use super::{Devices, problems};
use crate::problem::Problem;

/// The number under which a report is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbered {
    /// The number and what belongs to it.
    pub open: OpenReport,
    /// Its epoch.
    pub epoch: Epoch,
    /// The highest number taken.
    pub head: Seq,
    /// The record as it was when the number was found.
    pub record: HttpDevice,
}

/// Whether a report was the first of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivered {
    /// The device had none of this deployment, or no capabilities.
    First,
    /// It had.
    Later,
}

/// The subject of a report.
#[derive(Debug, Clone, Copy)]
pub struct ReportKey<'a> {
    /// The device.
    pub device: &'a DeviceKey,
    /// The deployment; none for capabilities.
    pub deployment: Option<&'a DeploymentId>,
    /// Digest of what the device sent.
    pub content: Digest,
}

impl Devices {
    /// Delivers the report that `document` makes of its number. `desired` is what the device should run by now.
    ///
    /// # Errors
    /// UPLINK has not confirmed it, or its number is coalesced meanwhile: the device must try again. Or a rule refuses it.
    pub(crate) async fn deliver<T: Document>(
        &self,
        key: ReportKey<'_>,
        desired: Option<&DesiredState>,
        document: impl FnOnce(&Numbered) -> Result<T, Problem>,
    ) -> Result<Delivered, Problem> {
        let ReportKey { device, deployment, content } = key;
        let (now, removed) = (self.now(), Capabilities::default().content());
        let admit = |current: &mut HttpDevice| {
            let is_learnt = desired.is_some_and(|desired| record::learn(current, desired));
            // Capabilities that were removed are a report without any.
            let is_none = |known: &ConfirmedReport| deployment.is_none() && known.content == removed;
            let is_first = record::confirmed(current, deployment).is_none_or(is_none);
            let admitted = record::admit(current, deployment, content, now).map_err(refuse)?;
            let is_new = matches!(admitted, Admission::Publish { is_new: true, .. });
            Ok(((admitted, is_first, current.clone()), is_new || is_learnt))
        };
        let (admitted, is_first, current) = self.store.update(device, now, admit).await?;
        let delivered = if is_first { Delivered::First } else { Delivered::Later };
        let Admission::Publish { open, epoch, head, .. } = admitted else { return Ok(delivered) };
        let numbered = Numbered { open, epoch, head, record: current };
        // A document that breaks a rule leaves its number open, and the next report coalesces it.
        self.store.publish(device, &document(&numbered)?).await?;
        let done = &numbered.open;
        let confirm = |current: &mut HttpDevice| {
            let before = current.open.len();
            let is_confirmed = record::confirm(current, (epoch, done));
            Ok((is_confirmed, current.open.len() != before))
        };
        match self.store.update(device, now, confirm).await? {
            true => Ok(delivered),
            false => Err(problems::unavailable(
                "another report has taken the place of this one; send the state again",
            )),
        }
    }
}

fn refuse(refusal: Refusal) -> Problem {
    match refusal {
        Refusal::TooManyOpen => problems::too_many("too many reports of this device are under way"),
        Refusal::TooManyDeployments => {
            problems::semantic_error("deploymentId", "this device has reported too many deployments")
        }
    }
}
