//! Reads a status of a client that speaks for several devices as a status of one of them: the version of the client's manifest
//! becomes the generation of the device, and the id in the manifest the deployment's own.

use muster_contract::desired::DesiredState;
use muster_contract::http_device::HttpDevice;
use muster_contract::{DeviceKey, Generation};

use super::served::hub_is_behind;
use super::span::HubIsBehind;
use super::status::StatusManifest;
use super::{Caller, Devices, problems, span};
use crate::problem::Problem;

/// Margo's code of an error: the gateway does not reach the child device.
const CHILD_UNREACHABLE: &str = "102";

impl Devices {
    /// The status as the device itself would report it.
    ///
    /// # Errors
    /// The client has no such version or deployment, or the hub cannot be asked now.
    pub(crate) async fn of_one_device(
        &self,
        caller: &Caller,
        key: &DeviceKey,
        status: StatusManifest,
        desired: Option<&DesiredState>,
    ) -> Result<StatusManifest, Problem> {
        let generation = self.adopted_generation(caller, key, status.adopted_manifest_version).await?;
        let status = StatusManifest { adopted_manifest_version: generation, ..status };
        if key == caller.device() {
            return Ok(status);
        }
        let named = status.deployment_id.clone();
        let is_it = |id: &&_| span::child_deployment(key, id) == named;
        let present = desired.iter().flat_map(|desired| &desired.deployments).map(|entry| &entry.id);
        let deployment = match present.into_iter().find(is_it) {
            Some(id) => Some(id.clone()),
            None => {
                // It has left the manifest.
                let known = |current: &mut HttpDevice, _: Option<&_>| {
                    let known = current.deployments.keys().find(is_it).cloned();
                    let is_to_prove = known.is_none();
                    Ok((known, is_to_prove))
                };
                self.store.update(key, self.now(), known).await?
            }
        };
        let deployment_id = deployment
            .ok_or_else(|| problems::semantic_error("deploymentId", "is of no deployment of this device"))?;
        Ok(StatusManifest { deployment_id, ..status })
    }

    /// The generation that a device had in a version of the client's manifest.
    async fn adopted_generation(
        &self,
        caller: &Caller,
        key: &DeviceKey,
        adopted: Generation,
    ) -> Result<Generation, Problem> {
        let (own, now) = (caller.device(), self.now());
        let known = |current: &mut HttpDevice, _: Option<&_>| {
            Ok((span::generation_of(current, &key.device, adopted), false))
        };
        if let Ok(generation) = self.store.update(own, now, known).await? {
            return Ok(generation);
        }
        // A replica is behind, or the record was lost: the present desired states have the version then.
        let states = self.desired_states(caller).await?;
        let again = |current: &mut HttpDevice, _: Option<&_>| match states.advance(current) {
            Ok(_) => Ok((Ok(span::generation_of(current, &key.device, adopted)), true)),
            Err(behind) => Ok((Err(behind), false)),
        };
        let again = self.store.update(own, now, again).await?.map_err(|HubIsBehind| hub_is_behind())?;
        again.map_err(|newest| {
            let rule = format!("is above {newest}, the newest version");
            problems::semantic_error("adoptedManifestVersion", rule)
        })
    }
}

/// Whether a status says that the client does not reach the device.
pub(crate) fn is_unreachable(status: &StatusManifest) -> bool {
    let of_components = status.components.iter().map(|component| &component.error);
    let mut errors = of_components.chain([&status.status.error]).flatten();
    errors.any(|error| error.code == CHILD_UNREACHABLE)
}
