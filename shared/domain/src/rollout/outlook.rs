//! The outlook of a rollout before it goes on: its devices that are not heard, the groups whose budget has no room, and the
//! earliest end. It predicts nothing: devices may take any time, so the end is a lower bound.

use std::time::Duration;

use muster_contract::rollout::{Approval, Check, Rollout, RolloutPhase, WaitsFor, Wave};
use muster_contract::{DeviceKey, Timestamp};
use serde::Serialize;

use super::gate::Gate;
use super::lines::Lines;
use super::policy::{Room, group, is_unavailable};
use super::progress::{RolloutProgress, rows, silent_since};
use super::state::{Blocked, Step, WaveState, waits_for_person};
use super::target::{Evidence, Target};
use super::windows::{Opening, opening};

/// Devices that a clash of a budget names, at most.
const NAMED_MAX: usize = 20;

/// The outlook of a rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outlook {
    /// Targets that are not heard, the longest silent ones first.
    pub dark: Vec<DarkDevice>,
    /// Groups whose budget has no room for a release.
    pub clashes: Vec<BudgetClash>,
    /// The end.
    pub end: End,
}

/// A target that is not heard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DarkDevice {
    /// The device.
    #[serde(flatten)]
    pub key: DeviceKey,
    /// Its wave.
    pub wave: String,
    /// Time since which it is not heard; absent if it never was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

/// A group of devices whose budget has no room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetClash {
    /// The label of the budget.
    pub label: String,
    /// Its value; empty for devices without the label.
    pub group: String,
    /// Targets of the group.
    pub devices: usize,
    /// Unavailable ones.
    pub unavailable: usize,
    /// Most unavailable ones that the budget allows.
    pub most: usize,
    /// The first unavailable ones.
    pub first: Vec<DeviceKey>,
    /// Targets of the group that wait for the content.
    pub waiting: usize,
}

/// The end of a rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct End {
    /// No earlier than this: rates, soak times, checks and the begin of windows. Absent if a decision holds the rollout or one that it waits
    /// for, or if this machine does not know the time zone of its windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub earliest: Option<Timestamp>,
    /// Waves whose approvals it waits for besides.
    pub approvals: Vec<String>,
    /// Rollouts that it waits for before its first wave, in addition.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<WaitsFor>,
}

/// The outlook of a rollout by the lines that led to it.
pub fn outlook(rollout: &RolloutProgress, lines: &Lines, now: Timestamp) -> Outlook {
    let rows = rows(&rollout.targets, &rollout.known, lines);
    Outlook {
        dark: dark(rollout, lines),
        clashes: clashes(&rollout.policy, &rows),
        end: end(rollout, &rows, now),
    }
}

fn dark(rollout: &RolloutProgress, lines: &Lines) -> Vec<DarkDevice> {
    let of_wave = |wave: &WaveState| -> Vec<DarkDevice> {
        let device = |at: &usize| {
            let key = &rollout.targets.get(*at)?.key;
            let since = silent_since(lines.line(key).as_ref())?;
            let since = Some(since).filter(|since| *since != Timestamp::MIN);
            Some(DarkDevice { key: key.clone(), wave: wave.name.clone(), since })
        };
        wave.members.iter().filter_map(device).collect()
    };
    let mut dark: Vec<_> = rollout.state.waves.iter().flat_map(of_wave).collect();
    dark.sort_by(|one, other| (one.since, &one.key).cmp(&(other.since, &other.key)));
    dark
}

fn clashes(policy: &Rollout, rows: &[Target<'_>]) -> Vec<BudgetClash> {
    let Some(budget) = &policy.budget else { return Vec::new() };
    let room = Room::beside(Some(budget), rows);
    let clash = |(name, devices, unavailable, most): (&str, usize, usize, usize)| {
        let members = || rows.iter().filter(|row| group(budget, row.labels) == name);
        // A device that is unavailable anyhow needs no room.
        let waiting = members().filter(|row| !row.is_released && !is_unavailable(row)).count();
        let first = members().filter(|row| is_unavailable(row)).take(NAMED_MAX).map(|row| row.key.clone());
        BudgetClash {
            label: budget.group_by.to_string(),
            group: name.to_owned(),
            devices,
            unavailable,
            most,
            first: first.collect(),
            waiting,
        }
    };
    room.full().map(clash).filter(|clash| clash.waiting > 0).collect()
}

fn end(rollout: &RolloutProgress, rows: &[Target<'_>], now: Timestamp) -> End {
    let (policy, phase) = (&rollout.policy, rollout.phase());
    let needs = |(at, wave): (usize, &WaveState)| {
        let has_begun = rollout.record.as_ref().is_some_and(|record| record.began(&wave.name).is_some());
        let is_after = wave.gate == Gate::Approving
            || policy.waves.get(at).is_some_and(|wave| wave.approval == Approval::After);
        let is_open = wave.gate == Gate::Open && wave.tally.released == wave.tally.targets;
        let is_missing = wave.approvals.is_some_and(|count| count.given < count.needed);
        (is_missing && !is_open && (is_after || !has_begun)).then(|| wave.name.clone())
    };
    let approvals = rollout.state.waves.iter().enumerate().filter_map(needs).collect();
    let is_held = phase.continued_by().is_some() || waits_for_person(&rollout.state.step, &rollout.waits_for);
    let earliest = if is_held { None } else { earliest(rollout, rows, now, phase) };
    let is_after = matches!(rollout.state.step, Step::Wait { because: Blocked::After, .. });
    let after = if is_after { rollout.waits_for.clone() } else { Vec::new() };
    End { earliest, approvals, after }
}

/// The earliest end; `None` if no window that this machine knows ever begins.
fn earliest(
    rollout: &RolloutProgress,
    rows: &[Target<'_>],
    now: Timestamp,
    phase: RolloutPhase,
) -> Option<Timestamp> {
    let mut end = now;
    for (at, state) in rollout.state.waves.iter().enumerate() {
        let wave = rollout.policy.waves.get(at);
        let left = state.tally.targets - state.tally.released;
        if left > 0 {
            if let Opening::From(next) = opening(&rollout.policy.windows, end) {
                end = next?;
            }
            let minutes =
                wave.and_then(|wave| wave.per_minute).map_or(0, |rate| (left - 1) / u64::from(rate.get()));
            end = later(end, Duration::from_secs(minutes.saturating_mul(60)));
        }
        let is_passed = state.gate == Gate::Open && left == 0 || phase == RolloutPhase::Succeeded;
        if let Some(wave) = wave.filter(|_| !is_passed) {
            end = soaked(wave, state, rows, end).max(end);
            let asked = |check: &Check| check.interval.saturating_mul(check.count.get() - 1);
            end = later(end, wave.checks.iter().map(asked).max().unwrap_or_default());
        }
    }
    Some(end)
}

/// The earliest time at which enough devices of a wave have been confirmed for its soak time.
fn soaked(wave: &Wave, state: &WaveState, rows: &[Target<'_>], from: Timestamp) -> Timestamp {
    let since = |at: &usize| match rows.get(*at)?.evidence {
        Evidence::Confirmed(since) => Some(since),
        Evidence::Failed | Evidence::Overdue | Evidence::Debt | Evidence::Unknown => None,
    };
    let mut confirmed: Vec<_> = state.members.iter().filter_map(since).collect();
    confirmed.sort_unstable();
    let targets = state.tally.targets - state.tally.debt;
    let needed = (u64::from(wave.success.at_least.get()) * targets).div_ceil(100);
    // A device that is not confirmed yet is so from now on at the earliest.
    let last = usize::try_from(needed).ok().and_then(|needed| confirmed.get(needed.checked_sub(1)?).copied());
    later(last.unwrap_or(from), wave.soak)
}

fn later(time: Timestamp, by: Duration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use muster_contract::rollout::TargetsAnswer;
    use serde_json::{Value, json};

    use super::super::progress;
    use super::super::tests::line_of;
    use super::*;

    const START: Timestamp = Timestamp::constant(1_000_000, 0);

    /// The outlook of devices of line `a`, of which the first ones are not heard.
    fn of(policy: &Value, devices: usize, silent: &[&str]) -> Outlook {
        let mut document = json!({ "apiVersion": "muster/v1", "kind": "Rollout" });
        document.as_object_mut().unwrap().extend(policy.as_object().unwrap().clone());
        let digest = muster_contract::canonical::Digest::of_bytes(b"v2");
        let target = |at: usize| json!({ "site": "s", "device": format!("d{at}"), "rollout": "f", "wanted": digest, "labels": { "line": "a" } });
        let targets: Vec<_> = (0..devices).map(target).collect();
        let answer = json!({ "revision": "c1", "rollouts": { "f": document }, "targets": targets });
        let answer: TargetsAnswer = serde_json::from_value(answer).unwrap();
        let line = |(at, heard): (usize, &&str)| {
            line_of(
                &format!("s/d{at}").parse().unwrap(),
                &json!({
                    "freshness": if heard.is_empty() { "never" } else { "stale" },
                    "lastHeardAt": if heard.is_empty() { Value::Null } else { json!(heard) },
                }),
            )
        };
        let lines = silent.iter().enumerate().map(line);
        let of_devices = lines.map(|line| (line.key.clone(), line)).collect();
        let lines = Lines { of_devices, ..Lines::default() };
        let rollout = progress(&"web".parse().unwrap(), answer, &lines, START).remove(0);
        outlook(&rollout, &lines, START)
    }

    fn seconds(outlook: &Outlook) -> Option<i64> {
        outlook.end.earliest.map(|end| end.as_second() - START.as_second())
    }

    #[test]
    fn the_earliest_end_follows_from_rates_soak_times_and_checks() {
        let all = |wave: Value| {
            let mut first = json!({ "name": "all", "percent": "100%" });
            first.as_object_mut().unwrap().extend(wave.as_object().unwrap().clone());
            json!({ "waves": [first] })
        };
        assert_eq!(seconds(&of(&all(json!({})), 9, &[])), Some(0));
        assert_eq!(seconds(&of(&all(json!({ "perMinute": 2 })), 9, &[])), Some(4 * 60));
        assert_eq!(seconds(&of(&all(json!({ "soak": "10m" })), 9, &[])), Some(600));
        let checks = json!([{ "request": "muster.check.a", "interval": "30s", "count": 3 }, { "request": "muster.check.b" }]);
        assert_eq!(seconds(&of(&all(json!({ "checks": checks })), 9, &[])), Some(60));
        let waves = json!({ "waves": [
            { "name": "a", "count": 1, "soak": "5m" }, { "name": "b", "count": 1, "soak": "7m", "approval": "before" },
        ] });
        let outlook = of(&waves, 3, &[]);
        assert_eq!((seconds(&outlook), &outlook.end.approvals[..]), (Some(720), &["b".to_owned()][..]));
        // START is 13:46:40.
        let window = json!({ "windows": [{ "start": "14:00", "length": "1h" }] });
        assert_eq!(seconds(&of(&window, 1, &[])), Some(800));
        let nowhere = json!({ "windows": [{ "start": "14:00", "length": "1h", "zone": "Mars/Olympus" }] });
        assert_eq!(seconds(&of(&nowhere, 1, &[])), None, "no window that this machine knows ever begins");
        let endless = all(json!({ "perMinute": 1, "soak": "24h" }));
        assert!(seconds(&of(&endless, 500, &[])).is_some_and(|end| end == 499 * 60 + 86_400));
    }

    #[test]
    fn silent_devices_have_their_age_and_clash_with_the_budget_by_name() {
        let budget = json!({ "budget": { "groupBy": "line", "maxUnavailable": 2 } });
        let outlook = of(&budget, 5, &["1970-01-10T00:00:00Z", ""]);
        let dark: Vec<_> =
            outlook.dark.iter().map(|dark| (dark.key.to_string(), dark.since.is_some())).collect();
        assert_eq!(dark, [("s/d1".to_owned(), false), ("s/d0".to_owned(), true)], "the longest silent first");
        let [clash] = &outlook.clashes[..] else { panic!("{:?}", outlook.clashes) };
        assert_eq!((clash.label.as_str(), clash.group.as_str()), ("line", "a"));
        assert_eq!((clash.devices, clash.unavailable, clash.most, clash.waiting), (5, 2, 2, 3));
        assert_eq!(clash.first.iter().map(ToString::to_string).collect::<Vec<_>>(), ["s/d0", "s/d1"]);
        assert_eq!(of(&budget, 5, &[""]).clashes, [], "there is room for one more");
    }
}
