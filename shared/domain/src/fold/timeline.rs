//! The timeline: how the counts of the fleet and of each deployment have changed, in steps of [`STEP`].
//!
//! The state at a multiple of the step is recorded once a later fact follows, if its counts differ from the point before. So the
//! timeline is a function of the facts and of the times at which the bus stored them, wherever a reader was restarted between.
//! Older points are thinned: each span of [`TIERS`] keeps its first and last point, the worst and the best one, and those with the
//! most silent devices and missing reports. It knows no devices.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use muster_contract::subjects::ViewKey;
use muster_contract::timeline::{POINTS_MAX, TimelineAnswer, TimelinePoint};
use muster_contract::view::{Bounds, Split, Verdict};
use muster_contract::{DeploymentId, Timestamp};

use super::fleet::Fleet;

/// Seconds between two points at least.
const STEP: i64 = 15;
const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
/// How long a point is kept.
const AGE_MAX: i64 = 14 * 24 * HOUR;
/// Up to an age, the span of which [`SPAN_POINTS`] are kept; in seconds. Each span is a multiple of the one before, so that thinning
/// twice is thinning once.
const TIERS: [(i64, i64); 4] =
    [(10 * MINUTE, STEP), (2 * HOUR, 5 * MINUTE), (24 * HOUR, 30 * MINUTE), (AGE_MAX, 12 * HOUR)];
/// Points that are kept of a span.
const SPAN_POINTS: i64 = 6;
/// Points of all series together: some 20 MB.
const POINTS_IN_ALL: usize = 200_000;
/// Points of a series, however many there are.
const POINTS_MIN: usize = 16;

const _: () = {
    // The point that holds before the first span, and the present.
    let (mut at, mut most) = (0, 2);
    while at < TIERS.len() {
        let (from, span) = if at == 0 { (0, STEP) } else { TIERS[at - 1] };
        assert!(TIERS[at].1 % span == 0 && TIERS[at].0 > from);
        // A span that begins or ends within the tier counts too.
        let points = if at == 0 { 1 } else { SPAN_POINTS };
        most += points * ((TIERS[at].0 - from) / TIERS[at].1 + 1);
        at += 1;
    }
    assert!(most as usize <= POINTS_MAX && POINTS_MIN < POINTS_MAX);
};

/// The counts of one series. A count of deployments or targets is 32 bits wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SeriesCounts {
    verdicts: [u32; Verdict::ALL.len()],
    devices: Split,
    targets: u64,
    converged: Bounds,
    missing_reports: u64,
}

/// SeriesCounts, and the second from which on they hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Point {
    at: i64,
    counts: SeriesCounts,
}

/// The timelines of the fleet and of all deployments.
#[derive(Debug, Default)]
pub struct Timeline {
    series: BTreeMap<ViewKey, Vec<Point>>,
    /// The last multiple of the step at which the state was recorded.
    recorded: i64,
    /// Series that differ from the stored ones, with the time of the change.
    unsaved: BTreeMap<ViewKey, i64>,
    /// Nothing is recorded before.
    begins_at: i64,
}

impl SeriesCounts {
    const EMPTY: Self = Self {
        verdicts: [0; Verdict::ALL.len()],
        devices: Split { fresh: 0, stale: 0, never: 0 },
        targets: 0,
        converged: Bounds { lo: 0, hi: 0 },
        missing_reports: 0,
    };

    fn of_point(point: &TimelinePoint) -> Self {
        let count = |verdict| point.deployments.get(&verdict).copied().unwrap_or_default();
        Self {
            verdicts: Verdict::ALL.map(|verdict| u32::try_from(count(verdict)).unwrap_or(u32::MAX)),
            devices: point.devices,
            targets: point.targets,
            converged: point.converged,
            missing_reports: point.missing_reports,
        }
    }

    fn shown(&self, at: Timestamp) -> TimelinePoint {
        let counts = Verdict::ALL.into_iter().zip(self.verdicts.map(u64::from));
        TimelinePoint {
            at,
            deployments: counts.filter(|(_, count)| *count > 0).collect(),
            devices: self.devices,
            targets: self.targets,
            converged: self.converged,
            missing_reports: self.missing_reports,
        }
    }

    /// Orders counts by how bad they are, the worst first: by the deployments of each verdict from the most urgent on, then
    /// by what is confirmed, then by what is missing.
    fn urgency(&self) -> impl Ord + use<> {
        let counts = Verdict::WORST_FIRST.map(|verdict| Reverse(self.verdicts[verdict as usize]));
        (counts, self.converged.lo, Reverse(self.missing_reports))
    }
}

/// Orders points by how bad they are, the worst first, as a timeline does when it leaves points out.
pub fn urgency_of_point(point: &TimelinePoint) -> impl Ord + use<> {
    SeriesCounts::of_point(point).urgency()
}

impl Fleet {
    fn fleet_counts(&self) -> SeriesCounts {
        let whole = &self.totals.fleet;
        SeriesCounts {
            verdicts: whole.verdicts,
            devices: whole.devices.by_freshness(),
            targets: whole.group.targets(),
            converged: whole.group.bounds(),
            missing_reports: whole.devices.complete().missing_reports,
        }
    }

    /// The counts of a deployment; empty where it is neither targeted nor leaving.
    fn deployment_counts(&self, id: &DeploymentId) -> SeriesCounts {
        let number = self.totals.deployment_numbers.get(id);
        number.map_or(SeriesCounts::EMPTY, |number| self.counts_of(*number))
    }

    fn counts_of(&self, number: u32) -> SeriesCounts {
        let group = &self.totals.deployment(number).group;
        let verdict = group.verdict();
        if verdict == Verdict::Empty {
            return SeriesCounts::EMPTY;
        }
        SeriesCounts {
            verdicts: Verdict::ALL.map(|other| u32::from(other == verdict)),
            devices: group.heard(),
            targets: group.targets(),
            converged: group.bounds(),
            missing_reports: group.complete().missing_reports,
        }
    }
}

impl Timeline {
    /// A timeline from its stored series.
    pub fn restore(stored: impl IntoIterator<Item = (ViewKey, Vec<TimelinePoint>)>) -> Self {
        let point =
            |point: &TimelinePoint| Point { at: point.at.as_second(), counts: SeriesCounts::of_point(point) };
        let series = stored.into_iter().map(|(key, points)| (key, points.iter().map(point).collect()));
        let series: BTreeMap<_, Vec<Point>> = series.collect();
        let recorded = series.values().filter_map(|points| points.last()).map(|last| last.at).max();
        Self { series, recorded: recorded.unwrap_or_default(), ..Self::default() }
    }

    /// Records the state of the fleet if a step has ended between its last fact and the next one, which the bus stored at
    /// `stored_at`. Call it before each fact.
    pub fn advance(&mut self, fleet: &Fleet, stored_at: Timestamp) {
        let as_of = fleet.as_of();
        let end = (as_of.at.as_second().div_euclid(STEP) + 1) * STEP;
        // A clock that was set back repeats steps: the first record holds.
        let is_due = as_of.ledger_seq > 0 && stored_at.as_second() >= end;
        if is_due && end > self.recorded && end >= self.begins_at {
            self.record(fleet, end);
        }
    }

    /// Removes all points, because LEDGER has lost facts after them, and records none before `at`: until then the fold may lack
    /// states that are re-asserted later.
    pub fn restart_at(&mut self, at: Timestamp) {
        let changed = self.recorded + 1;
        let gone = std::mem::take(&mut self.series);
        self.unsaved.extend(gone.into_keys().map(|key| (key, changed)));
        self.begins_at = at.as_second();
    }

    /// Records from now on: the fold is as complete as the views that are published.
    pub const fn begin(&mut self) {
        self.begins_at = 0;
    }

    fn record(&mut self, fleet: &Fleet, at: i64) {
        self.recorded = at;
        self.remove_ended(at);
        self.push(ViewKey::Fleet, Point { at, counts: fleet.fleet_counts() });
        for (id, number) in &fleet.totals.deployment_numbers {
            self.push(ViewKey::Deployment(id.clone()), Point { at, counts: fleet.counts_of(*number) });
        }
        let is_gone = |key: &&ViewKey| match key {
            ViewKey::Deployment(id) => !fleet.totals.deployment_numbers.contains_key(id),
            _ => false,
        };
        let gone: Vec<ViewKey> = self.series.keys().filter(is_gone).cloned().collect();
        gone.into_iter().for_each(|key| self.push(key, Point { at, counts: SeriesCounts::EMPTY }));
        self.trim();
    }

    /// Removes the oldest points of all series if there are too many in all.
    fn trim(&mut self) {
        let all: usize = self.series.values().map(Vec::len).sum();
        if all > POINTS_IN_ALL {
            let most = self.points_of_each();
            self.series.values_mut().for_each(|points| _ = points.drain(..points.len().saturating_sub(most)));
        }
    }

    /// Points of each series, if all have as many.
    fn points_of_each(&self) -> usize {
        (POINTS_IN_ALL / self.series.len().max(1)).clamp(POINTS_MIN, POINTS_MAX - 1)
    }

    /// Removes the series of deployments that are nowhere since before the oldest point.
    fn remove_ended(&mut self, now: i64) {
        let has_ended = |points: &[Point]| {
            points.last().is_none_or(|last| last.counts == SeriesCounts::EMPTY && now - last.at > AGE_MAX)
        };
        for (key, _) in self.series.extract_if(.., |_, points| has_ended(points)) {
            self.unsaved.insert(key, now);
        }
    }

    fn push(&mut self, key: ViewKey, point: Point) {
        let most = self.points_of_each();
        match self.series.get_mut(&key) {
            Some(points) if points.last().is_some_and(|last| last.counts == point.counts) => return,
            Some(points) => {
                points.push(point);
                thin(points, point.at, most);
            }
            None if point.counts == SeriesCounts::EMPTY => return,
            None => _ = self.series.insert(key.clone(), vec![point]),
        }
        self.unsaved.insert(key, point.at);
    }

    /// The series to store, empty where one is gone, and the time up to which they are complete.
    pub fn unsaved(&self) -> (i64, Vec<(ViewKey, Vec<TimelinePoint>)>) {
        let shown = |point: &Point| Some(point.counts.shown(Timestamp::from_second(point.at).ok()?));
        let series = self.unsaved.keys().map(|key| {
            let points = self.series.get(key).map(Vec::as_slice).unwrap_or_default();
            (key.clone(), points.iter().filter_map(shown).collect())
        });
        (self.recorded, series.collect())
    }

    /// Notes that everything up to a time is stored.
    pub fn set_saved(&mut self, up_to: i64) {
        self.unsaved.retain(|_, changed| *changed > up_to);
    }

    /// The timeline of the fleet, or of a deployment, with the present as its last point; none of a deployment without one.
    pub fn answer(&self, fleet: &Fleet, deployment: Option<&DeploymentId>) -> Option<TimelineAnswer> {
        let (key, present) = match deployment {
            None => (ViewKey::Fleet, fleet.fleet_counts()),
            Some(id) => (ViewKey::Deployment(id.clone()), fleet.deployment_counts(id)),
        };
        let recorded = self.series.get(&key).map(Vec::as_slice).unwrap_or_default();
        if recorded.is_empty() && present == SeriesCounts::EMPTY && deployment.is_some() {
            return None;
        }
        let as_of = fleet.as_of();
        let shown = |point: &Point| Some(point.counts.shown(Timestamp::from_second(point.at).ok()?));
        let mut points: Vec<TimelinePoint> = recorded.iter().filter_map(shown).collect();
        if as_of.ledger_seq > 0 && recorded.last().is_none_or(|last| last.counts != present) {
            // The clock may have been set back since the last point.
            let last = points.last().map_or(as_of.at, |last| last.at);
            points.push(present.shown(as_of.at.max(last)));
        }
        Some(TimelineAnswer { deployment: deployment.cloned(), as_of, points })
    }
}

/// Keeps [`SPAN_POINTS`] of each span, and `most` points in all. The newest point that is older than the oldest span stays, because
/// its counts hold in that span.
fn thin(points: &mut Vec<Point>, now: i64, most: usize) {
    let expired = points.partition_point(|point| now - point.at > AGE_MAX).saturating_sub(1);
    points.drain(..expired);
    let kept: Vec<Point> =
        points.chunk_by(|one, other| span(*one, now) == span(*other, now)).flat_map(kept_of).collect();
    *points = kept;
    points.drain(..points.len().saturating_sub(most));
}

/// The span in which a point lies, at a time.
fn span(point: Point, now: i64) -> (i64, i64) {
    let age = now - point.at;
    let length =
        TIERS.iter().find(|(until, _)| age <= *until).map_or(TIERS[TIERS.len() - 1].1, |(_, span)| *span);
    (length, point.at.div_euclid(length))
}

/// The points of a span that bound the others: nothing worse, better, more silent or further behind lies between the first
/// and the last.
fn kept_of(span: &[Point]) -> Vec<Point> {
    let silent = |point: &&Point| point.counts.devices.stale + point.counts.devices.never;
    let bounds = [
        span.first(),
        span.last(),
        span.iter().min_by_key(|point| (point.counts.urgency(), point.at)),
        span.iter().max_by_key(|point| (point.counts.urgency(), point.at)),
        span.iter().max_by_key(silent),
        span.iter().max_by_key(|point| point.counts.missing_reports),
    ];
    let mut kept: Vec<Point> = bounds.into_iter().flatten().copied().collect();
    kept.sort_by_key(|point| point.at);
    kept.dedup();
    kept
}

const _: () = assert!(SPAN_POINTS == 6, "`kept_of` keeps so many");
