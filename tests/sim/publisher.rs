//! The publisher as devices know it: now and then a device shall run something else. Generations rise, digests are those
//! of the contents, and a target's generation is the one at which its digest last changed.

use std::collections::BTreeMap;

use muster_contract::decode::to_bytes;
use muster_contract::desired::{
    Component, DesiredDeployment, DesiredState, Profile, ProfileType, Source, SourceKind,
};
use muster_contract::version::ApiVersion;
use muster_contract::{Generation, canonical::Digest};
use serde_json::{Map, json};

use super::agenda::{MINUTE, Millis, SECOND};
use super::device::Downward;
use super::world::{Event, World};

/// One in so many generations of a device is followed by the document before it.
const SET_BACK_EVERY: u64 = 8;
/// When the publisher replaces that: long enough for some devices to read it.
const REPUBLISHED_AFTER: Millis = MINUTE;

/// The desired state of a device.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// Generation of the last document; 0 before the first.
    pub(crate) generation: u64,
    /// Whether it is taken out of the fleet.
    pub(crate) retired: bool,
    /// Deployments by number.
    pub(crate) entries: BTreeMap<usize, DesiredDeployment>,
}

fn entry(deployment: usize, version: u32, components: usize, generation: Generation) -> DesiredDeployment {
    let component = |at: usize| {
        let properties = Map::from_iter([("startDelay".to_owned(), json!(format!("{}ms", version + 1)))]);
        Component::new(format!("c{at}").parse().unwrap(), properties)
    };
    let mut entry = DesiredDeployment {
        id: format!("app{deployment}").parse().unwrap(),
        name: format!("App {deployment}"),
        application_id: "app".to_owned(),
        namespace: None,
        labels: Default::default(),
        target_generation: generation,
        digest: Digest::of_bytes(b""),
        profile: Profile {
            profile_type: ProfileType::Simulated,
            components: (0..components).map(component).collect(),
            device_constraints: None,
        },
        parameters: BTreeMap::new(),
        stopped: false,
        restart: 0,
        source: None,
    };
    entry.digest = entry.content_digest();
    entry
}

impl World {
    /// A device shall run something else.
    pub(crate) fn edit(&mut self, device: usize) {
        if !self.storm {
            return;
        }
        let chance = &mut self.chance;
        let wanted = &mut self.wanted[device];
        wanted.generation += 1;
        let generation = Generation::new(wanted.generation).unwrap();
        wanted.retired = wanted.generation > 1 && chance.u8(0..40) == 0;
        if wanted.retired {
            wanted.entries.clear();
        }
        let changes = if wanted.retired { 0 } else { chance.usize(1..=2) };
        for _ in 0..changes {
            let deployment = chance.usize(0..self.profile.deployments);
            if chance.u8(0..5) == 0 {
                wanted.entries.remove(&deployment);
                continue;
            }
            let next = entry(deployment, chance.u32(0..3), 1 + deployment % 2, generation);
            let same = wanted.entries.get(&deployment).is_some_and(|held| held.digest == next.digest);
            if !same {
                wanted.entries.insert(deployment, next);
            }
        }
        self.announce(device);
        let next = self.chance.i64(SECOND..2 * self.profile.edits_every);
        self.agenda.after(next, Event::Edit(device));
    }

    /// The publisher finds a document that it did not write last, and publishes the right one with a higher generation.
    pub(crate) fn republish(&mut self, device: usize) {
        self.wanted[device].generation += 1;
        self.announce(device);
    }

    fn announce(&mut self, device: usize) {
        let (now, wanted) = (self.hub.time(self.agenda.now()), &self.wanted[device]);
        let document = DesiredState {
            api_version: ApiVersion::V1,
            kind: Default::default(),
            generation: Generation::new(wanted.generation).unwrap(),
            issued_at: now,
            retired: wanted.retired,
            source: Source::new(SourceKind::Git, format!("r{}", wanted.generation)),
            labels: Default::default(),
            retry: None,
            deployments: wanted.entries.values().cloned().collect(),
        };
        let wanted_generation = wanted.generation;
        let bytes: std::rc::Rc<[u8]> = to_bytes(&document).into();
        self.hub.desired[device].push((bytes.clone(), now));
        self.announce_document(device);
        let (delay, heard) = (self.chance.i64(10..2 * SECOND), self.chance.u8(0..10) > 0);
        self.agenda.after(delay, Event::Source(device, bytes.clone()));
        if heard {
            self.down(device, Downward::Desired(bytes));
        }
        // A restore of the hub sets the document back, until the publisher sees it.
        if wanted_generation % SET_BACK_EVERY == SET_BACK_EVERY - 1
            && let [.., (older, _), _] = &self.hub.desired[device][..]
        {
            let older = (older.clone(), now);
            self.hub.desired[device].push(older);
            self.agenda.after(REPUBLISHED_AFTER, Event::Republish(device));
        }
        // The generation shows that a replayed document, as a confused subscriber would get it, is older.
        if self.chance.u8(0..8) == 0
            && let [.., (older, _), _] = &self.hub.desired[device][..]
        {
            let older = older.clone();
            self.down(device, Downward::Desired(older));
        }
    }
}
