//! What all of this crate shares: the library's client, the link and the reply box; one question, one answer.

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
    /// What the server refused last, in its words.
    pub(crate) refusal: watch::Receiver<Option<String>>,
    pub(crate) replies: Replies,
    pub(crate) uplink_bytes_max: u64,
    pub(crate) ledger_bytes_max: u64,
    pub(crate) replicas: usize,
    /// By which a requester's role is known.
    pub(crate) signers: Signers,
    /// To which inboxes of its own account this process answers.
    pub(crate) own_replies: OwnReplies,
    /// Counts requests that were dropped because of their reply subject, once somebody wants to know.
    pub(crate) dropped_requests: OnceLock<Counter>,
    /// Ends the tasks behind `link` and `replies`.
    pub(crate) _tasks: DropGuard,
}

/// Why a question has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// The link was down, or went down before the answer: whether the question arrived is unknown.
    #[error("no connection to NATS")]
    Disconnected,
    /// Nothing came in time. A missing permission looks the same; the log then names it.
    #[error("no answer within {0:?}; if a permission is missing, the log names it")]
    TimedOut(Duration),
    /// Nobody listens there: no such stream, a stream without a leader, or no such service.
    #[error("nobody answers there now")]
    NoResponders,
    /// The message is larger than the server takes.
    #[error("the message is larger than the server's max_payload")]
    TooLarge,
    /// The subject is not one.
    #[error("the subject is malformed")]
    BadSubject,
}

/// Why the JetStream API did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// No answer.
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
    /// The server says no.
    #[error("the server says: {description} ({code})")]
    Refused {
        /// JetStream's `err_code`.
        code: u64,
        /// Its words.
        description: String,
    },
    /// The answer is not what this version of the API answers.
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

    /// Asks and waits for one reply, no longer than the link stands. A 503 is [`NoAnswer::NoResponders`].
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
        let (mut slot, asked) = (self.replies.slot(), Instant::now());
        let question = async {
            self.post(subject, Some(slot.subject.clone()), headers, payload).await?;
            (&mut slot.reply).await.map_err(|_| NoAnswer::Disconnected)
        };
        let message = tokio::select! {
            answer = tokio::time::timeout(timeout, question) => match answer {
                Ok(answer) => answer?,
                Err(_) => {
                    self.silence.unanswered(asked);
                    return Err(NoAnswer::TimedOut(timeout));
                }
            },
            () = link::lost(self.link.clone(), at) => return Err(NoAnswer::Disconnected),
        };
        self.silence.broken();
        match message.status {
            Some(StatusCode::NO_RESPONDERS) => Err(NoAnswer::NoResponders),
            _ => Ok(message),
        }
    }

    /// Hands a message to the connection; waits while its queue is full.
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

    /// The same to an API under another prefix, as where an account imports it.
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

/// The next message of a subscription if it has arrived. The runtime's budget per poll does not count here: what has
/// arrived would otherwise come in batches of about a hundred.
pub(crate) fn ready(messages: &mut Subscriber) -> Option<Message> {
    tokio::task::unconstrained(messages.next()).now_or_never().flatten()
}

/// Reads an answer of JetStream: what was asked for, or why not.
pub(crate) fn parse<T: DeserializeOwned>(payload: &[u8]) -> Result<T, ApiError> {
    // The refusal first: next to it the server writes the fields of a success, empty.
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
