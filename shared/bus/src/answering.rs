//! Questions on a subject, in two ways that [`serve`](crate::serve) is not for: a standing answer, which tells everyone who
//! asks that somebody is there, and questions that their taker answers in its own time.

use async_nats::{Client, Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use muster_identity::Requester;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::bus::Bus;
use crate::read::ReadError;
use crate::requester::refuse_on_behalf;
use crate::wire::NoAnswer;

/// Answers until dropped.
#[derive(Debug)]
pub struct Answering {
    _until: DropGuard,
}

/// Questions as they come.
#[derive(Debug)]
pub struct Questions {
    bus: Bus,
    messages: Subscriber,
}

/// A question. One that is dropped gets no answer.
#[derive(Debug)]
pub struct Question {
    /// What is asked.
    pub payload: Bytes,
    /// Who asks, as far as the server vouches for it.
    pub requester: Requester,
    client: Client,
    message: Message,
}

impl Questions {
    /// The next question that may be answered; `None` when the bus is gone. Cancel-safe.
    pub async fn next(&mut self) -> Option<Question> {
        loop {
            let message = self.messages.next().await?;
            let Some(requester) = self.bus.admit(&message) else { continue };
            if let Some(refusal) = refuse_on_behalf(&message) {
                tracing::debug!(subject = %message.subject, cause = refusal.message, "dropped a question");
                continue;
            }
            let client = self.bus.wire.client.clone();
            return Some(Question { payload: message.payload.clone(), requester, client, message });
        }
    }
}

impl Question {
    /// Answers. A lost answer looks like none: whoever asked, asks again.
    pub async fn answer(self, words: Bytes) {
        if let Some(reply) = self.message.reply {
            let _ = self.client.publish(reply, words).await;
        }
    }
}

impl Bus {
    /// Takes the questions on a subject from now on; survives reconnects. Every process that does so gets each of them.
    ///
    /// # Errors
    /// The subject is none, or the bus is gone.
    pub async fn questions(&self, subject: &str) -> Result<Questions, ReadError> {
        let subscribed = self.wire.client.subscribe(subject.to_owned()).await;
        let messages = subscribed.map_err(|_| ReadError::of(subject, NoAnswer::Disconnected.into()))?;
        Ok(Questions { bus: self.clone(), messages })
    }

    /// Answers every request on a subject at once; survives reconnects. Where several processes do so, whoever asks hears
    /// the first of them.
    ///
    /// # Errors
    /// The subject is none, or the bus is gone.
    pub async fn answer(
        &self,
        subject: &str,
        words: impl Fn(&[u8]) -> Bytes + Send + 'static,
    ) -> Result<Answering, ReadError> {
        let mut questions = self.questions(subject).await?;
        let stop = CancellationToken::new();
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            while let Some(question) = questions.next().await {
                let answer = words(&question.payload);
                question.answer(answer).await;
            }
        }));
        Ok(Answering { _until: stop.drop_guard() })
    }
}
