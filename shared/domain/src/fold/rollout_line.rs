//! Reads a deployment on a device for a rollout or a plan, without building the texts of a view's line.

use muster_contract::state::State;
use muster_contract::view::Freshness;
use muster_contract::{DeploymentId, DeviceKey, Generation, Timestamp};

use super::device::Device;
use super::fleet::Fleet;
use super::report::Report;
use super::standing::CountClass;
use crate::rollout::{Line, missed};

/// The place of a device in a fleet. It stays as long as the fleet does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceNumber(u32);

/// How well a device is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceHearing {
    /// Whether it is heard.
    pub freshness: Freshness,
    /// Time at which it was last heard.
    pub last_heard_at: Option<Timestamp>,
    /// Whether LEDGER has all reports that it is known to have made, and the hub hears its partition.
    pub is_complete: bool,
}

impl Fleet {
    /// The deployment on the device, if the view of the deployment has a line for the device.
    pub fn rollout_line(&self, id: &DeploymentId, key: &DeviceKey) -> Option<Line<'_>> {
        let number = *self.totals.deployment_numbers.get(id)?;
        self.line_of(number, self.find(key)?)
    }

    /// The number of a device; `None` if LEDGER does not know it.
    pub fn device_number(&self, key: &DeviceKey) -> Option<DeviceNumber> {
        self.number_of(key).map(DeviceNumber)
    }

    /// The key of a device with the names that the fleet holds: a copy of it takes no memory for them.
    pub fn shared_key(&self, DeviceNumber(device): DeviceNumber) -> Option<DeviceKey> {
        self.devices.get(device as usize).map(|device| self.key_of(device))
    }

    /// The line of a rollout's target. If the view has none, it says only how the device is heard.
    pub fn target_line(&self, id: &DeploymentId, key: &DeviceKey) -> Line<'_> {
        self.target_lines(id)(self.device_number(key))
    }

    /// The same as [`Self::target_line`] for many devices of one deployment: no name is looked up again. `None` is a device that LEDGER
    /// does not know, so it was never heard.
    pub fn target_lines<'a>(
        &'a self,
        id: &DeploymentId,
    ) -> impl Fn(Option<DeviceNumber>) -> Line<'a> + use<'a> {
        let deployment = self.totals.deployment_numbers.get(id).copied();
        move |number| {
            let device = number.and_then(|DeviceNumber(device)| self.devices.get(device as usize));
            let Some(device) = device else { return Line::of_hearing(Freshness::Never, None) };
            let line = deployment.and_then(|deployment| self.line_of(deployment, device));
            let heard = || Line::of_hearing(device.state.context().freshness, self.last_heard_at(device));
            line.unwrap_or_else(heard)
        }
    }

    fn line_of<'a>(&'a self, deployment: u32, device: &'a Device) -> Option<Line<'a>> {
        let row = device.rows.iter().find(|row| row.deployment == deployment)?;
        let context = device.state.context();
        let (standing, class) = (row.standing()?, row.count_class(&context));
        (class != CountClass::Nothing).then(|| Line {
            standing,
            freshness: context.freshness,
            known: row.is_known(&context),
            leaving: class == CountClass::Leaving,
            target_generation: row.target,
            changed_at: row.changed_at(),
            last_heard_at: self.last_heard_at(device),
            retries: row.report.as_ref().map_or(&[], Report::retries),
            overdue: row.overdue().map(|deadline| missed(&deadline.fact)),
        })
    }

    /// How well the device is known; `None` if LEDGER does not know it.
    pub fn heard(&self, key: &DeviceKey) -> Option<DeviceHearing> {
        let device = self.find(key)?;
        let context = device.state.context();
        Some(DeviceHearing {
            freshness: context.freshness,
            last_heard_at: self.last_heard_at(device),
            is_complete: context.is_complete(0) && device.state.unheard_in.is_none(),
        })
    }

    /// The generation of the device's last report of a deployment, if it says that the device has removed the deployment.
    pub fn removed(&self, id: &DeploymentId, key: &DeviceKey) -> Option<Generation> {
        let number = *self.totals.deployment_numbers.get(id)?;
        let row = self.find(key)?.rows.iter().find(|row| row.deployment == number)?;
        let report = row.report.as_ref().filter(|report| report.state == State::Removed)?;
        Some(report.generation)
    }
}
