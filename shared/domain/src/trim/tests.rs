//! Tests the removal of a partition's reports: tables for single rules, and a model of UPLINK for all of them at once.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Five reports at once, then ten a second; a thousand bytes a second, a hundred thousand within the burst.
const QUOTA: Quota = Quota {
    reports: Rate { per_second: 10, burst: 5 },
    bytes: Rate { per_second: 1_000, burst: 10_000 },
    peak_bytes: Rate { per_second: 100_000, burst: 100_000 },
};

/// A message with one report.
const fn one(bytes: u64) -> Weight {
    Weight { reports: 1, bytes }
}

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn partition(through: u64) -> Purge {
    Purge::Partition { through }
}

fn device(subject: &str, through: u64) -> Purge {
    Purge::Device { subject: Arc::from(subject), through }
}

/// Settles and acknowledges positions of a device, each of ten bytes.
fn acknowledge(
    trim: &mut PartitionTrim,
    subject: &str,
    positions: std::ops::RangeInclusive<u64>,
    now: Duration,
) {
    for position in positions {
        trim.record_settled(subject, position, one(10), now);
        trim.acknowledged(position);
    }
}

#[test]
fn nothing_is_removed_before_it_is_acknowledged() {
    let mut trim = PartitionTrim::new(QUOTA);
    (1..=3).for_each(|position| trim.record_settled("a", position, one(10), at(0)));
    assert_eq!(trim.purges(at(0)), []);
    trim.acknowledged(2);
    assert_eq!(trim.purges(at(0)), [partition(2)]);
    assert!(!trim.has_work());
    assert_eq!(trim.purges(at(0)), [], "once");
}

#[test]
fn a_device_beyond_its_burst_is_purged_at_its_rate_and_others_at_once() {
    let own = u64::from(OWN_PURGE_FROM);
    let mut trim = PartitionTrim::new(Quota { reports: Rate { per_second: 10, burst: 200 }, ..QUOTA });
    acknowledge(&mut trim, "a", 1..=220, at(0));
    acknowledge(&mut trim, "b", 221..=222, at(0));
    assert_eq!(
        (trim.purges(at(0)), trim.throttled()),
        (vec![partition(200)], 1),
        "two hundred are the burst"
    );
    assert_eq!(trim.purges(at(99)), []);
    assert_eq!(trim.purges(at(300)), [partition(203)]);
    // Another device uses a good part of its share: it does not wait for the first.
    acknowledge(&mut trim, "c", 223..=222 + own, at(300));
    assert_eq!(trim.purges(at(300)), [device("c", 222 + own)]);
    assert_eq!(trim.purges(at(2_000)), [partition(222 + own)], "all is removed in the end");
    assert_eq!((trim.throttled(), trim.has_work()), (0, false));
}

#[test]
fn a_partition_is_purged_once_a_second_or_when_a_device_is_crowded() {
    let ample = Rate { per_second: 1, burst: 1_000_000 };
    let mut trim = PartitionTrim::new(Quota { reports: ample, bytes: ample, peak_bytes: ample });
    acknowledge(&mut trim, "a", 1..=1, at(0));
    assert_eq!(trim.purges(at(0)), [partition(1)], "the first one waits for nothing");
    acknowledge(&mut trim, "a", 2..=2, at(10));
    assert_eq!((trim.purges(at(999)), trim.has_work()), (vec![], true));
    assert_eq!(trim.purges(at(1_000)), [partition(2)]);
    let crowded = 2 + u64::from(OWN_PURGE_FROM);
    acknowledge(&mut trim, "b", 3..=crowded, at(1_001));
    assert_eq!(trim.purges(at(1_001)), [partition(crowded)]);
}

#[test]
fn bytes_count_as_reports_do() {
    let mut trim = PartitionTrim::new(QUOTA);
    for position in 1..=3 {
        trim.record_settled("a", position, one(8_000), at(0));
        trim.acknowledged(position);
    }
    // The second one goes into debt, which takes six seconds to pay back.
    assert_eq!(trim.purges(at(0)), [partition(2)]);
    assert_eq!(trim.purges(at(6_000)), []);
    assert_eq!(trim.purges(at(6_001)), [partition(3)]);
}

#[test]
fn a_batch_costs_what_its_reports_cost_one_by_one() {
    let mut trim = PartitionTrim::new(QUOTA);
    for position in 1..=2 {
        trim.record_settled("a", position, Weight { reports: 25, bytes: 500 }, at(0));
        trim.acknowledged(position);
    }
    // Twenty reports beyond the burst of five take two seconds, at ten a second.
    assert_eq!(trim.purges(at(0)), [partition(1)]);
    assert_eq!(trim.purges(at(2_000)), []);
    assert_eq!(trim.purges(at(2_100)), [partition(2)]);
}

#[test]
fn a_burst_of_bytes_is_removed_no_faster_than_the_peak() {
    let ample = Rate { per_second: 1, burst: 1_000_000 };
    let peak_bytes = Rate { per_second: 1_000, burst: 1_000 };
    let mut trim = PartitionTrim::new(Quota { reports: ample, bytes: ample, peak_bytes });
    for position in 1..=5 {
        trim.record_settled("a", position, one(600), at(0));
        trim.acknowledged(position);
    }
    assert_eq!(trim.purges(at(0)), [partition(2)], "a second's worth, the last one in debt");
    assert_eq!(trim.purges(at(200)), []);
    assert_eq!(trim.purges(at(700)), [partition(3)]);
    assert_eq!(trim.purges(at(10_000)), [partition(5)], "the burst lasts");
}

#[test]
fn a_purge_that_failed_is_due_again() {
    let mut trim = PartitionTrim::new(QUOTA);
    acknowledge(&mut trim, "a", 1..=3, at(0));
    assert_eq!(trim.purges(at(0)), [partition(3)]);
    trim.failed(partition(3));
    assert!(trim.has_work());
    assert_eq!(trim.purges(at(0)), [partition(3)]);
}

#[test]
fn positions_that_begin_again_leave_the_buckets_as_they_are() {
    let mut trim = PartitionTrim::new(QUOTA);
    acknowledge(&mut trim, "a", 1..=20, at(0));
    assert_eq!(trim.purges(at(0)), [partition(5)]);
    acknowledge(&mut trim, "a", 1..=2, at(0));
    assert_eq!((trim.purges(at(0)), trim.throttled()), (vec![], 1), "its bucket is still empty");
    assert_eq!(trim.purges(at(200)), [partition(2)]);
}

#[test]
fn held_reports_are_released_when_room_is_short() {
    let mut trim = PartitionTrim::new(QUOTA);
    acknowledge(&mut trim, "a", 1..=20, at(0));
    assert_eq!(trim.purges(at(0)), [partition(5)]);
    trim.release_all();
    assert_eq!((trim.purges(at(0)), trim.throttled()), (vec![partition(20)], 0));
}

#[test]
fn a_throttled_device_is_logged_once_a_minute() {
    let mut trim = PartitionTrim::new(QUOTA);
    let subject = "muster.report.3.plant7.press-4";
    acknowledge(&mut trim, subject, 1..=20, at(0));
    assert_eq!(trim.drain_notices(), [(Arc::from(subject), 1)]);
    acknowledge(&mut trim, subject, 21..=40, at(59_999));
    assert_eq!(trim.drain_notices(), []);
    acknowledge(&mut trim, subject, 41..=60, at(60_000));
    assert_eq!(trim.drain_notices().len(), 1);
    assert_eq!(device_of(subject), "plant7/press-4");
}

#[test]
fn a_device_with_a_full_bucket_and_no_reports_is_forgotten() {
    let mut trim = PartitionTrim::new(QUOTA);
    acknowledge(&mut trim, "a", 1..=2, at(0));
    acknowledge(&mut trim, "b", 3..=3, at(60_000));
    trim.purges(at(60_000));
    trim.purges(at(120_000));
    assert_eq!(trim.devices.len(), 0);
}

/// UPLINK and what was removed from it.
#[derive(Default)]
struct Uplink {
    /// Device and bytes by position.
    held: BTreeMap<u64, (usize, u64)>,
    /// Moment, device, bytes.
    removed: Vec<(u64, usize, u64)>,
    acknowledged: u64,
}

impl Uplink {
    fn purge(&mut self, purge: &Purge, now: u64) {
        let (of, through) = match purge {
            Purge::Partition { through } => (None, *through),
            Purge::Device { subject, through } => (Some(subject.parse::<usize>().unwrap()), *through),
        };
        assert!(through <= self.acknowledged, "{purge:?} of {} acknowledged", self.acknowledged);
        let gone: Vec<u64> = self
            .held
            .range(..=through)
            .filter(|(_, (device, _))| of.is_none_or(|of| of == *device))
            .map(|(at, _)| *at)
            .collect();
        for position in gone {
            let (device, bytes) = self.held.remove(&position).unwrap();
            self.removed.push((now, device, bytes));
        }
    }
}

/// Reports of a device sent at once, with their bytes; and the time until the next.
type Step = (usize, u64, u64, u64);

fn run(steps: &[Step], failures: &[bool]) -> Uplink {
    let (mut trim, mut uplink, mut now, mut last) = (PartitionTrim::new(QUOTA), Uplink::default(), 0, 0);
    let mut failures = failures.iter().cycle();
    let mut turn = |trim: &mut PartitionTrim, uplink: &mut Uplink, now: u64, may_fail: bool| {
        for purge in trim.purges(at(now)) {
            if may_fail && *failures.next().unwrap() {
                trim.failed(purge);
            } else {
                uplink.purge(&purge, now);
            }
        }
    };
    for (device, count, bytes, pause) in steps {
        for _ in 0..*count {
            last += 1;
            uplink.held.insert(last, (*device, *bytes));
            trim.record_settled(&device.to_string(), last, one(*bytes), at(now));
        }
        // The reports settled last are acknowledged a little later.
        uplink.acknowledged = uplink.acknowledged.max(last.saturating_sub(2));
        trim.acknowledged(uplink.acknowledged);
        turn(&mut trim, &mut uplink, now, true);
        now += pause;
    }
    uplink.acknowledged = last;
    trim.acknowledged(last);
    let stormy = now;
    while trim.has_work() {
        assert!(now < stormy + 10_000_000, "held for ever: {:?}", uplink.held);
        turn(&mut trim, &mut uplink, now, false);
        now += 100;
    }
    uplink
}

proptest! {
/// For all reports and all failed purges: no report is removed before it is acknowledged, no device exceeds its
/// quota, and in the end no report is left.
    #[test]
    fn every_report_goes_and_no_device_faster_than_its_quota(
        steps in vec((0_usize..4, 0_u64..60, 1_u64..3_000, 0_u64..1_500), 1..40),
        failures in vec(any::<bool>(), 1..9),
    ) {
        let uplink = run(&steps, &failures);
        prop_assert!(uplink.held.is_empty(), "left: {:?}", uplink.held);
        for device in 0..4 {
            let (mut reports, mut bytes) = (0, 0);
            for (at, _, size) in uplink.removed.iter().filter(|(_, other, _)| *other == device) {
                // One withdrawal of each bucket may go into debt.
                prop_assert!(reports <= QUOTA.reports.burst + QUOTA.reports.per_second * at / 1_000);
                prop_assert!(bytes <= QUOTA.bytes.burst + QUOTA.bytes.per_second * at / 1_000);
                (reports, bytes) = (reports + 1, bytes + size);
            }
        }
    }

    /// A device within its quota never has more than its own purge's threshold in UPLINK after a turn, whatever another
/// device does beside it.
    #[test]
    fn a_flood_never_fills_the_share_of_another(flood in vec(0_u64..600, 20..60)) {
        let unlimited = Rate { per_second: 1 << 30, burst: 1 << 30 };
        let quota = Quota { reports: Rate { per_second: 2_000, burst: 200 }, bytes: unlimited, peak_bytes: unlimited };
        let mut trim = PartitionTrim::new(quota);
        let (mut uplink, mut last) = (Uplink::default(), 0);
        for (turn, count) in flood.iter().enumerate() {
            let now = 50 * turn as u64;
            for nth in 0..count + 90 {
                let device = usize::from(nth >= *count);
                last += 1;
                uplink.held.insert(last, (device, 1));
                trim.record_settled(&device.to_string(), last, one(1), at(now));
            }
            uplink.acknowledged = last;
            trim.acknowledged(last);
            for purge in trim.purges(at(now)) {
                uplink.purge(&purge, now);
            }
            let good = uplink.held.values().filter(|(device, _)| *device == 1).count() as u32;
            prop_assert!(good < OWN_PURGE_FROM + 90, "{good} reports of the good device wait");
        }
    }
}
