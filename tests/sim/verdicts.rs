//! Checks verdicts and bounds: a site's view and the fleet's view count the right verdicts, and a deployment's view has the right
//! verdict, bounds and sums. The expected values come from the standings of the devices, without the fold's totals. After a fact
//! only the rows of its device are read anew. Whether a standing is true is the law of [`super::law`].

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::query::Output;
use muster_contract::status::TargetStatus;
use muster_contract::view::{DeploymentView, Freshness, Standing, Tally, Verdict};
use muster_contract::{DeploymentId, DeviceKey, SiteId};
use muster_domain::fold::Fleet;

use super::law::{Lawful, must};

/// The standings of a deployment, counted as its verdict and its bounds need them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Group {
    targets: u64,
    leaving: u64,
    failed: u64,
    overdue: u64,
    unknown: u64,
    /// Pending, installing, removing or removed on a fresh device.
    at_work: u64,
    installed: u64,
    installed_fresh: u64,
    /// Installed, fresh and known.
    surely_installed: u64,
    /// Failed, fresh and known.
    surely_failed: u64,
}

impl Group {
    fn of(line: &TargetStatus) -> Self {
        if line.leaving {
            return Self { leaving: 1, ..Self::default() };
        }
        let is_fresh = line.freshness == Freshness::Fresh;
        let is_sure = is_fresh && line.known;
        let is = |standing: Standing| line.standing == standing;
        let moves = [Standing::Pending, Standing::Installing, Standing::Removing, Standing::Removed];
        Self {
            targets: 1,
            leaving: 0,
            failed: u64::from(is(Standing::Failed)),
            overdue: u64::from(line.overdue),
            unknown: u64::from(!line.known),
            at_work: u64::from(is_fresh && moves.contains(&line.standing)),
            installed: u64::from(is(Standing::Installed)),
            installed_fresh: u64::from(is_fresh && is(Standing::Installed)),
            surely_installed: u64::from(is_sure && is(Standing::Installed)),
            surely_failed: u64::from(is_sure && is(Standing::Failed)),
        }
    }

    /// The counts, to add or subtract them one by one. A count that is missing here fails to compile.
    const fn fields(&mut self) -> [&mut u64; 10] {
        let Self {
            targets,
            leaving,
            failed,
            overdue,
            unknown,
            at_work,
            installed,
            installed_fresh,
            surely_installed,
            surely_failed,
        } = self;
        [
            targets,
            leaving,
            failed,
            overdue,
            unknown,
            at_work,
            installed,
            installed_fresh,
            surely_installed,
            surely_failed,
        ]
    }

    fn add(&mut self, mut other: Self) {
        self.fields().into_iter().zip(other.fields()).for_each(|(sum, more)| *sum += *more);
    }

    fn remove(&mut self, mut other: Self) {
        self.fields().into_iter().zip(other.fields()).for_each(|(sum, less)| *sum -= *less);
    }

    /// The contract's rules in their order; the first that holds.
    fn verdict(&self) -> Verdict {
        match () {
            () if self.targets == 0 && self.leaving == 0 => Verdict::Empty,
            () if self.targets == 0 => Verdict::Removing,
            () if self.failed > 0 => Verdict::Failing,
            () if self.overdue > 0 => Verdict::Overdue,
            () if self.unknown > 0 => Verdict::Incomplete,
            () if self.at_work > 0 => Verdict::Progressing,
            () if self.installed < self.targets => Verdict::Waiting,
            () if self.installed_fresh < self.targets => Verdict::ConvergedStale,
            () => Verdict::Converged,
        }
    }
}

/// The standings of a fleet by deployment.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    rows: BTreeMap<DeviceKey, BTreeMap<DeploymentId, Group>>,
    sites: BTreeMap<SiteId, BTreeMap<DeploymentId, Group>>,
    fleet: BTreeMap<DeploymentId, Group>,
    /// Deployments whose sums have changed since their views were checked.
    changed: BTreeSet<DeploymentId>,
    is_read: bool,
}

impl Verdicts {
    /// Every device may have changed.
    pub(crate) const fn forget(&mut self) {
        self.is_read = false;
    }

    /// Reads the rows of these devices, unless they were read since they changed.
    pub(crate) fn read_all<'a>(&mut self, fleet: &Fleet, keys: impl Iterator<Item = &'a DeviceKey>) {
        if !std::mem::replace(&mut self.is_read, true) {
            keys.for_each(|key| _ = self.read(fleet, key));
        }
    }

    /// Reads the rows of a device; true if they have changed.
    pub(crate) fn read(&mut self, fleet: &Fleet, key: &DeviceKey) -> bool {
        let answer = fleet.device_answer(key, Output::All).filter(|answer| !answer.device.retired);
        let lines = answer.map(|answer| answer.deployments).unwrap_or_default();
        let rows: BTreeMap<_, _> =
            lines.iter().map(|line| (line.deployment.clone(), Group::of(line))).collect();
        let before = self.rows.insert(key.clone(), rows.clone()).unwrap_or_default();
        if before == rows {
            return false;
        }
        let site = self.sites.entry(key.site.clone()).or_default();
        for sums in [site, &mut self.fleet] {
            before.iter().for_each(|(id, row)| sums.entry(id.clone()).or_default().remove(*row));
            rows.iter().for_each(|(id, row)| sums.entry(id.clone()).or_default().add(*row));
        }
        self.changed.extend(before.into_keys().chain(rows.into_keys()));
        true
    }

    /// Checks the verdicts that a site's view counts.
    pub(crate) fn check_site(&self, id: &SiteId, tally: Option<&Tally>) -> Lawful {
        check_tally(tally, self.sites.get(id), || format!("site {id}"))
    }

    /// Checks the verdicts that the fleet's view counts.
    pub(crate) fn check_fleet(&self, tally: &Tally) -> Lawful {
        check_tally(Some(tally), Some(&self.fleet), || "the fleet".to_owned())
    }

    /// Checks the views of the deployments whose sums have changed since the last call; returns their number.
    pub(crate) fn check_deployments(&mut self, fleet: &Fleet) -> Lawful<u64> {
        let changed = std::mem::take(&mut self.changed);
        for id in &changed {
            let group = self.fleet.get(id).copied().unwrap_or_default();
            check_deployment(id, group, fleet.deployment_view(id).as_ref())?;
        }
        Ok(changed.len() as u64)
    }
}

fn check_tally(
    tally: Option<&Tally>,
    groups: Option<&BTreeMap<DeploymentId, Group>>,
    name: impl Fn() -> String,
) -> Lawful {
    let (mut verdicts, mut sum) = (BTreeMap::new(), Group::default());
    for group in groups.into_iter().flat_map(BTreeMap::values) {
        sum.add(*group);
        if group.verdict() != Verdict::Empty {
            *verdicts.entry(group.verdict()).or_insert(0) += 1;
        }
    }
    let seen = tally.map(|tally| tally.deployments.clone()).unwrap_or_default();
    must(seen == verdicts, "a view counts deployments by the verdict on their standings", || {
        format!("{}: {seen:?}, standings: {verdicts:?}", name())
    })?;
    let seen = tally.map_or((0, 0, 0), |tally| (tally.targets, tally.leaving, tally.overdue));
    let sums = (sum.targets, sum.leaving, sum.overdue);
    must(seen == sums, "a view sums up the standings of its devices", || {
        format!("{}: {seen:?}, {sums:?}", name())
    })
}

fn check_deployment(id: &DeploymentId, group: Group, view: Option<&DeploymentView>) -> Lawful {
    let Some(view) = view else {
        return must(group.verdict() == Verdict::Empty, "a deployment with standings has a view", || {
            format!("{id} {group:?}")
        });
    };
    let (lo, hi) = (group.surely_installed, group.targets - group.surely_failed);
    let right =
        view.verdict == group.verdict() && (view.converged.lo, view.converged.hi) == (lo, hi) && lo <= hi;
    must(right, "a deployment's verdict and bounds are those of its standings", || {
        format!("{:?} {lo}..{hi}, {view:?}", group.verdict())
    })
}

/// The bounds are what the lines say.
pub(crate) fn bounds(view: &DeploymentView, lines: &[TargetStatus]) -> Lawful {
    let targets = lines.iter().filter(|line| !line.leaving);
    let installed = |line: &&TargetStatus| {
        line.known && line.freshness == Freshness::Fresh && line.standing == Standing::Installed
    };
    let failed = |line: &&TargetStatus| {
        line.known && line.freshness == Freshness::Fresh && line.standing == Standing::Failed
    };
    let lo = targets.clone().filter(installed).count() as u64;
    let hi = view.targets - targets.filter(failed).count() as u64;
    let right = view.converged.lo == lo && view.converged.hi == hi && lo <= hi;
    must(right, "the bounds are those of the standings", || format!("{lo}..{hi}, {view:?}"))
}
