//! Tests the laws of counts: adding and retracting leaves nothing behind, and parts add up to the whole in any
//! order.

use muster_contract::evidence::{EvidenceSource, Fidelity, Provenance};
use proptest::prelude::*;

use super::*;

fn classes() -> impl Strategy<Value = Vec<CountClass>> {
    let standing = prop::sample::select(Standing::ALL.to_vec());
    let freshness = prop::sample::select(vec![Freshness::Fresh, Freshness::Stale, Freshness::Never]);
    let origin = prop::sample::select(Provenance::ALL.to_vec());
    let fidelity = prop::sample::select(Fidelity::ALL.to_vec());
    let source = (origin, fidelity).prop_map(|(origin, fidelity)| EvidenceSource { origin, fidelity });
    let target = (standing, freshness, any::<bool>(), any::<bool>(), any::<u32>(), any::<u64>(), source);
    let target = target.prop_map(|(standing, freshness, known, overdue, attempts, missing, source)| {
        CountClass::Target { attempts, standing, freshness, known, overdue, missing, source }
    });
    prop::collection::vec(
        prop_oneof![4 => target, 1 => Just(CountClass::Leaving), 1 => Just(CountClass::Nothing)],
        0..40,
    )
}

fn group(classes: &[CountClass]) -> Group {
    let mut group = Group::default();
    classes.iter().for_each(|class| group.shift(Delta::Add, *class));
    group
}

fn sum(groups: impl IntoIterator<Item = Group>) -> Group {
    let mut whole = Group::default();
    groups.into_iter().for_each(|group| whole += group);
    whole
}

proptest! {
    #[test]
    fn parts_add_up_to_the_whole_in_any_order(classes in classes(), one in 0usize..40, other in 0usize..40) {
        let (low, high) = (one.min(other).min(classes.len()), one.max(other).min(classes.len()));
        let parts = [group(&classes[..low]), group(&classes[low..high]), group(&classes[high..])];
        prop_assert_eq!(sum(parts), group(&classes));
        prop_assert_eq!(sum([parts[2], parts[0], parts[1]]), group(&classes));
        prop_assert_eq!(sum([parts[1], sum([parts[2], parts[0]])]), group(&classes));
    }

    #[test]
    fn adding_and_retracting_leaves_nothing(mut classes in classes(), from in any::<prop::sample::Index>()) {
        let mut counts = group(&classes);
        let turn = from.index(classes.len() + 1);
        let turn = turn.min(classes.len());
        classes.rotate_left(turn);
        classes.iter().for_each(|class| counts.shift(Delta::Retract, *class));
        prop_assert_eq!(counts, Group::default());
    }

    #[test]
    fn a_change_retracts_the_old_class_and_adds_the_new_one(before in classes(), after in classes()) {
        let (mut changed, mut expected) = (group(&before), group(&before));
        for (from, to) in before.into_iter().zip(after) {
            let axes = Axes::default();
            changed.apply(&GroupChange::between(from, axes, to, axes));
            expected.shift(Delta::Retract, from);
            expected.shift(Delta::Add, to);
            prop_assert_eq!(changed, expected);
        }
    }

    #[test]
    fn the_verdict_is_the_first_of_all_targets(classes in classes()) {
        let is_target = |class: &&CountClass| matches!(class, CountClass::Target { .. });
        let verdicts = |classes: &[&CountClass]| classes.iter().filter_map(|class| class.verdict()).min();
        let (targets, others): (Vec<_>, Vec<_>) = classes.iter().partition(is_target);
        let first = verdicts(&targets).or_else(|| verdicts(&others));
        prop_assert_eq!(group(&classes).verdict(), first.unwrap_or(Verdict::Empty));
    }

    #[test]
    fn devices_of_two_parts_are_the_devices_of_both(devices in prop::collection::vec((0u8..3, 0u64..3), 0..30), cut in 0usize..30) {
        let freshness = [Freshness::Fresh, Freshness::Stale, Freshness::Never];
        let count = |part: &[(u8, u64)]| {
            let mut devices = Devices::default();
            part.iter().for_each(|(at, missing)| devices.shift(Delta::Add, freshness[usize::from(*at)], *missing, *missing == 0));
            devices
        };
        let (one, other) = devices.split_at(cut.min(devices.len()));
        let mut both = count(one);
        both += count(other);
        prop_assert_eq!(both, count(&devices));
        prop_assert_eq!(both.complete().of, devices.len() as u64);
    }
}

#[test]
fn missing_reports_beyond_belief_do_not_overflow_the_sum() {
    let class = CountClass::Target {
        standing: Standing::Waiting,
        freshness: Freshness::Never,
        known: false,
        overdue: false,
        attempts: 0,
        missing: u64::MAX,
        source: EvidenceSource::EVERY_CHANGE,
    };
    assert_eq!(group(&[class; 3]).complete().missing_reports, 3 * MISSING_COUNTED_MAX);
}
