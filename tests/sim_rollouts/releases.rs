//! The law of releases that planners request: the devices of a wave get the content in the order that its policy names.

use muster_contract::canonical::Digest;
use muster_contract::labels::Labels;
use muster_contract::rollout::{Order, ReleaseAnswer, ReleaseRequest};
use muster_contract::{DeploymentId, DeviceKey};
use muster_publisher::source::Fleet;

use super::hub::Hub;
use super::law::{Law, Lawful, must};
use super::members::{Members, entry, members};
use super::world::{Millis, SECOND};

pub(crate) const DEVICE_ORDER: &str = "devices of a wave get the content in the order of its policy";

/// Time for which a planner puts a device that was refused behind the others.
const REFUSED_FOR: Millis = 40 * SECOND;

/// The sort key of a device within its wave.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Name,
    Hash(Digest),
    Number(i64),
    Text(String),
    Absent,
}

fn rank(order: &Order, (id, digest): (&DeploymentId, Digest), key: &DeviceKey, labels: &Labels) -> Rank {
    match order {
        Order::Name => Rank::Name,
        Order::Hash => Rank::Hash(Digest::of_bytes(format!("{id}\n{digest}\n{key}").as_bytes())),
        Order::Label(label) => match labels.get(label).map(ToString::to_string) {
            None => Rank::Absent,
            Some(text) => text.parse().map_or(Rank::Text(text), Rank::Number),
        },
    }
}

/// The devices of a wave that lack the content, in the order in which they get it.
fn waiting(
    hub: &Hub,
    fleet: &Fleet,
    content: (&DeploymentId, Digest),
    members: &Members<'_>,
    wave: usize,
) -> Vec<DeviceKey> {
    let order = members.waves.get(wave).map_or(Order::Name, |wave| wave.order.clone());
    let lacks =
        |key: &&DeviceKey| entry(hub.document(key), content.0).is_none_or(|entry| entry.digest != content.1);
    let mut waiting: Vec<_> = members.of_wave(wave).filter(lacks).cloned().collect();
    waiting.sort_by_cached_key(|key| (rank(&order, content, key, &fleet.labels_of(key)), key.clone()));
    waiting
}

impl Law {
    /// Takes note of the devices that the answer to a release leaves out.
    pub(crate) fn note_refusals(&mut self, now: Millis, reply: &[u8]) {
        // Most replies answer something else, and reading them takes long.
        if !reply.starts_with(b"{\"released\"") {
            return;
        }
        if let Ok(answer) = serde_json::from_slice::<ReleaseAnswer>(reply) {
            self.refused.extend(answer.refused.into_iter().map(|refused| (refused.key, now)));
        }
    }

    /// A planner requests a release. One that the publisher refuses, because it was computed for other documents or another commit, is
    /// not looked at.
    pub(crate) fn release(&self, hub: &Hub, request: &ReleaseRequest, now: Millis) -> Lawful {
        let Some((digest, fleet)) = request.digest.zip(self.fleet.as_ref()) else { return Ok(()) };
        let content = (&request.deployment, digest);
        let Some((members, wave)) = self.wave_of(request, fleet) else { return Ok(()) };
        let has =
            |key: &DeviceKey| entry(hub.document(key), content.0).is_some_and(|entry| entry.digest == digest);
        let released = members.targets.iter().filter(|(key, _)| has(key)).count() as u64;
        let is_current =
            request.revision.as_ref() == Some(&fleet.revision) && request.released == Some(released);
        // Devices of a group without room are passed over.
        if !is_current || members.rollout.budget.is_some() {
            return Ok(());
        }
        let mut waiting = waiting(hub, fleet, content, &members, wave);
        let is_refused = |key: &DeviceKey| {
            let is_lately = |refused: &Millis| *refused + REFUSED_FOR > now;
            fleet.held_back.contains(key) || self.refused.get(key).is_some_and(is_lately)
        };
        waiting.retain(|key| request.devices.contains(key) || !is_refused(key));
        let first: Vec<_> = waiting.iter().take(request.devices.len()).collect();
        must(request.devices.iter().all(|key| first.contains(&key)), DEVICE_ORDER, || {
            format!(
                "{:?} of {} get it, but {waiting:?} wait in wave {}",
                request.devices,
                content.0,
                members.name(wave)
            )
        })
    }

    /// The rollout of a release, and the wave of its devices.
    fn wave_of<'a>(&self, request: &ReleaseRequest, fleet: &'a Fleet) -> Option<(Members<'a>, usize)> {
        let first = request.devices.first()?;
        let path = &fleet.rollouts.get(first)?.path;
        let members = members(fleet, &request.deployment, request.digest?, path)?;
        let wave = members.targets.iter().find(|(key, _)| key == first)?.1;
        Some((members, wave))
    }

    /// The same number of devices of the same wave, from the end of its order.
    pub(crate) fn reversed(&self, hub: &Hub, request: &ReleaseRequest) -> Option<Vec<DeviceKey>> {
        let fleet = self.fleet.as_ref()?;
        let (members, wave) = self.wave_of(request, fleet)?;
        let mut waiting = waiting(hub, fleet, (&request.deployment, request.digest?), &members, wave);
        waiting.reverse();
        waiting.truncate(request.devices.len());
        Some(waiting)
    }
}
