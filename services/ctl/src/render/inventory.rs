//! Nodes, clusters, capabilities and disruptions, in tables with MRDS's columns.

use std::fmt::Write as _;

use muster_contract::Timestamp;
use muster_contract::plans::{Capability, Cluster, Disruption, InventoryAnswer, Node, NodeStatus, Resources};

use super::format::clean;
use super::frame::Frame;
use super::plans::{totalled, word};
use super::table::{Cell, Table};

/// The list of nodes.
pub fn nodes(answer: &InventoryAnswer, frame: Frame) -> String {
    let mut table = Table::new(&[
        "NODE NAME",
        "STATE",
        "UPDATE DOMAIN",
        ">TOTAL CORES",
        ">TOTAL MEMORY",
        "?>SYSTEM RESERVED CORES",
        "?>SYSTEM RESERVED MEMORY",
        ">REMAINING CORES",
        ">REMAINING MEMORY",
        "?>#DISRUPTIONS",
        "?CLUSTER ID",
        "?MESSAGE",
    ]);
    for NodeStatus { node, remaining_resources, .. } in &answer.nodes {
        table.row([
            node.key.to_string().into(),
            state(node).into(),
            clean(&node.update_domain).into(),
            Cell::count(node.total_resources.cores),
            Cell::count(node.total_resources.memory),
            Cell::count(node.system_reserved_resources.cores),
            Cell::count(node.system_reserved_resources.memory),
            Cell::count(remaining_resources.cores),
            Cell::count(remaining_resources.memory),
            Cell::count(node.disruptions.len() as u64),
            node.cluster.as_ref().map_or("", |cluster| cluster.as_str()).into(),
            clean(&node.message).into(),
        ]);
    }
    totalled(&table.within(frame.width), answer.nodes.len())
}

/// A node: its resources, volumes, capabilities and disruptions.
pub fn node(status: &NodeStatus, now: Timestamp) -> String {
    let NodeStatus { node, remaining_resources, payloads } = status;
    let mut text = format!("Node Name:           {}\n", node.key);
    let _ = writeln!(text, "Version:             {}", node.version);
    let _ = writeln!(text, "Update Domain:       {}", clean(&node.update_domain));
    let _ = writeln!(text, "Cluster ID:          {}", node.cluster.as_ref().map_or("-", |it| it.as_str()));
    let _ = writeln!(text, "State:               {}", state(node));
    let message = if node.message.is_empty() { "-" } else { &node.message };
    let _ = writeln!(text, "Message:             {}", clean(message));
    let _ = writeln!(text, "Total Resources:     {}", resources(node.total_resources));
    let _ = writeln!(text, "System Reserved:     {}", resources(node.system_reserved_resources));
    let _ = writeln!(text, "Remaining Resources: {}", resources(*remaining_resources));
    let _ = writeln!(text, "Capabilities:        {}", joined(&node.capabilities));
    let runtimes: Vec<_> = node.runtimes.iter().map(|runtime| runtime.as_str()).collect();
    let _ = writeln!(text, "Runtimes:            {}", joined(&runtimes));
    let _ = writeln!(text, "Payloads:            {}", joined(payloads));
    let mut table = Table::new(&["MOUNT PATH", "STORAGE CLASS", ">STORAGE CAPACITY"]);
    for volume in &node.local_volumes {
        let (path, class) = (clean(&volume.mount_path), clean(&volume.storage_class));
        table.row([path.into(), class.into(), format!("{} GB", volume.storage_capacity).into()]);
    }
    text += &format!("\nLocal Volumes\n{}", totalled(&table, node.local_volumes.len()));
    text + "\nDisruptions\n" + &disruption_table([node], now)
}

/// A node that was changed.
pub(crate) fn node_changed(node: &Node) -> String {
    let cluster = node.cluster.as_ref().map(|cluster| format!(" in cluster {cluster}")).unwrap_or_default();
    format!("node {} is {}{cluster} (version {})\n", node.key, state(node), node.version)
}

/// A cluster that was changed.
pub(crate) fn cluster_changed(cluster: &Cluster) -> String {
    format!("cluster {} is {} (version {})\n", cluster.name, word(&cluster.state), cluster.version)
}

/// A capability that was changed.
pub(crate) fn capability_changed(capability: &Capability) -> String {
    let Capability { name, state, version, .. } = capability;
    format!("capability {name} is {} (version {version})\n", word(state))
}

/// The list of clusters.
pub fn clusters(answer: &InventoryAnswer) -> String {
    let mut table = Table::new(&["CLUSTER NAME", "STATE", "MESSAGE"]);
    for cluster in &answer.clusters {
        table.row([
            cluster.name.as_str().into(),
            word(&cluster.state).into(),
            clean(&cluster.message).into(),
        ]);
    }
    totalled(&table, answer.clusters.len())
}

/// The list of capabilities.
pub fn capabilities(answer: &InventoryAnswer) -> String {
    let mut table = Table::new(&["CAPABILITY NAME", "TYPE", ">SCORE", "STATE", "MESSAGE"]);
    for capability in &answer.capabilities {
        table.row([
            capability.name.as_str().into(),
            clean(&capability.capability_type).into(),
            Cell::count(capability.score),
            word(&capability.state).into(),
            clean(&capability.message).into(),
        ]);
    }
    totalled(&table, answer.capabilities.len())
}

/// The disruptions of all nodes of an answer.
pub fn disruptions(answer: &InventoryAnswer, now: Timestamp) -> String {
    disruption_table(answer.nodes.iter().map(|status| &status.node), now)
}

/// The disruptions of a node.
pub(crate) fn disruptions_of(node: &Node, now: Timestamp) -> String {
    disruption_table([node], now)
}

fn disruption_table<'a>(nodes: impl IntoIterator<Item = &'a Node>, now: Timestamp) -> String {
    let mut table = Table::new(&["NODE NAME", "DISRUPTION ID", "SHOULD EVICT", "START TIME", "STATE"]);
    let mut count = 0;
    for node in nodes {
        for Disruption { id, should_evict, start, state } in &node.disruptions {
            count += 1;
            let due = if *start <= now { " (begun)" } else { "" };
            table.row([
                node.key.to_string().into(),
                clean(id).into(),
                should_evict.to_string().into(),
                format!("{start}{due}").into(),
                word(state).into(),
            ]);
        }
    }
    totalled(&table, count)
}

fn state(node: &Node) -> String {
    if node.deleted { "DELETED".to_owned() } else { word(&node.state) }
}

fn resources(resources: Resources) -> String {
    format!("{} cores, {} memory", resources.cores, resources.memory)
}

fn joined<T: ToString>(names: &[T]) -> String {
    let names: Vec<_> = names.iter().map(ToString::to_string).collect();
    if names.is_empty() { "-".to_owned() } else { names.join(", ") }
}
