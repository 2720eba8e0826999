//! Numbers the manifests of a client that speaks for several devices: pure functions on the record of the client's own device.
//!
//! Margo has one sequence of versions for each client, and every device has generations of its own. The version is the sum of the
//! generations of the devices in the manifest, and of a base that rises when a device leaves. So it rises with each change of each
//! device, and a record that is made anew after its loss gives the same version to the same desired states.
//!
//! No device goes back: a gateway whose replica is behind for one device is refused, so no version has two contents.

use std::collections::BTreeMap;

use muster_contract::canonical::Digest;
use muster_contract::http_device::{HTTP_SERVED_MAX, HttpDevice, ManifestSpan};
use muster_contract::{DeploymentId, DeviceId, DeviceKey, Generation};

/// The generation of each device of a client, as DOWNLINK has it; none for a device without a desired state.
pub(crate) type Generations = BTreeMap<DeviceId, Option<Generation>>;

/// DOWNLINK is behind a served manifest for one of the devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HubIsBehind;

/// The version of a span's newest manifest.
fn version(span: &ManifestSpan) -> u64 {
    let newest = span.served.values().filter_map(|served| served.last());
    newest.fold(span.base, |sum, (_, generation)| sum.saturating_add(generation.get()))
}

/// The generation of a device in a span's newest manifest.
fn last(span: &ManifestSpan, device: &DeviceId) -> Option<Generation> {
    span.served.get(device)?.last().map(|(_, generation)| *generation)
}

/// Goes on to the manifest of these generations; its version, and whether the record has changed.
///
/// # Errors
/// An older manifest would follow a newer one.
pub(crate) fn advance(record: &mut HttpDevice, found: &Generations) -> Result<(u64, bool), HubIsBehind> {
    let is_new = record.span.is_none();
    let span = record.span.get_or_insert_default();
    let is_behind = |(device, now): (&DeviceId, &Option<Generation>)| {
        last(span, device).is_some_and(|served| now.is_none_or(|now| now < served))
    };
    if found.iter().any(is_behind) {
        return Err(HubIsBehind);
    }
    let before = span.served.len();
    let left = span.served.extract_if(.., |device, _| !found.contains_key(device));
    let left: Vec<u64> = left.filter_map(|(_, served)| served.last().map(|(_, last)| last.get())).collect();
    span.base = left.iter().fold(span.base, |base, last| base.saturating_add(*last).saturating_add(1));
    let mut is_changed = is_new || span.served.len() < before;
    let present = || found.iter().filter_map(|(device, generation)| Some((device, (*generation)?)));
    let next = present().fold(span.base, |sum, (_, generation)| sum.saturating_add(generation.get()));
    for (device, generation) in present() {
        if last(span, device) == Some(generation) {
            continue;
        }
        let served = span.served.entry(device.clone()).or_default();
        served.push((next, generation));
        let surplus = served.len().saturating_sub(HTTP_SERVED_MAX);
        served.drain(..surplus);
        is_changed = true;
    }
    Ok((next, is_changed))
}

/// The generation that a device had in a version of the manifest: the first one if the version is older than the record knows, so
/// that a report of it counts for no newer content.
///
/// # Errors
/// The version is above the newest one, which is returned.
pub(crate) fn generation_of(
    record: &HttpDevice,
    device: &DeviceId,
    adopted: Generation,
) -> Result<Generation, u64> {
    let newest = record.span.as_ref().map_or(0, version);
    if adopted.get() > newest {
        return Err(newest);
    }
    let served = record.span.as_ref().and_then(|span| span.served.get(device));
    let then = served.and_then(|served| served.iter().rev().find(|(version, _)| *version <= adopted.get()));
    Ok(then.map_or(Generation::FIRST, |(_, generation)| *generation))
}

/// The id of a child's deployment in manifests and statuses. A manifest has the deployments of several devices, and Muster gives
/// the same deployment one id on all of them. It is a UUID (RFC 9562, version 8), as Margo wants.
pub(crate) fn child_deployment(key: &DeviceKey, id: &DeploymentId) -> DeploymentId {
    let digest = Digest::of_bytes(format!("{key}\n{id}").as_bytes()).to_string();
    let hex = digest.rsplit(':').next().unwrap_or_default();
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    let uuid = format!("{}-{}-8{}-9{}-{}", part(0, 8), part(8, 12), part(12, 15), part(15, 18), part(18, 30));
    uuid.parse().unwrap_or_else(|_| id.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::margo::record;
    use muster_contract::Timestamp;

    fn found(all: &[(&str, u64)]) -> Generations {
        all.iter()
            .map(|(device, generation)| (device.parse().unwrap(), Generation::new(*generation)))
            .collect()
    }

    fn record() -> HttpDevice {
        record::begin(None, Timestamp::UNIX_EPOCH)
    }

    fn generation(record: &HttpDevice, device: &str, version: u64) -> Result<u64, u64> {
        let adopted = Generation::new(version).unwrap();
        generation_of(record, &device.parse().unwrap(), adopted).map(Generation::get)
    }

    #[test]
    fn a_version_rises_with_every_change_of_every_device() {
        let mut record = record();
        let mut at = |all: &[(&str, u64)]| advance(&mut record, &found(all));
        assert_eq!(at(&[("gw", 3), ("a", 0), ("b", 0)]), Ok((3, true)), "as before it had children");
        assert_eq!(at(&[("gw", 3), ("a", 2), ("b", 0)]), Ok((5, true)));
        assert_eq!(at(&[("gw", 3), ("a", 2), ("b", 0)]), Ok((5, false)), "nothing has changed");
        assert_eq!(at(&[("gw", 3), ("a", 2), ("b", 9)]), Ok((14, true)));
        assert_eq!(at(&[("gw", 3), ("a", 2)]), Ok((15, true)), "a device has left");
        assert_eq!(at(&[("gw", 3), ("a", 4)]), Ok((17, true)));
        assert_eq!(at(&[("gw", 3), ("a", 4), ("b", 9)]), Ok((26, true)), "it is back");
        // The base is 10 by now, and both that leave add theirs.
        assert_eq!(at(&[("gw", 3)]), Ok((10 + 5 + 10 + 3, true)));
    }

    #[test]
    fn a_replica_that_is_behind_for_one_device_serves_nothing() {
        let mut record = record();
        advance(&mut record, &found(&[("gw", 3), ("a", 5)])).unwrap();
        let before = record.clone();
        for behind in [&[("gw", 3), ("a", 4)][..], &[("gw", 2), ("a", 9)], &[("gw", 3), ("a", 0)]] {
            assert_eq!(advance(&mut record, &found(behind)), Err(HubIsBehind), "{behind:?}");
        }
        assert_eq!(record, before);
    }

    #[test]
    fn a_lost_record_gives_the_same_desired_states_the_same_version() {
        let mut known = record();
        for generation in 1..20 {
            advance(&mut known, &found(&[("gw", 3), ("a", generation)])).unwrap();
        }
        let now = found(&[("gw", 3), ("a", 19), ("b", 2)]);
        assert_eq!(advance(&mut known, &now).unwrap().0, advance(&mut record(), &now).unwrap().0);
    }

    #[test]
    fn an_adopted_version_is_the_generation_that_the_device_had_then() {
        let mut record = record();
        for (a, b) in [(1, 1), (2, 1), (2, 2), (3, 2)] {
            advance(&mut record, &found(&[("a", a), ("b", b)])).unwrap();
        }
        // Versions 2, 3, 4 and 5.
        let of = |device, versions: [u64; 4]| versions.map(|version| generation(&record, device, version));
        assert_eq!(of("a", [2, 3, 4, 5]), [Ok(1), Ok(2), Ok(2), Ok(3)]);
        assert_eq!(of("b", [2, 3, 4, 5]), [Ok(1), Ok(1), Ok(2), Ok(2)]);
        assert_eq!((generation(&record, "a", 6), generation(&record, "a", 1)), (Err(5), Ok(1)));
        for a in 4..40 {
            advance(&mut record, &found(&[("a", a), ("b", 2)])).unwrap();
        }
        assert_eq!(generation(&record, "a", 9), Ok(1), "older than the record knows: of no newer content");
        assert_eq!(generation(&record, "b", 30), Ok(2), "it has not changed since");
    }

    #[test]
    fn one_deployment_has_another_id_on_each_child() {
        let [one, other]: [DeviceKey; 2] = ["plant7/a", "plant7/b"].map(|key| key.parse().unwrap());
        let web: DeploymentId = "web".parse().unwrap();
        let (first, second) = (child_deployment(&one, &web), child_deployment(&other, &web));
        assert!(first != second && first == child_deployment(&one, &web));
        assert_eq!((first.as_str().len(), first.as_str().as_bytes()[14]), (36, b'8'), "{first}");
    }
}
