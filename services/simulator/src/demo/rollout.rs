//! Follows the rollout of one commit by the answers of the hub, as `muster rollout show` does. It releases nothing.

use std::collections::BTreeSet;

use muster_bus::Bus;
use muster_contract::rollout::{RolloutDecision, RolloutPhase, RolloutRecord, RolloutVerb};
use muster_ctl::ask::Hub;
use muster_ctl::rollout::rollouts_at;
use muster_domain::rollout::{RolloutProgress, Step, WaveState};
use muster_service::clock::{Clock as _, SystemClock};

use crate::hub::TIMEOUT;
use crate::repository::TELEMETRY;
use crate::result::{RolloutResult, WaveResult};

/// Asks about rollouts.
pub(super) struct RolloutReader(Hub);

impl RolloutReader {
    /// A reader over a bus.
    pub(super) fn new(bus: Bus) -> Self {
        Self(Hub::new(bus, TIMEOUT))
    }

    /// The rollout of a release and its commit; `None` if a service does not answer, or the publisher has not accepted the
    /// commit.
    pub(super) async fn read(&self, release: u32, commit: &str) -> Option<RolloutResult> {
        let found = rollouts_at(&self.0, &TELEMETRY.parse().ok()?, SystemClock.now()).await.ok()?;
        let rollout = found.iter().find(|rollout| rollout.revision == commit)?;
        Some(result(release, rollout))
    }
}

/// The state of a rollout for people and programs.
fn result(release: u32, rollout: &RolloutProgress) -> RolloutResult {
    let begun = |decision: &RolloutDecision| {
        decision.wave.as_ref().filter(|_| decision.verb == RolloutVerb::Begin).map(ToString::to_string)
    };
    let decisions = rollout.record.iter().flat_map(|record| &record.decisions);
    let begun: BTreeSet<String> = decisions.filter_map(begun).collect();
    let wave = |wave: &WaveState| WaveResult {
        name: wave.name.clone(),
        targets: wave.tally.targets,
        has_begun: begun.contains(&wave.name),
    };
    RolloutResult {
        release,
        id: format!("{}@{}", rollout.deployment, rollout.digest),
        word: rollout.phase(),
        why: why(rollout),
        waves: rollout.state.waves.iter().map(wave).collect(),
        has_ended: has_ended(rollout),
    }
}

/// The reason of a rollback, or the sentence about a rollout that is not rolled back, to follow its word.
fn why(rollout: &RolloutProgress) -> String {
    if rollout.state.step == Step::Done {
        return "every target has the content, and every gate is open".to_owned();
    }
    let last = rollout.record.as_ref().and_then(RolloutRecord::last);
    let reason = last.filter(|last| last.verb == RolloutVerb::Rollback).and_then(|last| last.reason.clone());
    reason.unwrap_or_else(|| rollout.why())
}

/// Whether nothing is left to release or to take back.
fn has_ended(rollout: &RolloutProgress) -> bool {
    match rollout.phase() {
        RolloutPhase::Succeeded | RolloutPhase::Stopped | RolloutPhase::Superseded => true,
        RolloutPhase::Aborted | RolloutPhase::RolledBack => matches!(rollout.state.step, Step::Held { .. }),
        RolloutPhase::Running | RolloutPhase::Paused => false,
    }
}
