//! A standing answer: the same words to everyone who asks, for as long as somebody holds it. It tells who is there;
//! work is [`serve`](crate::serve)'s.

use bytes::Bytes;
use futures_util::StreamExt;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::bus::Bus;
use crate::read::ReadError;
use crate::wire::NoAnswer;

/// Answers until dropped.
#[derive(Debug)]
pub struct Answering {
    _until: DropGuard,
}

impl Bus {
    /// Answers every request on a subject with the same words; survives reconnects. Where several processes do so, whoever
    /// asks hears the first of them.
    ///
    /// # Errors
    /// The subject is none, or the bus is gone.
    pub async fn answer(&self, subject: &str, words: Bytes) -> Result<Answering, ReadError> {
        let subscribed = self.wire.client.subscribe(subject.to_owned()).await;
        let mut questions = subscribed.map_err(|_| ReadError::of(subject, NoAnswer::Disconnected.into()))?;
        let stop = CancellationToken::new();
        let (client, stopped) = (self.wire.client.clone(), stop.clone());
        tokio::spawn(stopped.run_until_cancelled_owned(async move {
            while let Some(question) = questions.next().await {
                if let Some(reply) = question.reply {
                    // Lost with the link: whoever asks, asks again.
                    let _ = client.publish(reply, words.clone()).await;
                }
            }
        }));
        Ok(Answering { _until: stop.drop_guard() })
    }
}
