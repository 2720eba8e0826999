//! `muster plan history`: the changes that PLANS has recorded, and with `--follow` those to come. It prints every change once, in
//! order, also after the planner was away.

use std::time::Duration;

use muster_contract::InstanceName;
use muster_contract::plans::{InstancesQuery, PlansChangesAnswer, PlansChangesQuery};
use tokio::time::sleep;

use super::instances;
use crate::ask::understood;
use crate::config::{DeviceArg, Format, PlanHistoryArgs};
use crate::error::CtlError;
use crate::render;
use crate::session::Session;

/// Pause between two questions of a follower.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Prints the changes that a person asks for; with `--follow` until the person ends it.
///
/// # Errors
/// The planner does not answer the first question, refuses it, or the output cannot be written.
pub(super) async fn run(session: &mut Session<'_>, args: PlanHistoryArgs) -> Result<(), CtlError> {
    let (is_following, subject) = (args.follow, subjects(session, &args).await?);
    let mut query = PlansChangesQuery { subject, after: args.after, limit: None };
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    let mut has_answered = false;
    loop {
        let answer = tokio::select! {
            answer = session.hub.planner("change-list", &query) => answer,
            _ = &mut interrupted => return Ok(()),
        };
        let is_end = match answer {
            Ok(answer) => {
                let page: PlansChangesAnswer = understood(&answer)?;
                print(session, &page)?;
                has_answered = true;
                query.after = Some(page.next.unwrap_or(page.read_to));
                page.next.is_none()
            }
            Err(error) if is_following && has_answered && error.may_pass() => true,
            Err(error) => return Err(error.into()),
        };
        if is_end && !is_following {
            return Ok(());
        }
        if is_end {
            tokio::select! {
                () = sleep(ASK_EVERY) => {}
                _ = &mut interrupted => return Ok(()),
            }
        }
    }
}

/// The subjects of PLANS that a person means; none means all.
async fn subjects(session: &mut Session<'_>, args: &PlanHistoryArgs) -> Result<Vec<String>, CtlError> {
    let PlanHistoryArgs { plan, instance, node, cluster, capability, .. } = args;
    let mut subjects = Vec::new();
    let of_plan = plan.as_ref().map_or("*", |plan| plan.as_str());
    if let Some(name) = instance {
        let name = instance_name(session, name).await?;
        subjects.push(format!("muster.instance.{of_plan}.{name}"));
    } else if plan.is_some() {
        subjects.extend([format!("muster.plan.{of_plan}"), format!("muster.instance.{of_plan}.*")]);
    }
    if let Some(device) = node.clone().map(DeviceArg::resolved).transpose()? {
        subjects.push(format!("muster.inventory.node.{}.{}", device.site, device.device));
    }
    subjects.extend(cluster.iter().map(|name| format!("muster.inventory.cluster.{name}")));
    subjects.extend(capability.iter().map(|name| format!("muster.inventory.capability.{name}")));
    Ok(subjects)
}

/// The name of an instance, which may be given by its display name while it lives.
async fn instance_name(session: &mut Session<'_>, text: &str) -> Result<InstanceName, CtlError> {
    if let Ok(name) = text.parse() {
        return Ok(name);
    }
    let query = InstancesQuery { name: vec![text.to_owned()], ..InstancesQuery::default() };
    Ok(instances::one(session, &query, &format!("instance '{text}'")).await?.instance.name)
}

fn print(session: &mut Session<'_>, page: &PlansChangesAnswer) -> Result<(), CtlError> {
    for change in &page.changes {
        if session.format == Format::Json {
            // A line for each change, so that a reader need not wait for the last one.
            let line = serde_json::to_string(change).unwrap_or_default() + "\n";
            session.terminal.print_json(&line)?;
        } else {
            session.terminal.print(&render::plans::history_line(change))?;
        }
    }
    Ok(())
}
