//! Refusals of requests: a code for programs and a sentence for people.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::lag::RollupLag;

/// The refusal of a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorReply {
    /// The error.
    pub error: ErrorBody,
    /// The lag of the rollup that refuses, which its message names too; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollup: Option<RollupLag>,
}

impl From<ErrorBody> for ErrorReply {
    fn from(error: ErrorBody) -> Self {
        Self { error, rollup: None }
    }
}

/// A code for programs and a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// For programs.
    pub code: ErrorCode,
    /// For people: what, where and what to do.
    pub message: String,
}

/// Codes of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ErrorCode {
    /// The question itself is wrong.
    BadRequest,
    /// There is no such deployment, site or device.
    NotFound,
    /// It is there but in the way (another writer won, a source is busy).
    Conflict,
    /// A rule about the present state forbids it; the message names the state.
    Precondition,
    /// No node has room; the message says why.
    NoCapacity,
    /// The requester may not do that.
    Forbidden,
    /// The requester, or all requesters together, have as much under way as they may; the message names the bound.
    TooManyRequests,
    /// The service has not caught up yet.
    NotReady,
    /// The service failed.
    Internal,
}

impl ErrorCode {
    /// The number in the header of the reply, as HTTP has it.
    pub const fn number(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::Conflict => 409,
            Self::Precondition => 412,
            Self::TooManyRequests => 429,
            Self::Internal => 500,
            Self::NotReady => 503,
            Self::NoCapacity => 507,
        }
    }
}
