//! The order and the rate in which the devices of a wave get the content.

use muster_contract::rollout::Order;
use serde_json::{Value, json};

use super::super::waves::ordered;
use super::*;

/// Released at a second, or waiting; and refused or not.
fn step(wave: Value, targets: &[(Option<i64>, bool)]) -> Step {
    let mut first = json!({ "name": "canary", "percent": "100%", "failure": { "atMost": 9 } });
    first.as_object_mut().unwrap().extend(wave.as_object().unwrap().clone());
    let (keys, labels) = (keys(targets.len()), Labels::new());
    let target = |(key, (released_at, is_refused)): (_, &(Option<i64>, bool))| Target {
        key,
        labels: &labels,
        is_released: released_at.is_some(),
        evidence: Evidence::Unknown,
        has_begun: false,
        silent_since: None,
        released_at: released_at.map(|second| Timestamp::constant(second, 0)),
        is_refused: *is_refused,
    };
    let targets: Vec<_> = keys.iter().zip(targets).map(target).collect();
    state(&rollout(json!([first])), &id("v2"), None, &targets, &[], NOW).step
}

const WAITS: (Option<i64>, bool) = (None, false);
const REFUSED: (Option<i64>, bool) = (None, true);

#[test]
fn a_rate_bounds_the_devices_that_got_the_content_within_a_minute() {
    // NOW is the 60th second: a release at second 0 was a minute ago.
    let wave = || json!({ "perMinute": 2 });
    assert_eq!(step(wave(), &[WAITS; 4]), release(0, &[0, 1]));
    assert_eq!(step(wave(), &[(Some(0), false), (Some(1), false), WAITS, WAITS]), release(0, &[2]));
    let next = Timestamp::constant(61, 0);
    let waits = Step::Wait { wave: 0, because: Blocked::Rate(next) };
    assert_eq!(step(wave(), &[(Some(1), false), (Some(30), false), WAITS]), waits);
    let later = Step::Wait { wave: 0, because: Blocked::Rate(Timestamp::constant(90, 0)) };
    let three = [(Some(1), false), (Some(30), false), (Some(59), false), WAITS];
    assert_eq!(step(wave(), &three), later, "three within a minute: room for the next once two are older");
    let ahead = [(Some(900), false), (Some(900), false), WAITS];
    let minute = Step::Wait { wave: 0, because: Blocked::Rate(Timestamp::constant(120, 0)) };
    assert_eq!(step(wave(), &ahead), minute, "a clock that is ahead costs a minute");
    assert_eq!(step(json!({ "perMinute": 4_294_967_295_u32 }), &[WAITS; 3]), release(0, &[0, 1, 2]));
}

#[test]
fn m23_a_device_that_a_release_does_not_reach_holds_up_no_other() {
    let wave = || json!({ "maxInFlight": 1 });
    assert_eq!(step(wave(), &[REFUSED, WAITS, WAITS]), release(0, &[1]), "the first one is refused");
    assert_eq!(
        step(wave(), &[REFUSED, (Some(0), false), WAITS]),
        Step::Wait { wave: 0, because: Blocked::InFlight }
    );
    assert_eq!(step(wave(), &[REFUSED]), release(0, &[0]), "it is asked again in the end");
}

#[test]
fn devices_get_the_content_by_name_by_hash_or_by_a_label() {
    let labels: Vec<Labels> =
        [json!({ "rank": "10" }), json!({ "rank": "late" }), json!({}), json!({ "rank": "9" })]
            .into_iter()
            .map(|labels| serde_json::from_value(labels).unwrap())
            .collect();
    let keys: Vec<DeviceKey> = ["a/four", "a/one", "a/three", "a/two"].map(|key| key.parse().unwrap()).into();
    let target = |(key, labels)| Target {
        key,
        labels,
        is_released: false,
        evidence: Evidence::Unknown,
        has_begun: false,
        silent_since: None,
        released_at: None,
        is_refused: false,
    };
    let targets: Vec<_> = keys.iter().zip(&labels).map(target).collect();
    let by = |order: Value, content: &str| {
        let order: Order = serde_json::from_value(order).unwrap();
        ordered(&order, &id(content), vec![3, 1, 0, 2], &targets)
    };
    assert_eq!(by(json!("name"), "v2"), [0, 1, 2, 3]);
    assert_eq!(by(json!({ "label": "rank" }), "v2"), [3, 0, 1, 2], "9 before 10 before texts before none");
    assert_eq!(by(json!("hash"), "v2"), by(json!("hash"), "v2"));
    let orders: std::collections::BTreeSet<_> = (0..9).map(|at| by(json!("hash"), &at.to_string())).collect();
    assert!(orders.len() > 1, "the next content begins with other devices");
}
