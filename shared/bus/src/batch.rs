//! Fast batches of JetStream (ADR-50), in which one answer confirms many messages. This module makes the reply subjects of
//! a batch and parses its answers; [`crate::window`] sends the messages.
//!
//! The reply subject of each message has its number. The server answers the first message at once, then every `flow`
//! messages with the number up to which it has stored, and at the end with the stream sequence of the last one. With gap
//! mode `fail` it ends the batch at a missing or refused message and stores none after it. A message whose id it has seen
//! counts as stored, as without a batch. An end marker, which is not stored, closes the batch; its answer says how many
//! messages are stored.
//!
//! ```text
//! <inbox>.<name>.<flow>.fail.<number>.<operation>.$FI
//!            └ a secret: a client that knows it can write to the batch, so it is a part of the random inbox
//! ```
//!
//! Every batch of an inbox has its own name: when another server of a replicated stream becomes leader, it repeats the
//! answers of batches that are over, and those must not count for the next batch.

use async_nats::{Message, StatusCode, Subject};
use serde::Deserialize;

use crate::message::Stored;
use crate::wire::{ApiError, FailureBody, NoAnswer, unreadable};

const SUFFIX: &str = ".$FI";
const START: u8 = 0;
const APPEND: u8 = 1;
const END: u8 = 3;

/// A batch that is open, or whose first message is under way.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The subject of its messages.
    pub(crate) subject: Subject,
    /// The part of the reply subjects before the number.
    prefix: String,
    /// Number in the window of the message before the batch's first.
    base: u64,
    sent: u64,
    /// Messages that one answer confirms.
    flow: usize,
    /// The server has answered the first message.
    pub(crate) is_open: bool,
    /// The end marker is on its way.
    pub(crate) is_closing: bool,
    /// The refusal of a message whose subject is full. All later messages of the batch have the same subject and are refused
    /// as well.
    pub(crate) full: Option<ApiError>,
}

/// A parsed answer to the messages of a batch. Numbers are those of the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BatchAnswer {
    /// The messages up to this number are stored.
    Through(u64),
    /// The message of this number is refused; the next answer says where the batch ended.
    Refused(u64, ApiError),
    /// The batch is over; it is stored up to this number. The confirmation of the last stored message.
    Ended(u64, Stored),
    /// The message was stored as a single one: the server or the stream does not support batches.
    Single(u64, Stored),
    /// The batch does not exist or is not possible; the answer to the message of this number.
    Failed(u64, ApiError),
    /// An answer that later answers repeat.
    Nothing,
}

#[derive(Deserialize)]
struct AnswerBody {
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

    /// The reply subject of the next message.
    pub(crate) fn reply(&mut self) -> Subject {
        self.sent += 1;
        self.inbox(self.sent, if self.sent == 1 { START } else { APPEND })
    }

    /// The reply subject of the end marker.
    pub(crate) fn end(&self) -> Subject {
        self.inbox(self.sent + 1, END)
    }

    /// True while fewer than `flow` messages wait for an answer, so that the server answers only after further messages.
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

    /// True for a reply subject of this batch.
    pub(crate) fn owns(&self, subject: &str) -> bool {
        subject.starts_with(&self.prefix) && subject.ends_with(SUFFIX)
    }

    /// Parses an answer.
    pub(crate) fn read(&self, answer: &Message) -> BatchAnswer {
        let number = self.of_window(self.number(&answer.subject));
        if answer.status == Some(StatusCode::NO_RESPONDERS) {
            return BatchAnswer::Failed(number, NoAnswer::NoResponders.into());
        }
        match serde_json::from_slice(&answer.payload) {
            Ok(answer) => self.interpret(number, answer),
            Err(error) => BatchAnswer::Failed(number, unreadable(&error)),
        }
    }

    /// The number in the window; a number that was not sent becomes the last one.
    fn of_window(&self, number: u64) -> u64 {
        self.base + number.min(self.sent)
    }

    /// The number in a reply subject of this batch.
    fn number(&self, subject: &str) -> u64 {
        let rest = subject.strip_prefix(&self.prefix).and_then(|rest| rest.split('.').next());
        rest.and_then(|number| number.parse().ok()).unwrap_or_default()
    }

    fn interpret(&self, number: u64, answer: AnswerBody) -> BatchAnswer {
        match answer {
            AnswerBody { kind: Some(kind), seq: Some(seq), error: None, .. } if kind == "ack" => {
                BatchAnswer::Through(self.of_window(seq))
            }
            AnswerBody { kind: Some(kind), seq: Some(seq), error: Some(error), .. } if kind == "err" => {
                BatchAnswer::Refused(self.of_window(seq), error.into())
            }
            AnswerBody { kind: Some(_), .. } => BatchAnswer::Nothing,
            AnswerBody { error: Some(error), .. } => BatchAnswer::Failed(number, error.into()),
            AnswerBody { batch: Some(_), count: Some(count), seq, duplicate, .. } => {
                let sequence = seq.unwrap_or_default();
                BatchAnswer::Ended(self.of_window(count), Stored { sequence, duplicate })
            }
            AnswerBody { seq: Some(sequence), duplicate, .. } => {
                BatchAnswer::Single(number, Stored { sequence, duplicate })
            }
            _ => BatchAnswer::Failed(number, ApiError::Unreadable("it is no answer to a batch".to_owned())),
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
    fn each_message_has_its_number_and_the_end_marker_the_next_one() {
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
    fn an_answer_to_a_batch_does_not_count_for_the_next_one() {
        let mut next = Batch::new("a.b".into(), "_INBOX_a_b.secret", 16, 140);
        assert!(!batch().owns(&next.reply()) && !next.owns(&batch().reply()));
    }

    #[test]
    fn each_kind_of_answer_is_recognised() {
        let refusal = |code| ApiError::Refused { code, description: "no".to_owned() };
        let table = [
            (r#"{"type":"ack","seq":0,"msgs":16}"#, BatchAnswer::Through(100)),
            (r#"{"type":"ack","seq":16,"msgs":16}"#, BatchAnswer::Through(116)),
            (r#"{"type":"ack","seq":4000,"msgs":16}"#, BatchAnswer::Through(140)),
            (r#"{"type":"gap","last_seq":3,"seq":9}"#, BatchAnswer::Nothing),
            (
                r#"{"type":"err","seq":17,"error":{"code":400,"err_code":10077,"description":"no"}}"#,
                BatchAnswer::Refused(117, refusal(10077)),
            ),
            (
                r#"{"stream":"UPLINK","seq":99,"batch":"secret","count":40}"#,
                BatchAnswer::Ended(140, Stored { sequence: 99, duplicate: false }),
            ),
            (
                r#"{"stream":"UPLINK","seq":99,"duplicate": true,"batch":"secret","count":1}"#,
                BatchAnswer::Ended(101, Stored { sequence: 99, duplicate: true }),
            ),
            // A server or a stream that does not support batches.
            (
                r#"{"stream":"UPLINK","seq":7}"#,
                BatchAnswer::Single(102, Stored { sequence: 7, duplicate: false }),
            ),
            (
                r#"{"error":{"code":400,"err_code":10205,"description":"no"},"stream":"UPLINK","seq":0}"#,
                BatchAnswer::Failed(102, refusal(10205)),
            ),
            (
                r#"{"error":{"code":429,"err_code":10211,"description":"no"}}"#,
                BatchAnswer::Failed(102, refusal(10211)),
            ),
        ];
        for (text, expected) in table {
            let answer = batch().interpret(102, serde_json::from_str(text).unwrap());
            assert_eq!(answer, expected, "{text}");
        }
        let nothing = batch().interpret(102, serde_json::from_str("{}").unwrap());
        assert!(matches!(nothing, BatchAnswer::Failed(102, ApiError::Unreadable(_))));
    }
}
