//! Applies the entries of a file, one request each. Each entry is all or nothing, and a refusal of one stops no other, as with
//! `kubectl apply`. An entry that the planner has already is not requested, so a file may be applied again. Once the planner
//! cannot answer, the other entries are not requested.

use muster_contract::plans::{
    InventoryAnswer, InventoryApplyRequest, InventoryItem, InventoryKind, InventoryQuery, Node, NodeSpec,
    NodeStatus, Plan, PlanAnswer, PlanApplyRequest, PlanQuery, PlanSpec, PlansAnswer, PlansQuery,
};
use muster_contract::query::ErrorCode;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::manifest::ManifestFile;
use crate::ask::{AskError, understood};
use crate::config::{ManifestArgs, NodeManifestArgs};
use crate::error::{CtlError, NO, settled};
use crate::render;
use crate::render::applied::{AppliedEntry, EntryResult};
use crate::render::frame::Frame;
use crate::session::Session;

/// The request and the field of the list of nodes.
const NODES: (&str, &str) = ("inventory-list", "nodes");

/// The results of the entries so far.
struct FileReport {
    /// The kind of entries, for people.
    kind: &'static str,
    entries: Vec<AppliedEntry>,
    refusals: Vec<CtlError>,
    /// The error that ended the requests.
    stopped_by: Option<CtlError>,
}

impl FileReport {
    const fn of(kind: &'static str) -> Self {
        Self { kind, entries: Vec::new(), refusals: Vec::new(), stopped_by: None }
    }

    /// Requests an entry, unless the requests have ended, and adds its result.
    async fn add(
        &mut self,
        name: String,
        request: impl Future<Output = Result<(EntryResult, u64), CtlError>>,
    ) {
        let mut entry = AppliedEntry {
            kind: self.kind,
            name,
            result: EntryResult::NotRequested,
            version: None,
            error: None,
        };
        if self.stopped_by.is_none() {
            match request.await {
                Ok((result, version)) => (entry.result, entry.version) = (result, Some(version)),
                Err(error) => {
                    entry.result = result_of(&error);
                    entry.error = Some(error.to_string());
                    if error.code() == NO {
                        self.refusals.push(error);
                    } else {
                        self.stopped_by = Some(error);
                    }
                }
            }
        }
        self.entries.push(entry);
    }

    /// Shows the result of each entry, with the list of what is there now; then the refusals. False if there are any.
    async fn show<T: DeserializeOwned, Q: Serialize>(
        self,
        session: &mut Session<'_>,
        (verb, rows): (&'static str, &'static str),
        query: &Q,
        render: impl FnOnce(&T, Frame) -> String,
    ) -> Result<bool, CtlError> {
        let listed = match self.stopped_by {
            Some(error) => Err(error),
            None => session.hub.planner_pages(verb, rows, query).await.map_err(CtlError::from),
        };
        let (lines, frame) = (render::applied::lines(&self.entries), session.frame());
        let ended = match listed {
            Ok(mut answer) => {
                answer["applied"] = serde_json::to_value(&self.entries).map_err(AskError::Misunderstood)?;
                settled(session.show(&answer, |answer, _| lines + &render(answer, frame)))?;
                Ok(self.refusals.is_empty())
            }
            Err(error) => {
                settled(session.show_own(&json!({"applied": self.entries}), |_: &Value, _| lines))?;
                Err(error)
            }
        };
        for refusal in self.refusals.iter().filter_map(CtlError::words) {
            session.terminal.print_note(&refusal);
        }
        ended
    }
}

/// The result of an entry whose request failed.
const fn result_of(error: &CtlError) -> EntryResult {
    match error {
        CtlError::Ask(AskError::NoService { .. }) => EntryResult::NotRequested,
        CtlError::Ask(AskError::Request { .. } | AskError::Garbled { .. } | AskError::Misunderstood(_)) => {
            EntryResult::Unconfirmed
        }
        _ => EntryResult::Refused,
    }
}

/// Creates the plans of a file, and changes those that exist if that `may_change`.
///
/// # Errors
/// The file is bad: then nothing is requested. The planner does not answer.
pub(super) async fn plans(
    session: &mut Session<'_>,
    args: &ManifestArgs,
    may_change: bool,
) -> Result<bool, CtlError> {
    let (file, mut report, mut query) =
        (ManifestFile::read(&args.manifest)?, FileReport::of("plan"), PlansQuery::default());
    for entry in file.plans()? {
        query.name.push(entry.value.name.clone());
        let (name, place) = (entry.value.name.to_string(), entry.place);
        let request = async {
            let applied = plan(session, entry.value, may_change).await;
            applied.map_err(|error| file.error(&place, error))
        };
        report.add(name, request).await;
    }
    report
        .show(session, ("plan-list", "plans"), &query, |answer: &PlansAnswer, frame| {
            render::plans::list(answer, frame)
        })
        .await
}

async fn plan(
    session: &Session<'_>,
    spec: PlanSpec,
    may_change: bool,
) -> Result<(EntryResult, u64), AskError> {
    let before = if may_change { plan_of(session, &spec).await? } else { None };
    if let Some(plan) = before.as_ref().filter(|plan| plan.spec == spec) {
        return Ok((EntryResult::Unchanged, plan.version));
    }
    let expected_version = before.map(|plan| plan.version);
    let request = PlanApplyRequest { spec, expected_version, request_id: None };
    let answer = session.hub.planner("plan-apply", &request).await;
    let applied: Plan = understood(&answer.map_err(|error| to_be_applied(&request, error))?)?;
    Ok((applied_result(expected_version), applied.version))
}

/// The refusal to create a plan that exists, with the command that changes it.
fn to_be_applied(request: &PlanApplyRequest, error: AskError) -> AskError {
    match error {
        AskError::RefusedByPlanner(mut body)
            if body.code == ErrorCode::Conflict && request.expected_version.is_none() =>
        {
            body.message = format!("plan {} exists: `muster plan apply` changes it", request.spec.name);
            AskError::RefusedByPlanner(body)
        }
        other => other,
    }
}

const fn applied_result(before: Option<u64>) -> EntryResult {
    if before.is_some() { EntryResult::Changed } else { EntryResult::Created }
}

/// The plan of this name; none if there is no such plan.
async fn plan_of(session: &Session<'_>, spec: &PlanSpec) -> Result<Option<Plan>, AskError> {
    match session.hub.planner("plan-get", &PlanQuery { plan: spec.name.clone() }).await {
        Ok(answer) => Ok(Some(understood::<PlanAnswer>(&answer)?.plan)),
        Err(error) if error.not_found().is_some() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Creates the nodes of a file, and changes those that exist.
///
/// # Errors
/// As [`plans`].
pub(super) async fn nodes(session: &mut Session<'_>, args: &NodeManifestArgs) -> Result<bool, CtlError> {
    let file = ManifestFile::read(&args.manifest)?;
    let (entries, mut report) = (file.nodes(args.site.as_ref())?, FileReport::of("node"));
    let name = entries.iter().map(|entry| entry.value.key.to_string()).collect();
    let query = InventoryQuery { name, ..InventoryQuery::of(InventoryKind::Node) };
    let listed = session.hub.planner_pages(NODES.0, NODES.1, &query).await?;
    let before: InventoryAnswer = understood(&listed)?;
    for entry in entries {
        let (name, place) = (entry.value.key.to_string(), entry.place);
        let request = async {
            let applied = node(session, entry.value, &before.nodes).await;
            applied.map_err(|error| file.error(&place, in_file(error)))
        };
        report.add(name, request).await;
    }
    report
        .show(session, NODES, &query, |answer: &InventoryAnswer, frame| {
            render::inventory::nodes(answer, frame)
        })
        .await
}

async fn node(
    session: &Session<'_>,
    spec: NodeSpec,
    before: &[NodeStatus],
) -> Result<(EntryResult, u64), AskError> {
    let before = before.iter().map(|status| &status.node).find(|node| node.key == spec.key);
    if let Some(node) = before.filter(|node| is_as(node, &spec)) {
        return Ok((EntryResult::Unchanged, node.version));
    }
    let (item, expected_version) = (InventoryItem::Node(spec), before.map(|node| node.version));
    let request = InventoryApplyRequest { item, expected_version, request_id: None };
    let applied: Node = understood(&session.hub.planner("inventory-apply", &request).await?)?;
    Ok((applied_result(expected_version), applied.version))
}

/// Whether a node is as an entry has it.
fn is_as(node: &Node, spec: &NodeSpec) -> bool {
    let NodeSpec {
        key,
        update_domain,
        total_resources,
        system_reserved_resources,
        local_volumes,
        capabilities,
        runtimes,
    } = spec;
    node.key == *key
        && node.update_domain == *update_domain
        && node.total_resources == *total_resources
        && node.system_reserved_resources == *system_reserved_resources
        && node.local_volumes == *local_volumes
        && node.capabilities == *capabilities
        && node.runtimes == *runtimes
}

/// A refusal with the field's name in the file: the request has the node below `item`.
fn in_file(error: AskError) -> AskError {
    let AskError::RefusedByPlanner(mut body) = error else { return error };
    if let Some(field) = &mut body.field
        && let Some(below) = field.strip_prefix("item.node.")
    {
        let rule = body.message.strip_prefix(&format!("{field}: ")).unwrap_or(&body.message);
        body.message = format!("{below}: {rule}");
        *field = below.to_owned();
    }
    AskError::RefusedByPlanner(body)
}
