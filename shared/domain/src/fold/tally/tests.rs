//! The law of counts: what is taken in and out leaves nothing behind, and parts add up to the whole in any order.

use proptest::prelude::*;

use super::*;

fn shares() -> impl Strategy<Value = Vec<Share>> {
    let standing = prop::sample::select(Standing::ALL.to_vec());
    let freshness = prop::sample::select(vec![Freshness::Fresh, Freshness::Stale, Freshness::Never]);
    let target = (standing, freshness, any::<bool>(), any::<bool>(), any::<u64>());
    let target = target.prop_map(|(standing, freshness, known, overdue, missing)| Share::Target {
        retried: false,
        standing,
        freshness,
        known,
        overdue,
        missing,
    });
    prop::collection::vec(
        prop_oneof![4 => target, 1 => Just(Share::Leaving), 1 => Just(Share::Nothing)],
        0..40,
    )
}

fn group(shares: &[Share]) -> Group {
    let mut group = Group::default();
    shares.iter().for_each(|share| group.shift(Way::In, *share));
    group
}

fn sum(groups: impl IntoIterator<Item = Group>) -> Group {
    let mut whole = Group::default();
    groups.into_iter().for_each(|group| whole += group);
    whole
}

proptest! {
    #[test]
    fn parts_add_up_to_the_whole_in_any_order(shares in shares(), one in 0usize..40, other in 0usize..40) {
        let (low, high) = (one.min(other).min(shares.len()), one.max(other).min(shares.len()));
        let parts = [group(&shares[..low]), group(&shares[low..high]), group(&shares[high..])];
        prop_assert_eq!(sum(parts), group(&shares));
        prop_assert_eq!(sum([parts[2], parts[0], parts[1]]), group(&shares));
        prop_assert_eq!(sum([parts[1], sum([parts[2], parts[0]])]), group(&shares));
    }

    #[test]
    fn what_goes_in_and_out_again_leaves_nothing(mut shares in shares(), from in any::<prop::sample::Index>()) {
        let mut counts = group(&shares);
        let turn = from.index(shares.len() + 1);
        let turn = turn.min(shares.len());
        shares.rotate_left(turn);
        shares.iter().for_each(|share| counts.shift(Way::Out, *share));
        prop_assert_eq!(counts, Group::default());
    }

    #[test]
    fn devices_of_two_parts_are_the_devices_of_both(devices in prop::collection::vec((0u8..3, 0u64..3), 0..30), cut in 0usize..30) {
        let freshness = [Freshness::Fresh, Freshness::Stale, Freshness::Never];
        let count = |part: &[(u8, u64)]| {
            let mut devices = Devices::default();
            part.iter().for_each(|(at, missing)| devices.shift(Way::In, freshness[usize::from(*at)], *missing, *missing == 0));
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
    let share = Share::Target {
        standing: Standing::Waiting,
        freshness: Freshness::Never,
        known: false,
        overdue: false,
        retried: false,
        missing: u64::MAX,
    };
    assert_eq!(group(&[share; 3]).complete().missing_reports, 3 * MISSING_COUNTED_MAX);
}
