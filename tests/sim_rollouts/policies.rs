//! Draws policies, each a `rollout.yaml`, and knows by its own arithmetic when their windows are open. The publisher reads the text.

use std::fmt::Write as _;

use fastrand::Rng;
use muster_contract::rollout::Window;

use super::repository::name;
use super::world::{MINUTE, Millis, SECOND};

/// The names of waves, in their order.
const WAVES: [&str; 4] = ["canary", "early", "line", "most"];
/// The checks behind waves.
pub(crate) const CHECKS: [&str; 2] = ["muster.check.smoke", "muster.check.lab"];
/// Devices of a world from which on each group by line keeps one device beside the one that it must keep.
const DEVICES_OF_GROUPS: usize = 6;

/// A window: its text, the minute of the day at which it begins first in UTC, and the minutes between its begins and of its length.
/// The zones have these offsets in the September of a world: Berlin two hours, Kolkata five and a half, New York minus four.
const WINDOWS: [(&str, i64, i64, i64); 7] = [
    (r#"{"start": "00:00", "length": "23h55m"}"#, 0, 1440, 1435),
    (r#"{"cron": "0 0 * * *", "length": "23h55m"}"#, 0, 1440, 1435),
    (r#"{"cron": "*/5 * * * *", "length": "2m", "zone": "Asia/Kolkata"}"#, 0, 5, 2),
    (r#"{"cron": "1-59/6 * * * *", "length": "4m", "zone": "Europe/Berlin"}"#, 1, 6, 4),
    (r#"{"start": "19:40", "length": "12m", "zone": "Asia/Kolkata"}"#, 14 * 60 + 10, 1440, 12),
    (r#"{"start": "16:20", "length": "1h", "zone": "Europe/Berlin"}"#, 14 * 60 + 20, 1440, 60),
    (
        r#"{"days": ["mon"], "start": "10:19", "length": "45m", "zone": "America/New_York"}"#,
        14 * 60 + 19,
        1440,
        45,
    ),
];
/// The begin of a world after the begin of its day, a Monday.
const DAY_BEGAN: Millis = (14 * 60 + 13) * MINUTE + 20 * SECOND;

/// Whether one of some windows was open at a time of the world, or within some time before it.
pub(crate) fn was_open(windows: &[Window], now: Millis, within: Millis) -> bool {
    let was_open = |window: &Window| {
        let is =
            |(text, ..): &&(&str, i64, i64, i64)| serde_json::from_str::<Window>(text).unwrap() == *window;
        let (_, first, period, length) = WINDOWS.iter().find(is).unwrap();
        let since = (DAY_BEGAN + now - first * MINUTE).rem_euclid(period * MINUTE);
        since < length * MINUTE + within
    };
    windows.is_empty() || windows.iter().any(was_open)
}

/// Draws a policy.
pub(crate) fn draw(rng: &mut Rng, devices: usize) -> String {
    let mut text = "apiVersion: muster/v1\nkind: Rollout\n".to_owned();
    let mut add = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    match rng.u8(0..6) {
        0..3 => add("onFailure: rollback".to_owned()),
        3 => add("onFailure: abort".to_owned()),
        _ => {}
    }
    let of = ["", ", of: operator", ", of: [ann, ben]", ", of: approver"];
    let of = if rng.bool() { "" } else { of[rng.usize(..of.len())] };
    add(format!("approvals: {{need: {}, expiresAfter: 20m{of}}}", rng.u8(1..=2)));
    match rng.u8(0..6) {
        0..2 => add(format!("budget: {{groupBy: line, maxUnavailable: {}}}", rng.u8(1..=2))),
        2 if devices >= DEVICES_OF_GROUPS => add("budget: {groupBy: line, minAvailable: 1}".to_owned()),
        _ => {}
    }
    if rng.u8(0..3) == 0 {
        add(deadlines(rng));
    }
    if rng.u8(0..4) == 0 {
        let classes = ["", ", classes: [exit]", ", classes: [pull, exit]", ", classes: [pull]"];
        let backoff = ["", ", backoff: {min: 1s, max: 10s}"];
        let (classes, backoff) = (classes[rng.usize(..classes.len())], backoff[rng.usize(..2)]);
        add(format!("retries: {{max: {}{classes}{backoff}}}", rng.u8(1..=3)));
    }
    if rng.u8(0..4) == 0 {
        let (one, other) = (rng.usize(..WINDOWS.len()), rng.usize(..WINDOWS.len()));
        let second = if rng.u8(0..4) == 0 { format!(", {}", WINDOWS[other].0) } else { String::new() };
        add(format!("windows: [{}{second}]", WINDOWS[one].0));
    }
    let waves: Vec<_> = (0..WAVES.len()).filter(|_| rng.bool()).collect();
    if !waves.is_empty() {
        add("waves:".to_owned());
    }
    for at in waves {
        add(wave(at, rng));
    }
    text
}

fn deadlines(rng: &mut Rng) -> String {
    let end = ["stop", "rollback"][rng.usize(..2)];
    let device = rng.u8(10..120);
    let of = match rng.u8(0..5) {
        0 => format!("wave: {}m, rollout: 30m", rng.u8(4..12)),
        1 => format!("device: {device}s"),
        2 => format!("wave: {}m, device: {device}s", rng.u8(4..12)),
        3 => format!("neverStarted: {device}s"),
        _ => format!("neverStarted: {}s, device: {device}s", rng.u8(10..60)),
    };
    format!("deadlines: {{{of}, atEnd: {end}}}")
}

fn wave(at: usize, rng: &mut Rng) -> String {
    let matcher = match at {
        0 if rng.bool() => format!("devices: [{}]", name(0)),
        0 => "count: 1".to_owned(),
        1 => format!("percent: {}%", [25, 34][rng.usize(..2)]),
        2 if rng.bool() => "site: s0".to_owned(),
        2 => "selector: {line: b}".to_owned(),
        _ => format!("percent: {}%", [60, 100][rng.usize(..2)]),
    };
    let mut text = format!("  - {{name: {}, {matcher}, allowEmpty: true", WAVES[at]);
    if rng.bool() {
        _ = write!(text, ", maxInFlight: {}", rng.u8(1..=2));
    }
    if rng.u8(0..6) == 0 {
        _ = write!(text, ", perMinute: {}", rng.u8(1..=3));
    }
    if rng.u8(0..3) == 0 {
        text.push_str([", order: hash", ", order: {label: rank}", ", order: name"][rng.usize(..3)]);
    }
    if rng.u8(0..3) == 0 {
        let evidence = ["", ", evidence: complete"][rng.usize(..2)];
        _ = write!(text, ", success: {{atLeast: {}%{evidence}}}", [50, 80][rng.usize(..2)]);
    }
    if rng.u8(0..3) == 0 {
        text.push_str(
            [", failure: {atMost: 1}", ", failure: {atMost: 34%, minimumSample: 2}"][rng.usize(..2)],
        );
    }
    if rng.u8(0..3) == 0 {
        _ = write!(text, ", soak: {}s", rng.u8(5..60));
    }
    if rng.u8(0..4) == 0 {
        let (first, second) = (rng.usize(..CHECKS.len()), rng.u8(0..4) == 0);
        let check =
            |at: usize, count: u8| format!("{{request: {}, interval: 4s, count: {count}}}", CHECKS[at]);
        let more = if second { format!(", {}", check(1 - first, 1)) } else { String::new() };
        _ = write!(text, ", checks: [{}{more}]", check(first, rng.u8(1..=2)));
    }
    match rng.u8(0..8) {
        0..2 => text.push_str(", approval: before"),
        2 => text.push_str(", approval: after"),
        _ => {}
    }
    match rng.u8(0..6) {
        0 => _ = write!(text, ", offline: {{debt: {{after: {}s, max: 2}}}}", rng.u8(40..120)),
        1 => _ = write!(text, ", offline: {{fail: {{after: {}s}}}}", rng.u8(40..120)),
        _ => {}
    }
    text.push('}');
    text
}
