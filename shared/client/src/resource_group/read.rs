//! Makes the ResourceGroup of a deployment from the hub's answers: the status after filters, and the error codes of its view.

use muster_contract::DeploymentId;
use muster_contract::query::{Output, Query};
use muster_contract::status::StatusQuery;
use muster_contract::view::{DeploymentView, ErrorCount};

use super::{Group, Spelling};
use crate::ask::{AskError, Hub, understood};
use crate::status::all;

/// Bytes of a document where no budget is named: what etcd takes, with room to spare.
pub const BUDGET_DEFAULT: usize = 1024 * 1024;
/// Least budget of a document: its mandatory fields fit into it.
pub const BUDGET_LEAST: u32 = 2_048;

/// How much of a deployment a document has.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// Counts alone, whatever the size of the fleet.
    pub is_aggregate: bool,
    /// Bytes that the document may have.
    pub budget: usize,
}

/// The ResourceGroup of a deployment over what passes the filters of a question.
///
/// # Errors
/// No service answers, or it refuses the question.
pub async fn resource_group(
    hub: &Hub,
    id: &DeploymentId,
    query: StatusQuery,
    extent: Extent,
    spelling: Spelling,
) -> Result<String, AskError> {
    let query = StatusQuery { id: Some(id.clone()), status: None, ..query };
    if extent.is_aggregate {
        let (errors, left_out) = errors(hub, id, &query).await?;
        let answer = all(hub, &StatusQuery { output: Output::Summary, ..query }, None).await?;
        let group = Group::of_counts(id, &answer, errors.as_deref(), left_out);
        return Ok(group.within(extent.budget, spelling));
    }
    let answer = all(hub, &query, None).await?;
    let group = match query.device.as_slice() {
        [path] => Group::of_device(id, &path.0, &answer),
        _ => Group::of_fleet(id, &answer),
    };
    Ok(group.within(extent.budget, spelling))
}

/// The errors of a deployment by frequency, and how many codes are left out. The view counts errors over all targets, so there is no
/// count with a filter.
async fn errors(
    hub: &Hub,
    id: &DeploymentId,
    query: &StatusQuery,
) -> Result<(Option<Vec<ErrorCount>>, u64), AskError> {
    let (output, point) = (query.output, query.point);
    if *query != (StatusQuery { id: Some(id.clone()), output, point, ..StatusQuery::default() }) {
        return Ok((None, 0));
    }
    let query = Query { id: Some(id.clone()), point, ..Query::default() };
    let view: DeploymentView = understood(&hub.query("deployment", &query).await?["view"])?;
    Ok((Some(view.errors), view.omitted.errors))
}
