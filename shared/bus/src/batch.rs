//! Fast batches of JetStream (ADR-50): many messages, one answer for so many of them. Here is how such messages are
//! addressed and what the answers mean; sending them is [`crate::window`]'s.
//!
//! Each message carries its number in its reply subject. The server answers the first message at once, then every so many
//! with "stored up to this one", and last where in the stream the last one is. With gap mode `fail` it stores no message after
//! one that is missing or refused, and ends the batch there. A message whose id it has seen counts as stored, as without a
//! batch. An end mark that is no message itself closes the batch and is answered with how far it got.
//!
//! ```text
//! <inbox>.<name>.<messages an answer>.fail.<number>.<operation>.$FI
//!            └ whoever knows it could meddle with the batch: it is made of the inbox, which nobody can guess
//! ```
//!
//! Every batch of an inbox has a name of its own: of a replicated stream, a server that becomes the leader says once more
//! how far batches got that are over, and what it says of one must not be taken for another.

use async_nats::{Message, StatusCode, Subject};
use serde::Deserialize;

use crate::message::Stored;
use crate::wire::{ApiError, FailureBody, NoAnswer, unreadable};

const SUFFIX: &str = ".$FI";
const START: u8 = 0;
const APPEND: u8 = 1;
const END: u8 = 3;

/// A batch that is open, or about to be.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Where its messages go.
    pub(crate) subject: Subject,
    /// Reply subjects up to the number.
    prefix: String,
    /// Number in the window of the message before the batch's first.
    base: u64,
    sent: u64,
    /// Messages that share an answer.
    flow: usize,
    /// The server has answered the first message.
    pub(crate) is_open: bool,
    /// The end mark is on its way.
    pub(crate) is_closing: bool,
    /// A message of it was refused because its subject is full. So are all after it, which were sent for the same subject.
    pub(crate) full: Option<ApiError>,
}

/// What an answer says of the messages of a batch. Numbers are those of the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    /// Stored up to this one.
    Through(u64),
    /// This one is refused; where the batch ended is told next.
    Refused(u64, ApiError),
    /// Stored up to this one, and no further: the batch is over. Where the last one stored of it is.
    Ended(u64, Stored),
    /// The message was stored by itself: whoever answers knows no batches.
    Single(u64, Stored),
    /// There is no such batch, or none is possible. Told in answer to this message.
    Failed(u64, ApiError),
    /// Something that tells no more than what follows.
    Nothing,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "type")]
    kind: Option<String>,
    seq: Option<u64>,
    error: Option<FailureBody>,
    batch: Option<String>,
    count: Option<u64>,
    #[serde(default)]
    duplicate: bool,
}

impl Batch {
    /// A batch whose first message is the one after number `base` of the window.
    pub(crate) fn new(subject: Subject, inbox: &str, flow: usize, base: u64) -> Self {
        let secret = inbox.rsplit('.').next().unwrap_or(inbox);
        let prefix = format!("{inbox}.{secret}-{base}.{flow}.fail.");
        Self { subject, prefix, base, sent: 0, flow, is_open: false, is_closing: false, full: None }
    }

    /// Where the answer to the next message goes.
    pub(crate) fn reply(&mut self) -> Subject {
        self.sent += 1;
        self.inbox(self.sent, if self.sent == 1 { START } else { APPEND })
    }

    /// Where the answer to the end mark goes.
    pub(crate) fn end(&self) -> Subject {
        self.inbox(self.sent + 1, END)
    }

    /// True while the server will say nothing more until it is sent something: it answers so many messages at once.
    pub(crate) const fn is_short_of_an_answer(&self, unanswered: usize) -> bool {
        self.is_open && !self.is_closing && unanswered < self.flow
    }

    fn inbox(&self, number: u64, operation: u8) -> Subject {
        format!("{}{number}.{operation}{SUFFIX}", self.prefix).into()
    }

    /// Number in the window of the message before the first.
    pub(crate) const fn base(&self) -> u64 {
        self.base
    }

    /// Number in the window of the last message sent.
    pub(crate) const fn last(&self) -> u64 {
        self.base + self.sent
    }

    /// True for a subject that answers to this batch arrive under.
    pub(crate) fn owns(&self, subject: &str) -> bool {
        subject.starts_with(&self.prefix) && subject.ends_with(SUFFIX)
    }

    /// What an answer says.
    pub(crate) fn read(&self, answer: &Message) -> Said {
        let number = self.of_window(self.number(&answer.subject));
        if answer.status == Some(StatusCode::NO_RESPONDERS) {
            return Said::Failed(number, NoAnswer::NoResponders.into());
        }
        match serde_json::from_slice(&answer.payload) {
            Ok(said) => self.judge(number, said),
            Err(error) => Said::Failed(number, unreadable(&error)),
        }
    }

    /// A number beyond what was sent means the last.
    fn of_window(&self, number: u64) -> u64 {
        self.base + number.min(self.sent)
    }

    /// The number in a reply subject of this batch.
    fn number(&self, subject: &str) -> u64 {
        let rest = subject.strip_prefix(&self.prefix).and_then(|rest| rest.split('.').next());
        rest.and_then(|number| number.parse().ok()).unwrap_or_default()
    }

    fn judge(&self, number: u64, said: Answer) -> Said {
        match said {
            Answer { kind: Some(kind), seq: Some(seq), error: None, .. } if kind == "ack" => {
                Said::Through(self.of_window(seq))
            }
            Answer { kind: Some(kind), seq: Some(seq), error: Some(error), .. } if kind == "err" => {
                Said::Refused(self.of_window(seq), error.into())
            }
            Answer { kind: Some(_), .. } => Said::Nothing,
            Answer { error: Some(error), .. } => Said::Failed(number, error.into()),
            Answer { batch: Some(_), count: Some(count), seq, duplicate, .. } => {
                let sequence = seq.unwrap_or_default();
                Said::Ended(self.of_window(count), Stored { sequence, duplicate })
            }
            Answer { seq: Some(sequence), duplicate, .. } => {
                Said::Single(number, Stored { sequence, duplicate })
            }
            _ => Said::Failed(number, ApiError::Unreadable("it says nothing of a batch".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Batch {
        let mut batch = Batch::new("a.b".into(), "_INBOX_a_b.secret", 16, 100);
        (0..40).for_each(|_| _ = batch.reply());
        batch
    }

    #[test]
    fn each_message_carries_its_number_and_the_end_mark_the_next_one() {
        let mut batch = Batch::new("a.b".into(), "_INBOX_a_b.secret", 16, 100);
        assert_eq!(batch.reply().as_str(), "_INBOX_a_b.secret.secret-100.16.fail.1.0.$FI");
        assert_eq!(batch.reply().as_str(), "_INBOX_a_b.secret.secret-100.16.fail.2.1.$FI");
        let end = batch.end();
        assert_eq!(end.as_str(), "_INBOX_a_b.secret.secret-100.16.fail.3.3.$FI");
        assert!(
            batch.owns(&end)
                && !batch.owns("_INBOX_a_b.secret.7")
                && !batch.owns("_INBOX_a_b.other.other-100.16.fail.1.0.$FI")
        );
        assert_eq!((batch.last(), batch.is_closing), (102, false));
    }

    #[test]
    fn what_is_said_of_a_batch_that_is_over_is_not_of_the_next_one() {
        let mut next = Batch::new("a.b".into(), "_INBOX_a_b.secret", 16, 140);
        assert!(!batch().owns(&next.reply()) && !next.owns(&batch().reply()));
    }

    #[test]
    fn answers_are_told_apart() {
        let refusal = |code| ApiError::Refused { code, description: "no".to_owned() };
        let table = [
            (r#"{"type":"ack","seq":0,"msgs":16}"#, Said::Through(100)),
            (r#"{"type":"ack","seq":16,"msgs":16}"#, Said::Through(116)),
            (r#"{"type":"ack","seq":4000,"msgs":16}"#, Said::Through(140)),
            (r#"{"type":"gap","last_seq":3,"seq":9}"#, Said::Nothing),
            (
                r#"{"type":"err","seq":17,"error":{"code":400,"err_code":10077,"description":"no"}}"#,
                Said::Refused(117, refusal(10077)),
            ),
            (
                r#"{"stream":"UPLINK","seq":99,"batch":"secret","count":40}"#,
                Said::Ended(140, Stored { sequence: 99, duplicate: false }),
            ),
            (
                r#"{"stream":"UPLINK","seq":99,"duplicate": true,"batch":"secret","count":1}"#,
                Said::Ended(101, Stored { sequence: 99, duplicate: true }),
            ),
            // A server or a stream that knows no batches.
            (r#"{"stream":"UPLINK","seq":7}"#, Said::Single(102, Stored { sequence: 7, duplicate: false })),
            (
                r#"{"error":{"code":400,"err_code":10205,"description":"no"},"stream":"UPLINK","seq":0}"#,
                Said::Failed(102, refusal(10205)),
            ),
            (
                r#"{"error":{"code":429,"err_code":10211,"description":"no"}}"#,
                Said::Failed(102, refusal(10211)),
            ),
        ];
        for (text, expected) in table {
            let said = batch().judge(102, serde_json::from_str(text).unwrap());
            assert_eq!(said, expected, "{text}");
        }
        let nothing = batch().judge(102, serde_json::from_str("{}").unwrap());
        assert!(matches!(nothing, Said::Failed(102, ApiError::Unreadable(_))));
    }
}
