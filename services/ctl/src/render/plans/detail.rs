//! One plan and one instance, in sections with the titles of MRDS.

use std::fmt::Write as _;

use muster_contract::plans::{
    Dependency, InstanceStatus, OperationCounts, OperationType, Plan, PlanRevision, RuntimeState,
};

use super::{instance_list, operation_table, revision_style, runtime_style, totalled, word};
use crate::plans::PlanInDetail;
use crate::render::colour::{BAD, PLAIN};
use crate::render::format::{clean, plural};
use crate::render::frame::Frame;
use crate::render::table::{Cell, Table};

/// A plan: what it needs and runs, its deployments, instances and operations.
pub fn show(detail: &PlanInDetail, frame: Frame) -> String {
    let (plan, summary) = (&detail.answer.plan, &detail.answer.summary);
    let mut text = info(plan);
    text += &section("Matching Compute Capabilities", &matchers(plan, frame));
    text += &section("Applications", &applications(plan, frame));
    if !plan.spec.hooks.is_empty() {
        text += &section("Hooks Before Placement", &hooks(plan, frame));
    }
    text += &section("Deployments", &revisions(plan, frame));
    text += &section("Instance Summary", &instance_summary(&detail.instances));
    if summary.instances > 0 {
        text += &section("Operations Summary", &operations_summary(&summary.operations, frame));
    }
    if !summary.removed.is_empty() {
        text += &section("Operations of Removed Instances", &operations_summary(&summary.removed, frame));
    }
    if !detail.instances.is_empty() {
        text += &section("Instances", &instance_list(&detail.instances, frame));
    }
    text
}

/// An instance: its nodes and operations.
pub fn instance(status: &InstanceStatus, frame: Frame) -> String {
    let instance = &status.instance;
    let mut text = format!("Meta Instance Name:    {}\n", clean(&instance.display_name));
    let _ = writeln!(text, "Instance ID:           {}", instance.name);
    let _ = writeln!(text, "Deployment Plan Name:  {}", instance.plan);
    let _ = writeln!(text, "Deployment ID:         {}", instance.revision);
    let _ = writeln!(text, "State:                 {}", word(&instance.state));
    let _ = writeln!(text, "Status Message:        {}", clean(&instance.change.message));
    let _ = writeln!(text, "Version:               {}", instance.version);
    let columns = ["INSTANCE ID", "NODE", "IS ACTIVE", "STATE", "STATUS MESSAGE"];
    let mut table = Table::new(&columns);
    for (placement, seen) in instance.placements.iter().zip(&status.placements) {
        table.row([
            instance.name.as_str().into(),
            placement.node.to_string().into(),
            placement.active.to_string().into(),
            Cell::styled(word(&seen.state), runtime_style(seen.state)),
            clean(&seen.message).into(),
        ]);
    }
    let placements = totalled(&table.within(frame.width), instance.placements.len());
    text += &section("Runtime Instances", &placements);
    text + &section("Operations", &operation_table(&instance.operations))
}

fn section(title: &str, content: &str) -> String {
    format!("\n{title}\n{content}")
}

fn info(plan: &Plan) -> String {
    let spec = &plan.spec;
    let mut text = "Deployment Plan Info\n".to_owned();
    let _ = writeln!(text, "Deployment Plan Name:  {}", spec.name);
    let _ = writeln!(text, "Plan ID:               {}", clean(&plan.uid));
    let _ = writeln!(text, "Version:               {}", plan.version);
    let _ = writeln!(text, "Namespace:             {}", clean(&spec.namespace));
    let _ = writeln!(text, "Service Name:          {}", clean(&spec.service_name));
    if let Some(cluster) = &spec.cluster {
        let _ = writeln!(text, "Cluster:               {cluster}");
    }
    if let Some(migration) = plan.migration.as_deref() {
        let _ = writeln!(text, "Migrating To:          {}, as {}", migration.to, migration.id);
    }
    let _ = writeln!(text, "\nStatus\nDeployment Plan State: {}", word(&plan.state));
    let _ = writeln!(text, "Status Message:        {}", clean(&plan.change.message));
    text
}

fn matchers(plan: &Plan, frame: Frame) -> String {
    let mut table = Table::new(&["CAPABILITY TYPE", "COMPARATOR", "CAPABILITY NAMES"]);
    let matchers = &plan.spec.matching_compute_capabilities;
    for matcher in matchers {
        let names: Vec<_> = matcher.capability_names.iter().map(ToString::to_string).collect();
        let row = [clean(&matcher.capability_type), word(&matcher.comparator), names.join(",")];
        table.row(row.map(Cell::from));
    }
    totalled(&table.within(frame.width), matchers.len())
}

fn applications(plan: &Plan, frame: Frame) -> String {
    let mut table = Table::new(&["PAYLOAD NAME", ">CORES", ">MEMORY (GIB)", "PORTS", "PERSISTENT VOLUMES"]);
    for application in &plan.spec.applications {
        let ports = application.ports.iter().map(|port| format!("{}:{}", port.protocol, port.port));
        let volumes = application.persistent_volumes.iter().map(|volume| {
            format!("{} {} GB at {}", volume.storage_class, volume.capacity, volume.mount_path)
        });
        let name = &application.payload_name;
        let after: Vec<_> = application.after.iter().map(dependency).collect();
        let name =
            if after.is_empty() { name.to_string() } else { format!("{name} (after {})", after.join(", ")) };
        table.row([
            name.into(),
            Cell::count(application.resources.cores),
            Cell::count(application.resources.memory),
            clean(&ports.collect::<Vec<_>>().join(", ")).into(),
            clean(&volumes.collect::<Vec<_>>().join(", ")).into(),
        ]);
    }
    totalled(&table.within(frame.width), plan.spec.applications.len())
}

/// A dependency: `db`, or `db +30s`.
fn dependency(of: &Dependency) -> String {
    if of.wait.is_zero() { of.app.to_string() } else { format!("{} +{:?}", of.app, of.wait) }
}

/// The hooks, with their answers about the newest deployment.
fn hooks(plan: &Plan, frame: Frame) -> String {
    let mut table = Table::new(&["HOOK", "ANSWER", "REASON"]);
    let answered = plan.hook_answers.as_ref().map_or(&[][..], |answers| &answers.hooks);
    for (at, hook) in plan.spec.hooks.iter().enumerate() {
        let (answer, reason) = match answered.get(at) {
            Some(answer) => (
                format!("leaves out {}", plural(answer.left_out.len() as u64, "node")),
                answer.reason.as_str(),
            ),
            None => ("not answered".to_owned(), ""),
        };
        table.row([hook.name().into(), answer.into(), clean(reason).into()]);
    }
    totalled(&table.within(frame.width), plan.spec.hooks.len())
}

fn revisions(plan: &Plan, frame: Frame) -> String {
    let columns = ["DEPLOYMENT ID", ">INSTANCE COUNT", "STATE", "MESSAGE", "PAYLOAD INFORMATION"];
    let mut table = Table::new(&columns);
    for revision in &plan.revisions {
        let payloads = revision.coordinates.iter().map(|(name, coordinates)| {
            format!("{name} {}", serde_json::to_string(coordinates).unwrap_or_default())
        });
        table.row([
            revision.id.as_str().into(),
            Cell::from(instance_count(revision)),
            Cell::styled(state_word(revision), revision_style(revision.state)),
            clean(&revision.message).into(),
            clean(&payloads.collect::<Vec<_>>().join(", ")).into(),
        ]);
    }
    totalled(&table.within(frame.width), plan.revisions.len())
}

/// The state of a revision, and whether all its operations are approved.
fn state_word(revision: &PlanRevision) -> String {
    let approved = if revision.approval.is_some() { ", approved" } else { "" };
    format!("{}{approved}", word(&revision.state))
}

/// The number of instances of the plan; of a canary also how many of them get the revision.
fn instance_count(revision: &PlanRevision) -> String {
    let all = revision.instances;
    revision.canary.map_or_else(|| all.to_string(), |canary| format!("{canary} of {all}"))
}

/// The number of instances, by the state of the active node. A state that MRDS does not count is named only if there is one.
fn instance_summary(instances: &[InstanceStatus]) -> String {
    if instances.is_empty() {
        return "No instances found\n".to_owned();
    }
    let states: Vec<_> = instances.iter().map(state_of).collect();
    let of = |wanted: &[RuntimeState]| states.iter().filter(|state| wanted.contains(state)).count();
    let mut text = format!("Total Instances:       {}\n", instances.len());
    let _ = writeln!(text, "Running Instances:     {}", of(&[RuntimeState::Running]));
    let pending = of(&[RuntimeState::Pending, RuntimeState::Starting]);
    let _ = writeln!(text, "Pending Instances:     {pending}");
    let _ = writeln!(text, "Failed Instances:      {}", of(&[RuntimeState::Failed]));
    for (title, states) in [
        ("Stopped Instances:     ", &[RuntimeState::Terminating, RuntimeState::Terminated][..]),
        ("Unknown Instances:     ", &[RuntimeState::Unknown]),
    ] {
        let count = of(states);
        if count > 0 {
            let _ = writeln!(text, "{title}{count}");
        }
    }
    text
}

/// The state of an instance on its active node; pending if it has no node.
fn state_of(status: &InstanceStatus) -> RuntimeState {
    let mut placements = status.instance.placements.iter().zip(&status.placements);
    placements.find(|(placement, _)| placement.active).map_or(RuntimeState::Pending, |(_, seen)| seen.state)
}

/// A row for each type of operation, also for those that there are none of.
fn operations_summary(operations: &[OperationCounts], frame: Frame) -> String {
    let columns = ["OPERATION TYPE", ">#PENDING APPROVAL", ">#APPROVED", ">#FAILED", ">#SUCCEEDED"];
    let mut table = Table::new(&columns);
    for kind in OperationType::ALL {
        let none = OperationCounts {
            operation_type: kind,
            pending_approval: 0,
            approved: 0,
            failed: 0,
            succeeded: 0,
        };
        let counts = operations.iter().find(|counts| counts.operation_type == kind).unwrap_or(&none);
        table.row([
            kind.as_str().into(),
            Cell::count(counts.pending_approval),
            Cell::count(counts.approved),
            Cell::marked(counts.failed, if counts.failed > 0 { BAD } else { PLAIN }),
            Cell::count(counts.succeeded),
        ]);
    }
    table.within(frame.width).to_string()
}
