//! Tests of the timeline: it says what the fold said at each step, it is the same wherever its reader was restarted, and thinning
//! hides nothing bad.

use jiff::SignedDuration;
use muster_contract::fact::Fact;
use muster_contract::subjects::ViewKey;
use muster_contract::timeline::{POINTS_MAX, TimelinePoint};
use muster_contract::view::{Bounds, Split, Verdict};
use muster_contract::{DeploymentId, State, Timestamp};
use muster_domain::fold::{Fleet, Position, Timeline};
use proptest::prelude::*;

use crate::fleets::{DEPLOYMENTS, ledgers_of_a_deaf_hub};
use crate::ledger::{Entry, Ledger, Said, stored_at};

/// Seconds between two points at least.
const STEP: i64 = 15;
const HOUR: i64 = 60 * 60;
const DAY: i64 = 24 * HOUR;

/// A fold with its timeline.
#[derive(Default)]
struct Reader {
    fleet: Fleet,
    timeline: Timeline,
    stored: std::collections::BTreeMap<ViewKey, Vec<TimelinePoint>>,
}

impl Reader {
    /// Reads a fact that was stored so many seconds after the first one could be.
    fn read(&mut self, entry: &Entry, second: i64) {
        // LEDGER forgets pulses, so a reader passes them over.
        if matches!(entry.fact, Fact::Pulse(_)) {
            return;
        }
        let at = Position { ledger_seq: self.fleet.as_of().ledger_seq + 1, stored_at: time(second) };
        self.timeline.advance(&self.fleet, at.stored_at);
        self.fleet.apply(at, &entry.subject, entry.fact.clone());
    }

    fn status(&mut self, state: State, seq: u64, second: i64) {
        let mut ledger = Ledger::default();
        ledger.status("north/a", "web", &Said { seq, components: &[("main", state)], ..Said::default() });
        self.read(&ledger.entries[0], second);
    }

    /// One device that should run `web`.
    fn targeted() -> Self {
        let (mut reader, mut ledger) = (Self::default(), Ledger::default());
        ledger.desired("north/a", 1, &[("web", 1)]).fresh("north/a", 1, 0);
        ledger.entries.iter().for_each(|entry| reader.read(entry, 0));
        reader
    }

    /// Stores what is not stored, as a snapshot does.
    fn save(&mut self) {
        let (up_to, series) = self.timeline.unsaved();
        for (key, points) in series {
            if points.is_empty() {
                self.stored.remove(&key)
            } else {
                self.stored.insert(key, points)
            };
        }
        self.timeline.set_saved(up_to);
    }

    fn points(&self, id: Option<&str>) -> Vec<TimelinePoint> {
        let id: Option<DeploymentId> = id.map(|id| id.parse().unwrap());
        let answer = self.timeline.answer(&self.fleet, id.as_ref());
        answer.map(|answer| answer.points).unwrap_or_default()
    }
}

fn time(second: i64) -> Timestamp {
    stored_at(0) + SignedDuration::from_secs(second)
}

/// The counts of a point without its time.
fn counts(point: &TimelinePoint) -> TimelinePoint {
    TimelinePoint { at: Timestamp::UNIX_EPOCH, ..point.clone() }
}

/// The counts of the fleet, or of a deployment, by its view.
fn seen(fleet: &Fleet, id: Option<&str>) -> TimelinePoint {
    let at = Timestamp::UNIX_EPOCH;
    let Some(id) = id else {
        let tally = fleet.fleet_view().tally;
        let missing_reports = tally.complete.missing_reports;
        let views = DEPLOYMENTS.iter().filter_map(|id| fleet.deployment_view(&id.parse().unwrap()));
        let converged = views.fold(Bounds::default(), |sum, view| Bounds {
            lo: sum.lo + view.converged.lo,
            hi: sum.hi + view.converged.hi,
        });
        let (deployments, devices, targets) = (tally.deployments, tally.devices, tally.targets);
        return TimelinePoint { at, deployments, devices, targets, converged, missing_reports };
    };
    fleet.deployment_view(&id.parse().unwrap()).map_or_else(
        || TimelinePoint {
            at,
            deployments: Default::default(),
            devices: Split::default(),
            targets: 0,
            converged: Bounds::default(),
            missing_reports: 0,
        },
        |view| TimelinePoint {
            at,
            deployments: [(view.verdict, 1)].into(),
            devices: view.counts.values().fold(Split::default(), |sum, split| Split {
                fresh: sum.fresh + split.fresh,
                stale: sum.stale + split.stale,
                never: sum.never + split.never,
            }),
            targets: view.targets,
            converged: view.converged,
            missing_reports: view.complete.missing_reports,
        },
    )
}

/// A series for each view that the ledgers can have.
fn series() -> impl Iterator<Item = Option<&'static str>> {
    DEPLOYMENTS.into_iter().map(Some).chain([None])
}

/// Times of facts: each so many seconds after the one before.
fn spaced(ledger: &Ledger, gaps: &[i64]) -> Vec<i64> {
    let gaps = gaps.iter().cycle().take(ledger.entries.len());
    gaps.scan(0, |at, gap| {
        *at += gap;
        Some(*at)
    })
    .collect()
}

proptest! {
    #[test]
    fn a_timeline_says_what_the_fold_said_at_each_step(
        ledger in ledgers_of_a_deaf_hub(),
        gaps in prop::collection::vec(0i64..8, 1..70),
    ) {
        let times = spaced(&ledger, &gaps);
        let mut whole = Reader::default();
        ledger.entries.iter().zip(&times).for_each(|(entry, at)| whole.read(entry, *at));
        let mut until = Reader::default();
        let mut facts = ledger.entries.iter().zip(&times).peekable();
        for step in (0..whole.fleet.as_of().at.as_second() - time(0).as_second()).step_by(STEP as usize) {
            while let Some((entry, at)) = facts.next_if(|(_, at)| **at < step) {
                until.read(entry, *at);
            }
            for id in series() {
                let points = whole.points(id);
                let shown = points.iter().rev().find(|point| point.at <= time(step)).map(counts);
                let expected = seen(&until.fleet, id);
                let is_nothing = expected.targets == 0 && expected.deployments.is_empty();
                match shown {
                    Some(shown) => prop_assert_eq!(shown, expected, "{:?} at {}", id, step),
                    None => prop_assert!(is_nothing || until.fleet.as_of().ledger_seq == 0, "{:?} at {}", id, step),
                }
            }
        }
    }

    #[test]
    fn a_timeline_is_the_same_wherever_its_reader_restarts(
        ledger in ledgers_of_a_deaf_hub(),
        gaps in prop::collection::vec(prop_oneof![0i64..20, 0..4 * HOUR, 0..3 * DAY], 1..70),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 1..5),
    ) {
        let times = spaced(&ledger, &gaps);
        let cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(times.len())).collect();
        let (mut whole, mut restarted) = (Reader::default(), Reader::default());
        for (index, (entry, at)) in ledger.entries.iter().zip(&times).enumerate() {
            whole.read(entry, *at);
            if cuts.contains(&index) {
                restarted.save();
                restarted.timeline = Timeline::restore(restarted.stored.clone());
            }
            restarted.read(entry, *at);
        }
        for id in series() {
            prop_assert_eq!(whole.points(id), restarted.points(id), "{:?}", id);
        }
    }
}

/// The most that was silent, missing and failing in a time, by the points in order.
fn bounds_of(points: &[TimelinePoint], from: Timestamp, to: Timestamp) -> [u64; 3] {
    let start = points.partition_point(|point| point.at <= from).saturating_sub(1);
    let end = points.partition_point(|point| point.at < to);
    let held = points.get(start..end).unwrap_or_default();
    let most = |value: fn(&TimelinePoint) -> u64| held.iter().map(value).max().unwrap_or_default();
    [
        most(|point| point.devices.stale + point.devices.never),
        most(|point| point.missing_reports),
        most(|point| point.deployments.get(&Verdict::Failing).copied().unwrap_or_default()),
    ]
}

proptest! {
    #[test]
    fn thinning_leaves_the_bounds_of_each_half_day(
        ledger in ledgers_of_a_deaf_hub(),
        gaps in prop::collection::vec(prop_oneof![0i64..60, 0..2 * HOUR], 1..70),
    ) {
        const SPAN: i64 = 12 * HOUR;
        let times = spaced(&ledger, &gaps);
        // The state at the end of each step that has changed, not thinned.
        let (mut reader, mut every) = (Reader::default(), Vec::new());
        for (entry, at) in ledger.entries.iter().zip(&times) {
            let as_of = reader.fleet.as_of();
            let end = (as_of.at.as_second().div_euclid(STEP) + 1) * STEP;
            let is_due = as_of.ledger_seq > 0 && time(*at).as_second() >= end;
            if is_due && !matches!(entry.fact, Fact::Pulse(_)) {
                let at = Timestamp::from_second(end).unwrap();
                every.push(TimelinePoint { at, ..seen(&reader.fleet, None) });
            }
            reader.read(entry, *at);
        }
        let Some(last) = every.last() else { return Ok(()) };
        // Without the present, which may have the time of the last step.
        reader.save();
        let kept = reader.stored.remove(&ViewKey::Fleet).unwrap_or_default();
        let begin = every[0].at.as_second();
        for span in begin.div_euclid(SPAN)..=last.at.as_second().div_euclid(SPAN) {
            let [from, to] = [span, span + 1].map(|span| Timestamp::from_second(span * SPAN).unwrap());
            prop_assert_eq!(bounds_of(&kept, from, to), bounds_of(&every, from, to), "{:?}", from);
        }
    }
}

#[test]
fn a_change_is_at_the_end_of_its_step_however_late_the_next_fact_is() {
    let mut reader = Reader::targeted();
    reader.status(State::Failed, 1, 100);
    reader.status(State::Installed, 2, DAY);
    let points = reader.points(Some("web"));
    let at: Vec<Timestamp> = points.iter().map(|point| point.at).collect();
    assert_eq!(at, [time(15), time(105), time(DAY)], "{points:#?}");
    assert!(points[1].deployments.contains_key(&Verdict::Failing), "{points:#?}");
}

#[test]
fn a_failure_of_seconds_is_shown_for_two_weeks() {
    let mut reader = Reader::targeted();
    reader.status(State::Installed, 1, 20);
    reader.status(State::Failed, 2, 50);
    reader.status(State::Installed, 3, 80);
    let mut seq = 3;
    for hour in 1..24 * 13 {
        for state in [State::Installing, State::Installed] {
            seq += 1;
            reader.status(state, seq, hour * HOUR + 30 * seq as i64 % 60);
        }
    }
    let points = reader.points(Some("web"));
    let failing = points.iter().position(|point| point.deployments.contains_key(&Verdict::Failing));
    let failing = failing.unwrap_or_else(|| panic!("{points:#?}"));
    assert_eq!(points[failing].at, time(60));
    assert!(!points[failing + 1].deployments.contains_key(&Verdict::Failing), "and it ended");
}

#[test]
fn a_timeline_of_constant_change_is_bounded_and_covers_two_weeks() {
    let mut reader = Reader::targeted();
    let steps = 15 * DAY / STEP;
    for step in 1..steps {
        let state = if step % 2 == 0 { State::Installing } else { State::Installed };
        reader.status(state, step as u64, step * STEP);
    }
    let points = reader.points(Some("web"));
    assert!(points.len() <= POINTS_MAX, "{}", points.len());
    let age = time(steps * STEP).as_second() - points[0].at.as_second();
    assert!((14 * DAY..15 * DAY).contains(&age), "the oldest point is {age} s old");
    let widest = points.windows(2).map(|two| two[1].at.as_second() - two[0].at.as_second()).max();
    assert!(widest <= Some(12 * HOUR), "{widest:?}");
}

#[test]
fn a_deployment_that_is_gone_for_two_weeks_has_no_timeline() {
    let mut reader = Reader::targeted();
    let mut ledger = Ledger::default();
    ledger.desired("north/a", 2, &[]).fresh("north/a", 1, 0).stale("north/a", 1, 0).fresh("north/a", 1, 0);
    reader.read(&ledger.entries[0], 100);
    reader.read(&ledger.entries[1], 200);
    reader.save();
    let web = ViewKey::Deployment("web".parse().unwrap());
    assert!(reader.stored.contains_key(&web));
    assert_eq!(reader.points(Some("web")).last().map(|last| last.targets), Some(0));
    reader.read(&ledger.entries[2], 100 + 15 * DAY);
    reader.read(&ledger.entries[3], 200 + 15 * DAY);
    reader.save();
    assert!(!reader.stored.contains_key(&web), "{:?}", reader.stored.keys());
    assert!(reader.points(Some("web")).is_empty());
}
