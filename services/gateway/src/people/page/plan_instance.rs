//! An instance of a plan: its nodes, its newest change, and the operations that a person may request.

use maud::{Markup, html};
use muster_contract::Timestamp;
use muster_contract::plans::{
    Instance, InstanceState, InstanceStatus, OperationType, Placement, PlacementStatus,
};

use super::parts::{ago, count, encoded};
use super::plan_parts::{act, address, runtime_look, tag};
use crate::login::current;

/// An instance in a list.
pub(super) fn instance(status: &InstanceStatus, now: Timestamp) -> Markup {
    let instance = &status.instance;
    html! {
        div.head {
            strong { (instance.display_name) }
            @match instance.state {
                InstanceState::Active => {}
                InstanceState::MarkedForDeletion => (tag(("\u{2212}", "marked for deletion", "wait"))),
                InstanceState::Deleted => (tag(("\u{2212}", "deleted", "wait"))),
            }
        }
        p.more {
            "deployment " code { (instance.revision) }
            @if instance.stopped { ", stopped" }
            @if instance.restarts > 0 { ", " (count(instance.restarts, "restart")) }
            ". Last change " (ago(instance.change.at, now)) ": " (instance.change.message)
            @if let Some(by) = &instance.change.by { ", by " (by.label()) }
        }
        @if instance.placements.is_empty() { p.more { "on no node yet" } }
        @for (placement, seen) in instance.placements.iter().zip(&status.placements) { (self::placement(placement, seen)) }
        @if current::offers_changes() { (instance_acts(instance)) }
    }
}

fn placement(placement: &Placement, seen: &PlacementStatus) -> Markup {
    let (site, device) = (placement.node.site.as_str(), placement.node.device.as_str());
    html! {
        p.more {
            (tag(runtime_look(seen.state))) " "
            a href={ "/devices/" (encoded(site)) "/" (encoded(device)) } { (placement.node) }
            @if !placement.active { ", to which it moves" }
            ": " (seen.message)
        }
    }
}

fn instance_acts(instance: &Instance) -> Markup {
    let runs = instance.active().is_some_and(|placement| placement.revision.is_some());
    let address =
        format!("{}/instances/{}", address(instance.plan.as_str()), encoded(instance.name.as_str()));
    let is_open = |kind: OperationType| {
        instance.operations.iter().any(|one| one.operation_type == kind && !one.state.is_final())
    };
    let form = |kind: OperationType, verb: &str, words: &str, look: &str| {
        html! { @if !is_open(kind) { (act(&format!("{address}/{verb}"), words, look, &instance.display_name, &[])) } }
    };
    html! {
        @if runs && instance.state == InstanceState::Active {
            div.acts {
                @if !instance.stopped { (form(OperationType::Stop, "stop", "Stop", "danger")) }
                (form(OperationType::Restart, "restart", if instance.stopped { "Start" } else { "Restart" }, ""))
                (form(OperationType::Relocate, "relocate", "Relocate", ""))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_contract::plans::InstancesAnswer;

    use super::*;

    #[test]
    fn an_instance_offers_the_operations_that_are_not_open() {
        let example = include_bytes!("../../../../../schemas/examples/good/InstancesAnswer.one.json");
        let mut status = serde_json::from_slice::<InstancesAnswer>(example).unwrap().instances.remove(0);
        let now = "2026-11-26T09:10:00Z".parse().unwrap();
        let shown = |status: &InstanceStatus| instance(status, now).into_string();
        assert!(!shown(&status).contains("<form"), "no node has the order to run it");
        status.instance.placements[0].revision = Some("web-1".parse().unwrap());
        let running = shown(&status);
        for verb in ["stop", "restart", "relocate"] {
            assert!(running.contains(&format!("/{verb}\"")), "{verb}: {running}");
        }
        status.instance.stopped = true;
        status.instance.operations[0].operation_type = OperationType::Relocate;
        let stopped = shown(&status);
        assert!(stopped.contains(">Start</button>") && !stopped.contains("/stop\""), "{stopped}");
        assert!(!stopped.contains("/relocate\""), "one waits for its approval: {stopped}");
    }
}
