//! Describes a service under the NATS service API and a refusal that it answers, and adds the rollup's lag to replies.

use bytes::Bytes;
use muster_contract::lag::{AnswerLag, RollupLag};
use muster_contract::query::{ErrorBody, ErrorReply};

/// Longest message in an error header; the body has all of it.
const HEADER_CHARS_MAX: usize = 200;

/// A service and its endpoints.
#[derive(Debug, Clone)]
pub struct ServiceSpec {
    /// `[A-Za-z0-9_-]+`
    pub name: &'static str,
    /// Semantic version.
    pub version: &'static str,
    /// One sentence for a person.
    pub description: &'static str,
    /// Its endpoints.
    pub endpoints: Vec<EndpointSpec>,
}

/// An endpoint.
#[derive(Debug, Clone)]
pub struct EndpointSpec {
    /// `[A-Za-z0-9_-]+`
    pub name: &'static str,
    /// The subject of its requests.
    pub subject: String,
}

/// A refusal, sent as the service API's error headers with a body beside them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// A number like HTTP's.
    pub code: u16,
    /// In words, one line.
    pub message: String,
    /// The body of the reply.
    pub body: Bytes,
}

impl From<ErrorReply> for Fault {
    /// The refusal with its whole message in the body, and the beginning of it in the header.
    fn from(reply: ErrorReply) -> Self {
        let error = &reply.error;
        let (code, message) = (error.code.number(), error.message.chars().take(HEADER_CHARS_MAX).collect());
        // Cannot fail: the reply is an object of texts and numbers.
        let body = serde_json::to_vec(&reply).unwrap_or_default();
        Self { code, message, body: body.into() }
    }
}

impl From<ErrorBody> for Fault {
    fn from(error: ErrorBody) -> Self {
        ErrorReply::from(error).into()
    }
}

/// Adds the rollup's lag behind LEDGER to the reply of an endpoint. A reply that has a lag comes from the rollup of a federated hub
/// and keeps it.
///
/// # Errors
/// The refusal. Its message names the lag too, because an unread fact may be about the thing that was not found.
pub fn with_lag(reply: Result<Bytes, Fault>, endpoint: &str, lag: &RollupLag) -> Result<Bytes, Fault> {
    if lag.is_none() {
        return reply;
    }
    let has_lag =
        |answer: &[u8]| serde_json::from_slice::<AnswerLag>(answer).is_ok_and(|said| said.lag().is_some());
    match reply {
        Ok(answer) if has_lag(&answer) => Ok(answer),
        Ok(answer) => Ok(lag.mark(endpoint, &answer).into()),
        Err(fault) => Err(match serde_json::from_slice(&fault.body) {
            Ok(ErrorReply { error, rollup: None }) => {
                let message = format!("{}; {lag}", error.message);
                ErrorReply { error: ErrorBody { message, ..error }, rollup: Some(*lag) }.into()
            }
            _ => fault,
        }),
    }
}

#[cfg(test)]
mod tests {
    use muster_contract::query::ErrorCode;

    use super::*;

    #[test]
    fn a_fault_has_the_error_in_its_body_and_its_beginning_in_the_header() {
        let error = ErrorBody { code: ErrorCode::NotFound, message: "x".repeat(HEADER_CHARS_MAX + 1) };
        let fault = Fault::from(error.clone());
        assert_eq!((fault.code, fault.message.len()), (404, HEADER_CHARS_MAX));
        let body: ErrorReply = serde_json::from_slice(&fault.body).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(body.error, error);
    }
}
