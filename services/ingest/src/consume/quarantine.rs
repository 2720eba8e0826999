//! Requests about messages in quarantine. The owner of the partition answers, because its account and its fence are what
//! they are judged by; and it answers once LEDGER has what follows. A request that gets no answer may be asked again.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use muster_bus::{Bus, Delivery, Question, Questions, ReadError};
use muster_contract::decode;
use muster_contract::fact::QuarantineFact;
use muster_contract::partition::partition_of;
use muster_contract::quarantine::{QuarantineAction, QuarantineAnswer, QuarantineRequest};
use muster_contract::query::{ErrorBody, ErrorCode, ErrorReply};
use muster_contract::subjects::{LedgerSubject, judge_quarantine, stream};
use muster_contract::{DeviceKey, Timestamp};
use muster_domain::border::{Because, Border, Judged};
use muster_service::error::chain;
use serde::Serialize;

/// Requests whose message is being looked up; more wait at the bus.
const LOOKUPS_MAX: usize = 16;
/// The partition whose owner looks after messages of senders without a valid name.
const OF_NOBODY: u16 = 0;

/// A request and the message it is about.
#[derive(Debug)]
pub(super) struct Case {
    question: Question,
    request: QuarantineRequest,
    held: Result<Option<Delivery>, ReadError>,
}

impl Case {
    /// The device whose report the request wants to be judged again.
    pub(super) fn device(&self) -> Option<DeviceKey> {
        let subject = LedgerSubject::parse(&self.held.as_ref().ok()?.as_ref()?.subject)?;
        match (self.request.action, subject) {
            (QuarantineAction::Requeue, LedgerSubject::Quarantine(key)) => key,
            _ => None,
        }
    }
}

/// Requests of one partition.
pub(super) struct Desk {
    bus: Bus,
    partition: u16,
    questions: Questions,
    lookups: FuturesUnordered<BoxFuture<'static, Case>>,
    /// Answers that wait until so many publications have arrived.
    owed: VecDeque<(u64, Question, QuarantineAnswer)>,
}

impl Desk {
    pub(super) async fn open(bus: &Bus, partition: u16) -> Result<Self, ReadError> {
        let questions = bus.questions(&judge_quarantine(partition)).await?;
        let (lookups, owed) = (FuturesUnordered::new(), VecDeque::new());
        Ok(Self { bus: bus.clone(), partition, questions, lookups, owed })
    }

    /// The next request, with its message. Cancel-safe.
    pub(super) async fn next(&mut self) -> Case {
        loop {
            tokio::select! {
                Some(case) = self.lookups.next() => return case,
                question = self.questions.next(), if self.lookups.len() < LOOKUPS_MAX => match question {
                    Some(question) => self.look_up(question).await,
                    // The bus is gone, and the process with it.
                    None => std::future::pending().await,
                },
            }
        }
    }

    async fn look_up(&mut self, question: Question) {
        let request = serde_json::from_slice::<QuarantineRequest>(&question.payload);
        let request = request.map_err(|error| error.to_string());
        match request.and_then(|request| request.check().map(|()| request).map_err(|error| error.to_string()))
        {
            Ok(request) => {
                let bus = self.bus.clone();
                self.lookups.push(Box::pin(async move {
                    let held = bus.at(stream::LEDGER, request.ledger_seq).await;
                    Case { question, request, held }
                }));
            }
            Err(words) => {
                refuse(question, ErrorCode::BadRequest, format!("the request cannot be read: {words}")).await;
            }
        }
    }

    /// Decides a case. What follows from it is on its way when this returns, and the answer is owed.
    pub(super) async fn decide(&mut self, border: &mut Border, case: Case, now: Timestamp) {
        let Case { question, request: QuarantineRequest { action, ledger_seq, reason }, held } = case;
        let held = match held {
            Ok(held) => held.and_then(|delivery| self.message(&delivery)),
            Err(error) => return refuse(question, ErrorCode::NotReady, chain(&error)).await,
        };
        let Some((key, fact)) = held else {
            let words =
                format!("ledger {ledger_seq} is no message in quarantine of partition {}", self.partition);
            return refuse(question, ErrorCode::NotFound, words).await;
        };
        let because = Because { reason, requested_by: question.requester.record() };
        let judged = match action {
            QuarantineAction::Requeue => border.requeue(key.as_ref(), &fact, ledger_seq, because, now),
            QuarantineAction::Drop => border.drop_held(key.as_ref(), &fact, ledger_seq, because, now),
        };
        tracing::info!(partition = self.partition, ledger.seq = ledger_seq, ?action, ?judged, "quarantine");
        let (verdict, refused) = match judged {
            Judged::Settled(verdict) => (Some(verdict), None),
            Judged::Stays(words) => (None, Some(words)),
        };
        self.owed.push_back((border.made(), question, QuarantineAnswer { ledger_seq, verdict, refused }));
    }

    /// Sends the answers whose facts have arrived.
    pub(super) async fn answer(&mut self, border: &Border) {
        while self.owed.front().is_some_and(|(needs, ..)| *needs <= border.arrived()) {
            let Some((_, question, answer)) = self.owed.pop_front() else { break };
            question.answer(written(&answer)).await;
        }
    }

    fn message(&self, delivery: &Delivery) -> Option<(Option<DeviceKey>, QuarantineFact)> {
        let Some(LedgerSubject::Quarantine(key)) = LedgerSubject::parse(&delivery.subject) else {
            return None;
        };
        (key.as_ref().map_or(OF_NOBODY, partition_of) == self.partition).then_some(())?;
        Some((key, decode::parse(&delivery.payload).ok()?))
    }
}

async fn refuse(question: Question, code: ErrorCode, message: String) {
    question.answer(written(&ErrorReply { error: ErrorBody { code, message } })).await;
}

/// Answers are JSON: writing them cannot fail.
fn written(answer: &impl Serialize) -> Bytes {
    serde_json::to_vec(answer).unwrap_or_default().into()
}
