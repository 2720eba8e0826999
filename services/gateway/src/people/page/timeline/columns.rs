//! Divides a time into columns, and finds the worst of each. It draws nothing.

use muster_contract::Timestamp;
use muster_contract::timeline::TimelinePoint;
use muster_contract::view::Verdict;
use muster_domain::fold::urgency_of_point;

/// Columns of a chart.
const COLUMNS: i64 = 48;

/// A part of the time, by second: from the first up to before the last.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) from: i64,
    pub(super) to: i64,
    /// The point of the worst verdicts, with its moment in this time; none if nothing is known of the time.
    pub(super) worst: Option<TimelinePoint>,
    /// The most devices that were not heard.
    pub(super) silent: u64,
    pub(super) devices: u64,
    /// The most missing reports.
    pub(super) missing: u64,
}

/// The highest values of all columns.
#[derive(Debug, Default)]
pub(super) struct Peaks {
    pub(super) targets: u64,
    pub(super) silent: u64,
    pub(super) devices: u64,
    pub(super) missing: u64,
}

impl Peaks {
    pub(super) fn of(columns: &[Column]) -> Self {
        let most = |value: fn(&Column) -> u64| columns.iter().map(value).max().unwrap_or_default();
        Self {
            targets: most(|column| column.worst.as_ref().map_or(0, |worst| worst.targets)),
            silent: most(|column| column.silent),
            devices: most(|column| column.devices),
            missing: most(|column| column.missing),
        }
    }
}

/// The columns of the last `span` seconds, the oldest first. They begin at multiples of their width, so that a column stays the
/// same until it leaves the chart.
pub(super) fn columns(points: &[TimelinePoint], now: i64, span: i64) -> Vec<Column> {
    let width = span / COLUMNS;
    let end = (now.div_euclid(width) + 1) * width;
    let starts = (0..COLUMNS).map(|index| end - (COLUMNS - index) * width);
    starts.map(|from| column(points, from, from + width)).collect()
}

fn column(points: &[TimelinePoint], from: i64, to: i64) -> Column {
    let after_start = points.partition_point(|point| point.at.as_second() <= from);
    let before_end = points.partition_point(|point| point.at.as_second() < to);
    // The last point before the column holds at its start.
    let held = &points[after_start.saturating_sub(1)..before_end];
    let most = |value: fn(&TimelinePoint) -> u64| held.iter().map(value).max().unwrap_or_default();
    let worst = held.iter().min_by_key(|point| urgency_of_point(point)).cloned();
    let at = |point: TimelinePoint| {
        let start = Timestamp::from_second(from).unwrap_or(point.at);
        TimelinePoint { at: point.at.max(start), ..point }
    };
    Column {
        from,
        to,
        worst: worst.map(at),
        silent: most(|point| point.devices.stale + point.devices.never),
        devices: most(|point| point.devices.total()),
        missing: most(|point| point.missing_reports),
    }
}

impl Column {
    /// Targets that have failed for certain.
    pub(super) fn failed(&self) -> u64 {
        self.worst.as_ref().map_or(0, |worst| worst.targets.saturating_sub(worst.converged.hi))
    }

    /// Whether the column shows a verdict.
    pub(super) fn has(&self, verdict: Verdict) -> bool {
        self.worst.as_ref().is_some_and(|worst| worst.deployments.contains_key(&verdict))
    }
}
