//! Joins the publisher's targets with the lines of a deployment's view, into the state of each of its rollouts.

use std::collections::BTreeMap;

use muster_contract::canonical::Digest;
use muster_contract::rollout::{
    CheckRequest, Deadlines, GateEvidence, Retries, Rollout, RolloutPhase, RolloutRecord, RolloutTarget,
    TargetsAnswer, WaitsFor,
};
use muster_contract::view::{Freshness, Standing};
use muster_contract::{DeploymentId, DeviceKey, Generation, Timestamp, WaveName};
use serde::Serialize;

use super::clock::RolloutClock;
use super::gate::Tally;
use super::judgement::state;
use super::line::Line;
use super::lines::Lines;
use super::state::RolloutState;
use super::target::{Evidence, Target};
use super::waves::RolloutId;

/// One rollout: the targets of one content of a deployment that one `rollout.yaml` governs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutProgress {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The content that Git wants.
    pub digest: Digest,
    /// Path of the `rollout.yaml`.
    pub file: String,
    /// The commit.
    pub revision: String,
    /// The decisions about it; `None` before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<RolloutRecord>,
    /// LEDGER up to this sequence gives the knowledge of the targets.
    pub ledger_seq: u64,
    /// The last sequence of a view that was read in pages of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ledger_through: Option<u64>,
    /// Time of the judgement.
    pub judged_at: Timestamp,
    /// The rollouts that it comes after and that have not succeeded. Only the first begin of a run waits for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<WaitsFor>,
    /// The content of the `rollout.yaml`.
    #[serde(skip)]
    pub policy: Rollout,
    /// The targets.
    pub targets: Vec<RolloutTarget>,
    /// Targets of the next step that are not among them, because there are so many.
    #[serde(skip)]
    pub unnamed: usize,
    /// The knowledge of each target, in the same order.
    pub known: Vec<Known>,
    /// Time since which each target is not heard; the least time if it was never heard.
    #[serde(skip)]
    pub silent_since: Vec<Option<Timestamp>>,
    /// Silent targets that may still run the content after a rollback or an abort. A [`LiveRollout`](super::LiveRollout) leaves it empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreached: Vec<DeviceKey>,
    /// The waves and the next step.
    pub state: RolloutState,
}

/// The knowledge of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Known {
    /// It does not have the content in its desired state.
    NotReleased,
    /// LEDGER does not have its desired state with the content yet.
    NotInLedger,
    /// It is not heard.
    NotHeard,
    /// Reports of it are missing.
    ReportsMissing,
    /// It has reported neither success nor failure.
    UnderWay,
    /// It has failed and tries again, as the rollout allows.
    TriesAgain,
    /// It is heard, has no end, and has missed its deadline.
    Overdue,
    /// It is heard, and has installed the content.
    Confirmed,
    /// It is heard, and the content has failed.
    Failed,
}

/// The rollouts of a deployment by file and content, as of `now`. A removal is no rollout: no report confirms that a device
/// runs nothing.
pub fn progress(
    id: &DeploymentId,
    answer: TargetsAnswer,
    lines: &Lines,
    now: Timestamp,
) -> Vec<RolloutProgress> {
    let TargetsAnswer { revision, rollouts, targets, decisions, waits_for: waited, .. } = answer;
    let mut groups: BTreeMap<(String, Digest), Vec<RolloutTarget>> = BTreeMap::new();
    for target in targets {
        if let Some(wanted) = target.wanted {
            groups.entry((target.rollout.clone(), wanted)).or_default().push(target);
        }
    }
    let of_group = |((file, digest), targets): ((String, Digest), Vec<RolloutTarget>)| {
        let rollout_id = RolloutId { deployment: id.clone(), digest };
        let record = decisions.iter().find(|record| record.digest == digest && record.rollout == file);
        let policy = rollouts.get(&file)?.clone();
        let clock = RolloutClock { record, now };
        let known = |target: &RolloutTarget| {
            let line = lines.line(&target.key);
            let known = Known::of(target, line.as_ref(), policy.retries.as_ref());
            known.by_deadlines(line.as_ref(), &policy.deadlines, &clock)
        };
        let known: Vec<_> = targets.iter().map(known).collect();
        let rows = rows(&targets, &known, lines);
        let silent_since = rows.iter().map(|row| row.silent_since).collect();
        let waits_for = waited.get(&file).cloned().unwrap_or_default();
        let mut state = state(&policy, &rollout_id, record, &rows, &waits_for, now);
        for wave in &mut state.waves {
            wave.in_ledger = wave.members.iter().filter(|at| known[**at].is_in_ledger()).count() as u64;
        }
        let unreached = unreached(record, &targets, lines);
        let (deployment, revision, record) = (id.clone(), revision.clone(), record.cloned());
        let Lines { ledger_seq, ledger_through, .. } = *lines;
        Some(RolloutProgress {
            deployment,
            digest,
            file,
            revision,
            record,
            ledger_seq,
            ledger_through,
            judged_at: now,
            waits_for,
            policy,
            targets,
            unnamed: 0,
            known,
            silent_since,
            unreached,
            state,
        })
    };
    groups.into_iter().filter_map(of_group).collect()
}

/// The targets that a rollback or an abort has not reached.
fn unreached(record: Option<&RolloutRecord>, targets: &[RolloutTarget], lines: &Lines) -> Vec<DeviceKey> {
    let phase = record.map(RolloutRecord::phase).unwrap_or_default();
    let is_back = matches!(phase, RolloutPhase::Aborted | RolloutPhase::RolledBack);
    let Some(decision) = record.and_then(RolloutRecord::last).filter(|_| is_back) else { return Vec::new() };
    // Others keep what they had before the decision.
    let has_earlier = |target: &RolloutTarget| {
        target.published != target.wanted && target.published_at.is_some_and(|at| at >= decision.at)
    };
    let is_unreached = |target: &&RolloutTarget| {
        let is_silent = || lines.line(&target.key).is_some_and(|line| line.is_unreached());
        (target.published.is_none() || has_earlier(target)) && is_silent()
    };
    targets.iter().filter(is_unreached).map(|target| target.key.clone()).collect()
}

/// The targets, with the evidence about each.
pub(super) fn rows<'a>(targets: &'a [RolloutTarget], known: &[Known], lines: &Lines) -> Vec<Target<'a>> {
    let row =
        |(target, known): (&'a RolloutTarget, &Known)| row(target, *known, lines.line(&target.key).as_ref());
    targets.iter().zip(known).map(row).collect()
}

fn row<'a>(target: &'a RolloutTarget, known: Known, line: Option<&Line<'_>>) -> Target<'a> {
    let evidence = known.evidence(line);
    let is_released = known != Known::NotReleased;
    Target {
        key: &target.key,
        labels: &target.labels,
        is_released,
        evidence,
        has_begun: is_released && line.is_some_and(|line| line.has_begun(target.target_generation)),
        // A device owes nothing before LEDGER has its desired state with the content.
        silent_since: silent_since(line).filter(|_| known != Known::NotInLedger),
        released_at: target.published_at,
        is_refused: target.refused.is_some(),
    }
}

/// Time since which a device is not heard; `None` if it is heard, or if LEDGER does not know it.
pub(super) fn silent_since(line: Option<&Line<'_>>) -> Option<Timestamp> {
    let line = line.filter(|line| line.freshness != Freshness::Fresh)?;
    Some(line.last_heard_at.unwrap_or(Timestamp::MIN))
}

impl RolloutProgress {
    /// The counts of a wave, as evidence of a decision: LEDGER alone gives them, so they can be recomputed.
    pub fn evidence(&self, wave: usize) -> Option<GateEvidence> {
        let state = self.state.waves.get(wave)?;
        let Tally { targets, confirmed, soaked, failed, debt, dark, .. } = state.tally;
        let released = state.in_ledger;
        let Self { ledger_seq, ledger_through, judged_at, .. } = *self;
        Some(GateEvidence {
            ledger_seq,
            ledger_through,
            revision: Some(self.revision.clone()),
            judged_at: Some(judged_at),
            targets,
            released,
            confirmed,
            soaked,
            failed,
            debt,
            dark: Some(dark),
            debt_of_all: None,
        })
    }

    /// The counts of the last wave, as evidence of the end.
    pub fn last_evidence(&self) -> Option<GateEvidence> {
        let counts = self.evidence(self.state.waves.len().checked_sub(1)?)?;
        Some(GateEvidence { debt_of_all: Some(self.debt()).filter(|debt| *debt > 0), ..counts })
    }

    /// Targets of all waves that are left out because they are not heard.
    pub fn debt(&self) -> u64 {
        self.state.waves.iter().map(|wave| wave.tally.debt).sum()
    }

    /// The question of the checks behind a wave.
    pub fn question(&self, wave: usize) -> Option<CheckRequest> {
        let state = self.state.waves.get(wave)?;
        let Tally { targets, confirmed, failed, .. } = state.tally;
        Some(CheckRequest {
            deployment: self.deployment.clone(),
            digest: self.digest,
            rollout: self.file.clone(),
            wave: state.name.parse().ok()?,
            ledger_seq: self.ledger_seq,
            targets,
            lo: confirmed,
            hi: targets - failed,
        })
    }

    /// The name of a wave that has not begun, and the evidence by which it may: the counts of the wave before it, or of itself if
    /// it is the first.
    pub fn begin(&self, wave: usize) -> Option<(WaveName, Option<GateEvidence>)> {
        let name = &self.state.waves.get(wave)?.name;
        let began = self.record.as_ref().and_then(|record| record.began(name));
        let is_due = began.is_none() && self.phase() != RolloutPhase::Succeeded;
        let name = name.parse().ok().filter(|_| is_due)?;
        Some((name, self.evidence(wave.saturating_sub(1))))
    }

    /// The phase by its decisions.
    pub fn phase(&self) -> RolloutPhase {
        self.record.as_ref().map(RolloutRecord::phase).unwrap_or_default()
    }
}

impl Known {
    /// The knowledge of a target by its line in the view of the deployment.
    fn of(target: &RolloutTarget, line: Option<&Line<'_>>, retries: Option<&Retries>) -> Self {
        let has_content = target.wanted == target.published;
        Self::of_content(has_content, target.target_generation, line, retries)
    }

    /// The state of a target that has the content, or not, since a generation.
    pub(super) fn of_content(
        has_content: bool,
        generation: Option<Generation>,
        line: Option<&Line<'_>>,
        retries: Option<&Retries>,
    ) -> Self {
        if !has_content {
            return Self::NotReleased;
        }
        // The generation says which content the line is about; an older one is about an older content.
        let is_of_content = |line: &&Line<'_>| line.target_generation == generation && !line.leaving;
        let Some(line) = line.filter(is_of_content) else { return Self::NotInLedger };
        match (line.freshness, line.known, line.standing) {
            (Freshness::Stale | Freshness::Never, ..) => Self::NotHeard,
            (Freshness::Fresh, false, _) => Self::ReportsMissing,
            (Freshness::Fresh, true, Standing::Installed) => Self::Confirmed,
            (Freshness::Fresh, true, Standing::Failed)
                if retries.is_some_and(|allowed| allowed.allow(line.retries)) =>
            {
                Self::TriesAgain
            }
            (Freshness::Fresh, true, Standing::Failed) => Self::Failed,
            (Freshness::Fresh, true, _) => Self::UnderWay,
        }
    }

    /// The same under the deadlines of a rollout: only a device that is heard, with all reports in, can miss one.
    pub(super) fn by_deadlines(
        self,
        line: Option<&Line<'_>>,
        deadlines: &Deadlines,
        clock: &RolloutClock<'_>,
    ) -> Self {
        let is_overdue = || line.is_some_and(|line| line.is_overdue(deadlines, clock));
        match self {
            Self::UnderWay | Self::TriesAgain if is_overdue() => Self::Overdue,
            other => other,
        }
    }

    /// The evidence for or against the content.
    pub(super) fn evidence(self, line: Option<&Line<'_>>) -> Evidence {
        match self {
            Self::Confirmed => {
                line.and_then(|line| line.changed_at).map_or(Evidence::Unknown, Evidence::Confirmed)
            }
            Self::Failed => Evidence::Failed,
            Self::Overdue => Evidence::Overdue,
            Self::NotReleased
            | Self::NotInLedger
            | Self::NotHeard
            | Self::ReportsMissing
            | Self::UnderWay
            | Self::TriesAgain => Evidence::Unknown,
        }
    }

    /// Whether the target has the content and has not confirmed it.
    pub(super) const fn is_open(self) -> bool {
        !matches!(self, Self::NotReleased | Self::Confirmed)
    }

    /// Whether LEDGER shows the content in the desired state of the target.
    pub(super) const fn is_in_ledger(self) -> bool {
        !matches!(self, Self::NotReleased | Self::NotInLedger)
    }
}

#[cfg(test)]
mod tests {
    use muster_contract::status::TargetStatus;

    use super::super::tests::line_of;
    use super::*;

    fn target() -> RolloutTarget {
        let digest = Some(Digest::of_bytes(b"v2"));
        RolloutTarget {
            key: "a/one".parse().unwrap(),
            labels: Default::default(),
            rollout: "fleet/rollout.yaml".to_owned(),
            wanted: digest,
            published: digest,
            target_generation: Generation::new(7),
            published_at: None,
            refused: None,
        }
    }

    fn line(standing: Standing) -> TargetStatus {
        let fields = serde_json::json!({
            "standing": standing, "targetGeneration": 7, "changedAt": Timestamp::UNIX_EPOCH,
        });
        line_of(&"a/one".parse().unwrap(), &fields)
    }

    #[test]
    fn only_a_heard_and_known_device_confirms_a_content_or_fails_it() {
        let of = |line: &TargetStatus| Known::of(&target(), Some(&Line::from(line)), None);
        let installed = line(Standing::Installed);
        assert_eq!(of(&installed), Known::Confirmed);
        assert_eq!(of(&line(Standing::Failed)), Known::Failed);
        assert_eq!(of(&line(Standing::Installing)), Known::UnderWay);
        for standing in [Standing::Installed, Standing::Failed] {
            let silent = TargetStatus { freshness: Freshness::Stale, ..line(standing) };
            assert_eq!(of(&silent), Known::NotHeard, "{standing:?}");
            assert_eq!(
                of(&TargetStatus { known: false, ..line(standing) }),
                Known::ReportsMissing,
                "{standing:?}"
            );
        }
    }

    #[test]
    fn a_line_about_an_older_content_says_nothing_of_this_one() {
        let older = TargetStatus { target_generation: Generation::new(6), ..line(Standing::Installed) };
        let older = Line::from(&older);
        assert_eq!(Known::of(&target(), Some(&older), None), Known::NotInLedger);
        assert_eq!(Known::of(&target(), None, None), Known::NotInLedger);
        let before = RolloutTarget { published: Some(Digest::of_bytes(b"v1")), ..target() };
        let installed = line(Standing::Installed);
        assert_eq!(Known::of(&before, Some(&Line::from(&installed)), None), Known::NotReleased);
    }

    #[test]
    fn m22_a_waiting_rollout_names_its_predicate_and_the_devices() {
        let rollout = r#"{"apiVersion":"muster/v1","kind":"Rollout"}"#;
        let begin = r#"{"verb":"begin","wave":"first","at":"1970-01-01T00:00:00Z"}"#;
        let begun = RolloutRecord {
            decisions: vec![serde_json::from_str(begin).unwrap()],
            ..RolloutRecord::new(Digest::of_bytes(b"v2"), "fleet/rollout.yaml".to_owned())
        };
        let answer = TargetsAnswer {
            revision: "c1".to_owned(),
            rollouts: [("fleet/rollout.yaml".to_owned(), serde_json::from_str(rollout).unwrap())].into(),
            targets: vec![target()],
            decisions: vec![begun],
            waits_for: BTreeMap::new(),
            next: None,
        };
        let why = |line: TargetStatus| {
            let of_devices = [(line.key.clone(), line)].into();
            let lines = Lines { ledger_seq: 9, of_devices, ..Lines::default() };
            progress(&"web".parse().unwrap(), answer.clone(), &lines, Timestamp::UNIX_EPOCH)[0].why()
        };
        let silent = TargetStatus { freshness: Freshness::Stale, ..line(Standing::Installed) };
        assert_eq!(
            why(silent),
            "the gate behind wave first needs 1 of 1 confirmed and has 0, at most 1: 1 never heard (a/one)"
        );
        assert_eq!(
            why(line(Standing::Failed)),
            "wave first has failed: too many failures (a/one); next: pause"
        );
        assert_eq!(
            why(line(Standing::Installed)),
            "done: every target has the content, and every gate is open"
        );
    }

    #[test]
    fn a_failure_that_may_be_tried_again_counts_once_its_attempts_are_used_up() {
        let of = |attempt: u32, code: &str, retries: serde_json::Value| {
            let tried = serde_json::json!({
                "attempt": attempt, "since": "1970-01-01T00:00:00Z",
                "lastError": { "code": code, "message": "m", "at": "1970-01-01T00:00:00Z" },
            });
            let report = serde_json::json!({
                "state": "failed", "generation": 7, "observedAt": "1970-01-01T00:00:00Z",
                "receivedAt": "1970-01-01T00:00:00Z", "epoch": 1, "seq": 1, "ledgerSeq": 1, "retries": [tried],
            });
            let report = Some(serde_json::from_value(report).unwrap());
            let retries: Option<Retries> = serde_json::from_value(retries).unwrap();
            let failed = TargetStatus { report, ..line(Standing::Failed) };
            Known::of(&target(), Some(&Line::from(&failed)), retries.as_ref())
        };
        let any = || serde_json::json!({ "max": 2 });
        assert_eq!(of(1, "pull", serde_json::Value::Null), Known::Failed, "without the policy");
        assert_eq!(
            [1, 2, 3].map(|attempt| of(attempt, "pull", any())),
            [Known::TriesAgain, Known::TriesAgain, Known::Failed]
        );
        let of_class = || serde_json::json!({ "max": 2, "classes": ["pull"] });
        assert_eq!(of(1, "pull", of_class()), Known::TriesAgain);
        assert_eq!(of(1, "exit", of_class()), Known::Failed, "an error of another class counts at once");
        let retries = serde_json::from_value(any()).unwrap();
        let failed = line(Standing::Failed);
        let given_up = Known::of(&target(), Some(&Line::from(&failed)), Some(&retries));
        assert_eq!(given_up, Known::Failed, "a device that does not try again has failed");
    }

    #[test]
    fn targets_of_other_files_and_contents_are_other_rollouts() {
        let other = |key: &str, file: &str, wanted: Option<&[u8]>| RolloutTarget {
            key: key.parse().unwrap(),
            rollout: file.to_owned(),
            wanted: wanted.map(Digest::of_bytes),
            ..target()
        };
        let rollout = || -> muster_contract::rollout::Rollout {
            serde_json::from_str(r#"{"apiVersion":"muster/v1","kind":"Rollout"}"#).unwrap()
        };
        let answer = TargetsAnswer {
            revision: "c1".to_owned(),
            rollouts: [("x", rollout()), ("y", rollout())].map(|(file, one)| (file.to_owned(), one)).into(),
            targets: vec![
                other("a/one", "x", Some(b"v2")),
                other("a/two", "x", Some(b"v3")),
                other("b/three", "y", Some(b"v2")),
                other("b/four", "y", Some(b"v2")),
                other("b/five", "y", None),
            ],
            decisions: Vec::new(),
            waits_for: BTreeMap::new(),
            next: None,
        };
        let found = progress(&"web".parse().unwrap(), answer, &Lines::default(), Timestamp::UNIX_EPOCH);
        let shown: Vec<_> = found.iter().map(|one| (one.file.as_str(), one.targets.len())).collect();
        assert_eq!(
            shown.iter().map(|(_, count)| count).sum::<usize>(),
            4,
            "a removal is no rollout: {shown:?}"
        );
        assert_eq!(found.len(), 3);
    }
}
