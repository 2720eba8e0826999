//! The state that all handles of a bus share: the library's client, the link, the reply inbox and settings. It sends one
//! request and returns its answer.

use std::sync::OnceLock;
use std::time::Duration;

use async_nats::client::PublishErrorKind;
use async_nats::{Client, HeaderMap, Message, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use muster_identity::requester::Signers;
use prometheus_client::metrics::counter::Counter;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::DropGuard;

use crate::link::{self, Link, Silence};
use crate::replies::Replies;
use crate::requester::OwnReplies;

/// How long the server may take to answer a read or an administrative request.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) client: Client,
    pub(crate) link: watch::Receiver<Link>,
    pub(crate) silence: Silence,
    /// The server's last refusal, in its words.
    pub(crate) refusal: watch::Receiver<Option<String>>,
    pub(crate) replies: Replies,
    /// Bytes of one message, headers included.
    pub(crate) message_bytes_max: usize,
    pub(crate) uplink_bytes_max: u64,
    pub(crate) ledger_bytes_max: u64,
    pub(crate) replicas: usize,
    /// The signing keys that prove a requester's role.
    pub(crate) signers: Signers,
    /// The inboxes of its own account that this process answers to.
    pub(crate) own_replies: OwnReplies,
    /// Counts requests dropped because of their reply subject; set when the process reports its health.
    pub(crate) dropped_requests: OnceLock<Counter>,
    /// Ends the tasks behind `link` and `replies`.
    pub(crate) _tasks: DropGuard,
}

/// Why a request has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// The link was down, or went down before the answer: whether the request arrived is unknown.
    #[error("no connection to NATS")]
    Disconnected,
    /// Nothing came in time. A missing permission looks the same; the log then names it.
    #[error("no answer within {0:?}; if a permission is missing, the log names it")]
    TimedOut(Duration),
    /// No subscriber: no such stream, a stream without a leader, or no such service.
    #[error("no server and no service answers there now")]
    NoResponders,
    /// The message is larger than the server takes of this connection.
    #[error("the message is larger than the server allows")]
    TooLarge,
    /// The subject is malformed.
    #[error("the subject is malformed")]
    BadSubject,
}

/// Why a request to the JetStream API failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// No answer.
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
    /// The server refused.
    #[error("the server says: {description} ({code})")]
    Refused {
        /// JetStream's `err_code`.
        code: u64,
        /// Its words.
        description: String,
    },
    /// The answer does not have the shape of this version of the API.
    #[error("the server's answer cannot be read: {0}")]
    Unreadable(String),
}

#[derive(serde::Deserialize)]
struct Failure {
    error: FailureBody,
}

#[derive(serde::Deserialize)]
pub(crate) struct FailureBody {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

impl Wire {
    pub(crate) fn link_now(&self) -> Link {
        *self.link.borrow()
    }

    /// Sends a request and waits for one reply, at most until the link is lost. A 503 is [`NoAnswer::NoResponders`].
    pub(crate) async fn ask(
        &self,
        subject: Subject,
        headers: Option<HeaderMap>,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<Message, NoAnswer> {
        let at = self.link_now();
        if !at.is_up() {
            return Err(NoAnswer::Disconnected);
        }
        let (mut pending, asked) = (self.replies.register(), Instant::now());
        let request = async {
            self.post(subject, Some(pending.subject.clone()), headers, payload).await?;
            (&mut pending.reply).await.map_err(|_| NoAnswer::Disconnected)
        };
        let message = tokio::select! {
            answer = tokio::time::timeout(timeout, request) => match answer {
                Ok(answer) => answer?,
                Err(_) => {
                    self.silence.count_unanswered(asked);
                    return Err(NoAnswer::TimedOut(timeout));
                }
            },
            () = link::lost(self.link.clone(), at) => return Err(NoAnswer::Disconnected),
        };
        self.silence.answered();
        match message.status {
            Some(StatusCode::NO_RESPONDERS) => Err(NoAnswer::NoResponders),
            _ => Ok(message),
        }
    }

    /// Queues a message for the connection; waits while the queue is full.
    pub(crate) async fn post(
        &self,
        subject: Subject,
        reply: Option<Subject>,
        headers: Option<HeaderMap>,
        payload: Bytes,
    ) -> Result<(), NoAnswer> {
        let client = &self.client;
        let posted = match (reply, headers) {
            (Some(reply), Some(headers)) => {
                client.publish_with_reply_and_headers(subject, reply, headers, payload).await
            }
            (Some(reply), None) => client.publish_with_reply(subject, reply, payload).await,
            (None, Some(headers)) => client.publish_with_headers(subject, headers, payload).await,
            (None, None) => client.publish(subject, payload).await,
        };
        posted.map_err(|error| match error.kind() {
            PublishErrorKind::MaxPayloadExceeded => NoAnswer::TooLarge,
            PublishErrorKind::InvalidSubject => NoAnswer::BadSubject,
            PublishErrorKind::Send => NoAnswer::Disconnected,
        })
    }

    /// A request to the JetStream API: `STREAM.INFO.UPLINK` and the like.
    pub(crate) async fn api<T: DeserializeOwned>(
        &self,
        verb: &str,
        body: &impl Serialize,
    ) -> Result<T, ApiError> {
        self.api_at("$JS.API", verb, body).await
    }

    /// The same to an API under another prefix, such as one that an account imports.
    pub(crate) async fn api_at<T: DeserializeOwned>(
        &self,
        prefix: &str,
        verb: &str,
        body: &impl Serialize,
    ) -> Result<T, ApiError> {
        let body = serde_json::to_vec(body).map_err(|error| unreadable(&error))?;
        let subject = Subject::from(format!("{prefix}.{verb}"));
        let answer = self.ask(subject, None, body.into(), ANSWER_TIMEOUT).await?;
        parse(&answer.payload)
    }
}

impl ApiError {
    /// JetStream's `err_code`, where the server refused.
    pub const fn code(&self) -> Option<u64> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::NoAnswer(_) | Self::Unreadable(_) => None,
        }
    }

    pub(crate) fn is(&self, wanted: u64) -> bool {
        self.code() == Some(wanted)
    }
}

/// The next message of a subscription if it has arrived. It ignores the runtime's budget per poll, which would limit
/// batches to about a hundred messages.
pub(crate) fn ready(messages: &mut Subscriber) -> Option<Message> {
    tokio::task::unconstrained(messages.next()).now_or_never().flatten()
}

/// Reads an answer of JetStream.
pub(crate) fn parse<T: DeserializeOwned>(payload: &[u8]) -> Result<T, ApiError> {
    // The refusal first: beside it the server writes the fields of a success, empty.
    match serde_json::from_slice::<Failure>(payload) {
        Ok(Failure { error }) => Err(error.into()),
        Err(_) => serde_json::from_slice(payload).map_err(|error| unreadable(&error)),
    }
}

impl From<FailureBody> for ApiError {
    fn from(body: FailureBody) -> Self {
        Self::Refused { code: body.err_code, description: body.description }
    }
}

pub(crate) fn unreadable(error: &serde_json::Error) -> ApiError {
    ApiError::Unreadable(error.to_string())
}
