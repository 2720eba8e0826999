//! Requests to services, with one reply each.

use std::time::Duration;

use async_nats::{HeaderMap, Subject};
use bytes::Bytes;
use muster_contract::headers::ON_BEHALF_OF;
use tokio::sync::watch;

use crate::bus::Bus;
use crate::wire::NoAnswer;

/// Why a request has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RequestError {
    /// The link is down or went down before the answer.
    #[error("requesting {subject}: no connection to NATS")]
    Disconnected {
        /// The subject of the request.
        subject: String,
    },
    /// No process serves the subject.
    #[error("requesting {subject}: no service answers there; is it running?")]
    NoResponders {
        /// The subject of the request.
        subject: String,
    },
    /// The server lets this user send no such request.
    #[error("requesting {subject}: no permission ({refusal})")]
    Forbidden {
        /// The subject of the request.
        subject: String,
        /// The server's description.
        refusal: String,
    },
    /// No answer in time.
    #[error("requesting {subject}: no answer within {timeout:?}")]
    Timeout {
        /// The subject of the request.
        subject: String,
        /// The time limit.
        timeout: Duration,
    },
    /// The request cannot be sent.
    #[error("cannot send the request to {subject}")]
    Refused {
        /// The subject of the request.
        subject: String,
        /// Why.
        #[source]
        source: NoAnswer,
    },
}

impl Bus {
    /// Sends a request and waits for one reply, no longer than until the server refuses the subject. A fault that a service
    /// reports is returned as the body of its reply.
    pub async fn request(
        &self,
        subject: &str,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, RequestError> {
        self.request_with(subject, None, payload, timeout).await
    }

    /// Sends a request on behalf of the person whom the signed `note` names. Only a gateway may do so.
    pub async fn request_on_behalf(
        &self,
        subject: &str,
        note: &str,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, RequestError> {
        let mut headers = HeaderMap::new();
        headers.insert(ON_BEHALF_OF, note);
        self.request_with(subject, Some(headers), payload, timeout).await
    }

    async fn request_with(
        &self,
        subject: &str,
        headers: Option<HeaderMap>,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, RequestError> {
        let mut refusals = self.wire.refusal.clone();
        refusals.mark_unchanged();
        let answer = tokio::select! {
            answer = self.wire.ask(Subject::from(subject), headers, payload, timeout) => answer,
            refusal = refusal_of(&mut refusals, subject) => {
                return Err(RequestError::Forbidden { subject: subject.to_owned(), refusal });
            }
        };
        let subject = subject.to_owned();
        answer.map(|answer| answer.payload).map_err(|error| match error {
            NoAnswer::Disconnected => RequestError::Disconnected { subject },
            NoAnswer::NoResponders => RequestError::NoResponders { subject },
            NoAnswer::TimedOut(timeout) => RequestError::Timeout { subject, timeout },
            source @ (NoAnswer::TooLarge | NoAnswer::BadSubject) => RequestError::Refused { subject, source },
        })
    }
}

/// The server's next refusal to take messages on a subject.
async fn refusal_of(refusals: &mut watch::Receiver<Option<String>>, subject: &str) -> String {
    let about = format!("to \"{}\"", subject.to_lowercase());
    while refusals.changed().await.is_ok() {
        let refusal = refusals.borrow_and_update().clone().unwrap_or_default();
        if refusal.to_lowercase().contains(&about) {
            return refusal;
        }
    }
    // The bus is gone, and the question with it.
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_refusal_of_the_same_subject_ends_the_request() {
        let (sender, mut refusals) = watch::channel(None);
        let says = |subject: &str| Some(format!("Permissions Violation for Publish to \"{subject}\""));
        let mut waits = Box::pin(refusal_of(&mut refusals, "muster.publisher.apply"));
        for other in ["muster.publisher.apply.x", "muster.publisher"] {
            sender.send_replace(says(other));
            assert!(tokio::time::timeout(Duration::ZERO, &mut waits).await.is_err(), "{other}");
        }
        sender.send_replace(says("muster.publisher.apply"));
        assert!(waits.await.ends_with("\"muster.publisher.apply\""));
    }
}
