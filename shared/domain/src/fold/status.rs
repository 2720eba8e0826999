//! Status after filters: the standings that pass, their roll-up, and a line for each, page by page.
//!
//! Without a filter, and with sites alone, the roll-up is read from kept counts. Any other roll-up is counted
//! while standings are visited, [`LOOKED_AT_MAX`] in one answer at most: the roll-ups of the pages add up.

pub(super) mod errors;
mod filter;
mod line;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use muster_contract::query::Output;
use muster_contract::status::{
    AppStatus, Axis, Deployed, KStatus, LOOKED_AT_MAX, Ready, Rollup, StatusAnswer, StatusQuery, TargetStatus,
};
use muster_contract::view::Verdict;
use muster_contract::{DeploymentId, DeviceKey, LabelError};

use filter::{Filter, FilteredRow};
pub(super) use line::message;

use super::delta::Delta;
use super::device::Device;
use super::fleet::Fleet;
use super::max_timestamp::Times;
use super::standing::Row;
use super::tally::Group;

/// Why a question about status has no answer, in words for the asker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StatusRefusal {
    /// The question names something unknown.
    #[error("{0}")]
    Unknown(String),
    /// The question is invalid.
    #[error("{0}")]
    Wrong(String),
}

/// The end of a page: `SITE/DEVICE`, or `SITE/DEVICE/DEPLOYMENT` within a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusCursor {
    device: DeviceKey,
    /// Only its deployments up to this one; all of them if absent.
    deployment: Option<DeploymentId>,
}

/// Why a text is no [`StatusCursor`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    /// The device is none.
    #[error(transparent)]
    Device(#[from] muster_contract::ids::DeviceKeyError),
    /// The deployment is none.
    #[error(transparent)]
    Deployment(#[from] LabelError),
}

impl FromStr for StatusCursor {
    type Err = CursorError;
    fn from_str(text: &str) -> Result<Self, CursorError> {
        match text.rsplit_once('/') {
            Some((device, deployment)) if device.contains('/') => {
                Ok(Self { device: device.parse()?, deployment: Some(deployment.parse()?) })
            }
            _ => Ok(Self { device: text.parse()?, deployment: None }),
        }
    }
}

impl fmt::Display for StatusCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.device.fmt(f)?;
        self.deployment.as_ref().map_or(Ok(()), |deployment| write!(f, "/{deployment}"))
    }
}

impl StatusCursor {
    /// The end of a page whose last line this is.
    pub fn after(line: &TargetStatus) -> Self {
        Self { device: line.key.clone(), deployment: Some(line.deployment.clone()) }
    }
}

impl Ord for StatusCursor {
    /// The further one is the greater: all of a device is further than any part of it.
    fn cmp(&self, other: &Self) -> Ordering {
        let parts = || match (&self.deployment, &other.deployment) {
            (Some(own), Some(theirs)) => own.cmp(theirs),
            (own, theirs) => own.is_none().cmp(&theirs.is_none()),
        };
        self.device.cmp(&other.device).then_with(parts)
    }
}

impl PartialOrd for StatusCursor {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The result so far.
#[derive(Default)]
struct StatusPage<'a> {
    sum: Sum,
    apps: BTreeMap<Option<&'a str>, Sum>,
    lines: Vec<TargetStatus>,
    looked_at: usize,
    /// The position reached: a device, and its row if not all rows were visited.
    last: Option<(&'a Device, Option<&'a Row>)>,
    /// There is more to visit.
    more: bool,
}

/// Counts over what passed the filters.
#[derive(Default)]
struct Sum {
    group: Group,
    superseded: u64,
    worst: Option<(KStatus, String)>,
    times: Times,
}

impl Fleet {
    /// Status of the standings that pass the filters: at most `limit` targets, and at most [`LOOKED_AT_MAX`]
    /// visited.
    ///
    /// # Errors
    /// A name is unknown, or the question is invalid.
    pub fn status_answer(
        &self,
        query: &StatusQuery,
        after: Option<&StatusCursor>,
        limit: usize,
    ) -> Result<StatusAnswer, StatusRefusal> {
        let filter = self.filter(query)?;
        let kept = filter.kept(self);
        let mut page = StatusPage::default();
        if kept.is_none() || query.output != Output::Summary {
            self.scan(&filter, query, after, limit.max(1), &mut page);
        }
        let whole = kept.is_some() || (after.is_none() && !page.more);
        let rollup = match kept {
            Some((group, changed_at)) => {
                let last_heard_at = filter.kept_heard_at(self);
                Rollup { changed_at, last_heard_at, ..self.kept_rollup(&filter, &group, query.status) }
            }
            None => std::mem::take(&mut page.sum).rollup(query.status),
        };
        let total = rollup.targets + rollup.leaving + rollup.superseded;
        Ok(StatusAnswer {
            as_of: self.as_of,
            deployment: query.id.clone(),
            generation: query.generation,
            verdict: query.id.as_ref().filter(|_| whole).and_then(|_| verdict_of(&rollup)),
            whole,
            rollup,
            hub: self.hub_hearing_for(query),
            apps: page.apps(query),
            manifests: BTreeMap::new(),
            manifests_left_out: 0,
            total: whole.then_some(total),
            next: page.end(limit.max(1), |(device, row)| self.cursor(device, row)).map(|end| end.to_string()),
            targets: page.lines,
        })
    }

    /// Looks at what comes after a cursor until there is enough.
    fn scan<'a>(
        &'a self,
        filter: &Filter<'_>,
        query: &StatusQuery,
        after: Option<&StatusCursor>,
        limit: usize,
        page: &mut StatusPage<'a>,
    ) {
        for device in filter.devices_after(self, after) {
            if !self.collect_rows(device, filter, query, after, limit, page) {
                return;
            }
            page.last = Some((device, None));
            if page.looked_at >= LOOKED_AT_MAX {
                page.more = true;
                return;
            }
        }
    }

    /// Adds the rows of a device after the cursor. False if the page has no more room.
    fn collect_rows<'a>(
        &'a self,
        device: &'a Device,
        filter: &Filter<'_>,
        query: &StatusQuery,
        after: Option<&StatusCursor>,
        limit: usize,
        page: &mut StatusPage<'a>,
    ) -> bool {
        let mut one = None;
        let mut all = Vec::new();
        match filter.deployment {
            Some(number) => one = device.rows.iter().find(|row| row.deployment == number),
            None => all = self.rows_in_order(device),
        }
        let passed = after.filter(|after| {
            after.device.device == device.state.name && after.device.site == *self.site_of(device)
        });
        let passed = passed.and_then(|after| after.deployment.as_ref());
        // A device without such a row costs a look too.
        page.looked_at += usize::from(one.is_none() && all.is_empty());
        for row in one.into_iter().chain(all) {
            if passed.is_some_and(|passed| self.totals.deployment(row.deployment).id <= *passed) {
                continue;
            }
            if page.looked_at >= LOOKED_AT_MAX {
                page.more = true;
                return false;
            }
            page.looked_at += 1;
            if let Some(found) = filter.find(self, device, row)
                && !page.push_row(filter, &found, query, limit)
            {
                return false;
            }
            page.last = Some((device, Some(row)));
        }
        true
    }

    /// The deployments of a device in order, as brief lines with the last report of that output level.
    pub(super) fn lines_of(&self, device: &Device, output: Output) -> Vec<TargetStatus> {
        let all = Filter::default();
        let shown = self.rows_in_order(device).into_iter().filter_map(|row| all.find(self, device, row));
        let line = |found: FilteredRow<'_>| {
            let report = found.row.report.as_ref().map(|report| report.shown(output));
            TargetStatus { report, ..found.line(&all, Output::Brief, None) }
        };
        shown.map(line).collect()
    }

    fn rows_in_order<'a>(&'a self, device: &'a Device) -> Vec<&'a Row> {
        let mut rows: Vec<_> = device.rows.iter().collect();
        rows.sort_unstable_by_key(|row| &self.totals.deployment(row.deployment).id);
        rows
    }

    fn cursor(&self, device: &Device, row: Option<&Row>) -> StatusCursor {
        let deployment = row.map(|row| self.totals.deployment(row.deployment).id.clone());
        StatusCursor { device: self.key_of(device), deployment }
    }

    /// The roll-up of counts that are kept.
    fn kept_rollup(&self, filter: &Filter<'_>, group: &Group, axis: Option<Axis>) -> Rollup {
        let verdict = group.verdict();
        let failing = (verdict == Verdict::Failing).then(|| self.worst_error(filter, group.targets()));
        let message = failing.flatten().unwrap_or_else(|| verdict.words(group.heard()));
        Rollup { message: (verdict != Verdict::Empty).then_some(message), ..rollup(group, 0, axis) }
    }
}

impl<'a> StatusPage<'a> {
    /// Adds a row. False where the page has no room for it.
    fn push_row(
        &mut self,
        filter: &Filter<'_>,
        found: &FilteredRow<'a>,
        query: &StatusQuery,
        limit: usize,
    ) -> bool {
        if query.output != Output::Summary {
            if self.lines.len() >= limit {
                self.more = true;
                return false;
            }
            self.apps.entry(found.app()).or_default().add(found);
            self.lines.push(found.line(filter, query.output, query.status));
        }
        self.sum.add(found);
        true
    }

    /// The cursor of the next page, if there is more. A full page ends with its last line, whatever was visited
    /// after that: so pages of several hubs can be merged like those of one.
    fn end(
        &self,
        limit: usize,
        cursor: impl Fn((&Device, Option<&Row>)) -> StatusCursor,
    ) -> Option<StatusCursor> {
        let last = self.last.filter(|_| self.more);
        match self.lines.last() {
            Some(line) if self.lines.len() >= limit => last.map(|_| StatusCursor::after(line)),
            _ => last.map(cursor),
        }
    }

    fn apps(&mut self, query: &StatusQuery) -> Vec<AppStatus> {
        let apps = std::mem::take(&mut self.apps).into_iter();
        apps.map(|(app, sum)| AppStatus { app: app.map(str::to_owned), rollup: sum.rollup(query.status) })
            .collect()
    }
}

impl Sum {
    fn add(&mut self, found: &FilteredRow<'_>) {
        if found.is_gone() {
            self.superseded += 1;
        } else {
            self.group.shift(Delta::Add, found.class);
            self.group.axes.combine(&found.axes, |own, other| own + other);
        }
        let times = Times { changed_at: found.changed_at(), heard_at: found.heard_at };
        self.times = self.times.newest(times);
        let kstatus = found.kstatus();
        if self.worst.as_ref().is_none_or(|(worst, _)| kstatus < *worst) {
            self.worst = Some((kstatus, found.message_with_place()));
        }
    }

    fn rollup(self, axis: Option<Axis>) -> Rollup {
        let message = self.worst.map(|(_, message)| message);
        let Times { changed_at, heard_at } = self.times;
        let counted = rollup(&self.group, self.superseded, axis);
        Rollup { message, changed_at, last_heard_at: heard_at, ..counted }
    }
}

/// The verdict on what a roll-up counts; none where it counts nothing.
pub fn verdict_of(rollup: &Rollup) -> Option<Verdict> {
    Some(Group::of_rollup(rollup).verdict()).filter(|verdict| *verdict != Verdict::Empty)
}

/// The roll-up of counts.
fn rollup(group: &Group, superseded: u64, axis: Option<Axis>) -> Rollup {
    let (deployed, ready) = (axis != Some(Axis::Ready), axis != Some(Axis::Deployed));
    let axes = &group.axes;
    Rollup {
        targets: group.targets(),
        leaving: group.leaving(),
        overdue: group.overdue(),
        retried: group.retried(),
        known: group.complete().devices,
        superseded,
        counts: group.counts(),
        evidence: group.evidence(),
        kstatus: counted(&KStatus::ALL, &axes.kstatus),
        deployed_status: deployed.then(|| axes.deployed_status()),
        ready_status: ready.then(|| axes.ready_status()),
        deployed_counts: if deployed { counted(&Deployed::ALL, &axes.deployed) } else { BTreeMap::new() },
        ready_counts: if ready { counted(&Ready::ALL, &axes.ready) } else { BTreeMap::new() },
        message: None,
        changed_at: None,
        last_heard_at: None,
    }
}

fn counted<K: Ord + Copy>(all: &[K], counts: &[u32]) -> BTreeMap<K, u64> {
    let pairs = all.iter().zip(counts).filter(|(_, count)| **count > 0);
    pairs.map(|(key, count)| (*key, u64::from(*count))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_what_it_was_written_as() {
        for text in ["plant7/press-4", "plant7/press-4/web"] {
            assert_eq!(text.parse::<StatusCursor>().unwrap().to_string(), text);
        }
        for text in ["plant7", "", "a/b/c/d", "plant7/press-4/", "plant7/Press"] {
            assert!(text.parse::<StatusCursor>().is_err(), "{text}");
        }
    }
}
