//! The manifest of a client: the desired states of its own device and of the devices for which it speaks, as DOWNLINK has them.
//!
//! | step of a poll | after a gateway that dies behind it |
//! |---|---|
//! | 1. read the desired state of each device | the client polls again |
//! | 2. each child's record learns what its generation targets | the next gateway finds it learnt |
//! | 3. the record of the client's own device takes the version: the commit point | the next poll gets this version, or a newer one |
//! | 4. answer | the same |
//!
//! A client of one device has steps 1, 3 and 4, and the version is the generation.

use std::sync::Arc;

use futures_util::future::try_join_all;
use muster_contract::desired::DesiredState;
use muster_contract::http_device::HttpDevice;
use muster_contract::{DeviceKey, Generation};

use super::manifest::{ManifestPart, ManifestProjection};
use super::span::{self, Generations, HubIsBehind};
use super::{Caller, Devices, problems, record};
use crate::problem::Problem;

/// The desired states of a client's devices.
#[derive(Debug)]
pub(crate) struct DesiredStates {
    /// Those that there are, with their sequences in DOWNLINK; the client's own first.
    pub present: Vec<(DeviceKey, u64, DesiredState)>,
    /// The generation of each device.
    generations: Generations,
}

impl DesiredStates {
    /// The generation of a device; none if it has no desired state.
    pub(crate) fn generation(&self, key: &DeviceKey) -> Option<u64> {
        self.generations.get(&key.device).copied().flatten().map(Generation::get)
    }

    /// Goes on to the manifest of these desired states; its version, and whether the record has changed.
    ///
    /// # Errors
    /// An older manifest would follow a newer one.
    pub(crate) fn advance(&self, current: &mut HttpDevice) -> Result<(u64, bool), HubIsBehind> {
        span::advance(current, &self.generations)
    }
}

impl Devices {
    /// Reads the desired states of a client's devices.
    ///
    /// # Errors
    /// The hub cannot be asked now.
    pub(crate) async fn desired_states(&self, caller: &Caller) -> Result<DesiredStates, Problem> {
        let devices = caller.devices();
        let read = devices.iter().map(|key| self.store.desired(key));
        let read = try_join_all(read).await?;
        let generation =
            |found: &Option<(u64, DesiredState)>| found.as_ref().map(|(_, desired)| desired.generation);
        let generations =
            devices.iter().zip(&read).map(|(key, found)| (key.device.clone(), generation(found))).collect();
        let present = devices.into_iter().zip(read);
        let present =
            present.filter_map(|(key, found)| found.map(|(sequence, desired)| (key, sequence, desired)));
        Ok(DesiredStates { present: present.collect(), generations })
    }

    /// The manifest of these desired states; `None` if there are none. It decides nothing about versions.
    ///
    /// # Errors
    /// The hub cannot be asked now.
    pub(crate) async fn projected(
        &self,
        caller: &Caller,
        states: &DesiredStates,
    ) -> Result<Option<Arc<ManifestProjection>>, Problem> {
        let Some((_, _, first)) = states.present.first() else { return Ok(None) };
        let version = if caller.is_gateway() {
            let next = |current: &mut HttpDevice, _: Option<&_>| {
                // A manifest that is older than a served one has content, and no version.
                Ok((states.advance(current).map_or(0, |(version, _)| version), false))
            };
            let version = self.store.update(caller.device(), self.now(), next).await?;
            Generation::new(version).unwrap_or(Generation::FIRST)
        } else {
            first.generation
        };
        self.made(caller, states, version).map(Some)
    }

    fn made(
        &self,
        caller: &Caller,
        states: &DesiredStates,
        version: Generation,
    ) -> Result<Arc<ManifestProjection>, Problem> {
        let parts = states.present.iter().map(|(key, sequence, desired)| ManifestPart {
            key,
            device_id: caller.id_of(key),
            is_child: key != caller.device(),
            sequence: *sequence,
            desired,
        });
        let made = self.manifests.projection(caller.device(), version, &parts.collect::<Vec<_>>());
        made.map_err(|error| problems::internal(error.to_string()))
    }

    /// Records that the client gets this manifest, before it gets it: its next status may name the version at any gateway.
    ///
    /// # Errors
    /// The hub cannot be asked now, or has an older desired state than the client has been served.
    pub(crate) async fn serve(
        &self,
        caller: &Caller,
        states: &DesiredStates,
        made: Arc<ManifestProjection>,
    ) -> Result<Arc<ManifestProjection>, Problem> {
        let now = self.now();
        let own = states.present.iter().find(|(key, ..)| key == caller.device()).map(|(.., desired)| desired);
        for (key, _, desired) in states.present.iter().filter(|(key, ..)| key != caller.device()) {
            let learn = |current: &mut HttpDevice, _: Option<&_>| Ok(((), learnt(current, desired)?));
            self.store.update(key, now, learn).await?;
        }
        let take = |current: &mut HttpDevice, _: Option<&_>| {
            let is_learnt = own.map_or(Ok(false), |desired| learnt(current, desired))?;
            if !caller.is_gateway() {
                return Ok((made.generation, is_learnt));
            }
            let (version, is_changed) = states.advance(current).map_err(|HubIsBehind| hub_is_behind())?;
            Ok((Generation::new(version).unwrap_or(Generation::FIRST), is_learnt || is_changed))
        };
        let version = self.store.update(caller.device(), now, take).await?;
        if version == made.generation { Ok(made) } else { self.made(caller, states, version) }
    }
}

/// Learns what a desired state targets; whether the record has changed.
fn learnt(current: &mut HttpDevice, desired: &DesiredState) -> Result<bool, Problem> {
    // A client takes a version below a served one for an attack.
    if record::is_hub_behind(current, desired.generation.get()) {
        return Err(hub_is_behind());
    }
    Ok(record::learn(current, desired))
}

/// DOWNLINK lags, or was set back.
pub(crate) fn hub_is_behind() -> Problem {
    problems::unavailable("the desired state of this device is older than the manifest that it was served")
}
