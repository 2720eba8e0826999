//! Operation: a change of what one instance runs. It runs only when it is approved.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{OperationId, RevisionId};
use crate::requested_by::RequestedBy;

/// An operation on an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// Its id: the type in lower case, and a UUID.
    pub id: OperationId,
    /// Its type.
    #[serde(rename = "type")]
    pub operation_type: OperationType,
    /// The revision that made it, or that a person's CREATE or UPDATE is of; absent for other operations of persons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<RevisionId>,
    /// Its state.
    pub state: OperationState,
    /// Its condition to go on, or its result, in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The requester; absent if a revision made it or the server vouches for nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<RequestedBy>,
    /// It does not run before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// Time at which it expires if nobody approves it; absent before it waits for approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Its approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<OperationApproval>,
    /// The person's statement that ended it, in place of a report of its nodes; absent if they reported its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion: Option<ManualCompletion>,
    /// The states in order, with their times.
    pub history: Vec<OperationStep>,
}

/// Types of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum OperationType {
    /// A node is chosen, and runs the revision.
    Create,
    /// The node runs another revision. If the content is the same, nothing restarts.
    Update,
    /// The node stops it, and its resources are free.
    Delete,
    /// The node stops it, and keeps its resources.
    Stop,
    /// The node starts it again.
    Restart,
    /// Another node runs it, and then the first one stops it.
    Relocate,
}

/// States of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum OperationState {
    /// It waits for an operation of the instance before it.
    Pending,
    /// It waits for a node.
    Preparing,
    /// It waits for an approval.
    PendingApproval,
    /// It is approved, and has not begun.
    Approved,
    /// A person has rejected it.
    Rejected,
    /// Nobody has approved it in time.
    Expired,
    /// It is carried out: it waits for evidence of the nodes.
    Running,
    /// The nodes have confirmed it, or a person has completed it by hand.
    Succeeded,
    /// A node has refused it, or failed, or a person has stated so.
    Failed,
    /// A person, or a newer revision, has cancelled it.
    Cancelled,
}

/// The approval of an operation, or of a revision with all its operations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OperationApproval {
    /// The requester, if the server vouches for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<RequestedBy>,
    /// Time of the approval.
    pub at: Timestamp,
    /// The rule by which a program approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

/// The end of an operation that a person states without a report of its nodes. What runs on the nodes follows from reports alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ManualCompletion {
    /// The requester, if the server vouches for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<RequestedBy>,
    /// The rule by which a program completed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The reason, for people.
    pub reason: String,
}

/// A state that an operation had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OperationStep {
    /// The state.
    pub state: OperationState,
    /// Time of the change.
    pub at: Timestamp,
}

impl OperationState {
    /// Whether it ends the operation.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Rejected | Self::Expired | Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// Its name in documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Preparing => "PREPARING",
            Self::PendingApproval => "PENDING_APPROVAL",
            Self::Approved => "APPROVED",
            Self::Rejected => "REJECTED",
            Self::Expired => "EXPIRED",
            Self::Running => "RUNNING",
            Self::Succeeded => "SUCCEEDED",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
        }
    }
}

impl OperationType {
    /// All of them, as MRDS lists them.
    pub const ALL: [Self; 6] =
        [Self::Create, Self::Update, Self::Relocate, Self::Stop, Self::Restart, Self::Delete];

    /// Its name in documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Stop => "STOP",
            Self::Restart => "RESTART",
            Self::Relocate => "RELOCATE",
        }
    }
}
