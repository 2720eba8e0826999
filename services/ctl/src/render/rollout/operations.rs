//! The releases of rollouts as operations, in a table.

use muster_client::rollout::RolloutOperations;
use muster_contract::query::SomeDevices;
use muster_domain::rollout::ApprovalCount;

use super::super::cut::short;
use super::super::format::{clean, names, plural};
use super::super::frame::Frame;
use super::super::plans::state_cell;
use super::super::table::{Cell, Table};

/// Devices that a row names, at most.
const DEVICES_SHOWN_MAX: usize = 3;

/// The operations of rollouts, a row for each wave and state.
pub fn operations(all: &[RolloutOperations], frame: Frame) -> String {
    let columns = [
        "DEPLOYMENT",
        "CONTENT",
        "WAVE",
        "TYPE",
        "STATE",
        ">DEVICES",
        "?APPROVALS",
        "?ROLLOUT",
        "FIRST DEVICES",
    ];
    let mut table = Table::new(&columns);
    for one in all {
        let approvals =
            one.approvals.map(|ApprovalCount { given, needed, .. }| format!("{given} of {needed}"));
        table.row([
            one.deployment.as_str().into(),
            short(&one.digest).into(),
            clean(&one.wave).into(),
            one.operation_type.as_str().into(),
            state_cell(one.state),
            Cell::count(one.devices.count),
            approvals.unwrap_or_default().into(),
            clean(&one.rollout).into(),
            names(&first(&one.devices)).into(),
        ]);
    }
    let count = all.iter().map(|one| one.devices.count).sum();
    format!("{}{}\n", table.within(frame.width), plural(count, "operation"))
}

fn first(devices: &SomeDevices) -> SomeDevices {
    let first = devices.first.iter().take(DEVICES_SHOWN_MAX).cloned().collect();
    SomeDevices { count: devices.count, first }
}
