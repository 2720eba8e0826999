//! Requests to services.

use std::time::Duration;

use async_nats::Subject;
use bytes::Bytes;

use crate::bus::Bus;
use crate::wire::NoAnswer;

/// Why a request has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RequestError {
    /// The link is down or went down before the answer.
    #[error("requesting {subject}: no connection to NATS")]
    Disconnected {
        /// Where to.
        subject: String,
    },
    /// Nobody serves the subject.
    #[error("requesting {subject}: nobody serves it; is the service running?")]
    NoResponders {
        /// Where to.
        subject: String,
    },
    /// No answer in time.
    #[error("requesting {subject}: no answer within {timeout:?}")]
    Timeout {
        /// Where to.
        subject: String,
        /// How long was waited.
        timeout: Duration,
    },
    /// The request cannot be sent.
    #[error("the request to {subject} cannot be sent")]
    Refused {
        /// Where to.
        subject: String,
        /// Why.
        #[source]
        source: NoAnswer,
    },
}

impl Bus {
    /// Sends a request and waits for one reply. The reply of a service that reports a fault is its body.
    pub async fn request(
        &self,
        subject: &str,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, RequestError> {
        let answer = self.wire.ask(Subject::from(subject), None, payload, timeout).await;
        let subject = subject.to_owned();
        answer.map(|answer| answer.payload).map_err(|error| match error {
            NoAnswer::Disconnected => RequestError::Disconnected { subject },
            NoAnswer::NoResponders => RequestError::NoResponders { subject },
            NoAnswer::TimedOut(timeout) => RequestError::Timeout { subject, timeout },
            source @ (NoAnswer::TooLarge | NoAnswer::BadSubject) => RequestError::Refused { subject, source },
        })
    }
}
