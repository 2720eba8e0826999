//! `muster node`, `cluster`, `capability` and `disruption`: the inventory that the planner places instances on.

use muster_contract::plans::{
    CapabilitySpec, ClusterSpec, DisruptionRequest, DisruptionVerb, InventoryAnswer, InventoryApplyRequest,
    InventoryDeleteRequest, InventoryItem, InventoryKind, InventoryName, InventoryQuery, InventoryState,
    InventoryStateRequest, NodeState,
};
use muster_contract::{ClusterName, DeviceKey};
use serde_json::Value;

use super::apply;
use super::choose::confirmed;
use crate::ask::understood;
use crate::config::{
    CapabilityCommand, ClusterCommand, DeviceArg, DisruptionArgs, DisruptionCommand, NodeCommand,
    NodeListArgs, NodeStateArgs, YesArg,
};
use crate::error::CtlError;
use crate::render;
use crate::session::Session;

/// Runs a command about nodes; false if the person said no.
///
/// # Errors
/// The planner does not answer or refuses, or there is no such node.
pub async fn node(session: &mut Session<'_>, command: NodeCommand) -> Result<bool, CtlError> {
    match command {
        NodeCommand::Create(args) => apply::nodes(session, &args).await,
        NodeCommand::List(args) => list_nodes(session, &list_query(args)).await,
        NodeCommand::Show { node } => show_node(session, node.resolved()?).await,
        NodeCommand::AddToCluster { node, cluster } => {
            let node = node.resolved()?;
            node_state(session, node.clone(), NodeState::Allocating, Some(cluster.clone()), None).await?;
            let answer = node_state(session, node, NodeState::Allocated, Some(cluster), None).await?;
            session.show(&answer, |node, _| render::inventory::node_changed(node)).map(|()| true)
        }
        NodeCommand::State(args) => change_state(session, args).await,
        NodeCommand::Delete { node, yes } => {
            let node = node.resolved()?;
            let what = format!("Delete node {node}");
            delete(session, InventoryName::Node(node), yes, &what).await
        }
    }
}

/// Runs a command about clusters; false if the person said no.
///
/// # Errors
/// The planner does not answer or refuses.
pub async fn cluster(session: &mut Session<'_>, command: ClusterCommand) -> Result<bool, CtlError> {
    let yes = YesArg { yes: true };
    match command {
        ClusterCommand::Create { cluster: name } => {
            let item = InventoryItem::Cluster(ClusterSpec { name });
            let answer = apply_item(session, item).await?;
            session.show(&answer, |cluster, _| render::inventory::cluster_changed(cluster)).map(|()| true)
        }
        ClusterCommand::List => {
            let answer = inventory(session, &InventoryQuery::of(InventoryKind::Cluster)).await?;
            session.show(&answer, |answer, _| render::inventory::clusters(answer)).map(|()| true)
        }
        ClusterCommand::Activate { cluster } => {
            entry_state(session, InventoryName::Cluster(cluster), InventoryState::Active, yes, "").await
        }
        ClusterCommand::Deactivate { cluster, yes } => {
            let what = format!("Deactivate cluster {cluster}");
            entry_state(session, InventoryName::Cluster(cluster), InventoryState::Inactive, yes, &what).await
        }
        ClusterCommand::Delete { cluster, yes } => {
            let what = format!("Delete cluster {cluster}");
            delete(session, InventoryName::Cluster(cluster), yes, &what).await
        }
    }
}

/// Runs a command about capabilities; false if the person said no.
///
/// # Errors
/// The planner does not answer or refuses.
pub async fn capability(session: &mut Session<'_>, command: CapabilityCommand) -> Result<bool, CtlError> {
    let yes = YesArg { yes: true };
    match command {
        CapabilityCommand::Create { capability: name, kind, score } => {
            let item = InventoryItem::Capability(CapabilitySpec { name, capability_type: kind, score });
            let answer = apply_item(session, item).await?;
            session.show(&answer, |one, _| render::inventory::capability_changed(one)).map(|()| true)
        }
        CapabilityCommand::List { kind } => {
            let query =
                InventoryQuery { capability_type: kind, ..InventoryQuery::of(InventoryKind::Capability) };
            let answer = inventory(session, &query).await?;
            session.show(&answer, |answer, _| render::inventory::capabilities(answer)).map(|()| true)
        }
        CapabilityCommand::Activate { capability } => {
            let name = InventoryName::Capability(capability);
            entry_state(session, name, InventoryState::Active, yes, "").await
        }
        CapabilityCommand::Deactivate { capability, yes } => {
            let what = format!("Deactivate capability {capability}");
            let name = InventoryName::Capability(capability);
            entry_state(session, name, InventoryState::Inactive, yes, &what).await
        }
        CapabilityCommand::Delete { capability, yes } => {
            let what = format!("Delete capability {capability}");
            delete(session, InventoryName::Capability(capability), yes, &what).await
        }
    }
}

/// Runs a command about disruptions; false if the person said no.
///
/// # Errors
/// The planner does not answer or refuses, or there is no such node.
pub async fn disruption(session: &mut Session<'_>, command: DisruptionCommand) -> Result<bool, CtlError> {
    match command {
        DisruptionCommand::Add { node, id, start, evict } => {
            let request = DisruptionRequest {
                start: Some(start),
                should_evict: evict,
                ..disruption_request(node.resolved()?, id, DisruptionVerb::Add)
            };
            disrupt(session, &request).await
        }
        DisruptionCommand::List { node } => {
            let name = node.map(DeviceArg::resolved).transpose()?.map(|key| key.to_string());
            let query = InventoryQuery {
                name: name.into_iter().collect(),
                ..InventoryQuery::of(InventoryKind::Node)
            };
            let answer = inventory(session, &query).await?;
            session.show(&answer, render::inventory::disruptions).map(|()| true)
        }
        DisruptionCommand::Approve(args) => change_disruption(session, args, DisruptionVerb::Approve).await,
        DisruptionCommand::Complete(args) => change_disruption(session, args, DisruptionVerb::Complete).await,
        DisruptionCommand::Remove(args) => change_disruption(session, args, DisruptionVerb::Remove).await,
    }
}

fn list_query(args: NodeListArgs) -> InventoryQuery {
    InventoryQuery {
        cluster: args.cluster,
        update_domain: args.update_domain,
        node_state: args.state.into_iter().map(Into::into).collect(),
        remaining_cores_gte: args.remaining_cores_gte,
        remaining_memory_gte: args.remaining_memory_gte,
        payload_name: args.payload_names_in,
        payload_name_not_in: args.payload_names_not_in,
        include_deleted: args.include_deleted,
        limit: args.limit,
        ..InventoryQuery::of(InventoryKind::Node)
    }
}

async fn list_nodes(session: &mut Session<'_>, query: &InventoryQuery) -> Result<bool, CtlError> {
    let answer = inventory(session, query).await?;
    let frame = session.frame();
    session.show(&answer, |answer, _| render::inventory::nodes(answer, frame)).map(|()| true)
}

async fn show_node(session: &mut Session<'_>, key: DeviceKey) -> Result<bool, CtlError> {
    let query = InventoryQuery { name: vec![key.to_string()], ..InventoryQuery::of(InventoryKind::Node) };
    let answer = inventory(session, &query).await?;
    let Some(status) = understood::<InventoryAnswer>(&answer)?.nodes.into_iter().next() else {
        return Err(CtlError::Unknown { message: format!("there is no node '{key}'"), near: Vec::new() });
    };
    session.show_own(&status, render::inventory::node).map(|()| true)
}

async fn change_state(session: &mut Session<'_>, args: NodeStateArgs) -> Result<bool, CtlError> {
    let NodeStateArgs { node, state, cluster, message, yes } = args;
    let (node, state) = (node.resolved()?, NodeState::from(state));
    let question = format!("Change node {node} to {}", render::plans::word(&state));
    if !confirmed(session, yes, &question)? {
        return Ok(false);
    }
    let answer = node_state(session, node, state, cluster, message).await?;
    session.show(&answer, |node, _| render::inventory::node_changed(node)).map(|()| true)
}

async fn node_state(
    session: &Session<'_>,
    node: DeviceKey,
    state: NodeState,
    cluster: Option<ClusterName>,
    message: Option<String>,
) -> Result<Value, CtlError> {
    let request = InventoryStateRequest {
        node_state: Some(state),
        cluster,
        message,
        ..InventoryStateRequest::of(InventoryName::Node(node))
    };
    Ok(session.hub.planner("inventory-state", &request).await?)
}

/// Changes the state of a cluster or a capability.
async fn entry_state(
    session: &mut Session<'_>,
    item: InventoryName,
    state: InventoryState,
    yes: YesArg,
    question: &str,
) -> Result<bool, CtlError> {
    if !confirmed(session, yes, question)? {
        return Ok(false);
    }
    let is_cluster = matches!(item, InventoryName::Cluster(_));
    let request = InventoryStateRequest { state: Some(state), ..InventoryStateRequest::of(item) };
    let answer = session.hub.planner("inventory-state", &request).await?;
    let shown = if is_cluster {
        session.show(&answer, |cluster, _| render::inventory::cluster_changed(cluster))
    } else {
        session.show(&answer, |one, _| render::inventory::capability_changed(one))
    };
    shown.map(|()| true)
}

async fn apply_item(session: &Session<'_>, item: InventoryItem) -> Result<Value, CtlError> {
    let request = InventoryApplyRequest { item, expected_version: None, request_id: None };
    Ok(session.hub.planner("inventory-apply", &request).await?)
}

async fn delete(
    session: &mut Session<'_>,
    item: InventoryName,
    yes: YesArg,
    question: &str,
) -> Result<bool, CtlError> {
    if !confirmed(session, yes, question)? {
        return Ok(false);
    }
    let words = match &item {
        InventoryName::Node(key) => format!("node {key} is deleted\n"),
        InventoryName::Cluster(name) => format!("cluster {name} is deleted\n"),
        InventoryName::Capability(name) => format!("capability {name} is deleted\n"),
    };
    let request = InventoryDeleteRequest { item, expected_version: None, request_id: None };
    let answer = session.hub.planner("inventory-delete", &request).await?;
    session.show(&answer, |_: &Value, _| words).map(|()| true)
}

async fn change_disruption(
    session: &mut Session<'_>,
    args: DisruptionArgs,
    verb: DisruptionVerb,
) -> Result<bool, CtlError> {
    let DisruptionArgs { node, id, yes } = args;
    let node = node.resolved()?;
    let word = match verb {
        DisruptionVerb::Add => "Add",
        DisruptionVerb::Approve => "Approve",
        DisruptionVerb::Complete => "Complete",
        DisruptionVerb::Remove => "Remove",
    };
    if !confirmed(session, yes, &format!("{word} disruption {id} of node {node}"))? {
        return Ok(false);
    }
    disrupt(session, &disruption_request(node, id, verb)).await
}

async fn disrupt(session: &mut Session<'_>, request: &DisruptionRequest) -> Result<bool, CtlError> {
    let answer = session.hub.planner("inventory-disruption", request).await?;
    session.show(&answer, render::inventory::disruptions_of).map(|()| true)
}

const fn disruption_request(node: DeviceKey, id: String, verb: DisruptionVerb) -> DisruptionRequest {
    DisruptionRequest {
        node,
        id,
        verb,
        start: None,
        should_evict: false,
        expected_version: None,
        request_id: None,
    }
}

async fn inventory(session: &Session<'_>, query: &InventoryQuery) -> Result<Value, CtlError> {
    let list = match query.kind {
        InventoryKind::Node => "nodes",
        InventoryKind::Cluster => "clusters",
        InventoryKind::Capability => "capabilities",
    };
    Ok(session.hub.planner_pages("inventory-list", list, query).await?)
}
