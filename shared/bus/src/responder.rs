//! Requests on a subject beside the service API of [`serve`](crate::serve): a responder that answers each at once, which
//! tells a requester that this process is there, and a stream of requests that its owner answers in its own time.

use async_nats::{Client, Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use muster_identity::Requester;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::bus::Bus;
use crate::read_error::ReadError;
use crate::requester::represented;
use crate::wire::NoAnswer;

/// Answers requests until it is dropped.
#[derive(Debug)]
pub struct Responder {
    _until: DropGuard,
}

/// The requests on a subject, in the order of arrival.
#[derive(Debug)]
pub struct Questions {
    bus: Bus,
    messages: Subscriber,
}

/// One request. If it is dropped, the requester gets no answer.
#[derive(Debug)]
pub struct Question {
    /// The body.
    pub payload: Bytes,
    /// The requester, as far as the server vouches for it.
    pub requester: Requester,
    client: Client,
    message: Message,
}

impl Questions {
    /// The next request that may be answered; `None` when the bus is gone. Cancel-safe.
    pub async fn next(&mut self) -> Option<Question> {
        loop {
            let message = self.messages.next().await?;
            let Some(requester) = self.bus.admit(&message) else { continue };
            let requester = match represented(&message, requester) {
                Ok(requester) => requester,
                Err(refusal) => {
                    tracing::debug!(subject = %message.subject, cause = refusal.message, "dropped a request");
                    continue;
                }
            };
            let client = self.bus.wire.client.clone();
            return Some(Question { payload: message.payload.clone(), requester, client, message });
        }
    }
}

impl Question {
    /// Answers. A lost answer looks like no answer, so the requester asks again.
    pub async fn answer(self, body: Bytes) {
        if let Some(reply) = self.message.reply {
            let _ = self.client.publish(reply, body).await;
        }
    }
}

impl Bus {
    /// Subscribes to the requests on a subject; survives reconnects. Every process that subscribes gets each request.
    ///
    /// # Errors
    /// The subject is malformed, or the bus is gone.
    pub async fn questions(&self, subject: &str) -> Result<Questions, ReadError> {
        let subscribed = self.wire.client.subscribe(subject.to_owned()).await;
        let messages = subscribed.map_err(|_| ReadError::of(subject, NoAnswer::Disconnected.into()))?;
        Ok(Questions { bus: self.clone(), messages })
    }

    /// Answers every request on a subject at once; survives reconnects. If several processes do so, the requester gets the
    /// first answer.
    ///
    /// # Errors
    /// The subject is malformed, or the bus is gone.
    pub async fn respond(
        &self,
        subject: &str,
        body: impl Fn(&[u8]) -> Bytes + Send + 'static,
    ) -> Result<Responder, ReadError> {
        let mut requests = self.questions(subject).await?;
        let stop = CancellationToken::new();
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            while let Some(request) = requests.next().await {
                let answer = body(&request.payload);
                request.answer(answer).await;
            }
        }));
        Ok(Responder { _until: stop.drop_guard() })
    }
}
