//! Completions: the script of a shell, and the names that the services know (deployments, sites, devices, plans, …) that complete
//! the last word of a line.
//!
//! The script is clap's. For bash, zsh and fish it first runs `muster complete`, which prints names where a name of the fleet
//! is expected. If it prints nothing, clap's own completions apply. If the hub does not answer within [`PATIENCE`], it prints
//! no names, and it never prints an error into the line that a person is typing.

mod place;

use std::collections::BTreeSet;
use std::time::Duration;

use clap::{CommandFactory as _, Parser as _};
use clap_complete::Shell;
use muster_contract::query::{DeploymentsAnswer, DevicesAnswer, Query};
use muster_contract::subjects::ViewKey;
use serde_json::{Value, json};

use self::place::{Expected, expected};
use crate::ask::{Hub, understood};
use crate::config::{Cli, Connection};
use crate::error::CtlError;
use crate::reach;
use crate::terminal::Terminal;

/// Longest time that a completion waits for the hub.
const PATIENCE: Duration = Duration::from_secs(1);
/// Views of sites read at once.
const BATCH: usize = 500;

/// The script of a shell.
pub(crate) fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "muster", &mut script);
    let asking = match shell {
        Shell::Bash => include_str!("complete/names.bash"),
        Shell::Zsh => include_str!("complete/names.zsh"),
        Shell::Fish => include_str!("complete/names.fish"),
        _ => "",
    };
    format!("{}\n{asking}", String::from_utf8_lossy(&script))
}

/// Prints the names that complete the last word, one a line.
///
/// # Errors
/// They cannot be written.
pub(crate) async fn run(terminal: &mut Terminal, words: &[String]) -> Result<(), CtlError> {
    let Some(expected) = expected(words) else { return Ok(()) };
    let prefix = words.last().map_or("", |word| word.trim_start_matches('='));
    let names = match connection(words) {
        Some(connection) => tokio::time::timeout(PATIENCE, names(&connection, expected, prefix)).await,
        None => return Ok(()),
    };
    let names = names.ok().flatten().unwrap_or_default();
    let lines = names.iter().filter(|name| name.starts_with(prefix)).map(|name| format!("{name}\n"));
    Ok(terminal.print(&lines.collect::<String>())?)
}

/// The connection of the line's flags; none if they are invalid.
fn connection(words: &[String]) -> Option<Connection> {
    let flags = place::connection_flags(words);
    let line = ["muster"].into_iter().chain(flags).chain(["version"]);
    Cli::try_parse_from(line).ok()?.connection.check().ok()
}

/// The names of one kind; none if the hub does not answer.
async fn names(connection: &Connection, expected: Expected, prefix: &str) -> Option<BTreeSet<String>> {
    let bus = reach::connect(connection).await.ok()?;
    let hub = Hub::new(bus, PATIENCE);
    match (expected, prefix.split_once('/')) {
        (Expected::Deployment, _) => deployments(&hub).await,
        (Expected::Site, _) => sites(&hub).await,
        (Expected::Device, Some((site, _))) => devices(&hub, site).await,
        (
            Expected::Plan
            | Expected::Instance
            | Expected::Operation
            | Expected::Node
            | Expected::Cluster
            | Expected::Capability,
            _,
        ) => planned(&hub, expected).await,
        (Expected::Device, None) => {
            sites(&hub).await.map(|sites| sites.into_iter().map(|site| site + "/").collect())
        }
    }
}

/// The ids of deployments. A UUID is replaced by its deployment's name, if a command accepts that name.
async fn deployments(hub: &Hub) -> Option<BTreeSet<String>> {
    let answer = hub.pages("deployments", "deployments", Query::default()).await.ok()?;
    let views = understood::<DeploymentsAnswer>(&answer).ok()?.deployments;
    let name = |name: String| name.parse::<muster_contract::DeploymentId>().is_ok().then_some(name);
    let shown = views.into_iter().map(|view| match name(view.deployment_name) {
        Some(name) if view.deployment.is_uuid() => name,
        _ => view.deployment.to_string(),
    });
    Some(shown.collect())
}

/// The names of one kind that the planner knows.
async fn planned(hub: &Hub, expected: Expected) -> Option<BTreeSet<String>> {
    let (verb, list, request, name) = match expected {
        Expected::Plan => ("plan-list", "plans", json!({}), "/plan/name"),
        Expected::Instance => ("instance-list", "instances", json!({}), "/instance/displayName"),
        Expected::Operation => ("operation-list", "operations", json!({}), "/operation/id"),
        Expected::Cluster => ("inventory-list", "clusters", json!({"kind": "cluster"}), "/name"),
        Expected::Capability => ("inventory-list", "capabilities", json!({"kind": "capability"}), "/name"),
        Expected::Node => ("inventory-list", "nodes", json!({"kind": "node"}), "/node"),
        Expected::Deployment | Expected::Site | Expected::Device => return None,
    };
    let answer = hub.planner_pages(verb, list, &request).await.ok()?;
    let text = |entry: &Value| match entry.pointer(name)? {
        Value::String(name) => Some(name.clone()),
        node => Some(format!("{}/{}", node["site"].as_str()?, node["device"].as_str()?)),
    };
    Some(answer[list].as_array()?.iter().filter_map(text).collect())
}

/// The sites that have a view; for a role that may not follow views those of the devices.
async fn sites(hub: &Hub) -> Option<BTreeSet<String>> {
    let Ok(mut views) = hub.bus().view_watch("site.*").await else {
        let answer = hub.pages("devices", "devices", Query::default()).await.ok()?;
        let lines = understood::<DevicesAnswer>(&answer).ok()?.devices;
        return Some(lines.into_iter().map(|line| line.key.site.to_string()).collect());
    };
    let mut sites = BTreeSet::new();
    while let Some(batch) = views.next_present(BATCH).await.ok()? {
        for entry in batch.into_iter().filter(|entry| entry.value.is_some()) {
            if let Some(ViewKey::Site(site)) = ViewKey::parse(&entry.key) {
                sites.insert(site.to_string());
            }
        }
    }
    Some(sites)
}

async fn devices(hub: &Hub, site: &str) -> Option<BTreeSet<String>> {
    let query = Query { site: site.parse::<muster_contract::SiteId>().ok()?.into(), ..Query::default() };
    let answer = hub.pages("devices", "devices", query).await.ok()?;
    let lines = understood::<DevicesAnswer>(&answer).ok()?.devices;
    Some(lines.into_iter().filter(|line| !line.retired).map(|line| line.key.to_string()).collect())
}
