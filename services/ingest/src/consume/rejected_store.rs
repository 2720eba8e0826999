//! Stores rejected reports in QUARANTINE and interprets the answers. [`session`](crate::session) decides what follows.

use std::collections::VecDeque;

use fastrand::Rng;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use muster_bus::{Bus, Delivery, Outgoing, PublishError, ReadError, Stored, Window};
use muster_contract::subjects::stream;
use muster_domain::intake::{NotStored, Rejection};
use muster_service::error::chain;

use crate::limits::REJECTIONS_IN_FLIGHT;
use crate::message;
use crate::quarantine_alarm::QuarantineAlarm;

/// The rejected reports of one partition that QUARANTINE has yet to answer.
pub(super) struct RejectedStore {
    bus: Bus,
    alarm: QuarantineAlarm,
    window: Window<Sent>,
    /// Reads of the messages whose id QUARANTINE recognised.
    lookups: FuturesUnordered<BoxFuture<'static, Lookup>>,
    /// Reports to send again as soon as there is a connection.
    unsent: VecDeque<Sent>,
}

/// A report in flight, with its message in case it must be sent again.
#[derive(Clone)]
struct Sent {
    ticket: u64,
    may_be_kept: bool,
    message: Outgoing,
}

/// A report and the message that QUARANTINE holds under its id.
type Lookup = (Sent, Result<Option<Delivery>, ReadError>);

/// The ticket of a report, and whether QUARANTINE holds it.
pub(super) type StoreAnswer = (u64, Result<(), NotStored>);

impl RejectedStore {
    pub(super) fn new(bus: &Bus, alarm: QuarantineAlarm) -> Self {
        let window = bus.window(REJECTIONS_IN_FLIGHT);
        Self { bus: bus.clone(), alarm, window, lookups: FuturesUnordered::new(), unsent: VecDeque::new() }
    }

    pub(super) async fn send(&mut self, rejection: &Rejection, rng: &mut Rng) {
        let message = message::rejected(rejection, rng);
        let Rejection { ticket, may_be_kept, .. } = *rejection;
        self.window.send(message.clone(), Sent { ticket, may_be_kept, message }).await;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.window.is_empty() && self.lookups.is_empty() && self.unsent.is_empty()
    }

    /// The next answer; `None` if nothing is in flight. Cancel-safe: a report whose sending is interrupted is sent twice under
    /// one id, and the second answer has an unknown ticket.
    pub(super) async fn answer(&mut self) -> Option<StoreAnswer> {
        loop {
            self.send_again().await;
            tokio::select! {
                Some((sent, answer)) = self.window.next(), if !self.window.is_empty() => {
                    if let Some(answer) = self.interpret(sent, answer) {
                        return Some(answer);
                    }
                }
                Some(lookup) = self.lookups.next(), if !self.lookups.is_empty() => {
                    if let Some(answer) = self.apply_lookup(lookup) {
                        return Some(answer);
                    }
                }
                else => return None,
            }
        }
    }

    async fn send_again(&mut self) {
        while let Some(sent) = self.unsent.front().cloned() {
            // An error means that the bus is gone; the publish will fail.
            let _ = self.bus.link().wait_for(|link| link.is_up()).await;
            self.window.send(sent.message.clone(), sent).await;
            self.unsent.pop_front();
        }
    }

    /// The answer to a report; `None` if it must be looked up or sent again first.
    fn interpret(&mut self, sent: Sent, answer: Result<Stored, PublishError>) -> Option<StoreAnswer> {
        match answer {
            Ok(Stored { duplicate: true, sequence }) => {
                let bus = self.bus.clone();
                self.lookups
                    .push(Box::pin(async move { (sent, bus.at(stream::QUARANTINE, sequence).await) }));
                None
            }
            Ok(_) => Some((sent.ticket, Ok(()))),
            // QUARANTINE may have stored it, and recognises its id over the next connection.
            Err(error) if error.is_of_the_link() => {
                self.unsent.push_back(sent);
                None
            }
            Err(error) => {
                self.alarm.raise_if_full(&error);
                Some((sent.ticket, Err(not_stored(&error))))
            }
        }
    }

    /// The answer to a report whose id was recognised; `None` if it is sent again without an id, because QUARANTINE recognises
    /// an id even after its message was removed.
    fn apply_lookup(&mut self, (sent, found): Lookup) -> Option<StoreAnswer> {
        match found {
            Ok(Some(_)) => Some((sent.ticket, Ok(()))),
            // A verdict removed the report.
            Ok(None) if sent.may_be_kept => Some((sent.ticket, Ok(()))),
            Ok(None) => {
                let message = Outgoing { message_id: None, ..sent.message };
                self.unsent.push_back(Sent { message, ..sent });
                None
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "cannot read QUARANTINE; the device keeps its report");
                Some((sent.ticket, Err(NotStored::Unavailable)))
            }
        }
    }
}

fn not_stored(error: &PublishError) -> NotStored {
    tracing::debug!(
        error = chain(error),
        "cannot store a rejected report in QUARANTINE; its device keeps it"
    );
    if error.is_full() { NotStored::Full } else { NotStored::Unavailable }
}
