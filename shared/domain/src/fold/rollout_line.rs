//! Reads a deployment on a device for a rollout or a plan, without building the texts of a view's line.

use muster_contract::view::Freshness;
use muster_contract::{DeploymentId, DeviceKey, Timestamp};

use super::fleet::Fleet;
use super::report::Report;
use super::standing::CountClass;
use crate::rollout::{Line, missed};

impl Fleet {
    /// The deployment on the device, if the view of the deployment has a line for the device.
    pub fn rollout_line(&self, id: &DeploymentId, key: &DeviceKey) -> Option<Line<'_>> {
        let number = *self.totals.deployment_numbers.get(id)?;
        let device = self.find(key)?;
        let row = device.rows.iter().find(|row| row.deployment == number)?;
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

    /// The freshness of the device and the time at which it was last heard; `None` if LEDGER does not know the device.
    pub fn heard(&self, key: &DeviceKey) -> Option<(Freshness, Option<Timestamp>)> {
        let device = self.find(key)?;
        Some((device.state.context().freshness, self.last_heard_at(device)))
    }
}
