//! Accepts commits, and reports when one is published completely.

use std::collections::BTreeSet;

use muster_bus::Trace;
use muster_contract::query::{HeldBack, Problem, SomeDevices};
use tokio::time::Instant;

use super::Announcer;
use crate::device_table::{DeviceTable, NAMED_MAX};
use crate::downlink::Downlink;
use crate::metrics::CommitResult;
use crate::problems::Problems;
use crate::source::Fleet;

impl<D: Downlink> Announcer<D> {
    pub(super) fn accept(
        &mut self,
        fleet: Fleet,
        take: impl FnOnce(&mut DeviceTable, Fleet) -> Result<usize, Problems>,
    ) -> Result<(), Problems> {
        let (revision, devices) = (fleet.revision.clone(), fleet.devices.len());
        let returning = SomeDevices::of(self.table.returning(&fleet), NAMED_MAX);
        let due = take(&mut self.table, fleet)?;
        if !returning.is_empty() {
            let devices = names(&returning);
            tracing::warn!(
                commit.id = revision,
                devices,
                "a commit has folders of retired devices and brings them back"
            );
        }
        self.warn_of_held_back();
        self.refused_rollbacks.clear();
        self.commit_trace = Trace::random(&mut self.rng);
        if due == 0 && self.table.guarded() == 0 {
            self.applied(&revision);
            return Ok(());
        }
        tracing::info!(commit.id = revision, devices, due, "publishing a commit");
        self.commit_under_way = true;
        self.retry.reset();
        self.retry_at = Instant::now();
        self.report_status();
        Ok(())
    }

    fn warn_of_held_back(&self) {
        let Some(HeldBack { revision, devices, problems }) = self.table.held_back() else { return };
        for Problem { file, line, field, rule } in problems {
            tracing::warn!(commit.id = revision, file, line, field, rule, "found a problem in a commit");
        }
        tracing::warn!(
            commit.id = revision,
            devices = names(&devices),
            "held devices back: they keep their desired state because the commit has a problem for them"
        );
    }

    /// Handles that the last accepted commit is newer than all of `older`.
    pub(super) fn follows(&mut self, older: &BTreeSet<String>) {
        let devices = self.table.follows(older);
        if devices > 0 {
            tracing::info!(devices, "documents of another publisher are of an older commit than this one's");
            self.retry_at = Instant::now();
            self.report_status();
            self.report_if_applied();
        }
    }

    /// Reports a commit as applied, once it is: a request may have published its last document.
    pub(super) fn report_if_applied(&mut self) {
        if self.commit_under_way
            && let Some(revision) = self.table.applied().map(str::to_owned)
        {
            self.applied(&revision);
        }
    }

    pub(super) fn applied(&mut self, revision: &str) {
        self.commit_under_way = false;
        tracing::info!(commit.id = revision, devices = self.table.devices(), "published a commit");
        self.context.metrics.commit(CommitResult::Applied, 1);
        self.report_status();
        self.log_left_over();
    }

    /// Logs left-over devices, each once since the start.
    fn log_left_over(&mut self) {
        let left: BTreeSet<_> = self.table.left_over().cloned().collect();
        let new = SomeDevices::of(left.difference(&self.logged_left_over), NAMED_MAX);
        self.logged_left_over = left;
        if !new.is_empty() {
            tracing::warn!(
                devices = names(&new),
                "devices have no folder in Git any more and no deployment: `muster retire SITE/DEVICE` takes them out of \
                 the fleet, a folder brings them back"
            );
        }
    }
}

/// The names of some devices, and the number of the others.
fn names(devices: &SomeDevices) -> String {
    let named: Vec<_> = devices.first.iter().map(ToString::to_string).collect();
    match devices.count - named.len() as u64 {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}
