//! The law of progress: no rollout stands for long, also under faults, unless its sentence names the person, the check, the time, the
//! rollout or the device that it waits for, and that is the truth.

use std::collections::BTreeMap;

use muster_contract::DeviceKey;
use muster_contract::canonical::Digest;
use muster_contract::rollout::{Check, RolloutPhase};
use muster_domain::rollout::{Blocked, Gate, Known, RolloutProgress, Step};

use super::calm::{has_nothing_to_release, is_refused};
use super::checks::knows_nothing;
use super::hub::Subject;
use super::law::must;
use super::world::{Event, MINUTE, Millis, World};

/// Time for which a rollout may stand without such a reason: longer than every soak time, rate, silence and attempt of a device, and
/// less than the ten minutes of the rule.
const STANDS_MAX: Millis = 5 * MINUTE;

pub(crate) const STANDS: &str = "a rollout stands only for a named person, check, time, rollout or device";

/// The rollouts, each with its last state in short and the time since which it has it.
pub(crate) type Stands = BTreeMap<(Subject, Digest), (String, Millis)>;

impl World {
    /// Looks at every rollout.
    pub(crate) fn look(&mut self) {
        self.after(MINUTE, Event::Look);
        let mut stands = Stands::new();
        for rollout in self.progress() {
            let key = ((rollout.deployment.clone(), rollout.file.clone()), rollout.digest);
            let RolloutProgress { state, known, record, .. } = &rollout;
            let short = format!(
                "{state:?} {known:?} {:?}",
                record.as_ref().and_then(|record| record.decisions.last())
            );
            let before = self.stands.remove(&key).filter(|(before, _)| *before == short);
            let since = before.map_or(self.now, |(_, since)| since);
            if self.now - since >= STANDS_MAX {
                let may_stand = self.may_stand(&rollout);
                self.hold(must(may_stand, STANDS, || {
                    let minutes = (self.now - since) / MINUTE;
                    format!(
                        "{key:?} stands for {minutes} minutes: {}\n{:?}",
                        rollout.why(),
                        rollout.state.step
                    )
                }));
            }
            stands.insert(key, (short, since));
        }
        self.stands = stands;
    }

    /// Whether a rollout waits for something that its sentence names.
    fn may_stand(&self, rollout: &RolloutProgress) -> bool {
        let why = rollout.why();
        match &rollout.state.step {
            Step::Done | Step::Wait { because: Blocked::NothingToRelease, .. } => {
                rollout.phase() == RolloutPhase::Succeeded || has_nothing_to_release(rollout)
            }
            Step::Held { phase } => {
                let verb = phase.continued_by();
                verb.is_some_and(|verb| why.contains(&format!("muster rollout {verb}")))
            }
            Step::RollBack { targets } => {
                targets.iter().all(|at| self.has_no_other(rollout, &rollout.targets[*at].key))
            }
            Step::Release { needs_approval: true, .. } | Step::Wait { because: Blocked::Approval, .. } => {
                why.contains("muster rollout approve")
            }
            Step::Check { wave } => {
                let checks = rollout.policy.waves.get(*wave).map_or(&[][..], |wave| &wave.checks);
                let knows_nothing = |check: &Check| knows_nothing(&check.name(), rollout.digest);
                checks.iter().any(|check| knows_nothing(check) && why.contains(&check.name()))
            }
            Step::Wait { because: Blocked::Window(Some(next)), .. } => {
                *next > self.time() && why.contains(&next.to_string())
            }
            Step::Wait { because: Blocked::After, .. } => rollout.waits_for.iter().any(|other| {
                other.phase != RolloutPhase::Succeeded
                    && why.contains(&format!("the rollout of {}", other.deployment))
            }),
            Step::Wait { wave, because: Blocked::Gate } if rollout.state.waves[*wave].gate == Gate::Empty => {
                why.contains("muster rollout next")
            }
            Step::Wait { because: Blocked::Gate | Blocked::InFlight | Blocked::Budget, .. } => {
                self.names_culprit(rollout, &why)
            }
            Step::Release { targets, .. } => is_refused(rollout, targets),
            Step::Wait { because: Blocked::Rate(_) | Blocked::Window(None), .. }
            | Step::Ready { .. }
            | Step::Fail { .. } => false,
        }
    }

    /// Whether a sentence names a device of the rollout that is not heard, or on which the content has failed.
    fn names_culprit(&self, rollout: &RolloutProgress, why: &str) -> bool {
        let is_silent = |key: &DeviceKey| {
            self.devices.iter().any(|device| device.key == *key && !(device.is_alive() && device.is_linked))
        };
        let mut all = rollout.targets.iter().zip(&rollout.known);
        all.any(|(target, known)| {
            (*known == Known::Failed || is_silent(&target.key)) && why.contains(&target.key.to_string())
        })
    }
}
