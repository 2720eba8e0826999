//! Assigns each target to a wave. A device is in the first wave that matches it. Shares and numbers take devices in the
//! order of a hash of rollout and device: the order is the same in every program and differs for the next digest, and a
//! larger share holds all devices of a smaller one.

use std::num::NonZeroU32;
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::labels::Labels;
use muster_contract::rollout::{Approval, FailureLimit, Offline, Order, Rollout, Success, Wave};
use muster_contract::{DeploymentId, DeviceKey};

use super::target::Target;

/// The name of the first wave of a rollout without waves.
const FIRST: &str = "first";

/// A rollout: one content of one deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutId {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The content.
    pub digest: Digest,
}

impl RolloutId {
    /// The sort key of a device in this rollout's order.
    fn rank(&self, key: &DeviceKey) -> Digest {
        self.ranks()(key)
    }

    /// The sort keys of several devices.
    fn ranks(&self) -> impl FnMut(&DeviceKey) -> Digest {
        let mut text = format!("{}\n{}\n", self.deployment, self.digest);
        let common = text.len();
        move |key| {
            text.truncate(common);
            // As the key is written; formatting takes longer than the digest.
            [key.site.as_str(), "/", key.device.as_str()].into_iter().for_each(|part| text.push_str(part));
            Digest::of_bytes(text.as_bytes())
        }
    }
}

/// The waves of a rollout: its own or, without any, one device.
pub(super) fn effective(rollout: &Rollout) -> Vec<Wave> {
    if !rollout.waves.is_empty() {
        return rollout.waves.clone();
    }
    let first = FIRST.parse().map(|name| Wave {
        name,
        devices: Default::default(),
        selector: Labels::new(),
        site: None,
        percent: None,
        count: Some(NonZeroU32::MIN),
        order: Order::Name,
        per_minute: None,
        max_in_flight: None,
        success: Success::default(),
        failure: FailureLimit::default(),
        soak: Duration::ZERO,
        checks: Vec::new(),
        approval: Approval::None,
        offline: Offline::Wait,
        allow_empty: false,
    });
    first.into_iter().collect()
}

/// The index in `waves` of each target's wave; `waves.len()` for a target that no wave matches.
pub fn waves_of(waves: &[Wave], id: &RolloutId, targets: &[(&DeviceKey, &Labels)]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..targets.len()).collect();
    let is_ranked = |wave: &Wave| wave.count.is_some() || wave.percent.is_some();
    if waves.iter().any(is_ranked) {
        let mut rank = id.ranks();
        let ranks: Vec<_> = targets.iter().map(|(key, _)| rank(key)).collect();
        // The first bytes of two digests differ almost always, so that a comparison seldom reads the digests.
        let prefix =
            |at: usize| ranks[at].as_bytes().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        let mut prefixes: Vec<_> = order.iter().map(|at| (prefix(*at), *at)).collect();
        prefixes.sort_unstable_by(|(one, at), (other, other_at)| {
            let whole = |at: usize| (ranks[at], targets[at].0);
            one.cmp(other).then_with(|| whole(*at).cmp(&whole(*other_at)))
        });
        order = prefixes.into_iter().map(|(_, at)| at).collect();
    }
    let mut wave_indices = vec![waves.len(); targets.len()];
    for (at, wave) in waves.iter().enumerate() {
        let share = wave.percent.map_or(0, |percent| share_of(targets.len(), percent.get()));
        let mut left = wave.count.map_or(0, |count| usize::try_from(count.get()).unwrap_or(usize::MAX));
        for (rank, target) in order.iter().enumerate() {
            let (key, labels) = targets[*target];
            let is_free = wave_indices[*target] == waves.len();
            let is_counted = is_free && left > 0;
            if is_free && (matches(wave, key, labels) || rank < share || is_counted) {
                wave_indices[*target] = at;
                left -= usize::from(is_counted);
            }
        }
    }
    wave_indices
}

/// Which waves match no target, also not one that an earlier wave has taken, and do not declare that they may be empty. A share or a
/// number of devices is never empty for that reason.
pub(super) fn unmatched(waves: &[Wave], targets: &[(&DeviceKey, &Labels)]) -> Vec<bool> {
    let is_matched = |wave: &Wave| targets.iter().any(|(key, labels)| matches(wave, key, labels));
    let must_match = |wave: &Wave| !wave.allow_empty && wave.percent.is_none() && wave.count.is_none();
    waves.iter().map(|wave| must_match(wave) && !is_matched(wave)).collect()
}

/// Targets in the order in which their wave releases them. Those that a release would not reach come last: the first ones hold the
/// places in flight.
pub(super) fn ordered(
    order: &Order,
    id: &RolloutId,
    mut waiting: Vec<usize>,
    targets: &[Target<'_>],
) -> Vec<usize> {
    let (key, is_refused) = (|at: usize| targets[at].key, |at: usize| targets[at].is_refused);
    match order {
        // Targets are listed by site and name.
        Order::Name => waiting.sort_by_key(|at| (is_refused(*at), *at)),
        Order::Hash => waiting.sort_by_cached_key(|at| (is_refused(*at), id.rank(key(*at)), *at)),
        Order::Label(label) => waiting.sort_by_cached_key(|at| {
            let rank = targets[*at].labels.get(label).map_or(LabelRank::Absent, |value| {
                let text = value.as_str();
                text.parse().map_or_else(|_| LabelRank::Text(text), LabelRank::Number)
            });
            (is_refused(*at), rank, key(*at))
        }),
    }
    waiting
}

/// The sort key of the value of a label.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LabelRank<'a> {
    Number(i64),
    Text(&'a str),
    Absent,
}

/// `percent` of `count`, rounded up, so a share of any device is at least one.
const fn share_of(count: usize, percent: u8) -> usize {
    (count * percent as usize).div_ceil(100)
}

/// Whether a wave names a device, its site or its labels.
pub fn matches(wave: &Wave, key: &DeviceKey, labels: &Labels) -> bool {
    let has = |(label, value)| labels.get(label) == Some(value);
    wave.devices.contains(key)
        || wave.site.as_ref() == Some(&key.site)
        || (!wave.selector.is_empty() && wave.selector.iter().all(has))
}
